//! Pools, addresses, and what reporters add.

use std::rc::Rc;

use super::*;
use crate::report::{Info, Resilience, Snapshot, WorkerReport};
use crate::state::fleet::{FleetTable, url_hash};
use crate::state::named::NamedTable;
use crate::store::MemoryStore;

fn fleet(workers: &str) -> Fleet {
    let config = Config::parse(format!(r#"{{"workers":{workers}}}"#).as_bytes()).unwrap();
    let urls: Vec<u64> = config.workers.iter().map(|worker| url_hash(&worker.url)).collect();
    let table = FleetTable::new("", 1024).intern(&mut MemoryStore::default(), &urls, 0).unwrap();
    Fleet::new(&config, &table, &Named::default(), None)
}

#[test]
fn a_worker_serves_each_of_its_models() {
    let fleet = fleet(
        r#"[{"url":"http://1.1.1.1:1","models":["base","lora"]},{"url":"http://1.1.1.1:2","models":["base"]},
           {"url":"http://1.1.1.1:3","models":["other"]}]"#,
    );
    assert_eq!(fleet.pool("base").workers, [0, 1]);
    assert_eq!(fleet.pool("lora").workers, [0]);
    assert!(fleet.pool("nobody's").workers.is_empty());
    for any in ["", "unknown"] {
        assert_eq!(fleet.pool(any).workers, [0, 1, 2]);
    }
    assert!(fleet.needs_model());
    assert_eq!(fleet.models(), ["base", "lora", "other"]);
    assert_eq!((fleet.model_label("lora"), fleet.model_label("nobody's")), ("lora", "unknown"));
}

#[test]
fn a_worker_that_names_no_model_serves_any() {
    let fleet = fleet(r#"["http://1.1.1.1:1",{"url":"http://1.1.1.1:2","models":["a"]}]"#);
    assert_eq!(fleet.pool("a").workers, [0, 1]);
    assert_eq!(fleet.pool("b").workers, [0]);
    assert!(fleet.needs_model());
}

#[test]
fn one_model_everywhere_need_not_be_named() {
    let fleet = fleet(r#"[{"url":"http://1.1.1.1:1","models":["a"]},{"url":"http://1.1.1.1:2","models":["a"]}]"#);
    assert!(!fleet.needs_model());
}

#[test]
fn workers_that_wait_for_an_address_have_models_too() {
    let fleet = fleet(r#"[{"url":"http://1.1.1.1:1","models":["a"]},{"url":"http://engine-0:8000","models":["b"]}]"#);
    assert!(fleet.needs_model());
}

/// Says where workers are, and what they are.
fn tell(store: &mut MemoryStore, reporter: &str, workers: &[(&str, Option<&str>, Info)]) -> Named {
    let table = NamedTable::new("", 1024);
    let reports = workers.iter().map(|(url, address, info)| WorkerReport {
        url: (*url).to_owned(),
        address: address.map(str::to_owned),
        info: Some(Box::new(info.clone())),
        ..WorkerReport::default()
    });
    let snapshot = Snapshot { reporter: reporter.into(), ..Snapshot::of(1, 1, 1000, reports.collect()) };
    let known = Rc::new(table.read(store).unwrap());
    table.take(store, &known, &snapshot, |_, _| Ok(())).unwrap().unwrap();
    table.read(store).unwrap()
}

/// The fleet of the configuration in `text` with what is `named`.
fn told(text: &str, store: &mut MemoryStore, named: &Named) -> Fleet {
    let config = Config::parse(text.as_bytes()).unwrap();
    let configured = config.workers.iter().map(|worker| url_hash(&worker.url));
    let urls: Vec<u64> = configured.chain(named.records().iter().map(|record| record.hash)).collect();
    let table = FleetTable::new("", 1024).intern(store, &urls, 0).unwrap();
    Fleet::new(&config, &table, named, None)
}

fn urls(fleet: &Fleet) -> Vec<&str> {
    fleet.workers().iter().map(|worker| worker.url.as_str()).collect()
}

#[test]
fn a_found_address_must_not_be_somebody_elses() {
    let workers = r#"{"workers":["http://engine-0:8000","http://engine-1:8000","http://1.1.1.1:2"]}"#;
    let mut store = MemoryStore::default();
    let at = |url, address| (url, Some(address), Info::default());
    let found = [at("http://engine-0:8000", "1.1.1.1:2"), at("http://engine-1:8000", "1.1.1.1:3")];
    let named = tell(&mut store, "", &found);
    let fleet = told(workers, &mut store, &named);
    assert_eq!(fleet.unplaced(), ["http://engine-0:8000"]);
    assert_eq!(
        fleet.by_address("1.1.1.1:2").and_then(|at| fleet.worker(at)).map(|w| w.url.as_str()),
        Some("http://1.1.1.1:2")
    );
    assert_eq!(
        fleet.by_address("1.1.1.1:3").and_then(|at| fleet.worker(at)).map(|w| w.url.as_str()),
        Some("http://engine-1:8000")
    );
}

#[test]
fn workers_that_only_reporters_name_stand_behind_the_configured_ones() {
    let mut store = MemoryStore::default();
    let named = tell(
        &mut store,
        "",
        &[
            ("http://1.1.1.1:3", None, Info::default()),
            ("grpc://engine-2:50051", Some("1.1.1.1:5"), Info::default()),
            ("http://1.1.1.1:1/", None, Info::default()),
            ("http://1.1.1.1:9", None, Info { leg: "prefill".into(), ..Info::default() }),
            ("http://engine-7:8000", None, Info::default()),
        ],
    );
    let fleet = told(r#"{"discovered_workers":true,"workers":["http://1.1.1.1:1"]}"#, &mut store, &named);
    assert_eq!(urls(&fleet), ["http://1.1.1.1:1", "http://1.1.1.1:3", "grpc://engine-2:50051"]);
    assert_eq!(fleet.unplaced(), ["http://engine-7:8000"]);
    let modes: Vec<_> = fleet.workers().iter().map(|worker| worker.mode.as_str()).collect();
    assert_eq!(modes, ["http", "http", "grpc"]);
    let fleet = told(r#"{"workers":["http://1.1.1.1:1"]}"#, &mut store, &named);
    assert_eq!(urls(&fleet), ["http://1.1.1.1:1"], "a list of workers is the whole list");
    assert_eq!(told("{}", &mut store, &named).workers().len(), 3, "no list is none");
}

#[test]
fn a_configuration_goes_before_what_is_reported_member_by_member() {
    let mut store = MemoryStore::default();
    let info = |model: &str| Info {
        models: vec![model.into(), model.into()],
        overload: Overload { waiting_requests: Some(5), token_usage: Some(7.0) },
        resilience: Resilience {
            cb_failure_threshold: Some(0),
            cb_success_threshold: Some(2),
            cb_timeout_secs: Some(9),
            ..Resilience::default()
        },
        ..Info::default()
    };
    let both =
        [("http://1.1.1.1:1", Some("1.1.1.1:7"), info("told")), ("http://engine:1", Some("1.1.1.1:8"), info("b"))];
    let named = tell(&mut store, "", &both);
    let text = r#"{"cb_failure_threshold":4,"workers":[
        {"url":"http://1.1.1.1:1","model":"own","resilience":{"cb_timeout_secs":1},"overload":{"token_usage":0.5}},
        "http://engine:1"]}"#;
    let fleet = told(text, &mut store, &named);
    let [one, two] = fleet.workers() else { panic!("{fleet:?}") };
    assert_eq!((one.address.as_str(), one.models.as_slice()), ("1.1.1.1:1", &["own".to_owned()][..]));
    assert_eq!((two.address.as_str(), two.models.as_slice()), ("1.1.1.1:8", &["b".to_owned()][..]));
    assert_eq!((one.limits.waiting_requests, one.limits.token_usage), (Some(5), Some(0.5)));
    assert_eq!((two.limits.waiting_requests, two.limits.token_usage), (Some(5), None));
    let breakers = [one, two].map(|worker| worker.breaker);
    let of = |breaker: Breaker| (breaker.failure_threshold, breaker.success_threshold, breaker.timeout_secs);
    assert_eq!(breakers.map(of), [(4, 2, 1), (4, 2, 9)]);
}

#[test]
fn a_worker_of_a_cluster_serves_the_requests_of_that_cluster_only() {
    let mut store = MemoryStore::default();
    let of = |cluster: &str| Info { cluster: Some(cluster.into()), ..Info::default() };
    let workers = [("http://1.1.1.1:1", None, of("a")), ("http://1.1.1.1:2", None, of("b"))];
    let named = tell(&mut store, "", &workers);
    assert_eq!(urls(&told(r#"{"clusters":["b","c"]}"#, &mut store, &named)), ["http://1.1.1.1:2"]);
    assert_eq!(told("{}", &mut store, &named).workers().len(), 2);
}

#[test]
fn of_two_reporters_what_was_said_last_counts() {
    let mut store = MemoryStore::default();
    let of = |model: &str| Info { models: vec![model.into()], ..Info::default() };
    tell(&mut store, "a", &[("http://engine:1", Some("1.1.1.1:1"), of("m"))]);
    let named = tell(&mut store, "b", &[("http://engine:1", None, of("n"))]);
    let fleet = told("{}", &mut store, &named);
    assert_eq!((fleet.models(), fleet.workers()[0].address.as_str()), (vec!["n"], "1.1.1.1:1"));
    // The engine has moved, and who said so first is no more.
    let named = tell(&mut store, "b", &[("http://engine:1", Some("1.1.1.1:2"), of("n"))]);
    assert_eq!(told("{}", &mut store, &named).workers()[0].address, "1.1.1.1:2");
    let named = tell(&mut store, "a", &[("http://engine:1", Some("1.1.1.1:1"), of("m"))]);
    assert_eq!(told("{}", &mut store, &named).workers()[0].address, "1.1.1.1:2", "the same again is nothing new");
}

#[test]
fn switching_breakers_off_leaves_a_workers_own_threshold_alone() {
    let text = r#"{"disable_circuit_breaker":true,"workers":["http://1.1.1.1:1",
        {"url":"http://1.1.1.1:2","resilience":{"cb_failure_threshold":2}},
        {"url":"http://1.1.1.1:3","resilience":{"cb_failure_threshold":2,"disable_circuit_breaker":true}}]}"#;
    let fleet = told(text, &mut MemoryStore::default(), &Named::default());
    let on: Vec<bool> = fleet.workers().iter().map(|worker| worker.breaker.enabled).collect();
    assert_eq!(on, [false, true, false]);
}

#[test]
fn a_worker_without_an_address_waits_for_one() {
    let fleet = fleet(r#"["http://engine-0:8000","http://1.1.1.1:2"]"#);
    assert_eq!(fleet.unplaced(), ["http://engine-0:8000"]);
    assert_eq!(fleet.pool("").workers, [0]);
    assert_eq!(fleet.by_address("1.1.1.1:2"), Some(0));
}
