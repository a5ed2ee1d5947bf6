//! Workers that come and go: from files, names, and Envoy.

use std::{
    fs,
    path::{Path, PathBuf},
};

use filter_core::report::{Health, Snapshot, WorkerReport};

use crate::fakes::{Ingest, Route, eventually, healthy, load, probing_sidecar, serve};

/// Sources are looked at often, polls are rare, and who leaves is gone soon.
const PACE: [&str; 6] =
    ["--discovery-interval", "0.05", "--load-monitor-interval", "600", "--drain-settle-secs", "0.1"];

/// A file of workers of one test.
struct Workers(PathBuf);

impl Workers {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_file(&path);
        Self(path)
    }

    fn replace(&self, text: impl AsRef<str>) {
        let new = self.0.with_extension("new");
        fs::write(&new, text.as_ref()).unwrap();
        fs::rename(new, &self.0).unwrap();
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

fn is(health: Health) -> impl Fn(&WorkerReport) -> bool {
    move |report| report.health == Some(health)
}

async fn goes(ingest: &Ingest, url: &str) {
    ingest.wait_report(url, is(Health::Draining)).await;
    ingest.wait_snapshot("removal", |snapshot| snapshot.removed.iter().any(|gone| gone == url)).await;
}

#[tokio::test]
async fn a_file_is_followed_and_a_wrong_one_changes_nothing() {
    let (ingest, push) = Ingest::start().await;
    let file = Workers::new("followed.yaml");
    let urls = [format!("http://{}", healthy(1).await), format!("http://{}", healthy(2).await)];
    let sidecar = [&["--workers-file", file.path(), "--push-url", &push][..], &PACE[..]].concat();
    let _sidecar = probing_sidecar(&sidecar);
    // It need not be there at first.
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    file.replace(format!("workers:\n- {}\n- {{url: '{}', models: [m], leg: decode}}\n", urls[0], urls[1]));
    ingest.wait_report(&urls[0], |report| report.load == Some(load(1))).await;
    let described = ingest.wait_report(&urls[1], |report| report.info.is_some()).await.info.unwrap();
    assert_eq!((described.models.as_slice(), described.leg.as_str()), (&["m".to_owned()][..], "decode"));

    ingest.clear();
    for wrong in [format!("workers:\n- {}\n- {{url", urls[0]), String::new(), "- ftp://x".to_owned()] {
        file.replace(wrong);
        tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    }
    fs::remove_file(&file.0).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(150)).await;
    let said: Vec<_> = ingest.received().into_iter().flat_map(|snapshot| snapshot.workers).collect();
    assert!(said.iter().all(|worker| worker.health == Some(Health::Ready)), "{said:?}");

    file.replace(format!("[\"{}\"]", urls[0]));
    goes(&ingest, &urls[1]).await;
    ingest.clear();
    file.replace(format!("[\"{}\",\"{}\"]", urls[0], urls[1]));
    ingest.wait_report(&urls[1], is(Health::Ready)).await;
}

#[tokio::test]
async fn a_name_is_resolved_and_a_dead_one_harms_nobody() {
    let (ingest, push) = Ingest::start().await;
    let port = healthy(3).await.port();
    let names = format!("prefill=localhost:{port} nowhere.invalid:1");
    let arguments = ["--dns", &names, "--dns-interval", "0.05", "--push-url", &push];
    let _sidecar = probing_sidecar(&[&arguments[..], &PACE[..]].concat());
    let url = format!("http://127.0.0.1:{port}");
    let report = ingest.wait_report(&url, |report| report.load == Some(load(3))).await;
    assert_eq!((report.health, report.address), (Some(Health::Ready), Some(format!("127.0.0.1:{port}"))));
    let described = ingest.wait_report(&url, |report| report.info.is_some()).await;
    assert_eq!(described.info.unwrap().leg, "prefill");
}

