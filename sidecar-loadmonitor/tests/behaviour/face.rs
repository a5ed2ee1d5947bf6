//! The sidecar's own HTTP face.

use std::time::Duration;

use filter_core::report::{Health, Scope, Snapshot, WorkerReport};
use reqwest::{Client, Response, StatusCode};
use tokio::time::{sleep, timeout};

use crate::fakes::{
    PATIENCE, Route, Running, dead_port, engine_with, healthy, load, loads, probing_sidecar, serve_raw, sidecar,
};

/// A sidecar that serves, and how to ask it.
struct Served {
    base: String,
    client: Client,
    token: Option<&'static str>,
    _sidecar: Running,
}

async fn served(arguments: &[&str]) -> Served {
    let address = dead_port().await.to_string();
    let listen = ["--listen", &address, "--drain-settle-secs", "0.2"];
    let all = [&listen[..], arguments].concat();
    let sidecar = probing_sidecar(&all);
    Served { base: format!("http://{address}"), client: Client::new(), token: None, _sidecar: sidecar }
}

impl Served {
    async fn get(&self, path: &str) -> Response {
        let asked = async {
            loop {
                let mut request = self.client.get(format!("{}{path}", self.base));
                if let Some(token) = self.token {
                    request = request.bearer_auth(token);
                }
                match request.send().await {
                    Ok(answer) => return answer,
                    // It has only just been started.
                    Err(_) => sleep(Duration::from_millis(5)).await,
                }
            }
        };
        timeout(PATIENCE, asked).await.unwrap()
    }

    /// What is new after `taken`, waited for.
    async fn news(&self, taken: Option<&Snapshot>) -> Snapshot {
        let after = taken.map_or(String::new(), |taken| format!("&epoch={}&sequence={}", taken.epoch, taken.sequence));
        let answer = self.get(&format!("/v1/snapshot?wait_ms=30000{after}")).await;
        assert_eq!(answer.status(), StatusCode::OK);
        Snapshot::parse(&answer.bytes().await.unwrap()).unwrap()
    }

    /// Follows until `pleases`.
    async fn follow(&self, mut taken: Option<Snapshot>, pleases: impl Fn(&Snapshot) -> bool) -> Snapshot {
        let followed = async {
            loop {
                let next = self.news(taken.as_ref()).await;
                if pleases(&next) {
                    return next;
                }
                taken = Some(next);
            }
        };
        timeout(PATIENCE, followed).await.unwrap()
    }

    async fn drain(&self, worker: &str) -> StatusCode {
        let request = self.client.post(format!("{}/drain", self.base)).query(&[("worker", worker)]);
        let request = if let Some(token) = self.token { request.bearer_auth(token) } else { request };
        request.send().await.unwrap().status()
    }
}

const SLOW_ROUNDS: [&str; 2] = ["--load-monitor-interval", "600"];

#[tokio::test]
async fn a_reader_gets_everything_and_then_what_has_changed() {
    let health = Route::new(200, "");
    let engine = engine_with(&health, &Route::new(200, loads(4)), &Route::new(404, "")).await;
    let (changing, still) = (format!("http://{engine}"), format!("http://{}", healthy(1).await));
    let workers = format!("{changing},{still}");
    let served = served(&[&["--worker", &workers], &SLOW_ROUNDS[..]].concat()).await;
    let polled = |snapshot: &Snapshot| snapshot.workers.iter().all(|worker| worker.load.is_some());
    served.follow(None, |snapshot| snapshot.scope == Scope::Full && polled(snapshot)).await;
    // Whoever comes without knowing anything gets everything.
    let all = served.news(None).await;
    assert_eq!((all.scope, all.workers.len()), (Scope::Full, 2));
    let by = |url: &str| all.workers.iter().find(|worker| worker.url == url).unwrap();
    assert_eq!((by(&changing).load, by(&changing).health), (Some(load(4)), Some(Health::Ready)));

    let path = format!("/v1/snapshot?epoch={}&sequence={}&wait_ms=50", all.epoch, all.sequence);
    assert_eq!(served.get(&path).await.status(), StatusCode::NO_CONTENT);
    health.answers(500, "");
    let news = served.follow(Some(all.clone()), |snapshot| !snapshot.workers.is_empty()).await;
    let [worker] = &news.workers[..] else { panic!("{news:?}") };
    assert_eq!((worker.url.as_str(), worker.health), (changing.as_str(), Some(Health::NotReady)));
    assert!(matches!(news.scope, Scope::Since(_)) && worker.info.is_none(), "{news:?}");

    for (epoch, sequence) in [(all.epoch - 1, all.sequence), (all.epoch, news.sequence + 100)] {
        let stranger = Snapshot { epoch, sequence, ..all.clone() };
        assert_eq!(served.news(Some(&stranger)).await.scope, Scope::Full, "of another process");
    }
}

