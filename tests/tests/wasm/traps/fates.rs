//! What can become of a request, and of a VM between requests.

use filter_core::report::{Load, Snapshot, WorkerReport};
use serde_json::{Value, json};
use testbed::wasm::{Decision, Exchange, Request, Response, VmError};

use super::bed::{Bed, NO_KEYS, WORKERS, keyed};
use crate::fleet::{chat_body, first, worker_address, worker_url};

/// Something that a VM may be in the middle of when it dies.
pub(super) struct Fate {
    pub(super) name: &'static str,
    /// Members of the plugin configuration.
    pub(super) config: Value,
    /// What comes before; here nothing traps.
    pub(super) before: fn(&mut Bed),
    /// What thread 0 does; an error is the death of its VM.
    pub(super) run: fn(&mut Bed) -> Result<(), VmError>,
}

type Run = fn(&mut Bed) -> Result<(), VmError>;

fn fate(name: &'static str, run: Run) -> Fate {
    Fate { name, config: json!({}), before: |_| {}, run }
}

/// What can become of a request.
pub(super) fn of_requests() -> Vec<Fate> {
    let mut fates = Vec::new();
    for (name, run) in [
        ("a whole answer", whole_answer as Run),
        ("a streamed answer", streamed_answer),
        ("an abort before the answer", abort_before_answer),
        ("an abort in the stream", abort_in_stream),
        ("an upstream reset", upstream_reset),
        ("a retry that another worker answers", retried),
        ("an answer of a worker that nobody knows", stranger),
    ] {
        fates.push(fate(name, run));
        // Where no header carries routing keys, the same requests have none.
        fates.push(Fate { config: json!({"routing_key_headers": [NO_KEYS]}), ..fate(name, run) });
    }
    for policy in ["round_robin", "least_load", "random", "passthrough"] {
        fates.push(Fate { config: json!({"policy": policy}), ..fate("a header-only policy", whole_answer) });
    }
    let elsewhere = json!({"workers": [
        {"url": worker_url(0), "models": ["m"]}, {"url": worker_url(1), "models": ["m"]},
        {"url": worker_url(2), "models": ["m"]}, {"url": "http://engine-of-unknown-address:8000", "models": ["n"]},
    ]});
    fates.extend([
        fate("an abort in the headers", abort_in_headers),
        fate("an abort in the body", abort_in_body),
        fate("413 of the proxy", too_large),
        fate("404 of the filter", refused),
        Fate { config: elsewhere, ..fate("503 of the filter", unavailable) },
        fate("no inference request", no_inference),
        fate("trailers", trailers),
        fate("two at once", two_at_once),
    ]);
    fates
}

/// What a VM does besides.
pub(super) fn of_vms() -> Vec<Fate> {
    vec![
        fate("a second configuration", second_configuration),
        fate("the first configuration of a new VM", first_configuration),
        fate("the end of a configuration", end_of_configuration),
        fate("three ticks", ticks),
        Fate { before: stand_still, ..fate("waking up buried", wake_up) },
        Fate { before: stand_still, ..fate("ends before it has noticed its burial", end_buried) },
        Fate { before: ingest_role, ..fate("a posted report", report_posted) },
        Fate { before: report_waits, ..fate("a report from the queue", report_drained) },
    ]
}

/// Taking back what another VM has left.
pub(super) fn of_undertakers() -> Vec<Fate> {
    vec![Fate { before: Bed::bury_another, ..fate("the burial of another VM", burial) }]
}

fn send(bed: &Bed) -> Result<Exchange, VmError> {
    bed.threads[0].vm.send(bed.threads[0].root, keyed(Some("a")))
}

fn whole_answer(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine).empty())?;
    exchange.finish().map(drop)
}

fn streamed_answer(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine))?;
    for chunk in 0..3 {
        exchange.response_body("data: {}\n\n", chunk == 2)?;
    }
    exchange.finish().map(drop)
}

fn abort_in_headers(bed: &mut Bed) -> Result<(), VmError> {
    let request = Request::new("POST", "/v1/chat/completions").unfinished();
    bed.threads[0].vm.send(bed.threads[0].root, request)?.abort().map(drop)
}

fn abort_in_body(bed: &mut Bed) -> Result<(), VmError> {
    let request = Request::new("POST", "/v1/chat/completions").chunk(&chat_body("x")[..20]).unfinished();
    bed.threads[0].vm.send(bed.threads[0].root, request)?.abort().map(drop)
}

fn abort_before_answer(bed: &mut Bed) -> Result<(), VmError> {
    send(bed)?.abort().map(drop)
}

fn abort_in_stream(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine))?;
    exchange.response_body("data: {}\n\n", false)?;
    exchange.abort().map(drop)
}

fn upstream_reset(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    let details = "upstream_reset_before_response_started{connection_termination}";
    exchange.respond(Response::from_proxy(503, details).attempts(5))?;
    exchange.finish().map(drop)
}

fn retried(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    let destination = exchange.destination().unwrap();
    let other = destination.split(',').find(|named| *named != first(&exchange)).unwrap().to_owned();
    exchange.respond(Response::from_engine(200, &other).attempts(2))?;
    exchange.finish().map(drop)
}

fn stranger(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = send(bed)?;
    exchange.respond(Response::from_engine(200, "192.0.2.1:80"))?;
    exchange.finish().map(drop)
}

