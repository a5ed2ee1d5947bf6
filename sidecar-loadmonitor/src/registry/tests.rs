//! The book by itself: who is named, drains, goes, returns, and what readers are told.

use std::{sync::Arc, time::Duration};

use filter_core::report::{Health, Load, Scope, Snapshot};
use tokio::time::Instant;

use super::{
    Rules, Stamp,
    book::{Book, Outcome, Start},
};
use crate::{
    config::{MAX_WORKERS, Worker},
    discovery::Found,
    engine::{Polled, Told},
    health::Thresholds,
    spec::WorkerSpec,
};

const SETTLE: Duration = Duration::from_secs(5);

struct Bed {
    book: Book,
    stamp: Stamp,
    now: Instant,
}

fn bed(sources: usize, remove_failed: bool) -> Bed {
    let thresholds = Thresholds { success: 1, failure: 1 };
    let rules = Rules { probing: true, thresholds, drain_settle: SETTLE, remove_failed, polling: true };
    Bed { book: Book::new(rules, sources), stamp: Stamp::new("r".into(), Duration::from_secs(1)), now: Instant::now() }
}

fn found(url: &str) -> Found {
    let spec = Arc::new(WorkerSpec { url: url.to_owned(), ..WorkerSpec::default() });
    Found { worker: Worker::parse(url).unwrap(), spec, verdict: None }
}

impl Bed {
    fn name(&mut self, source: usize, urls: &[&str]) -> Outcome {
        self.book.named(source, urls.iter().map(|url| found(url)).collect(), self.now)
    }

    fn probe(&mut self, start: &Start, succeeds: bool) -> Health {
        let probe = if succeeds { Ok(()) } else { Err("down".to_owned()) };
        self.book.probed(&start.key, start.life, probe, true).unwrap().0
    }

    fn poll(&mut self, start: &Start, waiting: f64) {
        let load = Load { waiting, ..Load::default() };
        let told = Ok(Told { load, ranks: Vec::new(), source: "/v1/loads" });
        self.book.polled(&start.key, start.life, Polled { address: None, told }, 0.001, self.now);
    }

    /// Names these and has them ready.
    fn ready(&mut self, urls: &[&str]) -> Vec<Start> {
        let starts = self.name(0, urls).start;
        for start in &starts {
            assert_eq!(self.probe(start, true), Health::Ready);
        }
        self.book.completes();
        starts
    }

    fn all(&mut self) -> Snapshot {
        self.book.publish_all(&self.stamp).unwrap()
    }

    fn news(&mut self) -> Option<Snapshot> {
        self.book.publish_news(&self.stamp)
    }

    fn since(&self, sequence: u64) -> Snapshot {
        self.book.since(&self.stamp, Some((self.stamp.epoch, sequence))).unwrap()
    }

    fn later(&mut self, time: Duration) -> Outcome {
        self.now += time;
        self.book.reap(self.now)
    }
}

fn healths(snapshot: &Snapshot) -> Vec<(&str, Health)> {
    let mut all: Vec<_> = snapshot.workers.iter().map(|worker| (worker.url.as_str(), worker.health.unwrap())).collect();
    all.sort_unstable_by_key(|(url, _)| *url);
    all
}

#[test]
fn a_worker_leaves_when_the_last_source_drops_it_and_drains_first() {
    let mut bed = bed(2, false);
    let starts = bed.ready(&["http://a:1", "http://b:1"]);
    assert!(!bed.book.complete(), "the other source has not said anything");
    assert_eq!(bed.all().scope, Scope::Some);
    // The same engine, written otherwise: the first source's name stays.
    assert!(bed.name(1, &["http://a:1/"]).start.is_empty());
    assert!(bed.book.completes());
    assert!(bed.name(0, &["http://b:1"]).stop.is_empty());
    bed.name(0, &["http://b:1"]);
    let all = bed.all();
    assert_eq!(healths(&all), [("http://a:1/", Health::Ready), ("http://b:1", Health::Ready)]);

    bed.name(1, &[]);
    let news = bed.news().unwrap();
    assert_eq!(healths(&news), [("http://a:1/", Health::Draining)]);
    assert!(bed.later(SETTLE / 2).stop.is_empty());
    assert_eq!(bed.later(SETTLE / 2).stop, [starts[0].key.as_str()]);
    let news = bed.news().unwrap();
    assert_eq!((news.removed.as_slice(), news.workers.len()), (&["http://a:1/".to_owned()][..], 0));
    assert_eq!(bed.since(all.sequence).removed, ["http://a:1/"]);
}

