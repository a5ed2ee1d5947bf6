//! `cache_aware` over threads: what one thread has seen, every thread matches.

use std::time::Duration;

use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, eventually};

use crate::upstream::Upstream;

const SOON: Duration = Duration::from_secs(30);
const BRANCHES: &str = "smg_cache_aware_policy_branch_total";

#[tokio::test]
async fn a_prefix_seen_by_one_thread_is_matched_on_all() {
    let workers = [Upstream::named("a").await, Upstream::named("b").await, Upstream::named("c").await];
    let addresses = workers.each_ref().map(|upstream| upstream.address);
    let options = EnvoyOptions { concurrency: 4, exact_balance: true, ..EnvoyOptions::with_workers(addresses) };
    let envoy = Envoy::start(options).await.unwrap();
    let mut threads = envoy.connection_per_thread().await;
    for prompt in 0..100 {
        let text = format!("Prompt number {prompt}, and what makes it long enough to have a prefix. ").repeat(8);
        let body = json!({ "model": "m", "messages": [{ "role": "user", "content": text }] }).to_string();
        let mut first = None;
        // Another thread sees it first each time.
        for turn in 0..4 {
            let reply = threads[(prompt + turn) % 4].post("/v1/chat/completions", body.clone()).await.unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
            let worker = reply.header("x-smg-routed-worker-id").expect("a worker is named").to_owned();
            assert_eq!(*first.get_or_insert_with(|| worker.clone()), worker, "prompt {prompt}, sight {turn}");
        }
    }
    // Metrics are handed to Envoy on ticks.
    eventually(SOON, "all decisions are counted", async || envoy.metrics().await.sum(BRANCHES, &[]) == 400.0).await;
    let branches = envoy.metrics().await.by(BRANCHES, "branch");
    assert_eq!(branches.get("tree_match"), Some(&300.0), "{branches:?}");
}
