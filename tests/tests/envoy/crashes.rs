//! VMs that trap: who is hurt, what is served meanwhile, and that nothing stays counted.

use std::time::{Duration, Instant};

use serde_json::json;
use testbed::envoy::{Envoy, EnvoyOptions, Filter, eventually};

use crate::gate::{FIRST_PIECE, Gate, HOLD, NEXT_PIECE};
use crate::support::{SOON, WORKER_ID, chat, counts_become};
use crate::traffic::Traffic;
use crate::wire::{Answer, Http2};

const POINT: &str = "x-crash-for-tests";
const KEY: &str = "x-smg-routing-key";
const THREADS: usize = 4;

/// An Envoy of four threads whose VMs can be told to trap, with one connection to each thread.
struct Bed {
    envoy: Envoy,
    gates: [Gate; 2],
    threads: Vec<Http2>,
    /// Routing keys used so far.
    keys: usize,
}

impl Bed {
    async fn start() -> Self {
        let gates = [Gate::start().await, Gate::start().await];
        let options = EnvoyOptions {
            filter: Filter::Crashable,
            concurrency: THREADS,
            exact_balance: true,
            ..EnvoyOptions::with_workers(gates.each_ref().map(Gate::address))
        };
        let envoy = Envoy::start(options).await.unwrap();
        let threads = envoy.spread(async || Http2::open(envoy.address()).await).await;
        Self { envoy, gates, threads, keys: 0 }
    }

    /// Opens a stream on `thread`, with a routing key that no other stream has.
    async fn hold(&mut self, thread: usize) -> Answer {
        self.keys += 1;
        let key = format!("key {}", self.keys);
        let mut answer = self.threads[thread].send(&[(HOLD, "body"), (KEY, &key)], chat("m", "Hold on")).await.unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.piece().await.unwrap(), FIRST_PIECE);
        answer
    }

    /// Sends a request that makes the VM of `thread` trap at `point`: the status of the whole answer, none if it is cut.
    async fn crash(&mut self, thread: usize, point: &str) -> Option<u16> {
        let answer = self.threads[thread].send(&[(POINT, point), (KEY, "doomed")], chat("m", "Crash")).await.ok()?;
        let status = answer.status.as_u16();
        answer.rest().await.map(|_| status)
    }

    /// Sends a request on `thread` until one is served, and returns the worker that has done so.
    async fn served(&mut self, thread: usize) -> String {
        let deadline = Instant::now() + SOON;
        loop {
            let answer = self.threads[thread].send(&[], chat("m", &known_prompt())).await.unwrap();
            if answer.status == 200 {
                let worker = answer.headers[WORKER_ID].to_str().unwrap().to_owned();
                assert!(answer.rest().await.is_some());
                return worker;
            }
            assert_eq!(answer.status, 503, "thread {thread}");
            assert!(Instant::now() < deadline, "thread {thread} is dead\n{}", self.envoy.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Checks that of the streams `survivors` get another piece and that `victims` are cut.
    async fn pulse(&self, survivors: &mut [Answer], victims: Vec<Answer>) {
        self.gates.iter().for_each(Gate::pulse);
        for survivor in survivors {
            assert_eq!(survivor.piece().await.as_deref(), Some(NEXT_PIECE));
        }
        for mut victim in victims {
            assert_eq!(victim.piece().await, None);
        }
    }

    async fn settles(&self, streams: u64, what: &str) {
        counts_become(&self.envoy, streams, what).await;
        let keys = async || self.envoy.metrics().await.sum("smg_worker_routing_keys_active", &[]);
        let what = format!("{what}: {streams} routing keys");
        eventually(SOON, &what, async || keys().await == streams as f64).await;
    }

    async fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.envoy.metrics().await.sum(name, labels)
    }

    /// Ticks that have trapped, in the log from byte `since` on.
    fn dead_ticks(&self, since: usize) -> usize {
        self.envoy.log()[since..].matches("proxy_on_tick failed").count()
    }

    async fn reaped(&self) -> f64 {
        self.metric("smg_vm_reaped_total", &[]).await
    }
}

fn known_prompt() -> String {
    "A prompt that is long enough to be remembered by its prefix. ".repeat(10)
}

#[tokio::test]
async fn a_trap_at_any_point_hurts_its_own_thread_only_and_leaves_nothing_counted() {
    let mut bed = Bed::start().await;
    let holder = bed.served(0).await;
    let mut open = vec![bed.hold(0).await, bed.hold(0).await];
    let mut deaths = 0;
    let rounds = [
        ["request-headers", "request-body"],
        ["counted", "half-counted"],
        ["response-headers", "done"],
        ["tick", "tick"],
    ];
    for round in rounds {
        let mut victims = Vec::new();
        for thread in [1, 2, 3] {
            for _ in 0..2 {
                let stream = bed.hold(thread).await;
                if thread == 3 { open.push(stream) } else { victims.push(stream) }
            }
        }
        bed.settles(open.len() as u64 + 4, "before the crash").await;
        let matches = bed.metric("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")]).await;
        for (thread, point) in [1, 2].into_iter().zip(round) {
            let seen = bed.crash(thread, point).await;
            // The client's request is refused or cut, unless it was over before.
            let over = matches!(point, "done" | "tick");
            assert!(seen.is_none_or(|status| status == 503 || over && status == 200), "{point}: {seen:?}");
            if point == "tick" {
                eventually(SOON, "the tick comes", async || bed.dead_ticks(0) == thread).await;
            }
            assert_eq!(bed.served(thread).await, holder, "{point}: the tree is lost");
        }
        deaths += 2;
        let what = format!("after traps at {round:?}");
        bed.pulse(&mut open, victims).await;
        bed.settles(open.len() as u64, &what).await;
        eventually(SOON, &what, async || bed.reaped().await == f64::from(deaths)).await;
        eventually(SOON, "the known prompt is matched", async || {
            bed.metric("smg_cache_aware_policy_branch_total", &[("branch", "tree_match")]).await >= matches + 2.0
        })
        .await;
        open.truncate(2);
    }
    // Between the two writes of a step only the audit can tell.
    assert!(bed.metric("smg_in_flight_corrections_total", &[]).await >= 1.0);
    bed.gates.iter().for_each(Gate::open);
    for stream in open {
        assert!(stream.rest().await.unwrap().ends_with(b"[DONE]\n\n"));
    }
    bed.settles(0, "at the end").await;
}

