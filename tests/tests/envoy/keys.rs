//! Policies that go by keys and hashes, and keys that stay with their workers, over all threads.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use filter_core::fleet::ring::{Ring, position};
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};
use testbed::envoy::{Connection, Envoy, EnvoyOptions, Reply, Worker, eventually};

use crate::gate::Gate;
use crate::support::{SOON, WORKER_ID, chat, counts_become, no_vm_was_lost, post};

const KEY: &str = "x-smg-routing-key";
const TARGET: &str = "x-smg-target-worker";

async fn start(workers: usize, plugin: Value) -> (Vec<Gate>, Envoy) {
    let gates = join_all((0..workers).map(|_| Gate::start())).await;
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let options = EnvoyOptions { plugin, concurrency: 4, exact_balance: true, ..options };
    (gates, Envoy::start(options).await.unwrap())
}

async fn ask(connection: &mut Connection, text: &str, headers: &[(&str, &str)]) -> Reply {
    connection.send(post(chat("m", text), headers)).await.unwrap()
}

#[track_caller]
fn worker(reply: &Reply) -> SocketAddr {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    reply.header(WORKER_ID).and_then(|url| url.strip_prefix("http://")).and_then(|at| at.parse().ok()).unwrap()
}

async fn branches(envoy: &Envoy, family: &str, total: f64) -> std::collections::BTreeMap<String, f64> {
    let name = format!("smg_{family}_policy_branch_total");
    eventually(SOON, "all decisions are counted", async || envoy.metrics().await.sum(&name, &[]) == total).await;
    envoy.metrics().await.by(&name, "branch")
}

#[tokio::test]
async fn consistent_hashing_finds_the_owner_on_every_thread() {
    let (gates, envoy) = start(3, json!({ "policy": "consistent_hashing" })).await;
    let urls: Vec<String> = gates.iter().map(|gate| format!("http://{}", gate.address())).collect();
    let ring = Ring::new((0..).zip(urls.iter().map(String::as_str)));
    let mut threads = envoy.connection_per_thread().await;
    for number in 0..100 {
        let key = format!("user-{number}");
        let owner = ring.owner(position(key.as_bytes()), |_| true).unwrap();
        for thread in &mut threads {
            let reply = ask(thread, "a question", &[(KEY, &key)]).await;
            assert_eq!(worker(&reply), gates[usize::from(owner)].address(), "{key}");
        }
    }
    let authorized = [("authorization", "Bearer sk-abc")];
    let owner = ring.owner(position(b"Bearer sk-abc"), |_| true).unwrap();
    assert_eq!(worker(&ask(&mut threads[0], "?", &authorized).await), gates[usize::from(owner)].address());
    for (index, gate) in gates.iter().enumerate() {
        let before = gate.arrived();
        let reply = ask(&mut threads[1], "?", &[(TARGET, &index.to_string()), (KEY, "user-1")]).await;
        assert_eq!(worker(&reply), gate.address());
        let arrival = &gate.arrivals()[before];
        assert!(!arrival.headers.contains_key(TARGET), "the engine need not know");
        assert!(arrival.headers.contains_key(KEY));
    }
    for target in ["3", "-1", "1.0", "abc", "99999999999999999999"] {
        // A refusal on the headers closes a connection whose body is still to come.
        let reply = ask(&mut envoy.connect().await, "?", &[(TARGET, target), (KEY, "user-1")]).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE, "{target}");
        assert_eq!(reply.header("x-smg-error-code"), Some("no_available_workers"));
    }
    let counted = branches(&envoy, "consistent_hashing", 409.0).await;
    let expected = [("routing_key_hit", 401.0), ("target_worker_hit", 3.0), ("target_worker_miss", 5.0)];
    assert!(expected.iter().all(|(branch, count)| counted.get(*branch) == Some(count)), "{counted:?}");
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn prefix_hash_sends_one_head_to_one_worker_from_every_thread() {
    let (_gates, envoy) = start(3, json!({ "policy": "prefix_hash", "prefix_token_count": 16 })).await;
    let mut threads = envoy.connection_per_thread().await;
    let mut used = BTreeSet::new();
    for number in 0..30 {
        let head = format!("{number:<64}");
        let mut seen = BTreeSet::new();
        for (tail, thread) in threads.iter_mut().enumerate() {
            seen.insert(worker(&ask(thread, &format!("{head} and what follows {tail}"), &[]).await));
        }
        assert_eq!(seen.len(), 1, "{head:?} {seen:?}");
        used.extend(seen);
    }
    assert_eq!(used.len(), 3, "30 heads meet all workers");
    assert_eq!(branches(&envoy, "prefix_hash", 120.0).await.get("ring_hit"), Some(&120.0));
}