#[test]
fn a_name_and_the_address_that_it_stands_for_are_one_worker() {
    let mut bed = bed(2, false);
    let start = bed.ready(&["http://engine:8000"]).remove(0);
    bed.name(1, &["http://10.0.0.1:8000"]);
    assert_eq!(bed.book.entries.len(), 2, "nobody knows that they are one");
    let told = Err("busy".to_owned());
    bed.book.polled(&start.key, start.life, Polled { address: Some("10.0.0.1:8000".into()), told }, 0.1, bed.now);
    let sick = Found { verdict: Some(Health::NotReady), ..found("http://10.0.0.1:8000") };
    assert!(bed.book.named(1, vec![sick], bed.now).start.is_empty());
    assert_eq!(healths(&bed.all()), [("http://engine:8000", Health::NotReady)]);
    bed.name(1, &[]);
    assert_eq!(healths(&bed.all()), [("http://engine:8000", Health::Ready)]);
}

#[test]
fn who_returns_while_draining_goes_on_as_before() {
    let mut bed = bed(1, false);
    let starts = bed.ready(&["http://a:1"]);
    bed.poll(&starts[0], 3.0);
    bed.all();
    bed.name(0, &[]);
    assert_eq!(healths(&bed.news().unwrap()), [("http://a:1", Health::Draining)]);
    assert!(bed.name(0, &["http://a:1"]).start.is_empty());
    assert_eq!(healths(&bed.news().unwrap()), [("http://a:1", Health::Ready)]);
    assert!(bed.later(SETTLE * 2).stop.is_empty());
}

#[test]
fn who_returns_later_is_no_longer_told_as_removed() {
    let mut bed = bed(1, false);
    bed.ready(&["http://a:1", "http://b:1"]);
    let all = bed.all();
    bed.name(0, &["http://b:1"]);
    bed.later(SETTLE);
    bed.news().unwrap();
    bed.ready(&["http://a:1", "http://b:1"]);
    bed.news().unwrap();
    let delta = bed.since(all.sequence);
    assert_eq!((healths(&delta), delta.removed.len()), (vec![("http://a:1", Health::Ready)], 0));
}

#[test]
fn who_is_dismissed_stays_away_until_it_is_named_anew() {
    let mut bed = bed(1, false);
    bed.ready(&["http://a:1", "http://b:1"]);
    assert!(bed.book.dismiss("http://nobody:1", bed.now).is_none());
    assert!(bed.book.dismiss("http://a:1/", bed.now).unwrap().urgent);
    bed.name(0, &["http://a:1", "http://b:1"]);
    assert_eq!(healths(&bed.all()), [("http://a:1", Health::Draining), ("http://b:1", Health::Ready)]);
    bed.later(SETTLE);
    bed.name(0, &["http://a:1", "http://b:1"]);
    // Whoever has it in a configuration of its own must go on hearing that it drains.
    assert_eq!(healths(&bed.all()), [("http://a:1", Health::Draining), ("http://b:1", Health::Ready)]);
    assert!(bed.book.next_leave().is_none(), "it waits for nothing");
    bed.name(0, &["http://b:1"]);
    bed.later(Duration::ZERO);
    assert_eq!(bed.news().unwrap().removed, ["http://a:1"]);
    assert_eq!(bed.ready(&["http://a:1", "http://b:1"]).len(), 1);
    assert_eq!(bed.all().workers.len(), 2);
}

/// The name of an engine that others know by its address comes and goes; the engine does not.
#[test]
fn an_engine_that_is_named_otherwise_is_not_out_of_rotation_for_that() {
    let (name, address) = ("http://localhost:1", "http://127.0.0.1:1");
    let mut bed = bed(2, false);
    bed.name(0, &[]);
    let start = bed.name(1, &[address]).start.remove(0);
    bed.probe(&start, true);
    bed.book.completes();
    bed.all();
    let named = bed.name(0, &[name]).start.remove(0);
    assert!(bed.name(1, &[address]).stop.is_empty(), "of the name nothing is known yet");
    bed.probe(&named, true);
    bed.book.located(&named.key, named.life, "127.0.0.1:1".to_owned());
    bed.news().unwrap();
    bed.name(1, &[address]);
    let news = bed.news().unwrap();
    assert_eq!((healths(&bed.all()), news.removed), (vec![(name, Health::Ready)], vec![address.to_owned()]));

    let back = bed.name(0, &[]);
    assert_eq!((&back.stop, &back.start[0].key), (&vec![named.key], &start.key));
    let news = bed.news().unwrap();
    assert_eq!((healths(&news), &*news.removed), (vec![(address, Health::Ready)], &[name.to_owned()][..]));
    assert!(bed.name(1, &[address]).stop.is_empty());
    assert_eq!(healths(&bed.all()), [(address, Health::Ready)]);
}

#[test]
fn who_is_given_up_comes_back_only_if_it_is_named_anew() {
    for remove in [false, true] {
        let mut bed = bed(1, remove);
        let start = bed.ready(&["http://a:1"]).remove(0);
        bed.all();
        for expected in [Health::NotReady, Health::NotReady, Health::Failed] {
            assert_eq!(bed.probe(&start, false), expected);
        }
        let news = bed.news().unwrap();
        if remove {
            assert_eq!(news.removed, ["http://a:1"]);
        } else {
            assert_eq!(healths(&news), [("http://a:1", Health::Failed)]);
        }
        assert!(bed.name(0, &["http://a:1"]).start.is_empty());
        bed.name(0, &[]);
        assert_eq!(bed.ready(&["http://a:1"]).len(), 1);
        assert_eq!(healths(&bed.all()), [("http://a:1", Health::Ready)]);
    }
}

