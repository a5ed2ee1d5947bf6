//! The puller against a sidecar that is played by the test.

use super::{Call, Outcome, Puller};
use crate::balancer::tests::{Vm, config, load, snapshot};
use crate::report::{MAX_SNAPSHOT_BYTES, Scope, Snapshot};
use crate::store::MemoryStore;

const REPORTS: &str = r#""reports":{"cluster":"sidecar","token":"secret","wait_ms":700},"#;

/// A VM of two workers with its puller.
struct Bed {
    vm: Vm,
    puller: Puller,
    number: u32,
}

impl Bed {
    fn new(store: &MemoryStore, number: u64) -> Self {
        let vm = Vm::new(config("least_load", 2, REPORTS), store.clone(), number);
        Self { vm, puller: Puller::default(), number: 0 }
    }

    /// The leader of its own tables.
    fn alone() -> Self {
        let mut bed = Self::new(&MemoryStore::default(), 0);
        bed.vm.tick();
        bed
    }

    /// A tick; a call that is due is made.
    fn tick(&mut self) -> Option<Call> {
        self.vm.pass(250);
        self.vm.tick();
        let Self { vm: Vm { balancer, world }, puller, .. } = self;
        let call = world.run(|context, _| puller.on_tick(context, balancer));
        self.sent(call)
    }

    fn sent(&mut self, call: Option<Call>) -> Option<Call> {
        let call = call?;
        self.number += 1;
        let (number, Self { vm: Vm { balancer, world }, puller, .. }) = (self.number, self);
        world.run(|context, _| puller.on_sent(context, balancer, Ok(number)));
        Some(call)
    }

    /// The answer to the call that is under way; the call that follows at once is made.
    fn answer(&mut self, status: &str, body: &[u8]) -> Option<Call> {
        let number = self.number;
        let Self { vm: Vm { balancer, world }, puller, .. } = self;
        let next = world.run(|context, _| {
            let status = (!status.is_empty()).then_some(status.as_bytes());
            if !puller.on_head(context, balancer, number, status, body.len()) {
                return None;
            }
            let fetched = puller.on_body(context, balancer, body)?;
            crate::ingest::take(context, balancer, body);
            puller.on_taken(context, balancer, fetched)
        });
        self.sent(next)
    }

    /// The answer to the call that is under way, which another thread takes off the queue: the call that follows at once.
    fn send_past(&mut self, snapshot: &Snapshot) -> Option<Call> {
        let (number, body) = (self.number, snapshot.to_bytes());
        let Self { vm: Vm { balancer, world }, puller, .. } = self;
        world.run(|context, _| {
            assert!(puller.on_head(context, balancer, number, Some(b"200"), body.len()));
            let fetched = puller.on_body(context, balancer, &body)?;
            puller.on_taken(context, balancer, fetched)
        })
    }

    fn take(&mut self, snapshot: &Snapshot) {
        let Vm { balancer, world } = &mut self.vm;
        world.run(|context, _| crate::ingest::take(context, balancer, &snapshot.to_bytes()));
    }

    fn send(&mut self, snapshot: &Snapshot) -> Option<Call> {
        self.answer("200", &snapshot.to_bytes())
    }

    fn counted(&mut self, outcome: Outcome) -> u64 {
        self.vm.metric(&format!("smg_report_pulls_total;outcome={}", outcome.as_str()))
    }

    /// Ticks until the next call, in milliseconds.
    fn pause(&mut self) -> u64 {
        (1..).find(|_| self.tick().is_some()).unwrap_or(0) * 250
    }

    fn lines(&self) -> Vec<&str> {
        let lines = self.vm.world.log.0.iter().map(|(_, line)| line.as_str());
        lines.filter(|line| line.contains("load snapshots c")).collect()
    }
}

fn path(call: &Call) -> &str {
    call.headers.iter().find(|(name, _)| *name == ":path").map_or("", |(_, value)| value)
}

fn of(scope: Scope, sequence: u64) -> Snapshot {
    let loads = [(0, load(1e6, 0.0, 0.0, 0.0)), (1, load(0.0, 0.0, 0.0, 0.0))];
    Snapshot { scope, reporter: "rack".into(), ..snapshot(sequence, &loads) }
}

#[test]
fn a_call_says_who_asks_and_what_is_known() {
    let mut bed = Bed::alone();
    let call = bed.tick().unwrap();
    assert_eq!((call.cluster.as_str(), call.timeout_ms), ("sidecar", 5000));
    let header = |name, value: &str| call.headers.contains(&(name, value.to_owned()));
    assert!(header(":method", "GET") && header(":authority", "sidecar") && header("authorization", "Bearer secret"));
    assert_eq!(path(&call), "/v1/snapshot?wait_ms=700");
    let next = bed.send(&of(Scope::Full, 7)).expect("there may be more");
    assert_eq!(path(&next), "/v1/snapshot?wait_ms=700&epoch=1&sequence=7");
    assert_eq!(bed.vm.pick(), 1, "the snapshot counts");
    let next = bed.send(&of(Scope::Since(7), 8)).unwrap();
    assert_eq!(path(&next), "/v1/snapshot?wait_ms=700&epoch=1&sequence=8");
    assert_eq!((bed.counted(Outcome::News), bed.lines().len()), (2, 1));
}

