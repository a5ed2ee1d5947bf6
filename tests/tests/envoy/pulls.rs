//! Snapshots that Envoy fetches: several Envoys and one sidecar, and what is no sidecar.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Filter, Output, Process, eventually, plain_cluster, workspace_binary};
use testbed::fake_engine::{EngineOptions, FakeEngine};

use crate::gate::Gate;
use crate::reports::{long_queue, spread};
use crate::sidecar::{Asked, Sidecar, TOKEN};
use crate::support::{CHAT, SOON, address_for_later, chat, no_vm_was_lost, post};

/// Two workers, and Envoys in front of them that fetch from one sidecar.
struct Bed {
    gates: [Gate; 2],
    urls: [String; 2],
}

impl Bed {
    async fn start() -> Self {
        let gates = [Gate::start().await, Gate::start().await];
        let urls = gates.each_ref().map(|gate| format!("http://{}", gate.address()));
        Self { gates, urls }
    }

    fn options(&self, name: &str, sidecar: SocketAddr, reports: Value) -> EnvoyOptions {
        let mut all = json!({ "cluster": "sidecar", "authority": name, "token": TOKEN });
        all.as_object_mut().unwrap().extend(reports.as_object().unwrap().clone());
        EnvoyOptions {
            plugin: json!({ "policy": "least_load", "reports": all }),
            clusters: vec![plain_cluster("sidecar", &[sidecar])],
            ..EnvoyOptions::with_workers(self.gates.each_ref().map(Gate::address))
        }
    }

    /// Whether none of so many requests, each on a connection of its own, goes to worker `number`.
    async fn avoids(&self, envoy: &Envoy, number: usize) -> bool {
        let before = self.gates[number].arrived();
        for _ in 0..12 {
            let reply = envoy.connect().await.post(CHAT, chat("m", "Well?")).await.unwrap();
            assert_eq!(reply.status, 200);
        }
        self.gates[number].arrived() == before
    }

    async fn all_avoid(&self, envoys: &[Envoy], number: usize, what: &str) {
        let start = Instant::now();
        for envoy in envoys {
            eventually(SOON, what, async || self.avoids(envoy, number).await).await;
        }
        eprintln!("{what}: {:?}", start.elapsed());
    }
}

async fn pulled(envoy: &Envoy, outcome: &str) -> f64 {
    envoy.metrics().await.sum("smg_report_pulls_total", &[("outcome", outcome)])
}

#[tokio::test]
async fn three_envoys_follow_one_sidecar_through_its_lives() {
    let bed = Bed::start().await;
    let sidecar = Sidecar::start(&bed.urls).await;
    let mut envoys = Vec::new();
    for name in ["envoy-1", "envoy-2", "envoy-3"] {
        let options = bed.options(name, sidecar.address(), json!({ "timeout_ms": 60_000 }));
        envoys.push(Envoy::start(options).await.unwrap());
    }
    for number in [0, 1, 0] {
        sidecar.say_busy(number);
        bed.all_avoid(&envoys, number, &format!("all avoid worker {number}")).await;
    }
    sidecar.restart();
    sidecar.say_busy(1);
    bed.all_avoid(&envoys, 1, "the next life is heard").await;

    for (name, envoy) in ["envoy-1", "envoy-2", "envoy-3"].into_iter().zip(&envoys) {
        let asked = sidecar.asked_by(name);
        assert!(asked.iter().all(|asked| asked.authorization == format!("Bearer {TOKEN}")));
        for known in [None, Some((1, 1)), Some((1, 2)), Some((1, 3))] {
            assert!(asked.iter().any(|asked| asked.known == known), "{name} has never known {known:?}: {asked:?}");
        }
        let after_the_first = || asked.iter().skip_while(|asked| asked.known.is_none());
        assert!(after_the_first().all(|asked| asked.known.is_some()), "{name} asks for everything again: {asked:?}");
        eventually(SOON, "it goes on from there", async || {
            sidecar.asked_by(name).last().is_some_and(|asked| asked.known == Some((2, 1)))
        })
        .await;
        // A thread that is kept waiting for long loses the lead while its call is under way, and both hear the same.
        eventually(SOON, "four are counted", async || pulled(envoy, "news").await >= 4.0).await;
        let outcomes = envoy.metrics().await.by("smg_report_pulls_total", "outcome");
        let expected = |outcome: &String| ["news", "unchanged", "old"].contains(&outcome.as_str());
        assert!(outcomes.keys().all(expected), "{outcomes:?}");
        assert_eq!(envoy.log().matches("load snapshots come from cluster sidecar").count(), 1);
        no_vm_was_lost(envoy).await;
    }
}

