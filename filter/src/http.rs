//! One HTTP stream: hands its events to the exchange and carries the steps out.

use std::cell::RefCell;
use std::rc::Rc;

use filter_core::answer::Answer;
use filter_core::balancer::{Balancer, Context, Ledger};
use filter_core::config::Config;
use filter_core::exchange::{
    DECISION_HEADER, DECISION_PROPERTY, DESTINATION_HEADER, ERROR_CODE_HEADER, Exchange, Http, Route, Scene, Step,
    TARGET_HEADER, TOKENS_HEADER, WORKER_ID_HEADER, WorkerId,
};

use crate::host::{self, Headers, REQUEST_BODY, REQUEST_HEADERS, RESPONSE_HEADERS, SharedData};
use crate::ingest;
use crate::vm::{HostLog, Root, Vm};

/// What a callback tells Envoy.
pub(crate) const CONTINUE: u32 = 0;
/// See [`CONTINUE`].
pub(crate) const PAUSE: u32 = 1;

/// A stream of one of the roles.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "nearly all streams are of the largest kind; in Wasm it is not that large"
)]
pub(crate) enum Stream {
    /// A request that is balanced.
    Route(Rc<RefCell<Balancer>>, Rc<RefCell<Ledger>>, Exchange),
    /// A load snapshot.
    Ingest(Rc<Config>),
    /// A request that passes, since the configuration is invalid.
    Passthrough,
}

impl Stream {
    pub(crate) fn new(root: &Root) -> Self {
        match root {
            Root::Route(balancer, ledger) => Self::Route(Rc::clone(balancer), Rc::clone(ledger), Exchange::default()),
            Root::Ingest(config) => Self::Ingest(Rc::clone(config)),
            Root::Passthrough => Self::Passthrough,
        }
    }
}

/// The host as an exchange sees it during one event. Headers are fetched together: an event that looks at any looks at
/// several, and a call costs more than the copying.
#[derive(Debug, Default)]
struct Host {
    request: Option<Option<Headers>>,
    response: Option<Option<Headers>>,
}

/// One of `all` headers, or, from a host that does not give all (there may be too many), that one.
fn header(all: Option<&Headers>, map: u32, name: &str) -> Option<Vec<u8>> {
    all.map_or_else(|| host::header(map, name), |all| all.get(name).map(Into::into))
}

impl Http for Host {
    fn request_header(&mut self, name: &str) -> Option<Vec<u8>> {
        let all = self.request.get_or_insert_with(|| host::headers(REQUEST_HEADERS).ok());
        header(all.as_ref(), REQUEST_HEADERS, name)
    }

    fn response_header(&mut self, name: &str) -> Option<Vec<u8>> {
        let all = self.response.get_or_insert_with(|| host::headers(RESPONSE_HEADERS).ok());
        header(all.as_ref(), RESPONSE_HEADERS, name)
    }

    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>> {
        host::property(path).ok()
    }

    fn body(&mut self, size: usize) -> Vec<u8> {
        host::buffer(REQUEST_BODY, size).unwrap_or_default()
    }

    fn now_nanos(&mut self) -> u64 {
        host::now_nanos()
    }
}

pub(crate) fn on_request_headers(vm: &mut Vm, id: u32, ends: bool) -> u32 {
    match vm.streams.get(&id) {
        Some(Stream::Ingest(config)) => {
            let config = Rc::clone(config);
            ingest::on_request_headers(vm, &config, ends)
        }
        Some(Stream::Route(..)) => {
            let mut unproven = false;
            let step = on_exchange(vm, id, |exchange, scene| {
                let step = exchange.on_request_headers(scene, ends);
                unproven = !scene.balancer.sees_bodies();
                step
            });
            if unproven && step == Some(Step::Pause) {
                vm.unproven.push(id);
            }
            carry_out(step, true)
        }
        Some(Stream::Passthrough) => carry_out(Some(Step::Pass), true),
        None => CONTINUE,
    }
}

pub(crate) fn on_request_body(vm: &mut Vm, id: u32, held: usize, ends: bool) -> u32 {
    match vm.streams.get(&id) {
        Some(Stream::Ingest(config)) => {
            let log = HostLog::of(config);
            ingest::on_request_body(vm, log, held, ends)
        }
        Some(Stream::Route(.., exchange)) if exchange.wants_body() => {
            let step = on_exchange(vm, id, |exchange, scene| exchange.on_request_body(scene, held, ends));
            carry_out(step, false)
        }
        _ => CONTINUE,
    }
}

pub(crate) fn on_request_trailers(vm: &mut Vm, id: u32) -> u32 {
    match vm.streams.get(&id) {
        Some(Stream::Ingest(config)) => {
            let log = HostLog::of(config);
            ingest::on_request_trailers(vm, log)
        }
        Some(Stream::Route(.., exchange)) if exchange.is_holding() => {
            let step = on_exchange(vm, id, Exchange::on_request_trailers);
            carry_out(step, false)
        }
        _ => CONTINUE,
    }
}

