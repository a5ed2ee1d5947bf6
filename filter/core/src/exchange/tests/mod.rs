//! Exchanges against a scripted host.

mod bodies;
mod heads;
mod keys;
mod metrics;
mod partitions;
mod response_ids;
mod responses;
mod scope;
mod starved;

use std::collections::HashMap;

use super::{Exchange, Http, ResponseStep, Route, Scene, Step, TOKENS_HEADER};
use crate::answer::Answer;
use crate::balancer::tests::{Vm, address};
use crate::config::Config;
use crate::request::Facts;

/// A host that says what it was told to say.
#[derive(Debug, Clone, Default)]
struct Script {
    request: HashMap<String, Vec<u8>>,
    response: HashMap<String, Vec<u8>>,
    /// Paths joined by dots.
    properties: HashMap<String, Vec<u8>>,
    body: Vec<u8>,
    /// How often the body was read.
    reads: usize,
    /// What the clock shows, in nanoseconds.
    nanos: u64,
}

impl Script {
    fn of(method: &str, path: &str) -> Self {
        Self::default().header(":method", method).header(":path", path)
    }

    /// A chat completion with this body.
    fn chat(body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..Self::of("POST", "/v1/chat/completions") }
    }

    fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request.insert(name.to_owned(), value.as_ref().to_vec());
        self
    }

    fn property(mut self, path: &str, value: impl AsRef<[u8]>) -> Self {
        self.properties.insert(path.to_owned(), value.as_ref().to_vec());
        self
    }

    /// An answer of `status` with the details that Envoy gives it, from worker `number` after so many attempts.
    fn answered(mut self, status: u16, details: &str, number: usize, attempts: u64) -> Self {
        self.response.insert(":status".to_owned(), status.to_string().into_bytes());
        if (200..300).contains(&status) && details != "via_upstream" {
            // How Envoy answers a gRPC client.
            self.response.insert("grpc-status".to_owned(), b"14".to_vec());
        }
        self.property("response.code_details", details)
            .property("upstream.address", address(number))
            .property("upstream.request_attempt_count", attempts.to_le_bytes())
    }
}

impl Http for Script {
    fn request_header(&mut self, name: &str) -> Option<Vec<u8>> {
        self.request.get(name).cloned()
    }

    fn response_header(&mut self, name: &str) -> Option<Vec<u8>> {
        self.response.get(name).cloned()
    }

    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>> {
        self.properties.get(&path.join(".")).cloned()
    }

    fn body(&mut self, size: usize) -> Vec<u8> {
        self.reads += 1;
        self.body[..size.min(self.body.len())].to_vec()
    }

    fn now_nanos(&mut self) -> u64 {
        self.nanos
    }
}

/// A VM with the room its exchanges share.
struct Bench {
    vm: Vm,
    facts: Facts,
}

impl Bench {
    fn new(config: Config) -> Self {
        Self { vm: Vm::alone(config), facts: Facts::default() }
    }

    fn on<T>(&mut self, http: &mut Script, event: impl FnOnce(&mut Scene<'_, '_>) -> T) -> T {
        let Self { vm: Vm { balancer, world }, facts } = self;
        world.run(|context, ledger| event(&mut Scene { context, http, balancer, facts, ledger }))
    }

    fn headers(&mut self, exchange: &mut Exchange, http: &mut Script, ends: bool) -> Step {
        self.on(http, |scene| exchange.on_request_headers(scene, ends))
    }

    fn body(&mut self, exchange: &mut Exchange, http: &mut Script, held: usize, ends: bool) -> Step {
        self.on(http, |scene| exchange.on_request_body(scene, held, ends))
    }

    fn response(&mut self, exchange: &mut Exchange, http: &mut Script) -> ResponseStep {
        self.on(http, |scene| exchange.on_response_headers(scene))
    }

    fn done(&mut self, exchange: &mut Exchange, http: &mut Script) {
        self.on(http, |scene| exchange.on_done(scene));
    }

    /// A request with its whole body in one piece, and the step that decides.
    fn send(&mut self, http: &mut Script) -> (Exchange, Step) {
        let mut exchange = Exchange::default();
        let step = self.headers(&mut exchange, http, http.body.is_empty());
        if step != Step::Pause {
            return (exchange, step);
        }
        let held = http.body.len();
        let step = self.body(&mut exchange, http, held, true);
        (exchange, step)
    }

    /// All requests in flight at workers 0 to `count` - 1.
    fn in_flight(&mut self, count: usize) -> u32 {
        self.vm.in_flight(count).iter().sum()
    }
}

/// The number of the worker that `step` routes to.
#[track_caller]
fn routed(step: &Step) -> usize {
    let Step::Route(Route { destination, .. }) = step else { panic!("not routed: {step:?}") };
    let first = destination.split(',').next().unwrap();
    first.rsplit(':').next().unwrap().parse::<usize>().unwrap() - 8000
}

#[track_caller]
fn replied(step: Step) -> Answer {
    let Step::Reply(answer) = step else { panic!("not answered: {step:?}") };
    answer
}

/// The body of a chat of `model` with one user message.
fn chat(model: &str, text: &str) -> String {
    serde_json::json!({"model": model, "messages": [{"role": "user", "content": text}]}).to_string()
}

/// The same with the model behind the messages.
fn chat_model_last(model: &str, text: &str) -> String {
    format!(r#"{{"messages":[{{"role":"user","content":"{text}"}}],"model":"{model}"}}"#)
}
