//! A new plugin configuration keeps what is known; one that is wrong changes nothing and says why.

use serde_json::json;
use testbed::envoy::{Connection, Envoy, EnvoyOptions, Worker, eventually};

use crate::gate::Gate;
use crate::support::{CHAT, Held, SOON, WORKER_ID, chat, counts_become, no_vm_was_lost};

const BRANCHES: &str = "smg_cache_aware_policy_branch_total";

fn prompt(number: usize) -> bytes::Bytes {
    chat("m", &format!("Prompt number {number} is long enough to have a prefix of its own in the tree. ").repeat(8))
}

/// Sends the prompt and returns the worker that has answered.
async fn ask(connection: &mut Connection, number: usize) -> String {
    let reply = connection.post(CHAT, prompt(number)).await.unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
    reply.header(WORKER_ID).unwrap().to_owned()
}

async fn decisions(envoy: &Envoy, branch: &str) -> f64 {
    envoy.metrics().await.sum(BRANCHES, &[("branch", branch)])
}

#[tokio::test]
async fn a_change_keeps_the_tree_and_the_counts() {
    let gates = [Gate::start().await, Gate::start().await, Gate::start().await];
    let addresses = gates.each_ref().map(Gate::address);
    let options = EnvoyOptions { concurrency: 4, exact_balance: true, ..EnvoyOptions::with_workers(addresses) };
    let mut envoy = Envoy::start(options).await.unwrap();
    let mut holders = Vec::new();
    let mut threads = envoy.connection_per_thread().await;
    for number in 0..30 {
        holders.push(ask(&mut threads[number % 4], number).await);
    }
    drop(threads);
    let open = [Held::start(&envoy, "m", "One").await, Held::start(&envoy, "m", "Another").await];
    counts_become(&envoy, 2, "before the change").await;

    let changes = [
        json!({ "cache_threshold": 0.9 }),
        json!({ "max_attempts": 3 }),
        // Other worker objects with the same URLs, in another order.
        json!({ "workers": addresses.iter().rev().map(|address| json!({ "url": format!("http://{address}") })).collect::<Vec<_>>() }),
    ];
    for (round, change) in changes.into_iter().enumerate() {
        envoy.update_plugin(change).await.unwrap();
        let matched = decisions(&envoy, "tree_match").await;
        let mut connection = envoy.connect().await;
        for (number, holder) in holders.iter().enumerate() {
            assert_eq!(ask(&mut connection, number).await, *holder, "prompt {number} after change {round}");
        }
        eventually(SOON, "all decisions are counted", async || decisions(&envoy, "tree_match").await == matched + 30.0)
            .await;
        counts_become(&envoy, 2, "after the change").await;
    }
    let last = gates.iter().filter_map(|gate| gate.arrivals().pop()).next_back().unwrap();
    assert_eq!(last.destination().split(',').count(), 3, "{}", last.destination());

    // Streams of the first configuration end under the last one.
    let more = Held::start(&envoy, "m", "A third").await;
    counts_become(&envoy, 3, "streams of two configurations").await;
    gates.iter().for_each(Gate::open);
    for held in open.into_iter().chain([more]) {
        assert!(held.finish().await.ends_with(b"[DONE]\n\n"));
    }
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn workers_come_and_go() {
    let gates = [Gate::start().await, Gate::start().await, Gate::start().await];
    let addresses = gates.each_ref().map(Gate::address);
    let mut envoy = Envoy::start(EnvoyOptions {
        plugin: json!({ "policy": "round_robin" }),
        ..EnvoyOptions::with_workers(addresses)
    })
    .await
    .unwrap();
    let workers = |of: &[usize]| {
        let workers: Vec<_> = of.iter().map(|&at| json!({ "url": format!("http://{}", addresses[at]) })).collect();
        json!({ "workers": workers })
    };
    let open = Held::start(&envoy, "m", "This one lasts").await;
    for (members, expected) in [(&[0][..], [12, 0, 0]), (&[1, 2], [0, 6, 6]), (&[2, 1, 0], [4, 4, 4])] {
        envoy.update_plugin(workers(members)).await.unwrap();
        let before = gates.each_ref().map(Gate::arrived);
        let mut connection = envoy.connect().await;
        for number in 0..12 {
            ask(&mut connection, number).await;
        }
        let arrived: Vec<_> = gates.iter().zip(before).map(|(gate, before)| gate.arrived() - before).collect();
        assert_eq!(arrived, expected, "workers {members:?}");
    }
    counts_become(&envoy, 1, "a stream that has seen it all").await;
    drop(open);
    counts_become(&envoy, 0, "at the end").await;
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_by_name_and_the_old_one_works_on() {
    let gates = [Gate::start().await, Gate::start().await];
    let addresses = gates.each_ref().map(Gate::address);
    let mut envoy = Envoy::start(EnvoyOptions::with_workers(addresses)).await.unwrap();
    let open = Held::start(&envoy, "m", "This one lasts").await;
    let url = Worker::at(addresses[0]).url;
    let cases = [
        (json!({ "cache_treshold": 0.5 }), vec!["`cache_treshold` is 0.5", "did you mean `cache_threshold`?"]),
        (json!({ "cache_threshold": 1.5 }), vec!["`cache_threshold` is 1.5", "allowed: a number from 0 to 1"]),
        (json!({ "policy": "fastest" }), vec!["`policy` is \"fastest\"", "allowed: cache_aware, least_load"]),
        (
            json!({ "workers": [{ "url": url }, { "url": url }] }),
            vec!["`workers[1].url`", &url, "`workers[0].url`", "allowed: each URL once"],
        ),
        (json!({ "workers": [{ "url": "not a url" }] }), vec!["workers[0].url", "not a url", "allowed"]),
        (json!({ "max_attempts": 0 }), vec!["`max_attempts` is 0", "from 1 to 16"]),
    ];
    let mut holder = None;
    for (change, words) in cases {
        let refused = envoy.update_plugin(change.clone()).await.unwrap_err();
        for word in words {
            assert!(refused.log.contains(word), "{change}: no {word:?} in\n{}", refused.log);
        }
        let worker = ask(&mut envoy.connect().await, 7).await;
        assert_eq!(*holder.get_or_insert(worker.clone()), worker, "the tree is kept");
    }
    counts_become(&envoy, 1, "a stream that has seen it all").await;
    gates.iter().for_each(Gate::open);
    assert!(open.finish().await.ends_with(b"[DONE]\n\n"));
    counts_become(&envoy, 0, "at the end").await;
    envoy.update_plugin(json!({ "cache_threshold": 0.5 })).await.unwrap();
    ask(&mut envoy.connect().await, 7).await;
    no_vm_was_lost(&envoy).await;
}