/// Three Envoys and one with the wrong token are fed by the sidecar itself, through two of its lives.
#[tokio::test]
async fn three_envoys_are_fed_by_one_sidecar_at_work() {
    let engines: Vec<_> = (0..3).map(|_| FakeEngine::start(EngineOptions::instant())).collect();
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    std::fs::write(&token, TOKEN).unwrap();
    let listen = address_for_later();
    let sidecar = || {
        let mut command = Command::new(workspace_binary("sidecar-loadmonitor").unwrap());
        command.args(engines.iter().flat_map(|engine| ["--worker".to_owned(), engine.url()]));
        command.args(["--load-monitor-interval", "1", "--listen", &listen.to_string(), "--token-file"]).arg(&token);
        Process::start("sidecar", command, &Output::File(directory.path().join("sidecar.log"))).unwrap()
    };
    let mut envoys = Vec::new();
    for token in [TOKEN, TOKEN, TOKEN, "another-token"] {
        let options = EnvoyOptions {
            plugin: json!({ "policy": "least_load", "reports": { "cluster": "sidecar", "token": token } }),
            clusters: vec![plain_cluster("sidecar", &[listen])],
            ..EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()))
        };
        envoys.push(Envoy::start(options).await.unwrap());
    }
    let stranger = envoys.pop().unwrap();
    let avoided = async |envoy: &Envoy| spread(envoy, &engines, 30).await[0] == 0;
    for (lives, life) in [(1.0, "first"), (2.0, "second")] {
        let mut sidecar = sidecar();
        engines[0].control(long_queue());
        let start = Instant::now();
        for (number, envoy) in envoys.iter().enumerate() {
            eventually(SOON, &format!("the queue counts, {life} life"), async || avoided(envoy).await).await;
            eprintln!("Envoy {number}, {life} life: {:?}", start.elapsed());
        }
        assert!(!avoided(&stranger).await, "a wrong token changes nothing");
        engines[0].clear_faults();
        let start = Instant::now();
        for (number, envoy) in envoys.iter().enumerate() {
            eventually(SOON, &format!("the queue is gone, {life} life"), async || !avoided(envoy).await).await;
            eprintln!("Envoy {number}, {life} life, the queue gone: {:?}", start.elapsed());
        }
        // Whoever is refused asks less and less often, and counters are handed to Envoy on ticks.
        eventually(SOON, "refused", async || pulled(&stranger, "unauthorized").await >= lives).await;
        for envoy in &envoys {
            eventually(SOON, "the queue and its end are counted", async || pulled(envoy, "news").await >= 2.0 * lives)
                .await;
        }
        assert!(sidecar.exited().is_none());
        sidecar.kill();
    }
    for envoy in &envoys {
        assert_eq!(pulled(envoy, "gap").await, 0.0);
        no_vm_was_lost(envoy).await;
    }
    assert_eq!(pulled(&stranger, "news").await, 0.0);
}

