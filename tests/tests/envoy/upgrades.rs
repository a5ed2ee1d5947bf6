//! Modules and configurations that change under traffic: no request fails, and nothing stays counted.

use std::time::Duration;

use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, Filter, eventually};

use crate::gate::Gate;
use crate::support::{CHAT, Held, SOON, WORKER_ID, chat, counted, counts_become, no_vm_was_lost, settles};
use crate::traffic::Traffic;

const PROMPTS: usize = 12;

struct Bed {
    envoy: Envoy,
    gates: [Gate; 2],
    /// Streams that have begun under some configuration and go on under all later ones.
    open: Vec<Held>,
}

impl Bed {
    async fn start() -> Self {
        Self::draining(60).await
    }

    /// With as many seconds for old streams.
    async fn draining(drain_seconds: u32) -> Self {
        let gates = [Gate::start().await, Gate::start().await];
        let options = EnvoyOptions::with_workers(gates.each_ref().map(Gate::address));
        let options = EnvoyOptions { concurrency: 4, drain_seconds, ..options };
        Self { envoy: Envoy::start(options).await.unwrap(), gates, open: Vec::new() }
    }

    async fn hold(&mut self, streams: usize) {
        for _ in 0..streams {
            self.open.push(Held::start(&self.envoy, "m", "Hold on").await);
        }
    }

    fn traffic(&self) -> Traffic {
        Traffic::start(self.envoy.address(), 6)
    }

    /// Which worker answers which known prompt.
    async fn holders(&self) -> Vec<String> {
        let mut connection = self.envoy.connect().await;
        let mut holders = Vec::new();
        for number in 0..PROMPTS {
            let prompt = format!("Prompt {number} has a prefix of its own that is long enough. ").repeat(10);
            let reply = connection.post(CHAT, chat("m", &prompt)).await.unwrap();
            holders.push(reply.header(WORKER_ID).unwrap().to_owned());
        }
        holders
    }

    async fn matches(&self) -> f64 {
        self.envoy.metrics().await.sum("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")])
    }

    async fn vms(&self) -> u64 {
        self.envoy.stat("wasm.envoy.wasm.runtime.v8.active").await
    }

    /// Lets all streams come to their end and checks that nothing is left.
    async fn end(mut self) -> Self {
        self.gates.iter().for_each(Gate::open);
        for held in self.open.drain(..) {
            assert!(held.finish().await.ends_with(b"[DONE]\n\n"));
        }
        counts_become(&self.envoy, 0, "at the end").await;
        no_vm_was_lost(&self.envoy).await;
        self
    }
}

/// The module that ships with a section more: other code to Envoy, so it makes new VMs for it, and the same to itself.
fn same_code(directory: &std::path::Path) -> Filter {
    let mut code = std::fs::read(testbed::wasm::filter_wasm()).unwrap();
    // A custom section: its id, its size, the length of its name, the name.
    code.extend_from_slice(b"\x00\x08\x07upgrade");
    let path = directory.join("filter.wasm");
    std::fs::write(&path, code).unwrap();
    Filter::File(path)
}

#[tokio::test]
async fn a_module_of_the_same_layout_takes_over_all_state() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = Bed::start().await;
    let holders = bed.holders().await;
    bed.hold(4).await;
    let created = bed.envoy.stat("wasm.envoy.wasm.runtime.v8.created").await;
    let traffic = bed.traffic();
    for (round, module) in [same_code(directory.path()), Filter::Built, same_code(directory.path())].iter().enumerate()
    {
        bed.envoy.update_module(module).await.unwrap();
        assert_eq!(bed.holders().await, holders, "the tree is lost in round {round}");
        bed.hold(2).await;
    }
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    assert!(bed.envoy.stat("wasm.envoy.wasm.runtime.v8.created").await > created, "there are no new VMs");
    counts_become(&bed.envoy, 10, "streams of three modules").await;
    settles(&bed.envoy, 10, "m", "under the last module").await;
    let bed = bed.end().await;
    assert_eq!(bed.holders().await, holders);
}