#[test]
fn one_call_is_under_way_at_a_time() {
    let mut bed = Bed::alone();
    assert!(bed.tick().is_some());
    assert!((0..20).all(|_| bed.tick().is_none()));
    assert!(bed.answer("204", b"").is_none(), "nothing is new, so there is time until the next tick");
    assert!(bed.tick().is_some());
    assert_eq!(bed.counted(Outcome::Unchanged), 1);
}

#[test]
fn who_does_not_lead_does_not_ask_and_who_leads_next_goes_on() {
    let store = MemoryStore::default();
    let (mut one, mut two) = (Bed::new(&store, 0), Bed::new(&store, 1));
    assert!(one.tick().is_some());
    assert!((0..20).all(|_| one.tick().is_none() && two.tick().is_none()));
    one.send(&of(Scope::Full, 7));
    let first = (0..20).find_map(|_| two.tick()).expect("it leads when the other one has gone");
    assert_eq!(path(&first), "/v1/snapshot?wait_ms=700&epoch=1&sequence=7");
    two.send(&of(Scope::Full, 9));
    assert!(one.tick().is_none() && one.send(&of(Scope::Since(7), 8)).is_none(), "it has lost the lease");
    assert_eq!((one.counted(Outcome::Old), one.vm.pick()), (1, 1));
}

#[test]
fn failures_are_counted_told_once_and_followed_by_growing_pauses() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    bed.send(&of(Scope::Full, 1)).unwrap();
    let garbage: [(&str, &[u8], Outcome); 8] = [
        ("401", b"", Outcome::Unauthorized),
        ("403", b"", Outcome::Unauthorized),
        ("404", b"", Outcome::NotFound),
        ("503", b"", Outcome::Status),
        ("200", b"", Outcome::Malformed),
        ("200", b"<html>", Outcome::Malformed),
        ("200", br#"{"version":3}"#, Outcome::Version),
        ("", b"", Outcome::Unreachable),
    ];
    let mut pauses = Vec::new();
    for (status, body, outcome) in garbage {
        let before = bed.counted(outcome);
        assert!(bed.answer(status, body).is_none());
        assert_eq!(bed.counted(outcome), before + 1, "{status}");
        pauses.push(bed.pause());
    }
    for (number, pause) in pauses.iter().enumerate() {
        let middle = (1000 << number.min(5)).min(30_000);
        assert!((middle * 4 / 5..=middle * 6 / 5 + 250).contains(pause), "{pauses:?}");
    }
    let kinds = ["token", "404", "503", "not a load snapshot", "version 3", "does not answer"];
    let lines = bed.lines();
    assert_eq!(lines.len(), 1 + kinds.len(), "{lines:#?}");
    assert!(kinds.iter().zip(&lines[1..]).all(|(kind, line)| line.contains(kind)), "{lines:#?}");
    bed.send(&of(Scope::Full, 2)).unwrap();
    assert!(bed.lines().last().unwrap().contains("come from cluster sidecar"));
    bed.answer("404", b"");
    assert!(bed.pause() <= 1450, "the pauses begin anew");
}

#[test]
fn too_much_is_not_read() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    assert!(bed.answer("200", &vec![b' '; MAX_SNAPSHOT_BYTES + 1]).is_none());
    assert_eq!(bed.counted(Outcome::Malformed), 1);
}

#[test]
fn a_cluster_that_is_not_there_is_a_failure_too() {
    let mut bed = Bed::alone();
    bed.vm.pass(250);
    let Bed { vm: Vm { balancer, world }, puller, .. } = &mut bed;
    let call = world.run(|context, _| puller.on_tick(context, balancer));
    assert!(call.is_some());
    world.run(|context, _| puller.on_sent(context, balancer, Err(2)));
    assert!(bed.pause() >= 800);
    assert_eq!(bed.counted(Outcome::Unreachable), 1);
}

#[test]
fn a_gap_is_closed_by_asking_for_everything() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    bed.send(&of(Scope::Full, 1)).unwrap();
    let next = bed.send(&of(Scope::Since(5), 6)).unwrap();
    assert_eq!(path(&next), "/v1/snapshot?wait_ms=700");
    let next = bed.send(&of(Scope::Full, 7)).unwrap();
    assert_eq!((path(&next), bed.counted(Outcome::Gap)), ("/v1/snapshot?wait_ms=700&epoch=1&sequence=7", 1));
}