fn too_large(bed: &mut Bed) -> Result<(), VmError> {
    let request = Request::new("POST", "/v1/chat/completions").chunk("{").unfinished();
    let mut exchange = bed.threads[0].vm.send(bed.threads[0].root, request)?;
    exchange.respond(Response::from_proxy(413, "request_payload_too_large"))?;
    exchange.finish().map(drop)
}

fn replied(bed: &Bed, model: &str, status: u16) -> Result<(), VmError> {
    let body = json!({"model": model, "messages": [{"role": "user", "content": "x"}]}).to_string();
    let request = Request::post("/v1/chat/completions", body).header("x-smg-routing-key", "a");
    let exchange = bed.threads[0].vm.send(bed.threads[0].root, request)?;
    let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
    assert_eq!(reply.status, status);
    exchange.finish().map(drop)
}

fn refused(bed: &mut Bed) -> Result<(), VmError> {
    replied(bed, "nobody serves this", 404)
}

fn unavailable(bed: &mut Bed) -> Result<(), VmError> {
    replied(bed, "n", 503)
}

fn no_inference(bed: &mut Bed) -> Result<(), VmError> {
    let mut exchange = bed.threads[0].vm.send(bed.threads[0].root, Request::get("/health"))?;
    let engine = first(&exchange);
    exchange.respond(Response::from_engine(200, &engine).empty())?;
    exchange.finish().map(drop)
}

fn trailers(bed: &mut Bed) -> Result<(), VmError> {
    let exchange = bed.threads[0].vm.send(bed.threads[0].root, keyed(Some("a")).trailer("x-t", "1"))?;
    exchange.finish().map(drop)
}

fn two_at_once(bed: &mut Bed) -> Result<(), VmError> {
    let (one, two) = (send(bed)?, send(bed)?);
    one.finish()?;
    two.finish().map(drop)
}

fn second_configuration(bed: &mut Bed) -> Result<(), VmError> {
    let mut config: Value = serde_json::from_str(&bed.config).unwrap();
    config["policy"] = json!("least_load");
    let old = bed.threads[0].root;
    let new = bed.threads[0].vm.configure(config.to_string())?;
    bed.threads[0].root = new;
    send(bed)?.finish()?;
    bed.threads[0].vm.retire(old)
}

fn first_configuration(bed: &mut Bed) -> Result<(), VmError> {
    // The thread has lost its VM before.
    bed.threads[0].vm.reload();
    bed.threads[0].held.clear();
    bed.arm_again();
    let root = bed.threads[0].vm.configure(&bed.config)?;
    bed.threads[0].root = root;
    send(bed)?.finish().map(drop)
}

fn end_of_configuration(bed: &mut Bed) -> Result<(), VmError> {
    bed.threads[0].finish()?;
    bed.threads[0].vm.retire(bed.threads[0].root)?;
    let root = bed.threads[0].vm.configure(&bed.config)?;
    bed.threads[0].root = root;
    Ok(())
}

fn ticks(bed: &mut Bed) -> Result<(), VmError> {
    (0..3).try_for_each(|_| bed.try_tick(&[0, 1, 2]))
}

/// As many ticks as it takes to bury another.
fn burial(bed: &mut Bed) -> Result<(), VmError> {
    (0..7).try_for_each(|_| bed.try_tick(&[0, 1, 2]))
}

/// The thread stands still until the others bury its VM.
fn stand_still(bed: &mut Bed) {
    (0..8).for_each(|_| bed.tick(&[1, 2]));
}

fn wake_up(bed: &mut Bed) -> Result<(), VmError> {
    (0..2).try_for_each(|_| bed.try_tick(&[0, 1, 2]))
}

fn end_buried(bed: &mut Bed) -> Result<(), VmError> {
    bed.threads[0].finish()?;
    bed.threads[0].hold(Some("c"))?;
    bed.try_tick(&[0, 1, 2])
}

fn snapshot() -> Vec<u8> {
    let load = Load { queued_tokens: 100.0, throughput: 1000.0, ..Load::default() };
    let of = |worker| WorkerReport {
        url: worker_url(worker),
        address: Some(worker_address(worker)),
        load: Some(load),
        ..WorkerReport::default()
    };
    let workers = (0..WORKERS).map(of).collect();
    Snapshot::of(1, 1, 1000, workers).to_bytes()
}

/// Thread 0 has the ingest listener's configuration too.
fn ingest_role(bed: &mut Bed) {
    bed.ingest = Some(bed.threads[0].vm.configure(r#"{"role": "ingest"}"#).unwrap());
}

fn report_posted(bed: &mut Bed) -> Result<(), VmError> {
    let exchange = bed.threads[0].vm.send(bed.ingest.unwrap(), Request::post("/v1/reports", snapshot()))?;
    exchange.finish()?;
    send(bed)?.finish().map(drop)
}

/// A report lies on the queue, and thread 0 is who is told of it.
fn report_waits(bed: &mut Bed) {
    bed.process.hold_queue_notices(true);
    // A VM that balances nothing leaves reports to others.
    let posting = bed.process.vm();
    let ingest = posting.configure(r#"{"role": "ingest"}"#).unwrap();
    bed.threads[0].vm.configure(&bed.config).unwrap();
    posting.send(ingest, Request::post("/v1/reports", snapshot())).unwrap().finish().unwrap();
}

fn report_drained(bed: &mut Bed) -> Result<(), VmError> {
    bed.process.hold_queue_notices(false);
    bed.try_tick(&[0, 1, 2])
}
