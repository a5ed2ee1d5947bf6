//! The table of named workers.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::store::MemoryStore;

fn worker(number: usize, models: &[&str]) -> WorkerReport {
    let info = Info { models: models.iter().map(|&model| model.to_owned()).collect(), ..Info::default() };
    WorkerReport {
        url: format!("http://10.0.0.1:{number}"),
        address: Some(format!("10.0.0.1:{number}")),
        info: (!models.is_empty()).then(|| Box::new(info)),
        ..WorkerReport::default()
    }
}

fn snapshot(reporter: &str, scope: Scope, workers: &[WorkerReport]) -> Snapshot {
    Snapshot { reporter: reporter.into(), scope, ..Snapshot::of(1, 1, 1000, workers.to_vec()) }
}

struct Bed(NamedTable, MemoryStore);

impl Bed {
    fn new() -> Self {
        Self(NamedTable::new("", 64), MemoryStore::default())
    }

    fn take(&mut self, snapshot: &Snapshot) -> Noted {
        let known = Rc::new(self.0.read(&mut self.1).unwrap());
        let (named, noted) = self.0.take(&mut self.1, &known, snapshot, |_, _| Ok(())).unwrap().unwrap();
        let read = self.0.read(&mut self.1).unwrap();
        assert_eq!((named.changes, &named.records), (read.changes, &read.records));
        let urls: BTreeSet<&str> = snapshot.workers.iter().map(|worker| worker.url.as_str()).collect();
        let contradicts_itself = urls.len() < snapshot.workers.len();
        assert!(noted.dropped > 0 || contradicts_itself || !read.is_news(snapshot));
        noted
    }

    /// Reporter by reporter the ports of the workers they name.
    fn named(&mut self) -> Vec<(u64, String)> {
        let named = self.0.read(&mut self.1).unwrap();
        let port = |record: &Record| record.url.rsplit(':').next().unwrap().to_owned();
        named.records.iter().map(|record| (record.reporter, port(record))).collect()
    }
}

#[test]
fn a_full_snapshot_replaces_what_its_reporter_has_named_and_nobody_elses() {
    let mut bed = Bed::new();
    let (a, b) = (reporter_hash("a"), reporter_hash("b"));
    bed.take(&snapshot("a", Scope::Some, &[worker(1, &[]), worker(2, &[])]));
    bed.take(&snapshot("b", Scope::Full, &[worker(2, &[])]));
    bed.take(&snapshot("a", Scope::Full, &[worker(3, &[]), worker(1, &[])]));
    assert_eq!(bed.named(), [(a, "1".into()), (b, "2".into()), (a, "3".into())]);
    for scope in [Scope::Some, Scope::Since(3)] {
        let removed = vec!["http://10.0.0.1:2/".to_owned(), "http://10.0.0.1:1".to_owned()];
        bed.take(&Snapshot { removed, ..snapshot("a", scope, &[]) });
    }
    assert_eq!(bed.named(), [(b, "2".into()), (a, "3".into())]);
}

#[test]
fn what_is_not_said_again_stands_as_it_was_last_told() {
    let mut bed = Bed::new();
    assert!(bed.take(&snapshot("", Scope::Full, &[worker(1, &["m"])])).changed);
    let bare = WorkerReport { address: None, info: None, ..worker(1, &[]) };
    assert!(!bed.take(&snapshot("", Scope::Full, &[bare])).changed);
    let named = bed.0.read(&mut bed.1).unwrap();
    assert_eq!((named.changes(), named.records()[0].address.as_deref()), (1, Some("10.0.0.1:1")));
    assert_eq!(named.records()[0].info.as_ref().unwrap().models, ["m"]);
    assert!(bed.take(&snapshot("", Scope::Some, &[worker(1, &["n"])])).changed);
}

#[test]
fn a_replaced_worker_stands_at_the_end() {
    let mut bed = Bed::new();
    bed.take(&snapshot("", Scope::Full, &[worker(1, &[]), worker(2, &[]), worker(3, &[])]));
    let moved = |number| WorkerReport { address: Some("10.0.0.9:9".into()), ..worker(number, &[]) };
    bed.take(&snapshot("", Scope::Full, &[moved(2), moved(1), worker(3, &[])]));
    let order: Vec<String> = bed.named().into_iter().map(|(_, port)| port).collect();
    assert_eq!(order, ["3", "1", "2"]);
}