#[tokio::test]
async fn many_crashes_in_a_row_end_in_service() {
    let mut bed = Bed::start().await;
    let mut open = [bed.hold(0).await];
    for number in 0..20 {
        let point = ["request-headers", "counted", "response-headers", "half-counted"][number % 4];
        let seen = bed.crash(1, point).await;
        assert!(matches!(seen, None | Some(503)), "{point}: {seen:?}");
        bed.served(1).await;
    }
    // Without a pause: while Envoy waits before it makes the next VM, the thread refuses what comes.
    for _ in 0..20 {
        assert_ne!(bed.crash(2, "request-headers").await, Some(200));
    }
    for thread in 0..THREADS {
        bed.served(thread).await;
    }
    bed.pulse(&mut open, Vec::new()).await;
    bed.settles(1, "after 40 crashes").await;
    drop(open);
    bed.settles(0, "at the end").await;
}

#[tokio::test]
async fn the_leader_and_even_all_vms_may_die() {
    let mut bed = Bed::start().await;
    bed.served(0).await;
    for death in 1..=3 {
        let streams = [bed.hold(0).await, bed.hold(1).await, bed.hold(2).await, bed.hold(3).await];
        bed.settles(4, "before the leader's death").await;
        bed.crash(death, "leader").await;
        eventually(SOON, "the leader dies", async || bed.dead_ticks(0) == death).await;
        // Shows that another leads: who does not sees no more than the old gauges.
        drop(streams);
        bed.settles(0, "after the leader's death").await;
        for thread in 0..THREADS {
            bed.served(thread).await;
        }
    }

    let victims = [bed.hold(1).await, bed.hold(2).await, bed.hold(3).await];
    bed.settles(3, "before the end of all").await;
    let logged = bed.envoy.log().len();
    bed.crash(0, "everyone").await;
    // Those of the workers at least: the main thread's VM may have led.
    eventually(SOON, "all VMs have trapped", async || bed.dead_ticks(logged) >= THREADS).await;
    for thread in 0..THREADS {
        bed.served(thread).await;
    }
    bed.pulse(&mut [], victims.into()).await;
    bed.settles(0, "after the end of all").await;
    assert!(bed.envoy.log().contains(&format!("[{}][error][wasm]", bed.envoy.pid())), "the main thread's VM lives");

    // The main thread gets no request that would bring its VM back; a new configuration must reach it all the same.
    bed.envoy.update_plugin(json!({ "max_attempts": 3 })).await.unwrap();
    let traffic = Traffic::start(bed.envoy.address(), 4);
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    bed.settles(0, "at the end").await;
}

#[tokio::test]
async fn a_storm_of_crashes_under_traffic_leaves_nothing_behind() {
    let mut bed = Bed::start().await;
    let mut open = [bed.hold(0).await, bed.hold(0).await];
    let traffic = Traffic::start(bed.envoy.address(), 8);
    // The storm spares thread 0, whose streams must not notice.
    let points = ["request-headers", "request-body", "counted", "half-counted", "response-headers", "done", "tick"];
    for number in 0..30 {
        let seen = bed.crash(1 + number % 3, points[number % points.len()]).await;
        assert!(matches!(seen, None | Some(200 | 503)), "{seen:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let outcome = traffic.stop_after(Duration::from_secs(1)).await;
    let strange: Vec<_> = outcome.failures.iter().filter(|failure| *failure != "503").collect();
    assert!(strange.is_empty(), "{strange:?}");
    assert!(outcome.answered > outcome.failures.len(), "{outcome:?}");

    bed.pulse(&mut open, Vec::new()).await;
    for thread in 0..THREADS {
        bed.served(thread).await;
    }
    let traffic = Traffic::start(bed.envoy.address(), 8);
    traffic.stop_after(Duration::from_secs(1)).await.is_flawless();
    bed.settles(2, "after the storm").await;
    assert!(bed.reaped().await >= 3.0);
    drop(open);
    bed.settles(0, "at the end").await;
}
