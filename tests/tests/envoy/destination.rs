//! Nobody can choose a destination: not with the filter on, nor with one that has crashed, nor around it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::http::StatusCode;
use axum::routing::any;
use http::HeaderMap;
use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Filter, Worker};

use crate::evil::{Evil, last_has_low_priority};
use crate::gate::Gate;
use crate::support::{CHAT, DESTINATION, chat, counts_become, no_vm_was_lost};
use crate::upstream::Upstream;
use crate::wire::{Http2, Raw};

/// Members of the connection manager.
const MANAGER: &str = "/filter_chains/0/filters/0/typed_config";

struct Bed {
    envoy: Envoy,
    gates: [Gate; 2],
    evil: Evil,
}

impl Bed {
    async fn start(edit: fn(&mut Value), change: impl FnOnce(&mut EnvoyOptions)) -> Self {
        let gates = [Gate::start().await, Gate::start().await];
        let evil = Evil::start().await;
        let workers = gates.iter().map(|gate| Worker::at(gate.address())).collect();
        let mut options = EnvoyOptions { edit: Some(edit), ..evil.beside(workers) };
        change(&mut options);
        Self { envoy: Envoy::start(options).await.unwrap(), gates, evil }
    }

    /// Sends everything that names the evil host somehow; the statuses of the answers, 0 for a cut.
    async fn ask(&self, path: &str, more: &str) -> BTreeSet<u16> {
        let mut seen = BTreeSet::new();
        for request in requests(&self.evil.address.to_string(), path, more) {
            let mut raw = Raw::sending(self.envoy.address(), &request).await;
            seen.insert(raw.status().await.unwrap_or(0));
        }
        seen.extend(self.ask_by_http2(path, more).await);
        seen
    }

    /// The same by HTTP/2, where trailers need no announcement.
    async fn ask_by_http2(&self, path: &str, more: &str) -> BTreeSet<u16> {
        let evil = self.evil.address.to_string();
        let path = format!("{path}{CHAT}");
        let mut seen = BTreeSet::new();
        let more = more.trim_end().split_once(": ");
        for named in namings(&evil) {
            let mut connection = Http2::open(self.envoy.address()).await;
            let headers: Vec<_> =
                named.iter().map(|(name, value)| (name.as_str(), value.as_str())).chain(more).collect();
            let stream = connection.start_at(&path, &headers).await;
            let answer = stream.finish(chat("m", "Well?")).await;
            seen.insert(answer.map_or(0, |answer| answer.status.as_u16()));

            let mut stream = connection.start_at(&path, &more.into_iter().collect::<Vec<_>>()).await;
            stream.send(chat("m", "Well?"));
            let trailers = named.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            stream.end_with(HeaderMap::from_iter(trailers));
            seen.insert(stream.answer().await.map_or(0, |answer| answer.status.as_u16()));
        }
        seen
    }

    /// Checks that the engines have got requests, none of which brought a choice of the client's, and nobody else has.
    async fn nobody_was_steered(&self, what: &str) {
        let arrivals: Vec<_> = self.gates.iter().flat_map(Gate::arrivals).collect();
        let evil = self.evil.address.to_string();
        for arrival in &arrivals {
            let named: Vec<_> = arrival.headers.get_all(DESTINATION).iter().collect();
            assert!(named.len() <= 1 && !arrival.destination().contains(&evil), "{what}: {:?}", arrival.headers);
        }
        assert!(!arrivals.is_empty(), "{what}: nothing has arrived");
        assert_eq!(self.evil.visits(), 0, "{what}");
    }

    async fn ends(&self) {
        counts_become(&self.envoy, 0, "at the end").await;
    }
}