/// 500 keys with 8 first requests each at once, over all threads: each key has one worker.
#[tokio::test]
async fn manual_gives_500_new_keys_of_8_simultaneous_requests_one_worker_each() {
    let (_gates, envoy) = start(5, json!({ "policy": "manual" })).await;
    let mut connections = Vec::new();
    for _ in 0..32 {
        connections.push(envoy.connect().await);
    }
    let mut pairs = BTreeSet::new();
    // Eight connections, two to a thread, ask for the same key at the same time; four keys at once.
    for round in 0..125 {
        let requests =
            connections.iter_mut().enumerate().map(async |(number, connection): (usize, &mut Connection)| {
                let key = format!("key-{round}-{}", number / 8);
                let reply = ask(connection, "?", &[(KEY, &key)]).await;
                (key, worker(&reply))
            });
        pairs.extend(join_all(requests).await);
    }
    assert_eq!(pairs.len(), 500);
    let counted = branches(&envoy, "manual", 4000.0).await;
    assert_eq!(counted.get("vacant"), Some(&500.0), "{counted:?}");
    assert_eq!(counted.get("occupied_hit"), Some(&3500.0), "{counted:?}");
    counts_become(&envoy, 0, "at the end").await;
}

/// 4,162 keys for 53 pages of 32: a key in use stays, one that is not makes room, and no more are remembered than there is
/// room for.
#[tokio::test]
async fn keys_that_share_full_pages_make_room_for_each_other() {
    let (_gates, envoy) = start(3, json!({ "policy": "manual", "max_sticky_keys": 1000 })).await;
    let mut threads = envoy.connection_per_thread().await;
    let busy = worker(&ask(&mut threads[0], "?", &[(KEY, "busy")]).await);
    ask(&mut threads[0], "?", &[(KEY, "idle")]).await;
    for round in 0..80 {
        // One for each page, on the average.
        join_all(threads.iter_mut().enumerate().map(async |(number, thread)| {
            for key in 0..13 {
                ask(thread, "?", &[(KEY, &format!("passer-by {round} {number} {key}"))]).await;
            }
        }))
        .await;
        let thread = &mut threads[round % 4];
        assert_eq!(worker(&ask(thread, "?", &[(KEY, "busy")]).await), busy, "round {round}");
    }
    let counted = branches(&envoy, "manual", 4242.0).await;
    assert_eq!((counted.get("vacant"), counted.get("occupied_hit")), (Some(&4162.0), Some(&80.0)));
    ask(&mut threads[0], "?", &[(KEY, "idle")]).await;
    assert_eq!(branches(&envoy, "manual", 4243.0).await.get("vacant"), Some(&4163.0), "it was forgotten");
    eventually(SOON, "as many keys are remembered as there is room for", async || {
        envoy.metrics().await.sum("smg_manual_policy_cache_entries", &[]) == 1696.0
    })
    .await;
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn the_override_keeps_keys_of_any_policy_and_takes_the_bodys_name_first() {
    let (_gates, envoy) = start(3, json!({ "policy": "round_robin", "sticky_sessions": true })).await;
    let mut threads = envoy.connection_per_thread().await;
    let mut seen = BTreeSet::new();
    for turn in 0..12 {
        let body = json!({ "model": "m", "messages": [], "rid": format!("conv_t{turn}_r1") }).to_string();
        let reply = threads[turn % 4].send(post(body, &[(KEY, &format!("other {turn}"))])).await.unwrap();
        seen.insert(worker(&reply));
    }
    assert_eq!(seen.len(), 1, "one conversation, whatever the turn");
    let mut keyless = BTreeSet::new();
    for thread in &mut threads {
        keyless.insert(worker(&ask(thread, "?", &[]).await));
    }
    assert_eq!(keyless.len(), 3, "without a key they take turns");
    eventually(SOON, "the key's source is counted", async || {
        envoy.metrics().await.sum("smg_routing_key_source_total", &[("source", "rid")]) == 12.0
    })
    .await;
}

#[tokio::test]
async fn a_label_decides_for_its_model_and_power_of_two_sees_the_load() {
    let gates = join_all((0..4).map(|_| Gate::start())).await;
    let worker_of = |gate: &Gate, model: &str, policy: &str| {
        Worker::at(gate.address()).with("models", json!([model])).with("labels", json!({ "policy": policy }))
    };
    let workers = vec![
        worker_of(&gates[0], "m", "passthrough"),
        worker_of(&gates[1], "m", "random"),
        worker_of(&gates[2], "n", "power_of_two"),
        worker_of(&gates[3], "n", "powerOfTwo"),
    ];
    let plugin = json!({ "policy": "power_of_two" });
    let envoy =
        Envoy::start(EnvoyOptions { workers, plugin, concurrency: 4, ..EnvoyOptions::default() }).await.unwrap();
    let mut connection = envoy.connect().await;
    for _ in 0..20 {
        assert_eq!(worker(&ask(&mut connection, "?", &[]).await), gates[0].address());
    }
    let held: Vec<_> = join_all((0..2).map(|_| crate::support::Held::start(&envoy, "n", "?"))).await;
    assert_eq!((gates[2].arrived(), gates[3].arrived()), (1, 1), "the second goes to the idle one of both");
    drop(held);
    eventually(SOON, "both policies are counted", async || {
        let selections = envoy.metrics().await.by("smg_worker_selection_total", "policy");
        selections.get("passthrough") == Some(&20.0) && selections.get("power_of_two") == Some(&2.0)
    })
    .await;
    counts_become(&envoy, 0, "at the end").await;
}

#[tokio::test]
async fn routing_headers_count_only_where_they_are_trusted_and_workers_can_stay_unnamed() {
    let plugin =
        json!({ "policy": "consistent_hashing", "trust_routing_headers": "never", "expose_worker_id": "hash" });
    let (_gates, envoy) = start(3, plugin).await;
    let mut connection = envoy.connect().await;
    let mut seen = BTreeSet::new();
    for _ in 0..40 {
        let reply = ask(&mut connection, "?", &[(TARGET, "1"), (KEY, "user-1")]).await;
        assert_eq!(reply.status, StatusCode::OK);
        seen.insert(reply.header(WORKER_ID).unwrap().to_owned());
    }
    assert_eq!(seen.len(), 3, "neither header decides: {seen:?}");
    assert!(seen.iter().all(|id| id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())), "{seen:?}");
}

