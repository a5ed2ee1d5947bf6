//! A sidecar, or what poses as one, that answers anything to who fetches snapshots from it.

use super::vm::{Vm, of_three_with};
use crate::balancer::Prompt;
use crate::ingest;
use crate::pull::{Call, Puller};

/// Ticks in which whoever is asked is asked again, whatever it has answered: the longest pause is 30 s.
const TICKS: usize = 121;

/// The answers to one call after another, each behind a zero byte: its first byte tells the status, the rest is the body.
/// Requests go to workers all the while, one call at most is under way, and there is a next one.
pub fn pull(bytes: &[u8]) {
    let Some(config) = of_three_with("least_load", r#""reports":{"cluster":"sidecar","token":"secret"},"#) else {
        return;
    };
    let Some(mut vm) = Vm::new(config) else { return };
    let mut puller = Puller::default();
    let mut due = None;
    for (number, answer) in (1..).zip(bytes.split(|byte| *byte == 0).take(16)) {
        for _ in 0..TICKS {
            if due.is_some() {
                break;
            }
            vm.tick();
            due = vm.run(|context, balancer, _| puller.on_tick(context, balancer));
        }
        assert!(due.is_some(), "nobody is asked any more, at call {number}");
        let Some(call) = due.take() else { return };
        assert!(well_formed(&call), "{call:?}");
        let (how, body) = answer.split_first().map_or((b'n', &b""[..]), |(how, body)| (*how, body));
        let status: Option<&[u8]> = match how {
            b'n' => None,
            b'0' => Some(b"204"),
            b'1' => Some(b"401"),
            b'4' => Some(b"404"),
            b'5' => Some(body),
            _ => Some(b"200"),
        };
        due = vm.run(|context, balancer, _| {
            puller.on_sent(context, balancer, Ok(number));
            assert_eq!(puller.on_tick(context, balancer), None, "one call at a time");
            if !puller.on_head(context, balancer, number, status, body.len()) {
                return None;
            }
            let fetched = puller.on_body(context, balancer, body)?;
            ingest::take(context, balancer, body);
            puller.on_taken(context, balancer, fetched)
        });
        if let Some(ticket) = vm.place(Prompt::default()) {
            vm.end(ticket);
        }
    }
}

/// Whether the host would take the call, and a client could not have put anything into it.
fn well_formed(call: &Call) -> bool {
    let plain = |text: &str| !text.is_empty() && text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let path = call.headers.iter().find(|(name, _)| *name == ":path");
    call.headers.iter().all(|(_, value)| plain(value))
        && path.is_some_and(|(_, path)| path.starts_with("/v1/snapshot?"))
}