#[test]
fn workers_and_bytes_are_bounded() {
    let mut bed = Bed::new();
    let long = "x".repeat(MAX_WORKER_BYTES);
    let nowhere = WorkerReport { url: "http://10.0.0.1:80/path".into(), ..worker(80, &[]) };
    let none = snapshot("", Scope::Full, &[worker(1, &[&long]), nowhere]);
    assert_eq!(bed.take(&none), Noted { changed: false, dropped: 2 });
    let many: Vec<_> = (1..=70).map(|number| worker(number, &[])).collect();
    assert_eq!(bed.take(&snapshot("", Scope::Full, &many)), Noted { changed: true, dropped: 6 });
    assert_eq!(bed.take(&snapshot("other", Scope::Full, &many[..64])).dropped, 0, "the same workers");
    let large = "x".repeat(3000);
    let large: Vec<_> = (1..=64).map(|number| worker(number, &[&large])).collect();
    let noted = bed.take(&snapshot("", Scope::Full, &large));
    assert!(noted.dropped > 50, "{noted:?}");
    assert!(bed.0.read(&mut bed.1).unwrap().encode().len() <= 64 * BYTES_PER_SLOT + HEADER_BYTES);
}

#[test]
fn only_addresses_that_a_host_can_have_are_taken_and_written_as_envoy_writes_them() {
    assert_eq!(canonical("10.0.0.1:80").as_deref(), Some("10.0.0.1:80"));
    assert_eq!(canonical("[0:0:0:0:0:0:0:1]:80").as_deref(), Some("[::1]:80"));
    for text in ["10.0.0.1", "10.0.0.1:0", "[fe80::1%3]:80", "engine:80", ""] {
        assert_eq!(canonical(text), None, "{text}");
    }
}

proptest! {
    /// Reporters say what they like, in any order: the table is what a list per reporter would be.
    #[test]
    fn the_table_is_what_each_reporter_has_said(
        said in prop::collection::vec((0..3_u8, 0..3_u8, prop::collection::vec((0..8_usize, 0..4_u8), 0..6), 0..8_usize), 1..30),
    ) {
        let (mut bed, mut model) = (Bed::new(), BTreeMap::<(u64, String), (Option<String>, Option<u8>)>::new());
        for (reporter, scope, workers, removed) in said {
            let name = reporter.to_string();
            let hash = reporter_hash(&name);
            let scope = [Scope::Some, Scope::Full, Scope::Since(1)][usize::from(scope)];
            let url = |number: usize| format!("http://10.0.0.1:{}", number + 1);
            let report = |&(number, kind): &(usize, u8)| WorkerReport {
                url: url(number),
                address: (kind & 1 != 0).then(|| format!("10.0.0.{kind}:1")),
                info: (kind & 2 != 0).then(|| Box::new(Info { dp_size: u32::from(kind), ..Info::default() })),
                ..WorkerReport::default()
            };
            let snapshot = Snapshot {
                removed: vec![url(removed)],
                ..snapshot(&name, scope, &workers.iter().map(report).collect::<Vec<_>>())
            };
            let named: Vec<String> = workers.iter().map(|worker| url(worker.0)).collect();
            model.retain(|(of, worker), _| {
                *of != hash || named.contains(worker) || (scope != Scope::Full && *worker != url(removed))
            });
            for (number, kind) in workers {
                let known = model.entry((hash, url(number))).or_default();
                known.0 = (kind & 1 != 0).then(|| format!("10.0.0.{kind}:1")).or(known.0.take());
                known.1 = (kind & 2 != 0).then_some(kind).or(known.1);
            }
            bed.take(&snapshot);
            let table = bed.0.read(&mut bed.1).unwrap();
            let info = |record: &Record| record.info.as_ref().map(|info| info.dp_size as u8);
            let held: BTreeMap<_, _> = table
                .records
                .iter()
                .map(|record| ((record.reporter, record.url.clone()), (record.address.clone(), info(record))))
                .collect();
            prop_assert_eq!(held.len(), table.records.len());
            prop_assert_eq!(&held, &model);
        }
    }
}