#[tokio::test]
async fn a_module_of_another_layout_starts_anew_and_ends_at_zero() {
    let mut bed = Bed::start().await;
    bed.holders().await;
    bed.hold(4).await;
    counts_become(&bed.envoy, 4, "under the first module").await;
    let traffic = bed.traffic();
    let matches = bed.matches().await;
    bed.envoy.update_module(&Filter::Crashable).await.unwrap();
    let holders = bed.holders().await;
    bed.hold(3).await;
    assert_eq!(bed.holders().await, holders, "the new module remembers");
    eventually(SOON, "matches are counted", async || bed.matches().await >= matches + PROMPTS as f64).await;
    // Roll-back while the first module still drains: it has kept what it knew.
    bed.envoy.update_module(&Filter::Built).await.unwrap();
    bed.hold(2).await;
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    let mut bed = bed.end().await;
    // Whoever shows the gauges now has not been deceived by what the others have shown meanwhile.
    bed.gates = [Gate::start().await, Gate::start().await];
    let workers: Vec<_> = bed.gates.iter().map(|gate| json!({ "url": format!("http://{}", gate.address()) })).collect();
    bed.envoy.update_engines(&bed.gates.each_ref().map(Gate::address)).await;
    bed.envoy.update_plugin(json!({ "workers": workers })).await.unwrap();
    bed.hold(3).await;
    settles(&bed.envoy, 3, "m", "after the roll-back").await;
    bed.end().await;
}

#[tokio::test]
async fn old_modules_leave_no_counts_and_are_not_taken_for_dead() {
    let directory = tempfile::tempdir().unwrap();
    let mut bed = Bed::draining(2).await;
    let vms = bed.vms().await;
    for module in [Filter::Crashable, same_code(directory.path()), Filter::Built] {
        bed.hold(3).await;
        counts_become(&bed.envoy, 3, "under the old module").await;
        bed.envoy.update_module(&module).await.unwrap();
        if module != Filter::Built {
            // With another layout the new module does not know of the old one's streams, and says so…
            eventually(SOON, "the new module shows its counts", async || counted(&bed.envoy).await == 0.0).await;
        }
        // … while the old one says that some of them end.
        bed.open.truncate(2);
        // Envoy cuts what an old listener still has under way after its time to drain.
        eventually(SOON, "the old VMs are gone", async || bed.vms().await == vms).await;
        counts_become(&bed.envoy, 0, "under the new module").await;
        settles(&bed.envoy, 0, "m", "under the new module").await;
        bed.open.clear();
    }
    // Longer than it takes to find a VM dead. On a slow machine one may seem so and come back.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let log = bed.envoy.log();
    let lines = |text| log.matches(text).count();
    assert_eq!(lines("a VM has died"), lines("this VM stood still"));
}

#[tokio::test]
async fn no_request_fails_while_configurations_change_fail_and_return() {
    let mut bed = Bed::start().await;
    let holders = bed.holders().await;
    bed.hold(2).await;
    let traffic = bed.traffic();
    for round in 0..3 {
        bed.envoy.update_plugin(json!({ "cache_threshold": 0.3, "max_attempts": 4 })).await.unwrap();
        bed.hold(1).await;
        // Never the same one: of a configuration that it has refused before Envoy does not ask the filter again.
        let refused = bed.envoy.update_plugin(json!({ "cache_threshold": 7 + round })).await.unwrap_err();
        assert!(refused.log.contains(&format!("`cache_threshold` is {}", 7 + round)), "{refused}");
        assert_eq!(bed.holders().await, holders, "round {round}");
        // Back to the first one, while the listeners that have had it still drain.
        bed.envoy.update_plugin(json!({ "cache_threshold": null, "max_attempts": 5 })).await.unwrap();
        bed.hold(1).await;
    }
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    settles(&bed.envoy, 8, "m", "after six changes").await;
    bed.end().await;
}

#[tokio::test]
async fn the_listener_may_go_and_return() {
    let mut bed = Bed::start().await;
    let holders = bed.holders().await;
    bed.hold(3).await;
    bed.envoy.offer_routing(false).await;
    counts_become(&bed.envoy, 3, "without the listener").await;
    bed.envoy.offer_routing(true).await;
    let traffic = bed.traffic();
    assert_eq!(bed.holders().await, holders, "the tree is lost");
    bed.hold(2).await;
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    settles(&bed.envoy, 5, "m", "with the listener").await;
    bed.end().await;
}

#[tokio::test]
async fn streams_that_a_removed_listener_loses_are_not_counted() {
    let mut bed = Bed::draining(2).await;
    bed.hold(3).await;
    counts_become(&bed.envoy, 3, "with the listener").await;
    bed.envoy.offer_routing(false).await;
    counts_become(&bed.envoy, 0, "when the listener has drained").await;
    bed.envoy.offer_routing(true).await;
    bed.open.clear();
    bed.hold(1).await;
    settles(&bed.envoy, 1, "m", "with the listener again").await;
    bed.end().await;
}