/// A worker that was drained by hand stays out of an Envoy that starts afterwards and has it in its configuration, and
/// is not taken for one that serves any model.
#[tokio::test]
async fn a_drained_worker_stays_out_of_an_envoy_that_starts_later() {
    let engines: Vec<_> = ["a", "b", "b"]
        .map(|model| FakeEngine::start(EngineOptions { models: vec![model.to_owned()], ..EngineOptions::instant() }))
        .into_iter()
        .collect();
    let directory = tempfile::tempdir().unwrap();
    let listen = address_for_later();
    let mut command = Command::new(workspace_binary("sidecar-loadmonitor").unwrap());
    command.args(engines.iter().flat_map(|engine| ["--worker".to_owned(), engine.url()]));
    command.args(["--load-monitor-interval", "0.2", "--drain-settle-secs", "0.2", "--listen", &listen.to_string()]);
    let _sidecar = Process::start("sidecar", command, &Output::File(directory.path().join("sidecar.log"))).unwrap();
    let client = reqwest::Client::new();
    let drain = async || {
        let worker = [("worker", engines[1].url())];
        let answer = client.post(format!("http://{listen}/drain")).query(&worker).send().await;
        answer.is_ok_and(|answer| answer.status() == 202)
    };
    eventually(SOON, "it is drained", drain).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let envoy = Envoy::start(EnvoyOptions {
        plugin: json!({ "policy": "round_robin", "reports": { "cluster": "sidecar" } }),
        clusters: vec![plain_cluster("sidecar", &[listen])],
        ..EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()))
    })
    .await
    .unwrap();
    eventually(SOON, "what the engines are is known", async || {
        envoy.connect().await.post(CHAT, chat("c", "Well?")).await.is_ok_and(|reply| reply.status == 404)
    })
    .await;
    let before = engines[1].stats().requests;
    for model in ["a", "b"].into_iter().cycle().take(20) {
        let reply = envoy.connect().await.post(CHAT, chat(model, "Well?")).await.unwrap();
        assert_eq!(reply.status, 200, "{model}: {}", reply.text());
    }
    assert_eq!(engines[1].stats().requests, before);
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn a_wrong_token_changes_nothing_and_the_right_one_is_enough() {
    let bed = Bed::start().await;
    let sidecar = Sidecar::start(&bed.urls).await;
    sidecar.say_busy(0);
    let options = bed.options("envoy", sidecar.address(), json!({ "token": "another-token" }));
    let mut envoy = Envoy::start(options).await.unwrap();
    eventually(SOON, "it is refused twice", async || pulled(&envoy, "unauthorized").await >= 2.0).await;
    assert!(!bed.avoids(&envoy, 0).await);
    assert_eq!(envoy.log().matches("load snapshots cannot be fetched from cluster sidecar").count(), 1);
    envoy.update_plugin(json!({ "reports": { "token": TOKEN } })).await.unwrap();
    eventually(SOON, "the right one opens", async || bed.avoids(&envoy, 0).await).await;
    assert!(!envoy.log().contains("another-token"));
    no_vm_was_lost(&envoy).await;
}

/// The token comes from the environment of the VM, for both ways.
fn token_in_the_environment(both: &mut Value) {
    for listener in both["listeners"].as_array_mut().unwrap() {
        let filter = listener.pointer_mut("/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config");
        filter.unwrap()["vm_config"]["environment_variables"] = json!({ "key_values": { "SMG_REPORTS_TOKEN": TOKEN } });
    }
}

