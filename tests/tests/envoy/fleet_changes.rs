//! Workers that only snapshots name: they come, go, move, fall ill and are overloaded, and no request fails for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::{Value, json};
use testbed::envoy::{Connection, Envoy, EnvoyOptions, eventually};
use tokio::task::JoinSet;

use crate::gate::Gate;
use crate::support::{CHAT, SOON, chat, counts_become, no_vm_was_lost, post};

/// A sidecar as the ingest listener sees it.
pub struct Reporter<'a> {
    envoy: &'a Envoy,
    client: reqwest::Client,
    sequence: AtomicUsize,
    taken: AtomicUsize,
}

impl<'a> Reporter<'a> {
    pub fn new(envoy: &'a Envoy) -> Self {
        Self { envoy, client: reqwest::Client::new(), sequence: AtomicUsize::new(0), taken: AtomicUsize::new(0) }
    }

    /// Says who there is, and waits until it has been taken.
    pub async fn says(&self, workers: &[Value]) {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed) + 1;
        let snapshot = json!({
            "version": 2, "reporter": "test", "epoch": 1, "sequence": sequence, "interval_ms": 600_000, "scope": "full",
            "workers": workers,
        });
        let answer = self.client.post(self.envoy.reports_url()).body(snapshot.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 202);
        let expected = (self.taken.fetch_add(workers.len(), Ordering::Relaxed) + workers.len()) as f64;
        eventually(SOON, "the snapshot is taken", async || {
            self.envoy.metrics().await.sum("smg_load_reports_total", &[("outcome", "taken")]) >= expected
        })
        .await;
    }
}

/// What is said of a worker: it is `name`, reached at `gate`, and ready.
pub fn worker(name: usize, gate: &Gate) -> Value {
    json!({ "url": url(name), "address": gate.address().to_string(), "health": "ready" })
}

pub fn url(name: usize) -> String {
    format!("http://engine-{name}.test:8000")
}

pub async fn gates<const N: usize>() -> [Gate; N] {
    let mut gates = Vec::new();
    for _ in 0..N {
        gates.push(Gate::start().await);
    }
    gates.try_into().unwrap_or_else(|_| unreachable!())
}

/// An Envoy that knows all gates as hosts, and whose filter is told of no worker.
pub async fn envoy_of(gates: &[Gate], mut plugin: Value) -> Envoy {
    plugin["workers"] = Value::Null;
    let options =
        EnvoyOptions { plugin, exact_balance: true, ..EnvoyOptions::with_workers(gates.iter().map(Gate::address)) };
    Envoy::start(options).await.unwrap()
}

/// Clients under way, and what was no answer of an engine.
pub struct Load {
    clients: JoinSet<Vec<String>>,
    sent: Arc<AtomicUsize>,
    /// So many requests are sent in all, or more.
    total: Arc<AtomicUsize>,
}

impl Load {
    fn start(envoy: &Envoy) -> Self {
        Self::start_with(envoy, |client, _| {
            post(chat("m", &format!("Client {client} has a conversation of its own. ").repeat(20)), &[])
        })
    }

    /// Clients whose requests are made of the client's number and the request's.
    pub fn start_with(envoy: &Envoy, request: fn(usize, usize) -> Request<Full<Bytes>>) -> Self {
        let (sent, total) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(usize::MAX)));
        let mut clients = JoinSet::new();
        for number in 0..6 {
            let (sent, total, address) = (Arc::clone(&sent), Arc::clone(&total), envoy.address());
            clients.spawn(async move {
                let mut failures = Vec::new();
                let mut connection = Connection::open(address).await.unwrap();
                loop {
                    let sent = sent.fetch_add(1, Ordering::Relaxed);
                    if sent >= total.load(Ordering::Relaxed) {
                        break;
                    }
                    match connection.send(request(number, sent)).await {
                        Ok(reply) if reply.status == 200 => {}
                        Ok(reply) => failures.push(format!("{}: {}", reply.status, reply.text())),
                        Err(error) => {
                            failures.push(format!("{error:#}"));
                            connection = Connection::open(address).await.unwrap();
                        }
                    }
                }
                failures
            });
        }
        Self { clients, sent, total }
    }

    /// Lets the clients end once `total` requests are sent. What has failed.
    pub async fn stop_at(self, total: usize) -> Vec<String> {
        self.total.store(total, Ordering::Relaxed);
        self.clients.join_all().await.into_iter().flatten().collect()
    }

    pub fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    pub async fn reaches(&self, number: usize) {
        eventually(SOON, &format!("{number} requests are sent"), async || self.sent() >= number).await;
    }
}

/// Waits until every thread knows of workers.
pub async fn all_know(envoy: &Envoy) {
    eventually(SOON, "every thread knows the fleet", async || {
        let mut all = true;
        for _ in 0..8 {
            all &= envoy.connect().await.post(CHAT, chat("m", "Well?")).await.unwrap().status == 200;
        }
        all
    })
    .await;
}

/// Waits until every gate of `gates` is sent requests.
async fn served(gates: &[&Gate], what: &str) {
    let before: Vec<_> = gates.iter().map(|gate| gate.arrived()).collect();
    let all = || gates.iter().zip(&before).all(|(gate, before)| gate.arrived() > *before);
    eventually(SOON, what, async || all()).await;
}

/// Waits until 40 requests in a row have passed the gate by. How many it has been sent.
pub async fn left_alone(gate: &Gate, load: &Load, what: &str) -> usize {
    let (mut arrived, mut since) = (gate.arrived(), load.sent());
    eventually(SOON, what, async || {
        if gate.arrived() != arrived {
            (arrived, since) = (gate.arrived(), load.sent());
        }
        load.sent() >= since + 40
    })
    .await;
    arrived
}

