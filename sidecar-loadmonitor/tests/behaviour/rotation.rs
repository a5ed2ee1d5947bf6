//! Which workers may be chosen: probes, and what readers hear of them and when.

use filter_core::report::{Health, Scope};

use crate::fakes::{
    Ingest, Route, dead_port, engine_with, eventually, healthy, load, loads, probing_sidecar, serve_raw, sidecar,
    sidecar_as_given,
};

/// Long rounds: what comes sooner was news.
const SLOW_ROUNDS: [&str; 2] = ["--load-monitor-interval", "600"];

struct Sick {
    health: Route,
    loads: Route,
    url: String,
}

async fn sick(status: u16) -> Sick {
    let (health, loads) = (Route::new(status, ""), Route::new(200, loads(4)));
    let address = engine_with(&health, &loads, &Route::new(404, "")).await;
    Sick { health, loads, url: format!("http://{address}") }
}

fn arguments<'a>(workers: &'a str, push: &'a str) -> Vec<&'a str> {
    [&["--worker", workers, "--push-url", push][..], &SLOW_ROUNDS[..]].concat()
}

#[tokio::test]
async fn a_change_of_health_is_told_between_two_rounds() {
    let (ingest, push) = Ingest::start().await;
    let engine = sick(200).await;
    let other = format!("http://{}", healthy(1).await);
    let _sidecar = probing_sidecar(&arguments(&format!("{},{other}", engine.url), &push));
    let is = |health| move |report: &filter_core::report::WorkerReport| report.health == Some(health);
    ingest.wait_report(&engine.url, |report| is(Health::Ready)(report) && report.load == Some(load(4))).await;
    ingest.wait_report(&other, is(Health::Ready)).await;
    for _ in 0..2 {
        ingest.clear();
        engine.health.answers(503, "");
        let report = ingest.wait_report(&engine.url, is(Health::NotReady)).await;
        assert_eq!(report.load, None, "what it said before counts no longer");
        ingest.clear();
        engine.health.answers(200, "");
        ingest.wait_report(&engine.url, is(Health::Ready)).await;
    }
    let news = ingest.received();
    assert!(news.iter().all(|snapshot| snapshot.scope == Scope::Some), "{news:?}");
    assert!(news.iter().flat_map(|snapshot| &snapshot.workers).all(|worker| worker.url != other), "{news:?}");
}

#[tokio::test]
async fn an_engine_is_asked_for_its_load_only_while_it_is_ready() {
    let (ingest, push) = Ingest::start().await;
    let engine = sick(503).await;
    let rounds = ["--load-monitor-interval", "0.1"];
    let _sidecar = probing_sidecar(&[&["--worker", &engine.url, "--push-url", &push], &rounds[..]].concat());
    let report = ingest.first_report(&engine.url).await;
    assert_eq!((report.health, report.load), (Some(Health::Pending), None));
    assert_eq!(report.address.as_deref(), engine.url.strip_prefix("http://"));
    ingest.wait(4).await;
    assert_eq!(engine.loads.asked(), 0);
    engine.health.answers(200, "");
    let ready = ingest.wait_report(&engine.url, |report| report.load.is_some()).await;
    assert_eq!(ready.health, Some(Health::Ready));
}

#[tokio::test]
async fn nobody_waits_for_an_engine_whose_health_stalls() {
    let stalling = serve_raw(|stream, _| async move {
        std::future::pending::<()>().await;
        drop(stream);
    })
    .await;
    let (ingest, push) = Ingest::start().await;
    let (good, bad) = (format!("http://{}", healthy(2).await), format!("http://{stalling}"));
    let workers = format!("{bad},{good}");
    let _sidecar = probing_sidecar(&[&arguments(&workers, &push)[..], &["--health-check-timeout-secs", "2"]].concat());
    ingest.wait_report(&good, |report| report.load == Some(load(2))).await;
    // A worker of which nothing is known is not named: it may be in rotation, and fine.
    let early = ingest.received();
    assert!(early.iter().all(|snapshot| snapshot.scope == Scope::Some), "{early:?}");
    assert!(early.iter().flat_map(|snapshot| &snapshot.workers).all(|worker| worker.url == good), "{early:?}");
    let full = ingest.wait_snapshot("everybody", |snapshot| snapshot.scope == Scope::Full).await;
    assert_eq!(full.workers.len(), 2);
    assert!(full.workers.iter().any(|worker| worker.url == bad && worker.health == Some(Health::Pending)));
}