#[tokio::test]
async fn a_token_in_the_environment_opens_the_sidecar_and_closes_the_ingest_listener() {
    let bed = Bed::start().await;
    let sidecar = Sidecar::start(&bed.urls).await;
    sidecar.say_busy(0);
    let mut options = bed.options("envoy", sidecar.address(), json!({}));
    options.plugin["reports"].as_object_mut().unwrap().remove("token");
    options.edit = Some(token_in_the_environment);
    let envoy = Envoy::start(options).await.unwrap();
    eventually(SOON, "the snapshot is fetched", async || bed.avoids(&envoy, 0).await).await;

    let report = |url: &String, queued: f64| json!({ "url": url, "load": [queued, 0, 0, 0, 100] });
    let workers = [report(&bed.urls[0], 0.0), report(&bed.urls[1], 1e9)];
    let snapshot = json!({ "version": 2, "reporter": "other", "epoch": 2, "sequence": 1, "interval_ms": 600_000,
                           "workers": workers })
    .to_string();
    let client = reqwest::Client::new();
    let post = async |authorization: Option<&str>| {
        let mut request = client.post(envoy.reports_url()).body(snapshot.clone());
        if let Some(authorization) = authorization {
            request = request.header("authorization", authorization);
        }
        let answer = request.send().await.unwrap();
        let code = answer.headers().get("x-smg-error-code").map(|code| code.to_str().unwrap().to_owned());
        (answer.status().as_u16(), code)
    };
    for wrong in [None, Some("Bearer wrong"), Some(TOKEN), Some("Basic YTpi")] {
        assert_eq!(post(wrong).await, (401, Some("unauthorized".to_owned())), "{wrong:?}");
    }
    assert!(bed.avoids(&envoy, 0).await);
    assert_eq!(post(Some(&format!("Bearer {TOKEN}"))).await, (202, None));
    eventually(SOON, "the pushed one counts", async || bed.avoids(&envoy, 1).await).await;
    assert!(!envoy.log().contains(TOKEN));
    no_vm_was_lost(&envoy).await;
}

#[tokio::test]
async fn without_a_sidecar_requests_are_served_and_its_return_is_noticed() {
    let bed = Bed::start().await;
    let address = address_for_later();
    let nowhere = bed.options("envoy", address, json!({ "cluster": "nowhere" }));
    let mut envoy = Envoy::start(nowhere).await.unwrap();
    eventually(SOON, "there is no such cluster", async || pulled(&envoy, "unreachable").await >= 1.0).await;
    assert!(!bed.avoids(&envoy, 0).await);
    assert!(envoy.log().contains("is there such a cluster?"));
    envoy.update_plugin(json!({ "reports": { "cluster": "sidecar" } })).await.unwrap();
    eventually(SOON, "nobody listens", async || envoy.log().contains("from cluster sidecar")).await;
    assert!(!bed.avoids(&envoy, 0).await);
    no_vm_was_lost(&envoy).await;
}

/// The main thread's VM ticks and leads as well as any. With every worker's VM gone it is the only one left.
#[tokio::test]
async fn the_main_threads_vm_can_fetch() {
    let bed = Bed::start().await;
    let sidecar = Sidecar::start(&bed.urls).await;
    sidecar.say_busy(0);
    let options = EnvoyOptions {
        filter: Filter::Crashable,
        concurrency: 1,
        ..bed.options("envoy", sidecar.address(), json!({ "wait_ms": 200 }))
    };
    let envoy = Envoy::start(options).await.unwrap();
    eventually(SOON, "the snapshot is fetched", async || bed.avoids(&envoy, 0).await).await;
    let request = post(chat("m", "Crash"), &[("x-crash-for-tests", "request-headers")]);
    let _ = envoy.connect().await.start(request).await;
    let crashed = Instant::now();
    // A trapped VM comes back with the next request only. A call that it may have made has been answered by then.
    let later = |asked: &&Asked| asked.at > crashed + Duration::from_secs(2);
    eventually(SOON, "it is asked again and again", async || {
        sidecar.asked_by("envoy").iter().filter(later).count() >= 5
    })
    .await;
    sidecar.say_busy(1);
    eventually(SOON, "what the main thread has fetched counts", async || {
        sidecar.asked_by("envoy").iter().any(|asked| asked.known == Some((1, 2)))
    })
    .await;
    eventually(SOON, "the worker is back", async || {
        envoy.connect().await.post(CHAT, chat("m", "Well?")).await.is_ok_and(|reply| reply.status == 200)
    })
    .await;
    assert!(bed.avoids(&envoy, 1).await);
}