#[test]
fn who_answers_with_deltas_only_is_asked_less_and_less_often() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    assert!(bed.send(&of(Scope::Since(5), 6)).is_none());
    assert!(bed.pause() >= 800);
    assert!(bed.send(&of(Scope::Since(6), 7)).is_none());
    assert!(bed.pause() >= 1600);
    assert_eq!(bed.vm.pick(), 1, "whom it names is known");
}

#[test]
fn a_sidecar_that_starts_anew_is_followed() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    bed.send(&of(Scope::Full, 7)).unwrap();
    let next = bed.send(&Snapshot { epoch: 2, ..of(Scope::Full, 1) }).unwrap();
    assert_eq!(path(&next), "/v1/snapshot?wait_ms=700&epoch=2&sequence=1");
}

#[test]
fn a_sidecar_that_repeats_itself_or_always_has_news_keeps_no_thread_busy() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    bed.send(&of(Scope::Full, 1)).unwrap();
    assert!(bed.send(&of(Scope::Full, 1)).is_none(), "the same again");
    let mut calls = 0;
    let mut next = bed.tick();
    for sequence in 2..100 {
        calls += u32::from(next.is_some());
        next = next.and_then(|_| bed.send(&of(Scope::Full, sequence)));
    }
    assert_eq!(calls, super::MAX_CALLS_PER_TICK);
    assert!(bed.tick().is_some());
}

#[test]
fn a_call_whose_end_is_not_told_does_not_stop_it() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    let waited = bed.pause();
    assert!((7000..10_000).contains(&waited), "{waited}");
    assert_eq!(bed.counted(Outcome::Unreachable), 1);
    bed.number -= 1;
    assert!(bed.send(&of(Scope::Full, 1)).is_none(), "the end of an earlier call is none of this one's");
    bed.number += 1;
    bed.puller.on_abandoned();
    assert!(bed.tick().is_some(), "a configuration that goes takes its call with it");
}

#[test]
fn what_the_queue_does_not_take_is_lost() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    let Bed { vm: Vm { balancer, world }, puller, .. } = &mut bed;
    world.run(|context, _| {
        assert!(puller.on_head(context, balancer, 1, Some(b"200"), 0));
        assert!(puller.on_body(context, balancer, &of(Scope::Full, 1).to_bytes()).is_some());
        puller.on_refused(context, balancer, 7);
    });
    assert_eq!(bed.counted(Outcome::Lost), 1);
    assert!(bed.pause() >= 800);
}

/// The host announces what is put on the queue to another thread.
#[test]
fn a_snapshot_that_another_thread_has_in_hands_is_waited_for() {
    let store = MemoryStore::default();
    let (mut one, mut two) = (Bed::new(&store, 0), Bed::new(&store, 1));
    one.tick().unwrap();
    for (snapshot, known) in [(of(Scope::Full, 7), 7), (of(Scope::Since(7), 8), 8)] {
        assert!(one.send_past(&snapshot).is_none() && one.tick().is_none(), "it is not known yet");
        two.take(&snapshot);
        let next = one.tick().expect("now it is");
        assert_eq!(path(&next), format!("/v1/snapshot?wait_ms=700&epoch=1&sequence={known}"));
    }
    assert_eq!((one.counted(Outcome::News), one.counted(Outcome::Old), one.vm.pick()), (2, 0, 1));

    assert!(one.send_past(&of(Scope::Since(8), 9)).is_none());
    two.take(&of(Scope::Full, 10));
    assert!(one.tick().is_none());
    assert_eq!(one.counted(Outcome::Old), 1, "a later one has come another way");
    assert!(path(&one.tick().unwrap()).ends_with("epoch=1&sequence=10"));
}

#[test]
fn a_snapshot_that_no_thread_ever_takes_is_lost() {
    let mut bed = Bed::alone();
    bed.tick().unwrap();
    assert!(bed.send_past(&of(Scope::Full, 1)).is_none());
    assert!((2800..=3700 + 250).contains(&bed.pause()), "two seconds, and the pause after a failure");
    assert_eq!((bed.counted(Outcome::Lost), bed.lines().len()), (1, 1));
    assert!(bed.send(&of(Scope::Full, 1)).is_some());
}

#[test]
fn pullers_go_by_tables_and_cluster() {
    let name = |more: &str| {
        let vm = Vm::alone(config("random", 1, more));
        Puller::name(&vm.balancer)
    };
    assert_eq!(name(""), None);
    let one = name(r#""reports":{"cluster":"a"},"#);
    assert!(one.is_some());
    assert_eq!(name(r#""reports":{"cluster":"a","wait_ms":7},"#), one);
    assert_ne!(name(r#""reports":{"cluster":"b"},"#), one);
    assert_ne!(name(r#""instance":"i","reports":{"cluster":"a"},"#), one);
}