/// `REQUESTS=5000` sends so many.
#[tokio::test]
async fn a_fleet_that_changes_under_load_loses_no_request() {
    let total = std::env::var("REQUESTS").map_or(1500, |number| number.parse().expect("REQUESTS is a number"));
    let gates: [Gate; 7] = gates().await;
    // By what is in flight: a prefix that is known would keep every client where it is.
    let envoy = envoy_of(&gates, json!({ "policy": "least_load" })).await;
    let reporter = Reporter::new(&envoy);
    let mut connection = envoy.connect().await;
    let reply = connection.post(CHAT, chat("m", "Anybody?")).await.unwrap();
    assert_eq!((reply.status.as_u16(), reply.header("x-smg-error-code")), (503, Some("no_available_workers")));

    let mut fleet: Vec<Value> = (0..4).map(|number| worker(number, &gates[number])).collect();
    reporter.says(&fleet).await;
    all_know(&envoy).await;
    let load = Load::start(&envoy);
    served(&gates.each_ref()[..4], "the first four serve").await;

    load.reaches(total / 5).await;
    fleet.extend([worker(4, &gates[4]), worker(5, &gates[5])]);
    reporter.says(&fleet).await;
    served(&[&gates[4], &gates[5]], "two more serve").await;

    load.reaches(2 * total / 5).await;
    fleet.remove(0);
    reporter.says(&fleet).await;
    let gone = left_alone(&gates[0], &load, "a removed one is left alone").await;

    load.reaches(3 * total / 5).await;
    fleet[0] = worker(1, &gates[6]);
    reporter.says(&fleet).await;
    served(&[&gates[6]], "the replacement serves").await;
    let replaced = left_alone(&gates[1], &load, "a replaced one is left alone").await;

    let failures = load.stop_at(total).await;
    assert!(failures.is_empty(), "{} of {total} requests failed: {:?}", failures.len(), failures.first());
    assert_eq!((gates[0].arrived(), gates[1].arrived()), (gone, replaced));
    counts_become(&envoy, 0, "after the load").await;
    let metrics = envoy.metrics().await;
    assert_eq!(metrics.sum("smg_destination_unknown_total", &[]), 0.0);
    assert_eq!(metrics.sum("smg_worker_pool_size", &[("model", "unknown")]), 5.0);
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn health_and_overload_count_for_the_next_request_of_every_thread() {
    let gates: [Gate; 2] = gates().await;
    let envoy = envoy_of(&gates, json!({ "policy": "random", "worker_overload_waiting_requests": 16 })).await;
    let reporter = Reporter::new(&envoy);
    let with = |number: usize, key: &str, value: Value| {
        let mut worker = worker(number, &gates[number]);
        worker[key] = value;
        worker
    };
    let both = [worker(0, &gates[0]), worker(1, &gates[1])];
    reporter.says(&both).await;
    all_know(&envoy).await;
    let mut threads = envoy.connection_per_thread().await;
    for (what, first) in [
        ("not ready", with(0, "health", json!("not_ready"))),
        ("draining", with(0, "health", json!("draining"))),
        ("overloaded", with(0, "load", json!([0, 16, 0, 0.5, 100]))),
    ] {
        reporter.says(&[first, both[1].clone()]).await;
        let before = gates[0].arrived();
        for thread in &mut threads {
            for _ in 0..20 {
                assert_eq!(thread.post(CHAT, chat("m", "Well?")).await.unwrap().status, 200);
            }
        }
        assert_eq!(gates[0].arrived(), before, "{what}");
        reporter.says(&both).await;
        served_by(&gates[0], &mut threads).await;
    }

    let full = json!([0, 20, 0, 0.5, 100]);
    reporter.says(&[with(0, "load", full.clone()), with(1, "load", full.clone())]).await;
    for thread in &mut threads {
        let reply = thread.post(CHAT, chat("m", "Well?")).await.unwrap();
        assert_eq!(reply.status, 503);
        assert_eq!(reply.header("x-smg-error-code"), Some("worker_overload_protection_shed"));
        assert_eq!(reply.header("retry-after"), Some("600"), "when they report again");
    }
    let shed = threads.len() as f64;
    eventually(SOON, "the sheds and the vetoes are shown", async || {
        let metrics = envoy.metrics().await;
        metrics.sum("smg_worker_overload_shed_total", &[("stage", "selection")]) == shed
            && metrics.sum("smg_workers_overloaded", &[("model", "unknown")]) == 2.0
    })
    .await;
    reporter.says(&[with(0, "load", full), with(1, "health", json!("failed"))]).await;
    // A refusal at the head closes the connection, since its body is not read.
    let reply = envoy.connect().await.post(CHAT, chat("m", "Well?")).await.unwrap();
    assert_eq!(reply.header("x-smg-error-code"), Some("no_available_workers"), "one full, one failed");
    no_vm_was_lost(&envoy).await;
}

/// Sends requests until `gate` has got one.
async fn served_by(gate: &Gate, threads: &mut [Connection]) {
    let before = gate.arrived();
    for _ in 0..200 {
        for thread in &mut *threads {
            assert_eq!(thread.post(CHAT, chat("m", "Well?")).await.unwrap().status, 200);
        }
        if gate.arrived() > before {
            return;
        }
    }
    panic!("a worker that is well is chosen by nobody");
}