#[tokio::test]
async fn a_reader_hears_of_each_poll_though_nothing_has_changed() {
    let worker = format!("http://{}", healthy(1).await);
    let served = served(&["--worker", &worker, "--load-monitor-interval", "0.1"]).await;
    let polled = |snapshot: &Snapshot| {
        snapshot.scope != Scope::Full && snapshot.workers.first().is_some_and(|worker| worker.load.is_some())
    };
    let first = served.follow(None, polled).await;
    let next = served.follow(Some(first.clone()), polled).await;
    assert!(next.sequence > first.sequence && next.epoch == first.epoch);
    let [before, after] = [&first.workers[0], &next.workers[0]];
    assert!(before.load == after.load && before.poll < after.poll, "{before:?} {after:?}");
}

#[tokio::test]
async fn a_drained_worker_stays_away_and_everybody_is_told() {
    let workers = [format!("http://{}", healthy(1).await), format!("http://{}", healthy(2).await)];
    let both = workers.join(",");
    let served = served(&[&["--worker", &both], &SLOW_ROUNDS[..]].concat()).await;
    let all = served.follow(None, |snapshot| snapshot.scope == Scope::Full).await;
    assert_eq!(served.drain("http://127.0.0.1:1").await, StatusCode::NOT_FOUND);
    assert_eq!(served.drain(&workers[0]).await, StatusCode::ACCEPTED);
    let drains = |snapshot: &Snapshot| {
        snapshot.workers.iter().any(|one| one.url == workers[0] && one.health == Some(Health::Draining))
    };
    served.follow(Some(all.clone()), drains).await;
    sleep(Duration::from_secs(2)).await;
    // Who has missed it is told as well, and so is a proxy that starts only now.
    assert!(drains(&served.news(Some(&all)).await) && drains(&served.news(None).await));
    assert_eq!(served.drain(&workers[0]).await, StatusCode::ACCEPTED, "once more changes nothing");
    let listed: serde_json::Value = served.get("/workers").await.json().await.unwrap();
    let of = |url: &str| listed.as_array().unwrap().iter().find(|worker| worker["url"] == url).unwrap();
    assert_eq!((&of(&workers[0])["health"], &of(&workers[0])["load"]), (&"draining".into(), &serde_json::Value::Null));
    assert_eq!(of(&workers[1])["load"]["waiting"], 2.0);
}

#[tokio::test]
async fn without_the_token_nothing_is_told_and_nothing_drained() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("face.token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let worker = format!("http://{}", healthy(1).await);
    let mut served = served(&["--worker", &worker, "--token-file", file.to_str().unwrap()]).await;
    for wrong in [None, Some("s3cre"), Some("s3cret1"), Some("S3CRET")] {
        served.token = wrong;
        for path in ["/v1/snapshot", "/workers"] {
            let answer = served.get(path).await;
            assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
            assert!(!answer.text().await.unwrap().contains("s3cret"));
        }
        assert_eq!(served.drain(&worker).await, StatusCode::UNAUTHORIZED);
    }
    for open in ["/healthz", "/readyz"] {
        assert_ne!(served.get(open).await.status(), StatusCode::UNAUTHORIZED);
    }
    served.token = Some("s3cret");
    let all = served.follow(None, |snapshot| snapshot.scope == Scope::Full).await;
    assert_eq!(all.workers[0].health, Some(Health::Ready), "nobody has drained it");
}