#[tokio::test]
async fn who_is_given_up_stays_away_and_is_removed_on_request() {
    for remove in [false, true] {
        let (ingest, push) = Ingest::start().await;
        let engine = sick(503).await;
        let mut all = arguments(&engine.url, &push);
        all.extend(["--health-check-interval-secs", "0.02"]);
        all.extend(remove.then_some("--remove-unhealthy-workers"));
        let _sidecar = sidecar_as_given(&all);
        if remove {
            let gone = ingest.wait_snapshot("removal", |snapshot| !snapshot.removed.is_empty()).await;
            assert_eq!(gone.removed, [engine.url.as_str()]);
        } else {
            ingest.wait_report(&engine.url, |report| report.health == Some(Health::Failed)).await;
        }
        // Three thresholds in a row, ten altogether.
        assert_eq!(engine.health.asked(), 30);
        engine.health.answers(200, "");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        assert_eq!(engine.health.asked(), 30, "nobody probes it any more");
    }
}

#[tokio::test]
async fn without_monitoring_only_health_is_told() {
    let (ingest, push) = Ingest::start().await;
    let engine = sick(200).await;
    let rounds = ["--load-monitor-interval", "0.1", "--disable-load-monitoring"];
    let _sidecar = probing_sidecar(&[&["--worker", &engine.url, "--push-url", &push], &rounds[..]].concat());
    ingest.wait_report(&engine.url, |report| report.health == Some(Health::Ready)).await;
    let snapshots = ingest.wait(5).await;
    assert!(snapshots.iter().flat_map(|snapshot| &snapshot.workers).all(|worker| worker.load.is_none()));
    assert_eq!(engine.loads.asked(), 0);

    // Where it is must be told all the same: the filter looks nothing up.
    let by_name = engine.url.replace("127.0.0.1", "localhost");
    let rounds = ["--load-monitor-interval", "0.1", "--disable-load-monitoring"];
    let _another = probing_sidecar(&[&["--worker", &by_name, "--push-url", &push], &rounds[..]].concat());
    let address = engine.url.strip_prefix("http://");
    ingest.wait_report(&by_name, |report| report.address.as_deref() == address).await;
}

#[tokio::test]
async fn without_probes_everybody_is_ready() {
    let (ingest, push) = Ingest::start().await;
    let (engine, dead) = (sick(503).await, format!("http://{}", dead_port().await));
    let _sidecar = sidecar(&arguments(&format!("{} {dead}", engine.url), &push));
    for url in [&engine.url, &dead] {
        assert_eq!(ingest.first_report(url).await.health, Some(Health::Ready));
    }
    assert_eq!(engine.health.asked(), 0);
}

#[tokio::test]
async fn every_round_tells_of_everybody_under_one_name() {
    let (ingest, push) = Ingest::start().await;
    let urls = [format!("http://{}", healthy(1).await), format!("http://{}", dead_port().await)];
    let workers = urls.join(",");
    let rounds = ["--load-monitor-interval", "0.1", "--reporter-name", "rack-7"];
    let _sidecar = probing_sidecar(&[&["--worker", &workers, "--push-url", &push], &rounds[..]].concat());
    eventually("three rounds", || {
        (ingest.received().iter().filter(|snapshot| snapshot.scope == Scope::Full).count() >= 3).then_some(())
    })
    .await;
    for snapshot in ingest.received().iter().filter(|snapshot| snapshot.scope == Scope::Full) {
        assert_eq!((snapshot.workers.len(), snapshot.reporter.as_str()), (2, "rack-7"));
        // Of the dead one nobody has ever said what it is: whoever knows it from before is not to forget that.
        assert!(snapshot.workers.iter().all(|worker| worker.info.is_some() == (worker.url == urls[0])));
    }
}

#[tokio::test]
async fn a_worker_may_be_probed_in_its_own_way() {
    let (ingest, push) = Ingest::start().await;
    let (own, unprobed) = (sick(200).await, sick(503).await);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-probes.yaml");
    let text = format!(
        "- {{url: '{}', health: {{check_interval_secs: 1, failure_threshold: 1, success_threshold: 1}}}}\n\
         - {{url: '{}', health: {{disable_health_check: true}}}}\n",
        own.url, unprobed.url
    );
    std::fs::write(&file, text).unwrap();
    let workers = ["--workers-file", file.to_str().unwrap(), "--push-url", &push];
    // All others would be probed once a minute.
    let _sidecar = sidecar_as_given(&[&workers[..], &SLOW_ROUNDS[..]].concat());
    ingest.wait_report(&own.url, |report| report.health == Some(Health::Ready)).await;
    ingest.wait_report(&unprobed.url, |report| report.health == Some(Health::Ready)).await;
    own.health.answers(503, "");
    ingest.wait_report(&own.url, |report| report.health == Some(Health::NotReady)).await;
    own.health.answers(200, "");
    ingest.clear();
    ingest.wait_report(&own.url, |report| report.health == Some(Health::Ready)).await;
    assert_eq!(unprobed.health.asked(), 0);
}
