//! A whole exchange with a host that says anything: headers, properties (route metadata among them) and bodies.

use super::vm::Vm;
use crate::exchange::{Exchange, Http, Scene, Step};
use crate::request::Facts;

/// Answers each question with the next line of what it was given; an empty line is no answer, a tilde an empty one.
struct Lines<'a> {
    lines: std::slice::Split<'a, u8, fn(&u8) -> bool>,
    body: &'a [u8],
}

impl Lines<'_> {
    fn next(&mut self) -> Option<Vec<u8>> {
        let line = self.lines.next().filter(|line| !line.is_empty())?;
        Some(if line == b"~" { Vec::new() } else { line.to_vec() })
    }
}

impl Http for Lines<'_> {
    fn request_header(&mut self, name: &str) -> Option<Vec<u8>> {
        // Without these nothing much happens.
        match (self.next(), name) {
            (None, ":method") => Some(b"POST".to_vec()),
            (None, ":path") => Some(b"/v1/chat/completions".to_vec()),
            (line, _) => line,
        }
    }

    fn response_header(&mut self, _: &str) -> Option<Vec<u8>> {
        self.next()
    }

    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>> {
        match (self.next(), path) {
            (None, ["xds", "cluster_name"]) => Some(b"engines".to_vec()),
            (line, _) => line,
        }
    }

    fn body(&mut self, size: usize) -> Vec<u8> {
        self.body.get(..size).unwrap_or(self.body).to_vec()
    }

    fn now_nanos(&mut self) -> u64 {
        self.next().map_or(0, |line| line.len() as u64)
    }
}

/// An exchange from its head to its end. The first byte says how the body comes, the lines up to an empty pair are the
/// host's answers, the rest is the body.
pub fn exchange(bytes: &[u8]) {
    let [how, rest @ ..] = bytes else { return };
    let end = rest.windows(2).position(|pair| pair == b"\n\n").unwrap_or(rest.len());
    let (answers, body) = rest.split_at(end);
    let is_end: fn(&u8) -> bool = |byte| *byte == b'\n';
    let mut http = Lines { lines: answers.split(is_end), body };
    let policy = if how & 1 == 0 { "cache_aware" } else { "least_load" };
    let Some(mut vm) = Vm::of_three(policy) else { return };
    let (mut exchange, mut facts) = (Exchange::default(), Facts::default());
    let mut on = |event: &mut dyn FnMut(&mut Scene<'_, '_>)| {
        vm.run(|context, balancer, ledger| {
            event(&mut Scene { context, http: &mut http, balancer, facts: &mut facts, ledger });
        });
    };
    let mut step = Step::Continue;
    on(&mut |scene| step = exchange.on_request_headers(scene, how & 2 != 0));
    let sizes = [body.len() / 2, body.len()];
    for (number, held) in sizes.into_iter().enumerate() {
        if step == Step::Pause {
            on(&mut |scene| step = exchange.on_request_body(scene, held, number == 1 && how & 4 == 0));
        }
    }
    if step == Step::Pause {
        on(&mut |scene| step = exchange.on_request_trailers(scene));
    }
    if let Step::Route(route) = &step {
        assert!(!route.destination.is_empty(), "routed nowhere");
        assert!(!route.destination.contains("engine"), "{}: a host that nobody knows", route.destination);
    }
    if let Step::Reply(answer) = &step {
        assert!([200, 404, 503].contains(&answer.status), "{answer:?}");
    }
    on(&mut |scene| drop(exchange.on_response_headers(scene)));
    on(&mut |scene| exchange.on_done(scene));
    assert!(!exchange.is_counted(), "in flight after its end");
}
