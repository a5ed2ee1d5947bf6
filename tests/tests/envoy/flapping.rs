//! Engines that die, hang and flap, a half of them at a time: clients with three attempts see nothing of it.
//!
//! `FLAPPING_SECONDS` and `REQUESTS` make it longer: 60 and 5000, say.

use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use testbed::envoy::stack::{Stack, StackOptions};
use testbed::envoy::{Connection, EnvoyOptions};
use testbed::fake_engine::{Control, EngineOptions, Fault, Seat};
use tokio::time::sleep;

use crate::support::{CHAT, chat, counts_become, no_vm_was_lost};

const CLIENTS: usize = 12;

/// An engine that is to answer at once has hung when it has not after this time.
const PER_TRY_TIMEOUT: &str = "3s";

/// A state of an engine lasts so long.
const PHASE: Duration = Duration::from_millis(600);

fn setting<T: FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn edit(both: &mut Value) {
    let routing = both["listeners"].as_array_mut().into_iter().flatten().find(|all| all["name"] == "routing");
    let routes = routing.and_then(|listener| {
        listener.pointer_mut("/filter_chains/0/filters/0/typed_config/route_config/virtual_hosts/0/routes")
    });
    for route in routes.and_then(Value::as_array_mut).into_iter().flatten() {
        let policy = &mut route["route"]["retry_policy"];
        policy["num_retries"] = json!(2);
        policy["per_try_timeout"] = json!(PER_TRY_TIMEOUT);
    }
}

/// Kills, stalls and flaps the first two engines in turn until told to stop; all live and answer in the end.
async fn make_trouble(seats: &mut [Seat], stop: &AtomicBool) -> usize {
    let stall = || Control { fault: Some(Fault::Stall), health: Some(503), ..Control::default() };
    let well = || Control { clear: true, ..Control::default() };
    let mut rounds = 0;
    while !stop.load(Ordering::Relaxed) {
        let (killed, stalled) = (rounds % 2, (rounds + 1) % 2);
        seats[killed].kill();
        seats[stalled].engine().unwrap().control(stall());
        sleep(PHASE).await;
        seats[stalled].engine().unwrap().control(well());
        seats[killed].revive().unwrap();
        for _ in 0..4 {
            sleep(PHASE / 8).await;
            seats[stalled].kill();
            sleep(PHASE / 8).await;
            seats[stalled].revive().unwrap();
        }
        rounds += 1;
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_the_engines_die_hang_and_flap_and_no_client_sees_it() {
    let (seconds, requests): (u64, usize) = (setting("FLAPPING_SECONDS", 4), setting("REQUESTS", 400));
    let options = EngineOptions {
        prefill_tokens_per_second: 1e6,
        decode_step: Duration::from_millis(1),
        ..EngineOptions::default()
    };
    let mut seats: Vec<_> =
        (1..=4).map(|number| Seat::start(options.clone().named(format!("engine-{number}"))).unwrap()).collect();
    let stack = StackOptions {
        workers: seats.iter().map(|seat| format!("http://{}", seat.address())).collect(),
        envoy: EnvoyOptions {
            plugin: json!({ "max_attempts": 3, "cb_failure_threshold": 5, "cb_timeout_duration_secs": 1 }),
            edit: Some(edit),
            ..EnvoyOptions::default()
        },
        load_monitor_interval: 1.0,
        ..StackOptions::default()
    };
    let mut stack = Stack::start(stack).await.unwrap();
    stack.served(|_| {}).await.unwrap();

    let (sent, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let end = Instant::now() + Duration::from_secs(seconds);
    let (envoy, sent) = (stack.envoy(), &sent);
    let client = |number: usize| async move {
        let mut connection: Option<Connection> = None;
        let mut wrong = Vec::new();
        while sent.load(Ordering::Relaxed) < requests || Instant::now() < end {
            let turn = sent.fetch_add(1, Ordering::Relaxed);
            let body = chat("m", &format!("Conversation {number}, what about {}?", turn / 50));
            let open = match connection.take() {
                Some(open) => open,
                None => envoy.connect().await,
            };
            let mut open = open;
            match open.post(CHAT, body).await {
                Ok(reply) if reply.status == 200 => connection = Some(open),
                Ok(reply) => wrong.push(format!("{} {}", reply.status, reply.text())),
                Err(error) => wrong.push(format!("{error:#}")),
            }
        }
        wrong
    };
    let clients = async {
        let wrong = join_all((0..CLIENTS).map(client)).await;
        stop.store(true, Ordering::Relaxed);
        wrong
    };
    let (wrong, rounds) = tokio::join!(clients, make_trouble(&mut seats, &stop));
    let wrong: Vec<_> = wrong.into_iter().flatten().collect();
    let sent = sent.load(Ordering::Relaxed);
    let retried = envoy.stat("cluster.engines.upstream_rq_retry").await;
    println!("{sent} requests, {retried} retries, {rounds} rounds of trouble, {} not answered well", wrong.len());
    assert!(wrong.is_empty(), "{} of {sent}: {:?}", wrong.len(), &wrong[..wrong.len().min(5)]);
    assert!(retried > 0 && rounds > 0);
    counts_become(envoy, 0, "at the end").await;
    no_vm_was_lost(envoy).await;
}
