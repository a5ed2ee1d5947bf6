//! Responses and what refers to them: engines keep their own, and know nobody else's.

use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::json;
use testbed::envoy::{Connection, Envoy, EnvoyOptions, Filter, Reply};
use testbed::fake_engine::{EngineOptions, FakeEngine};
use testbed::wasm::responses_wasm;

use crate::support::{counts_become, no_vm_was_lost};

const RESPONSES: &str = "/v1/responses";

/// Three engines behind an Envoy with this module.
async fn start(filter: Filter, policy: &str) -> (Vec<FakeEngine>, Envoy) {
    let engines: Vec<_> = (0..3).map(|_| FakeEngine::start(EngineOptions::instant())).collect();
    let options = EnvoyOptions::with_workers(engines.iter().map(|engine| engine.address().parse().unwrap()));
    let plugin = json!({ "policy": policy });
    let envoy = Envoy::start(EnvoyOptions { plugin, filter, concurrency: 4, exact_balance: true, ..options }).await;
    (engines, envoy.unwrap())
}

async fn make_one(connection: &mut Connection, previous: Option<&str>, stream: bool) -> Reply {
    let body = json!({ "model": "m", "input": "Well?", "previous_response_id": previous, "stream": stream });
    connection.post(RESPONSES, body.to_string()).await.unwrap()
}

async fn by_id(connection: &mut Connection, method: &str, id: &str) -> StatusCode {
    let request = Request::builder().method(method).uri(format!("{RESPONSES}/{id}"));
    connection.send(request.body(Full::default()).unwrap()).await.unwrap().status
}

fn id_of(reply: &Reply) -> String {
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.text());
    let text = reply.text();
    let at = text.find("resp_").unwrap();
    text[at..].chars().take_while(|letter| letter.is_ascii_alphanumeric() || *letter == '_').collect()
}

/// How many of 40 conversations of four turns, each turn on another thread and every second one streamed, were refused
/// at some point.
async fn refused(envoy: &Envoy) -> usize {
    let mut threads = envoy.connection_per_thread().await;
    let mut refused = 0;
    'conversations: for number in 0..40 {
        let mut previous: Option<String> = None;
        for turn in 0..4 {
            let thread = &mut threads[(number + turn) % 4];
            let reply = make_one(thread, previous.as_deref(), turn % 2 == number % 2).await;
            if reply.status == StatusCode::NOT_FOUND {
                refused += 1;
                continue 'conversations;
            }
            previous = Some(id_of(&reply));
        }
        let last = previous.unwrap();
        for (turn, method) in ["GET", "HEAD", "DELETE"].into_iter().enumerate() {
            if by_id(&mut threads[(number + turn) % 4], method, &last).await != StatusCode::OK {
                refused += 1;
                continue 'conversations;
            }
        }
    }
    refused
}

#[tokio::test]
async fn conversations_stay_with_the_engine_that_holds_their_responses() {
    for policy in ["random", "cache_aware"] {
        let (_engines, envoy) = start(Filter::File(responses_wasm()), policy).await;
        assert_eq!(refused(&envoy).await, 0, "{policy}");
        counts_become(&envoy, 0, "at the end").await;
        let lookups = envoy.metrics().await.by("smg_response_lookup_total", "branch");
        assert_eq!(lookups.keys().collect::<Vec<_>>(), ["response_held"], "{lookups:?}");
        let mut connection = envoy.connect().await;
        assert_eq!(by_id(&mut connection, "GET", "resp_unknown").await, StatusCode::NOT_FOUND);
        assert_eq!(make_one(&mut connection, Some("resp_unknown"), false).await.status, StatusCode::NOT_FOUND);
        no_vm_was_lost(&envoy).await;
    }
}

/// What is remembered outlives a change of the configuration; the module that ships first remembers nothing.
#[tokio::test]
async fn the_other_module_knows_of_no_response_and_says_so() {
    let (_engines, mut envoy) = start(Filter::Built, "random").await;
    assert!(refused(&envoy).await > 0, "40 conversations went right by chance");
    assert!(!envoy.log().contains("max_response_ids"));
    envoy.update_plugin(json!({ "max_response_ids": 1000 })).await.unwrap();
    assert!(envoy.log().contains("max_response_ids has no effect"), "{}", envoy.log());

    let (_engines, mut envoy) = start(Filter::File(responses_wasm()), "random").await;
    let id = id_of(&make_one(&mut envoy.connect().await, None, true).await);
    envoy.update_plugin(json!({ "policy": "round_robin" })).await.unwrap();
    for _ in 0..10 {
        assert_eq!(by_id(&mut envoy.connect().await, "GET", &id).await, StatusCode::OK);
    }
}