/// What Envoy's admin endpoint says.
fn clusters(hosts: &[(&str, &str)]) -> String {
    let host = |&(url, health): &(&str, &str)| {
        let (ip, port) = url.strip_prefix("http://").unwrap().split_once(':').unwrap();
        format!(
            r#"{{"address":{{"socket_address":{{"address":"{ip}","port_value":{port}}}}},"health_status":{{{health}}}}}"#
        )
    };
    let hosts: Vec<_> = hosts.iter().map(host).collect();
    format!(r#"{{"cluster_statuses":[{{"name":"other"}},{{"name":"engines","host_statuses":[{}]}}]}}"#, hosts.join(","))
}

#[tokio::test]
async fn envoy_tells_its_hosts_and_what_it_has_against_them() {
    let (ingest, push) = Ingest::start().await;
    let urls = [format!("http://{}", healthy(1).await), format!("http://{}", healthy(2).await)];
    let page = Route::new(200, clusters(&[(&urls[0], ""), (&urls[1], r#""eds_health_status":"HEALTHY""#)]));
    let admin = format!("http://{}", admin(&page).await);
    let arguments = ["--envoy-admin", &admin, "--envoy-cluster", "engines", "--push-url", &push];
    let _sidecar = probing_sidecar(&[&arguments[..], &PACE[..]].concat());
    let first = ingest.wait_report(&urls[0], |report| report.info.is_some()).await;
    assert_eq!(first.info.unwrap().cluster.as_deref(), Some("engines"));
    ingest.wait_report(&urls[1], is(Health::Ready)).await;

    for (health, expected) in [
        (r#""failed_active_health_check":true"#, Health::NotReady),
        (r#""eds_health_status":"DRAINING""#, Health::Draining),
        (r#""failed_outlier_check":true"#, Health::NotReady),
        ("", Health::Ready),
    ] {
        ingest.clear();
        page.answers(200, clusters(&[(&urls[0], ""), (&urls[1], health)]));
        ingest.wait_report(&urls[1], is(expected)).await;
    }
    ingest.clear();
    let asked = page.asked();
    for (status, body) in [(503, String::new()), (200, "no JSON".to_owned()), (200, "{}".to_owned())] {
        page.answers(status, body);
    }
    eventually("two more looks", || (page.asked() >= asked + 3).then_some(())).await;
    let said: Vec<Snapshot> = ingest.received();
    assert!(said.iter().all(|snapshot| snapshot.removed.is_empty()), "{said:?}");
    assert!(said.iter().flat_map(|snapshot| &snapshot.workers).all(|worker| worker.health == Some(Health::Ready)));
    page.answers(200, clusters(&[(&urls[0], "")]));
    goes(&ingest, &urls[1]).await;
}

async fn admin(page: &Route) -> std::net::SocketAddr {
    let page = page.clone();
    serve(axum::Router::new().route("/clusters", axum::routing::get(async move || page.answer()))).await
}

#[tokio::test]
async fn a_worker_of_two_sources_is_one_and_leaves_when_both_have_dropped_it() {
    let (ingest, push) = Ingest::start().await;
    let url = format!("http://{}", healthy(5).await);
    let file = Workers::new("both.json");
    file.replace(format!(r#"[{{"url": "{url}/", "models": ["m"]}}]"#));
    let page = Route::new(200, clusters(&[(&url, "")]));
    let admin = format!("http://{}", admin(&page).await);
    let arguments = ["--envoy-admin", &admin, "--envoy-cluster", "engines", "--workers-file", file.path()];
    let arguments = [&arguments[..], &["--push-url", &push], &PACE[..]].concat();
    let _sidecar = probing_sidecar(&arguments);
    // The file's word counts.
    let named = format!("{url}/");
    let models = |report: &WorkerReport| report.info.as_ref().is_some_and(|info| info.models == ["m"]);
    ingest.wait_report(&named, |report| is(Health::Ready)(report) && models(report)).await;
    ingest.clear();
    file.replace("[]");
    let other = ingest.wait_report(&url, is(Health::Ready)).await;
    assert_eq!(other.info.unwrap().cluster.as_deref(), Some("engines"));
    ingest.clear();
    page.answers(200, clusters(&[]));
    goes(&ingest, &url).await;
}