/// Time has passed for the requests of root context `root` that are held without proof that their bodies will come.
pub(crate) fn on_tick(vm: &mut Vm, root: u32) {
    for id in std::mem::take(&mut vm.unproven) {
        if !matches!(vm.streams.get(&id), Some(Stream::Route(.., exchange)) if exchange.is_holding()) {
            continue;
        }
        match on_exchange(vm, id, Exchange::on_tick) {
            None | Some(Step::Pause) => vm.unproven.push(id),
            step => {
                if host::set_effective_context(id).is_ok() && carry_out(step, false) == CONTINUE {
                    let _ = host::continue_request();
                }
                let _ = host::set_effective_context(root);
            }
        }
    }
}

pub(crate) fn on_response_headers(vm: &mut Vm, id: u32) -> u32 {
    if matches!(vm.streams.get(&id), Some(Stream::Route(.., exchange)) if exchange.wants_response())
        && let Some(step) = on_exchange(vm, id, Exchange::on_response_headers)
    {
        // A host that refuses to change a header leaves the response as the engine wrote it.
        if step.strip_error_code {
            let _ = host::remove_header(RESPONSE_HEADERS, ERROR_CODE_HEADER);
        }
        if step.strip_decision {
            let _ = host::remove_header(RESPONSE_HEADERS, DECISION_HEADER);
        }
        if let Some(decision) = step.decision {
            let _ = host::set_header(RESPONSE_HEADERS, DECISION_HEADER, &decision);
        }
        let _ = match step.worker_id {
            WorkerId::Keep => Ok(()),
            WorkerId::Set(url) => host::set_header(RESPONSE_HEADERS, WORKER_ID_HEADER, &url),
            WorkerId::Remove => host::remove_header(RESPONSE_HEADERS, WORKER_ID_HEADER),
        };
    }
    CONTINUE
}

#[cfg(feature = "responses")]
pub(crate) fn on_response_body(vm: &mut Vm, id: u32, size: usize, ends: bool) -> u32 {
    if let Some(Stream::Route(.., exchange)) = vm.streams.get(&id)
        && exchange.wants_answer() > 0
    {
        let most = size.min(exchange.wants_answer());
        let part = if most == 0 { Vec::new() } else { host::buffer(host::RESPONSE_BODY, most).unwrap_or_default() };
        on_exchange(vm, id, |exchange, scene| exchange.on_response_body(scene, &part, ends));
    }
    CONTINUE
}

pub(crate) fn on_done(vm: &mut Vm, id: u32) {
    if matches!(vm.streams.get(&id), Some(Stream::Route(.., exchange)) if exchange.is_counted()) {
        on_exchange(vm, id, Exchange::on_done);
    }
    vm.streams.remove(&id);
}

/// Runs `event` on the exchange of stream `id`.
fn on_exchange<T>(vm: &mut Vm, id: u32, event: impl FnOnce(&mut Exchange, &mut Scene<'_, '_>) -> T) -> Option<T> {
    let Some(Stream::Route(balancer, ledger, exchange)) = vm.streams.get_mut(&id) else { return None };
    let (mut balancer, mut ledger) = (balancer.try_borrow_mut().ok()?, ledger.try_borrow_mut().ok()?);
    let mut log = HostLog::of(balancer.config());
    let mut context = Context {
        store: &mut SharedData,
        rng: &mut vm.rng,
        now_ms: vm.now_ms,
        metrics: &mut vm.metrics,
        log: &mut log,
    };
    let mut scene = Scene {
        context: &mut context,
        http: &mut Host::default(),
        balancer: &mut balancer,
        facts: &mut vm.facts,
        ledger: &mut ledger,
    };
    let step = event(exchange, &mut scene);
    #[cfg(feature = "crash-for-tests")]
    crate::crash::after(id, exchange);
    Some(step)
}

/// Does what a step says. Request headers may be changed while they are held.
fn carry_out(step: Option<Step>, first: bool) -> u32 {
    match step {
        None | Some(Step::Continue) => CONTINUE,
        Some(Step::Pause) => PAUSE,
        Some(Step::Pass) => {
            if first {
                let _ = host::remove_header(REQUEST_HEADERS, DESTINATION_HEADER);
            }
            CONTINUE
        }
        Some(Step::Route(Route { destination, consumes_tokens, consumes_target, decision })) => {
            if let Some(decision) = decision {
                let _ = host::set_property(DECISION_PROPERTY, &decision);
            }
            if consumes_target {
                let _ = host::remove_header(REQUEST_HEADERS, TARGET_HEADER);
            }
            if consumes_tokens {
                let _ = host::remove_header(REQUEST_HEADERS, TOKENS_HEADER);
            }
            // Without the header the cluster's fallback policy chooses.
            let _ = host::set_header(REQUEST_HEADERS, DESTINATION_HEADER, &destination);
            CONTINUE
        }
        Some(Step::Reply(reply)) => {
            answer(&reply);
            PAUSE
        }
    }
}

/// Answers the current stream's request.
pub(crate) fn answer(answer: &Answer) {
    let headers: Vec<(&str, &str)> = answer.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    if let Err(host::Refused(status)) = host::respond(answer.status, &headers, &answer.body) {
        host::log(4, &format!("the host refused an answer of status {} with status {status}", answer.status));
    }
}