#[test]
fn the_word_of_a_source_counts_beside_the_probes() {
    let mut bed = bed(1, false);
    bed.ready(&["http://a:1"]);
    bed.all();
    for (verdict, expected) in
        [(Some(Health::NotReady), Health::NotReady), (Some(Health::Draining), Health::Draining), (None, Health::Ready)]
    {
        let outcome = bed.book.named(0, vec![Found { verdict, ..found("http://a:1") }], bed.now);
        assert!(outcome.urgent && outcome.start.is_empty());
        assert_eq!(healths(&bed.news().unwrap()), [("http://a:1", expected)]);
    }
}

#[test]
fn a_worker_described_anew_stays_in_rotation() {
    let mut bed = bed(1, false);
    let old = bed.ready(&["http://a:1"]).remove(0);
    bed.all();
    let spec = WorkerSpec { url: "http://a:1".into(), models: vec!["m".into()], ..WorkerSpec::default() };
    let described = Found { spec: Arc::new(spec), ..found("http://a:1") };
    let start = bed.book.named(0, vec![described], bed.now).start.remove(0);
    assert!(bed.book.probed(&old.key, old.life, Err("late".into()), true).is_none(), "the old task has no say");
    let news = bed.news().unwrap();
    assert_eq!(healths(&news), [("http://a:1", Health::Ready)]);
    assert_eq!(news.workers[0].info.as_ref().unwrap().models, ["m"]);
    bed.poll(&start, 1.0);
    assert!(bed.news().unwrap().workers[0].info.is_none());
}

#[test]
fn each_poll_is_told_and_told_apart() {
    let mut bed = bed(1, false);
    let starts = bed.ready(&["http://a:1", "http://b:1"]);
    bed.poll(&starts[0], 3.0);
    bed.poll(&starts[1], 3.0);
    let polls = |snapshot: &Snapshot| {
        let mut polls: Vec<_> = snapshot.workers.iter().map(|worker| (worker.url.clone(), worker.poll)).collect();
        polls.sort();
        polls.into_iter().map(|(_, poll)| poll).collect::<Vec<_>>()
    };
    let first = bed.all();
    let [a, b] = polls(&first)[..] else { panic!("{first:?}") };
    assert!(a > 0 && b > 0);
    assert_eq!(polls(&bed.all()), [a, b], "nobody was asked again");
    bed.poll(&starts[0], 3.0);
    let delta = bed.news().unwrap();
    let again = delta.workers[0].poll;
    assert!(again > a, "the same numbers from another poll");
    assert_eq!(polls(&delta), [again], "who was not asked is not named");
    assert_eq!(polls(&bed.all()), [again, b]);
    // Who leaves and returns is told apart from who it was.
    bed.name(0, &["http://b:1"]);
    bed.later(SETTLE);
    let back = bed.ready(&["http://a:1", "http://b:1"]).remove(0);
    bed.poll(&back, 3.0);
    assert!(polls(&bed.all())[0] > again);
}

#[test]
fn a_round_waits_for_the_polls_it_has_begun() {
    let mut bed = bed(1, false);
    let starts = bed.ready(&["http://a:1", "http://b:1", "http://c:1"]);
    assert!(!bed.book.round_is_over(), "first polls");
    for start in &starts {
        bed.poll(start, 1.0);
    }
    assert!(bed.book.round_is_over());
    bed.book.begin_round();
    bed.poll(&starts[0], 2.0);
    bed.probe(&starts[1], false);
    assert!(!bed.book.round_is_over());
    bed.name(0, &["http://a:1", "http://b:1"]);
    assert!(bed.book.round_is_over(), "nobody waits for who has left");
}

#[test]
fn a_reader_that_has_missed_too_much_gets_everything() {
    let mut bed = bed(1, false);
    bed.ready(&["http://stays:1"]);
    let first = bed.all().sequence;
    for number in 0..=MAX_WORKERS {
        let other = format!("http://w{number}:1");
        bed.ready(&["http://stays:1", &other]);
        bed.all();
        bed.name(0, &["http://stays:1"]);
        bed.later(SETTLE);
    }
    let last = bed.all().sequence;
    assert_eq!(bed.since(first).scope, Scope::Full);
    assert_eq!(bed.since(last - 1).scope, Scope::Since(last - 1));
    assert!(bed.book.since(&bed.stamp, Some((bed.stamp.epoch, last))).is_none());
}

#[test]
fn there_is_a_bound() {
    let mut bed = bed(1, false);
    let urls: Vec<_> = (0..MAX_WORKERS + 10).map(|number| format!("http://w{number}:1")).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    assert_eq!(bed.name(0, &urls).start.len(), MAX_WORKERS);
}