#[tokio::test]
async fn monitoring_sees_engines_polls_and_readers() {
    let health = Route::new(200, "");
    let engine = engine_with(&health, &Route::new(200, loads(4)), &Route::new(404, "")).await;
    let (up, down) = (format!("http://{engine}"), format!("http://{}", dead_port().await));
    let workers = format!("{up},{down}");
    let served = served(&["--worker", &workers, "--load-monitor-interval", "0.1"]).await;
    served.follow(None, |snapshot| snapshot.scope == Scope::Full && snapshot.workers.len() == 2).await;
    let known =
        |worker: &WorkerReport| worker.load.is_some() && worker.info.as_ref().is_some_and(|info| info.models == ["m"]);
    served.follow(None, |snapshot| snapshot.workers.iter().any(known)).await;
    let page = served.get("/metrics").await.text().await.unwrap();
    let has = |line: &str| assert!(page.lines().any(|one| one.starts_with(line)), "no {line} in\n{page}");
    has(&format!("smg_engine_waiting_requests{{worker=\"{up}\",model=\"m\",dp_rank=\"0\"}} 4"));
    has(&format!("smg_engine_token_usage{{worker=\"{up}\",model=\"m\",dp_rank=\"0\"}} 0.5"));
    has(&format!("smg_engine_waiting_requests{{worker=\"{down}\",model=\"unknown\",dp_rank=\"0\"}} -1"));
    has(&format!("smg_loadmonitor_polls_total{{worker=\"{up}\",outcome=\"ok\"}} "));
    has(&format!("smg_loadmonitor_poll_seconds_total{{worker=\"{up}\"}} "));
    has(&format!("smg_loadmonitor_report_age_seconds{{worker=\"{up}\"}} "));
    has(&format!("smg_loadmonitor_worker_health{{worker=\"{down}\"}} 0"));
    has("smg_loadmonitor_pulls_total{outcome=\"answered\"} ");
    assert_eq!(served.drain(&up).await, StatusCode::ACCEPTED);
    let page = served.get("/metrics").await.text().await.unwrap();
    let has = |line: &str| assert!(page.lines().any(|one| one.starts_with(line)), "no {line} in\n{page}");
    has(&format!("smg_loadmonitor_worker_health{{worker=\"{up}\"}} 0.5"));
    has(&format!("smg_engine_waiting_requests{{worker=\"{up}\",model=\"m\",dp_rank=\"0\"}} -1"));
}

#[tokio::test]
async fn it_is_ready_once_every_worker_has_been_asked() {
    let stalling = serve_raw(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let workers = format!("http://{},http://{stalling}", healthy(1).await);
    let served = served(&["--worker", &workers, "--health-check-timeout-secs", "1"]).await;
    assert_eq!(served.get("/healthz").await.status(), StatusCode::OK);
    assert_eq!(served.get("/readyz").await.status(), StatusCode::SERVICE_UNAVAILABLE);
    let ready = async {
        while served.get("/readyz").await.status() != StatusCode::OK {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, ready).await.unwrap();
}

#[tokio::test]
async fn pushes_carry_the_token() {
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("push.token");
    std::fs::write(&file, "t0ken").unwrap();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let router = axum::Router::new().fallback(move |headers: axum::http::HeaderMap| {
        let _ = told.send(headers.get("authorization").cloned());
        async { StatusCode::NO_CONTENT }
    });
    let push = format!("http://{}/v1/reports", crate::fakes::serve(router).await);
    let worker = format!("http://{}", healthy(1).await);
    let _sidecar = sidecar(&["--worker", &worker, "--push-url", &push, "--token-file", file.to_str().unwrap()]);
    let token = timeout(PATIENCE, heard.recv()).await.unwrap().unwrap();
    assert_eq!(token.unwrap(), "Bearer t0ken");
}