/// Headers by which a client might think it could name a host.
fn namings(evil: &str) -> Vec<Vec<(String, String)>> {
    let url = format!("http://{evil}");
    let port = evil.rsplit(':').next().unwrap();
    let alone = [
        (DESTINATION, evil.to_owned()),
        (DESTINATION, format!("{evil},{evil},{evil}")),
        (DESTINATION, format!(" {evil} , 127.0.0.1:1")),
        (DESTINATION, format!("127.0.0.1:1,{evil}")),
        (DESTINATION, format!("127.0.0.1:{port}\t")),
        (DESTINATION, format!("\"{evil}\"")),
        (DESTINATION, format!("[::ffff:127.0.0.1]:{port}")),
        (DESTINATION, String::new()),
        ("x-gateway-destination-endpoint-subset", evil.to_owned()),
        ("x-gateway-destination-endpoint-served", evil.to_owned()),
        ("x_gateway_destination_endpoint", evil.to_owned()),
        ("x-smg-target-worker", url.clone()),
        ("x-smg-target-worker", "2".to_owned()),
        ("x-smg-routing-key", evil.to_owned()),
        ("x-smg-routing-tokens", "1,2,3".to_owned()),
        ("x-smg-routed-worker-id", url.clone()),
        ("x-smg-worker", url.clone()),
        ("x-smg-destination", evil.to_owned()),
        ("x-envoy-original-dst-host", evil.to_owned()),
        ("x-envoy-upstream-service-cluster", "engines".to_owned()),
        ("x-envoy-original-path", format!("http://{evil}/")),
        ("x-envoy-decorator-operation", evil.to_owned()),
        ("x-forwarded-host", evil.to_owned()),
        ("forwarded", format!("for={evil};host={evil}")),
        ("envoy.lb", format!("{{\"{DESTINATION}\":\"{evil}\"}}")),
        ("x-envoy-peer-metadata", format!("{DESTINATION}={evil}")),
        ("metadata", format!("envoy.lb/{DESTINATION}={evil}")),
        ("cluster", "evil".to_owned()),
    ];
    let mut all: Vec<_> = alone.into_iter().map(|(name, value)| vec![(name.to_owned(), value)]).collect();
    let destination = |value: &str| (DESTINATION.to_owned(), value.to_owned());
    all.push(vec![destination(evil); 3]);
    all.push(vec![destination(""), destination(evil)]);
    all.push(vec![destination(evil), ("x-smg-target-worker".to_owned(), url)]);
    all
}

/// HTTP/1 requests that name the evil host.
fn requests(evil: &str, path: &str, more: &str) -> Vec<Vec<u8>> {
    let body = json!({
        "model": "m", "messages": [{ "role": "user", "content": "Well?" }],
        DESTINATION: evil, "worker": evil, "bootstrap_host": evil, "rid": evil,
    })
    .to_string();
    let length = format!("content-length: {}\r\n", body.len());
    let request = |line: &str, headers: &str, body: &str| {
        format!("{line}\r\n{headers}{more}content-type: application/json\r\n\r\n{body}").into_bytes()
    };
    let post = format!("POST {path}{CHAT} HTTP/1.1");
    let host = "host: test\r\n";
    let mut all = Vec::new();
    for named in namings(evil) {
        let lines = |spell: fn(&str) -> String| -> String {
            named.iter().map(|(name, value)| format!("{}: {value}\r\n", spell(name))).collect()
        };
        let small = lines(str::to_owned);
        all.push(request(&post, &format!("{host}{length}{small}"), &body));
        all.push(request(&post, &format!("{host}{length}{}", lines(str::to_uppercase)), &body));
        all.push(request(&format!("GET {path}/health HTTP/1.1"), &format!("{host}{small}"), ""));
        // In trailers, announced and not.
        let chunks = format!("{:x}\r\n{body}\r\n0\r\n{small}\r\n", body.len());
        all.push(request(&post, &format!("{host}transfer-encoding: chunked\r\n"), &chunks));
        let announced = format!("{host}trailer: {DESTINATION}\r\nte: trailers\r\ntransfer-encoding: chunked\r\n");
        all.push(request(&post, &announced, &chunks));
        // Named as a header of this connection only, which would take the gateway's own away.
        let nominated = format!("{host}{length}connection: {DESTINATION}, keep-alive\r\n{small}");
        all.push(request(&post, &nominated, &body));
    }
    all.push(request(&post, &format!("host: {evil}\r\n{length}"), &body));
    all.push(request(&format!("POST http://{evil}{path}{CHAT} HTTP/1.1"), &format!("{host}{length}"), &body));
    all.push(request(&format!("POST {path}{CHAT}?{DESTINATION}={evil} HTTP/1.1"), &format!("{host}{length}"), &body));
    all.push(request(&format!("CONNECT {evil} HTTP/1.1"), &format!("host: {evil}\r\n"), ""));
    // Broken across lines, or with a name that is none: refused or a header of another name, never a choice.
    for odd in [
        format!("{DESTINATION}:\r\n {evil}\r\n"),
        format!("{DESTINATION} : {evil}\r\n"),
        format!(" {DESTINATION}: {evil}\r\n"),
        format!("x: y\n{DESTINATION}: {evil}\r\n"),
        format!("x: y\r{DESTINATION}: {evil}\r\n"),
        format!("{DESTINATION}\0: {evil}\r\n"),
    ] {
        all.push(request(&post, &format!("{host}{length}{odd}"), &body));
    }
    all
}

