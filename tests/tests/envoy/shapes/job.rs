//! The main job, whatever Envoy's configuration looks like.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, eventually};

use crate::gate::{Arrival, Gate};
use crate::sidecar::Sidecar;
use crate::support::{CHAT, DESTINATION, Held, SOON, WORKER_ID, chat, counted, post};

const BRANCHES: &str = "smg_cache_aware_policy_branch_total";

/// The two engines of the manifests.
pub struct Fleet {
    gates: [Gate; 2],
    /// Where Envoy counts what it sends them.
    cluster: &'static str,
}

/// A prompt that fits into 32 KiB and has a prefix of its own.
pub fn prompt(number: usize) -> Bytes {
    chat("m", &format!("Prompt number {number}, and what makes it long enough to have a prefix. ").repeat(8))
}

/// The workers as the manifests name them.
pub fn urls() -> [String; 2] {
    [0, 1].map(|number| format!("http://engine-{number}.engine.inference.svc.cluster.local:8000"))
}

impl Fleet {
    pub async fn start(cluster: &'static str) -> Self {
        Self { gates: [Gate::start().await, Gate::start().await], cluster }
    }

    pub fn addresses(&self) -> [SocketAddr; 2] {
        self.gates.each_ref().map(Gate::address)
    }

    /// `workers` of a plugin configuration that needs no sidecar.
    pub fn urls_of_addresses(&self) -> Value {
        self.addresses().iter().map(|address| json!({ "url": format!("http://{address}") })).collect()
    }

    pub fn arrived(&self) -> [usize; 2] {
        self.gates.each_ref().map(Gate::arrived)
    }

    pub fn arrivals(&self) -> Vec<Arrival> {
        self.gates.iter().flat_map(Gate::arrivals).collect()
    }

    /// Lets the sidecar say where the workers are. Nothing but that tells the filter, so when requests are served, Envoy
    /// has fetched it, with the right token.
    pub async fn report(&self, sidecar: &Sidecar, envoy: &Envoy) {
        sidecar.say_addresses(&self.addresses());
        // Each thread learns it for itself.
        let mut threads = envoy.connection_per_thread().await;
        for connection in &mut threads {
            eventually(SOON, "the workers are found", async || {
                connection.post(CHAT, chat("m", "Hello?")).await.unwrap().status == StatusCode::OK
            })
            .await;
        }
    }

    /// 100 prompts, each sent to four threads: all are matched on second sight. Then streams that end and break off.
    pub async fn does_the_main_job(&self, envoy: &Envoy) {
        let branches = async |envoy: &Envoy| envoy.metrics().await.by(BRANCHES, "branch");
        let mut threads = envoy.connection_per_thread().await;
        // What was asked before has been counted once two ticks have set the gauges.
        self.counts_become(envoy, 0, "before the job").await;
        let before = self.settled(envoy).await;
        let unknown = async || envoy.metrics().await.sum("smg_destination_unknown_total", &[]);
        let unknown_before = unknown().await;
        let mut workers: BTreeMap<String, usize> = BTreeMap::new();
        for number in 0..100 {
            let mut first = None;
            for turn in 0..4 {
                let reply = threads[(number + turn) % 4].post(CHAT, prompt(number)).await.unwrap();
                assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
                let worker = reply.header(WORKER_ID).expect("a worker is named").to_owned();
                let position = urls().iter().position(|url| *url == worker).expect("one of the fleet");
                assert_eq!(reply.text(), self.addresses()[position].to_string(), "it is the one that has answered");
                assert_eq!(*first.get_or_insert_with(|| worker.clone()), worker, "prompt {number}, sight {turn}");
                *workers.entry(worker).or_default() += 1;
            }
        }
        assert_eq!(workers.len(), 2, "{workers:?}");
        eventually(SOON, "all decisions are counted", async || {
            branches(envoy).await.values().sum::<f64>() == before.values().sum::<f64>() + 400.0
        })
        .await;
        let matched = |of: &BTreeMap<String, f64>| of.get("tree_match").copied().unwrap_or_default();
        let after = branches(envoy).await;
        assert_eq!(matched(&after), matched(&before) + 300.0, "{before:?} {after:?}");
        assert_eq!(unknown().await, unknown_before);
        drop(threads);

        let open = [Held::start(envoy, "m", "One").await, Held::start(envoy, "m", "Another").await];
        self.counts_become(envoy, 2, "two streams").await;
        let crowd = futures_util::future::join_all((0..20).map(|_| Held::start(envoy, "m", "We leave"))).await;
        self.counts_become(envoy, 22, "a crowd").await;
        drop(crowd);
        self.counts_become(envoy, 2, "a crowd that leaves").await;
        drop(open);
        self.counts_become(envoy, 0, "at the end").await;
    }

    /// The decisions that have been made, once all threads have handed them over.
    async fn settled(&self, envoy: &Envoy) -> BTreeMap<String, f64> {
        let mut last = None;
        loop {
            let now = envoy.metrics().await.by(BRANCHES, "branch");
            if last.as_ref() == Some(&now) {
                return now;
            }
            last = Some(now);
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
    }

    /// Bodies of up to 3 MiB: held to their end, and released at `max_buffered_request_bytes`.
    pub async fn takes_large_bodies(&self, envoy: &Envoy) {
        let mut connection = envoy.connect().await;
        for kib in [40, 100, 900, 3072] {
            let body = chat("m", &"A long story. ".repeat(kib * 1024 / 14));
            let bytes = body.len();
            let reply = connection.post(CHAT, body).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK, "{kib} KiB: {}", reply.text());
            assert!(reply.header(WORKER_ID).is_some());
            assert!(self.arrivals().iter().any(|arrival| arrival.bytes == bytes), "all {bytes} bytes have come");
        }
    }

    /// A client that names an engine has no say in who answers.
    pub async fn keeps_clients_from_choosing(&self, envoy: &Envoy) {
        let mut connection = envoy.connect().await;
        let named = self.addresses()[0].to_string();
        let mut answered = BTreeSet::new();
        for number in 1000..1040 {
            let reply = connection.send(post(prompt(number), &[(DESTINATION, &named)])).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
            answered.insert(reply.text());
        }
        assert_eq!(answered.len(), 2);
    }

    /// Waits until the filter's count and Envoy's are both `number`.
    pub async fn counts_become(&self, envoy: &Envoy, number: u64, what: &str) {
        eventually(SOON, &format!("{what}: the filter and Envoy count {number} in flight"), async || {
            counted(envoy).await == number as f64 && envoy.upstream_rq_active(self.cluster).await == number
        })
        .await;
    }
}
