//! For tests and fuzzers only: each function hands any bytes to one parser and checks what must hold whatever they are.
//!
//! Property tests call them with random bytes (`tests.rs`), the targets in `fuzz/` with bytes that a fuzzer has found.

mod exchange;
mod pull;
mod tables;
mod vm;

#[cfg(test)]
mod tests;

pub use exchange::exchange;
pub use pull::pull;
pub use tables::{TABLES, tables};

use crate::balancer::Prompt;
use crate::config::{Config, OnInvalidConfig};
use crate::ingest;
use crate::report::{Load, Snapshot};
use crate::request::{
    Endpoint, Facts, MAX_HINT_IDS, MAX_RESPONSE_ID_BYTES, MAX_RID_BYTES, MAX_ROUTING_KEY_BYTES, Parsed, Target,
    answered_id, endpoint, implicit_key, manual_key, response_id, rid_key, routing_key, routing_tokens, strip_lineage,
    target_worker,
};
use crate::token::Token;

use self::vm::Vm;

/// A plugin configuration: refused with a reason, or good enough to place a request.
pub fn config(bytes: &[u8]) {
    let _ = OnInvalidConfig::of_invalid(bytes);
    match Config::parse(bytes) {
        Err(error) => assert!(!error.to_string().is_empty(), "a refusal says why"),
        Ok(config) => {
            let workers = config.workers.len();
            let Some(mut vm) = Vm::new(config) else { return };
            if let Some(ticket) = vm.place(Prompt { text: b"Once upon a time", text_bytes: 16, ..Prompt::default() }) {
                assert!(workers > 0 && !ticket.destination().is_empty(), "a placed request goes to a worker");
                vm.end(ticket);
            }
            vm.tick();
        }
    }
}

/// A request's body, and the beginning of an answer: what was read of it is never more than there is, whole or cut.
pub fn body(bytes: &[u8]) {
    let mut facts = Facts::default();
    for endpoint in Endpoint::WITH_PROMPT {
        for (complete, wants_rid) in [(false, true), (true, false), (true, true)] {
            facts.wants_rid = wants_rid;
            facts.read_body(endpoint, bytes, complete);
            assert!(facts.text.len() as u64 <= facts.text_bytes, "a text is longer than itself");
            assert!(facts.tokens.len() as u64 <= facts.token_count, "there are more ids than there are");
            assert!(!complete || facts.end != Parsed::Cut, "nothing more will come");
            assert!(facts.rid.len() <= if wants_rid { MAX_RID_BYTES } else { 0 }, "a rid too much");
            assert!(facts.previous_response_id.len() <= MAX_RESPONSE_ID_BYTES, "an id too long");
        }
    }
    let id = answered_id(bytes).unwrap_or_else(|| "none".to_owned());
    assert!((1..=MAX_RESPONSE_ID_BYTES).contains(&id.len()), "an id that is none");
}

/// What a request says in its head: method, path, token ids and routing key.
pub fn headers(bytes: &[u8]) {
    let mut parts = bytes.splitn(2, |byte| *byte == b' ');
    let (method, path) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let kind = endpoint(method, path);
    if kind == Endpoint::ResponseById {
        let id = response_id(path).unwrap_or_default();
        assert!((1..=MAX_RESPONSE_ID_BYTES).contains(&id.len()) && !id.contains(&b'/'), "{id:?}");
    }
    if let Some((mut vm, token)) = Vm::of_three("random").zip(Token::new("token")) {
        let head = ingest::Head { method, path, authorization: bytes, ends: bytes.len().is_multiple_of(2) };
        let open = vm.run(|context, _, _| ingest::refuse_head(context, None, head).is_none());
        let closed = vm.run(|context, _, _| ingest::refuse_head(context, Some(&token), head).is_none());
        assert!(open || !closed, "a token lets nobody in whom no token keeps out");
    }
    let mut ids = Vec::new();
    if routing_tokens(bytes, &mut ids) {
        assert!((1..=MAX_HINT_IDS).contains(&ids.len()), "{} ids", ids.len());
        let again = ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let value = |text: &str| text.split(',').map(|id| id.trim_start_matches('0').to_owned()).collect::<Vec<_>>();
        assert_eq!(value(&String::from_utf8_lossy(bytes)), value(&again), "the ids are those of the header");
    }
    if let Some(key) = routing_key(bytes) {
        assert!((1..=MAX_ROUTING_KEY_BYTES).contains(&key.len()) && key.as_bytes() == bytes, "{key}");
    }
    keys(bytes);
    Facts::default().hint(bytes);
}

/// The headers and the part of a body that may tie a request to a worker.
fn keys(bytes: &[u8]) {
    let visible = manual_key(bytes);
    if let Some(key) = visible {
        assert!(!key.is_empty() && key.as_bytes() == bytes, "{key}");
    }
    assert_eq!(visible.is_none(), target_worker(bytes) == Target::Absent, "both take what can be seen");
    assert_eq!(implicit_key(|_| Some(bytes.to_vec())).as_deref(), visible, "the first that is there");
    let text = String::from_utf8_lossy(bytes);
    let stripped = strip_lineage(&text);
    assert!(text.starts_with(stripped) && stripped.is_empty() == text.is_empty(), "{text} becomes {stripped}");
    assert_eq!(rid_key(&text).is_some(), (1..=MAX_ROUTING_KEY_BYTES).contains(&stripped.len()), "{text}");
}

/// A load snapshot as it is posted and as it comes off the queue: refused with a reason, or numbers to reckon with.
pub fn report(bytes: &[u8]) {
    let Some(mut vm) = Vm::of_three("least_load") else { return };
    let accepted = vm.run(|context, _, _| ingest::check(context, bytes).is_ok());
    vm.run(|context, balancer, _| ingest::take(context, balancer, bytes));
    if let Ok(snapshot) = Snapshot::parse(bytes) {
        assert!(accepted, "what can be read is taken");
        let again = Snapshot::parse(&snapshot.to_bytes()).map_or_else(|_| Vec::new(), |snapshot| snapshot.workers);
        assert_eq!(again.len(), snapshot.workers.len(), "it is written as it was read");
        for (one, other) in again.iter().zip(&snapshot.workers) {
            assert_eq!((&one.url, &one.address), (&other.url, &other.address), "it is written as it was read");
            assert_eq!(one.poll, other.poll);
            let same = one.load.zip(other.load).is_none_or(|(one, other)| is_same(&one, &other));
            assert!(same && one.load.is_some() == other.load.is_some(), "{one:?} is not {other:?}");
        }
        for load in snapshot.workers.iter().filter_map(|worker| worker.load) {
            let all = [load.queued_tokens, load.waiting, load.running, load.kv_usage, load.throughput];
            assert!(all.iter().all(|number| number.is_finite() && *number >= 0.0), "{load:?}");
        }
    }
    if let Some(ticket) = vm.place(Prompt::default()) {
        vm.end(ticket);
    }
    vm.tick();
}

/// Whether the numbers are the same but for the last digits, which reading decimals may change.
fn is_same(one: &Load, other: &Load) -> bool {
    let numbers = |load: &Load| [load.queued_tokens, load.waiting, load.running, load.kv_usage, load.throughput];
    numbers(one).iter().zip(numbers(other)).all(|(one, other)| (one - other).abs() <= other.abs() * 1e-12)
}