/// Lets the client's header pass, which nobody should do: shows that the others would see what they look for.
fn let_client_choose(resources: &mut Value) {
    last_has_low_priority(resources);
    let manager = resources["listeners"][0].pointer_mut(MANAGER).unwrap().as_object_mut().unwrap();
    manager.remove("early_header_mutation_extensions").unwrap();
}

fn fail_open(resources: &mut Value) {
    last_has_low_priority(resources);
    for listener in resources["listeners"].as_array_mut().unwrap() {
        let filter = listener.pointer_mut(MANAGER).unwrap().pointer_mut("/http_filters/0/typed_config/config").unwrap();
        filter["failure_policy"] = json!("FAIL_OPEN");
        filter.as_object_mut().unwrap().remove("reload_config").unwrap();
    }
}

/// Turns the filter off for paths below `/around`.
fn a_way_around(resources: &mut Value) {
    last_has_low_priority(resources);
    let routes =
        resources["listeners"][0].pointer_mut(MANAGER).unwrap().pointer_mut("/route_config/virtual_hosts/0/routes");
    let routes = routes.unwrap().as_array_mut().unwrap();
    let mut around = routes[0].clone();
    around["match"]["prefix"] = json!("/around");
    around["typed_per_filter_config"] =
        json!({ "smg": { "@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "disabled": true } });
    routes.insert(0, around);
}

#[tokio::test]
async fn without_the_removal_in_front_of_the_filter_a_client_could_choose() {
    let bed = Bed::start(let_client_choose, |options| options.filter = Filter::Absent).await;
    bed.ask("", "").await;
    assert!(bed.evil.visits() > 0, "the other tests of this file prove nothing");
}

#[tokio::test]
async fn no_client_chooses_with_the_filter_on() {
    let bed = Bed::start(last_has_low_priority, |_| {}).await;
    let seen = bed.ask("", "").await;
    assert!(seen.contains(&200) && seen.iter().all(|status| *status < 500), "{seen:?}");
    bed.nobody_was_steered("with the filter").await;
    bed.ends().await;
    no_vm_was_lost(&bed.envoy).await;
}

#[tokio::test]
async fn no_client_chooses_around_the_filter() {
    let bed = Bed::start(last_has_low_priority, |options| options.filter = Filter::Absent).await;
    let seen = bed.ask("", "").await;
    assert!(seen.contains(&200) && seen.iter().all(|status| *status < 500), "{seen:?}");
    bed.nobody_was_steered("without the filter").await;

    let bed = Bed::start(a_way_around, |_| {}).await;
    let seen = bed.ask("/around", "").await;
    assert!(seen.contains(&200) && seen.iter().all(|status| *status < 500), "{seen:?}");
    bed.nobody_was_steered("with the filter disabled").await;
    assert!(bed.gates.iter().flat_map(Gate::arrivals).any(|arrival| arrival.path.starts_with("/around")));

    let bed = Bed::start(last_has_low_priority, |options| {
        options.plugin["policy"] = json!("no such policy");
        options.plugin["on_invalid_config"] = json!("passthrough");
    })
    .await;
    let seen = bed.ask("", "").await;
    assert!(seen.contains(&200) && seen.iter().all(|status| *status < 500), "{seen:?}");
    bed.nobody_was_steered("with a configuration that cannot be used").await;
    bed.ends().await;
}

#[tokio::test]
async fn no_client_chooses_while_the_filter_crashes() {
    for (open, point) in [
        (false, "request-headers"),
        (false, "request-body"),
        (false, "counted"),
        (true, "request-headers"),
        (true, "counted"),
    ] {
        let edit = if open { fail_open } else { last_has_low_priority };
        let bed = Bed::start(edit, |options| options.filter = Filter::Crashable).await;
        // Nearly every one of these kills a VM, or meets a thread that has lost its VM just now.
        let seen = bed.ask("", &format!("x-crash-for-tests: {point}\r\n")).await;
        assert!(seen.iter().all(|status| *status < 500 || *status == 503), "{point}: {seen:?}");
        assert!(seen.contains(&503) || open, "{point}: {seen:?}");
        let trapped = bed.envoy.log().contains("proxy_on_request");
        assert!(trapped, "{point}: no VM has crashed\n{}", bed.envoy.log());
        let mut seen = BTreeSet::new();
        while !seen.contains(&200) {
            seen = bed.ask("", "").await;
        }
        bed.nobody_was_steered(point).await;
    }
}

/// An engine that refuses everything, and counts how often.
struct Refusing {
    upstream: Upstream,
    asked: Arc<AtomicUsize>,
}

impl Refusing {
    async fn start() -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        let refuse = any(async move || {
            counted.fetch_add(1, Ordering::Relaxed);
            StatusCode::SERVICE_UNAVAILABLE
        });
        Self { upstream: Upstream::serving(Router::new().fallback(refuse)).await, asked }
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn no_client_gets_more_attempts_than_the_route_allows() {
    let refusing = [Refusing::start().await, Refusing::start().await];
    let other = Gate::start().await;
    let workers = refusing.iter().map(|engine| Worker::at(engine.upstream.address).with("models", json!(["m"])));
    let workers = workers.chain([Worker::at(other.address()).with("models", json!(["n"]))]).collect();
    let plugin = json!({ "disable_circuit_breaker": true });
    let envoy = Envoy::start(EnvoyOptions { workers, plugin, ..EnvoyOptions::default() }).await.unwrap();
    let body = chat("m", "Well?");
    let more = "x-envoy-max-retries: 40\r\nx-envoy-retry-on: 5xx,gateway-error,retriable-status-codes\r\n\
        x-envoy-retriable-status-codes: 200,404,503\r\nx-envoy-upstream-rq-timeout-ms: 100000\r\n\
        x-envoy-hedge-on-per-try-timeout: true\r\nx-envoy-upstream-rq-per-try-timeout-ms: 1\r\n";
    for origin in ["", "x-forwarded-for: 10.0.0.1\r\n", "x-forwarded-for: 127.0.0.1\r\nx-envoy-internal: true\r\n"] {
        let before: usize = refusing.iter().map(Refusing::asked).sum();
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\ncontent-length: {}\r\n{more}{origin}\r\n",
            body.len()
        );
        let mut raw = Raw::sending(envoy.address(), [head.as_bytes(), &body].concat()).await;
        assert_eq!(raw.status().await, Some(503), "{origin}");
        let asked = refusing.iter().map(Refusing::asked).sum::<usize>() - before;
        assert_eq!((asked, other.arrived()), (5, 0), "{origin}: attempts, and requests at an engine of another model");
    }
    counts_become(&envoy, 0, "at the end").await;
}