fn with_decisions_in_the_access_log(resources: &mut Value) {
    let listeners = resources["listeners"].as_array_mut().unwrap();
    let routing = listeners.iter_mut().find(|listener| listener["name"] == "routing").unwrap();
    routing["filter_chains"][0]["filters"][0]["typed_config"]["access_log"] = json!([{
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": { "text_format_source": { "inline_string":
                "DECISION %RESPONSE_CODE% %FILTER_STATE(wasm.smg_decision:PLAIN)%\n" } },
        },
    }]);
}

#[tokio::test]
async fn a_decision_is_explained_to_the_client_and_in_the_access_log() {
    let gates = join_all((0..2).map(|_| Gate::start())).await;
    let options = EnvoyOptions::with_workers(gates.iter().map(Gate::address));
    let plugin = json!({ "explain_decisions": true, "expose_worker_id": "off" });
    let edit: Option<fn(&mut Value)> = Some(with_decisions_in_the_access_log);
    let envoy = Envoy::start(EnvoyOptions { plugin, edit, ..options }).await.unwrap();
    let mut connection = envoy.connect().await;
    let text = "a prompt that is long enough to be known again ".repeat(20);
    for branch in ["expected_wait_fallback", "tree_match"] {
        let reply = ask(&mut connection, &text, &[]).await;
        let decision = reply.header("x-smg-decision").unwrap().to_owned();
        assert!(decision.starts_with(&format!("policy=cache_aware;branch={branch};matched=")), "{decision}");
        assert!(!decision.contains("http://"), "{decision}");
        assert_eq!(reply.header(WORKER_ID), None);
        let line = format!("DECISION 200 {decision}");
        eventually(SOON, "the access log has it", async || envoy.log().contains(&line)).await;
    }
}

/// How many of 40 new prompts two Envoys with trees of their own send to the same of four idle engines.
async fn agreed(ties: &str) -> usize {
    let gates = join_all((0..4).map(|_| Gate::start())).await;
    let addresses: Vec<SocketAddr> = gates.iter().map(Gate::address).collect();
    let start = async || {
        let options = EnvoyOptions::with_workers(addresses.iter().copied());
        let plugin = json!({ "cold_start_ties": ties });
        Envoy::start(EnvoyOptions { plugin, ..options }).await.unwrap()
    };
    let envoys = [start().await, start().await];
    let mut connections = [envoys[0].connect().await, envoys[1].connect().await];
    let mut agreed = 0;
    for number in 0..40 {
        let text = format!("Prompt {number} shares its beginning with none. ").repeat(20);
        let mut workers = BTreeSet::new();
        for (envoy, connection) in envoys.iter().zip(&mut connections) {
            // All are idle again, so that only ties decide.
            counts_become(envoy, 0, "between prompts").await;
            workers.insert(worker(&ask(connection, &text, &[]).await));
        }
        agreed += usize::from(workers.len() == 1);
    }
    agreed
}

#[tokio::test]
async fn two_envoys_send_a_new_prompt_to_the_same_engine_where_the_ring_breaks_ties() {
    assert_eq!(agreed("ring").await, 40);
    // One in four by chance: 26 and more of 40 would come about once in ten million times.
    let by_chance = agreed("random").await;
    assert!(by_chance < 26, "{by_chance}");
    eprintln!("two Envoys agree on 40 of 40 new prompts with the ring, on {by_chance} by chance");
}
