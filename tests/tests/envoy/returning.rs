//! A worker that leaves and comes back under its URL while clients with keys go on.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use testbed::envoy::{Connection, Envoy, eventually};

use crate::fleet_changes::{Load, Reporter, all_know, envoy_of, gates, left_alone, url, worker};
use crate::gate::{Gate, HOLD};
use crate::support::{Held, SOON, WORKER_ID, chat, counts_become, no_vm_was_lost, post};

const KEY: &str = "x-smg-routing-key";
const KEYS: usize = 60;

/// The workers of all keys, by a request for each.
async fn homes(threads: &mut [Connection]) -> BTreeMap<usize, String> {
    let mut homes = BTreeMap::new();
    for key in 0..KEYS {
        let request = post(chat("m", "Well?"), &[(KEY, &key_of(key))]);
        let reply = threads[key % threads.len()].send(request).await.unwrap();
        assert_eq!(reply.status, 200, "{}", reply.text());
        homes.insert(key, reply.header(WORKER_ID).unwrap().to_owned());
    }
    homes
}

fn key_of(number: usize) -> String {
    format!("user {number}")
}

async fn threads(envoy: &Envoy) -> Vec<Connection> {
    let mut threads = Vec::new();
    for _ in 0..8 {
        threads.push(envoy.connect().await);
    }
    threads
}

/// `AWAY_SECONDS=90` lets the worker stay away for so long: after a minute its slot is given up.
async fn comes_back(plugin: serde_json::Value, keys_return: bool) {
    let away = std::env::var("AWAY_SECONDS").map_or(0, |seconds| seconds.parse().expect("AWAY_SECONDS is a number"));
    let gates: [Gate; 3] = gates().await;
    let envoy = envoy_of(&gates, plugin).await;
    let reporter = Reporter::new(&envoy);
    let all = [0, 1, 2].map(|number| worker(number, &gates[number]));
    reporter.says(&all).await;
    all_know(&envoy).await;
    let mut threads = threads(&envoy).await;
    let before = homes(&mut threads).await;
    let of_first = |homes: &BTreeMap<usize, String>| homes.values().filter(|home| **home == url(0)).count();
    assert!((1..KEYS).contains(&of_first(&before)), "{before:?}");
    let (&key, _) = before.iter().find(|(_, home)| **home == url(0)).unwrap();

    let load = Load::start_with(&envoy, |client, number| {
        let key = key_of((client * 7 + number) % KEYS);
        post(chat("m", "Well?"), &[(KEY, &key)])
    });
    load.reaches(300).await;
    // Under way at the worker while it leaves and comes back.
    let held = Held::start_with(&envoy, post(chat("m", "Well?"), &[(KEY, &key_of(key)), (HOLD, "body")])).await;
    reporter.says(&all[1..]).await;
    left_alone(&gates[0], &load, "the removed one is left alone").await;
    tokio::time::sleep(Duration::from_secs(away)).await;
    let without = homes(&mut threads).await;
    assert_eq!(of_first(&without), 0);
    assert!(before.iter().all(|(key, home)| *home == url(0) || without[key] == *home), "the others' keys stay");

    reporter.says(&all).await;
    let arrived = gates[0].arrived();
    if keys_return {
        eventually(SOON, "the returned one serves", async || gates[0].arrived() > arrived).await;
    }
    load.reaches(load.sent() + 300).await;
    let total = load.sent() + 100;
    let failures = load.stop_at(total).await;
    assert!(failures.is_empty(), "{} of {total} requests failed: {:?}", failures.len(), failures.first());
    let after = homes(&mut threads).await;
    assert_eq!(after, if keys_return { before } else { without });

    gates[0].open();
    held.finish().await;
    counts_become(&envoy, 0, "at the end").await;
    let keys = async || envoy.metrics().await.sum("smg_worker_routing_keys_active", &[]);
    eventually(SOON, "no key is counted", async || keys().await == 0.0).await;
    let metrics = envoy.metrics().await;
    assert_eq!(metrics.sum("smg_destination_unknown_total", &[]), 0.0);
    assert_eq!(metrics.sum("smg_manual_policy_cache_entries", &[]), KEYS as f64);
    eprintln!("{total} requests under load; {} keys of the returning worker", of_first(&after));
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn keys_of_manual_go_back_to_a_worker_that_returns() {
    comes_back(json!({ "policy": "manual" }), true).await;
}

#[tokio::test]
async fn keys_of_the_override_stay_with_the_stand_in() {
    comes_back(json!({ "policy": "random", "sticky_sessions": true }), false).await;
}
