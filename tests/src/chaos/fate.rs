//! What becomes of each request: drawn from the seed and the request's number, so that a run can be made again.

use std::time::Duration;

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::fake_engine::Fault;

/// The models that every engine serves.
pub(super) const MODELS: [&str; 2] = ["chaos-a", "chaos-b"];

/// Longest body that Envoy keeps to send it again; longer ones that must be held to their end are answered 413.
pub(super) const BODY_LIMIT: usize = 512 << 10;

/// Attempts that Envoy makes of one request.
pub(super) const ATTEMPTS: usize = 5;

/// What happens to a request, apart from the troubles around it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// Answered in one piece.
    Whole,
    /// Answered as a stream.
    Streamed,
    /// Not an inference request.
    Listing,
    /// A body that the filter decides on before its end.
    Big,
    /// The engine takes its time for the head of the answer.
    Slow,
    /// One or two attempts fail (500, 503, 429, a reset, a close), the next one is served.
    Retried,
    /// Every attempt fails.
    Failing,
    /// The engine resets or closes the connection in mid-stream.
    BrokenOff,
    /// The engine never answers and the client gives up.
    Stalled,
    /// A body that must be held and is longer than may be: 413.
    TooLarge,
    /// A model that nobody serves: 404.
    UnknownModel,
    /// The client leaves in the middle of the request's head.
    LeavesHead,
    /// The client leaves in the middle of the request's body.
    LeavesBody,
    /// The client leaves while it waits for the answer's head.
    LeavesWait,
    /// The client leaves in mid-stream.
    LeavesStream,
}

/// How often each fate is drawn, in percent.
const SHARES: [(Fate, u32); 15] = [
    (Fate::Whole, 20),
    (Fate::Streamed, 20),
    (Fate::Listing, 4),
    (Fate::Big, 5),
    (Fate::Slow, 5),
    (Fate::Retried, 10),
    (Fate::Failing, 3),
    (Fate::BrokenOff, 6),
    (Fate::Stalled, 2),
    (Fate::TooLarge, 2),
    (Fate::UnknownModel, 3),
    (Fate::LeavesHead, 3),
    (Fate::LeavesBody, 5),
    (Fate::LeavesWait, 5),
    (Fate::LeavesStream, 7),
];

/// What a client of this fate must see, if neither its VM nor its engine dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// 200 and the whole answer.
    Answered,
    /// Every attempt has failed, so an error.
    Failed,
    /// 200, and the stream is cut.
    Cut,
    /// The gateway's own answer.
    Refused(u16),
    /// The client has left; if an answer came before, it is none that a retry could have avoided.
    Left,
}

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) fate: Fate,
    pub(super) path: &'static str,
    pub(super) headers: Vec<(&'static str, String)>,
    /// None for a GET.
    pub(super) body: Option<Bytes>,
    /// Bytes of the body that are sent, if the client leaves before its end.
    pub(super) body_sent: Option<usize>,
    /// When the client leaves, counted from its start.
    pub(super) leaves_after: Option<Duration>,
    /// Pieces of the answer after which the client leaves.
    pub(super) leaves_after_pieces: Option<usize>,
}

impl Fate {
    /// All fates with their shares of the requests.
    fn draw(rng: &mut SmallRng) -> Self {
        SHARES.choose_weighted(rng, |(_, share)| *share).map_or(Self::Whole, |(fate, _)| *fate)
    }

    pub(super) fn expected(self) -> Expected {
        match self {
            Self::Whole | Self::Streamed | Self::Listing | Self::Big | Self::Slow | Self::Retried => Expected::Answered,
            Self::Failing => Expected::Failed,
            Self::BrokenOff => Expected::Cut,
            Self::TooLarge => Expected::Refused(413),
            Self::UnknownModel => Expected::Refused(404),
            Self::Stalled | Self::LeavesHead | Self::LeavesBody | Self::LeavesWait | Self::LeavesStream => {
                Expected::Left
            }
        }
    }
}

impl Plan {
    /// Request `number` of the run with this seed.
    pub(super) fn of(seed: u64, number: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number as u64);
        let fate = Fate::draw(&mut rng);
        let mut plan = Self::chat(&mut rng, number, fate);
        match fate {
            Fate::Whole | Fate::Streamed | Fate::Big | Fate::UnknownModel | Fate::TooLarge => {}
            Fate::Listing => {
                plan.path = *["/health", "/v1/loads", "/v1/models"].choose(&mut rng).unwrap_or(&"/health");
                plan.body = None;
            }
            Fate::Slow => plan.fault(&[Some(Fault::DelayHeaders { millis: rng.random_range(100..600) })]),
            Fate::Retried => {
                let faults: Vec<_> = (0..rng.random_range(1..=2)).map(|_| Some(failure(&mut rng))).collect();
                plan.fault(&faults);
            }
            Fate::Failing => {
                let fault = failure(&mut rng);
                plan.fault(&vec![Some(fault); ATTEMPTS]);
            }
            Fate::BrokenOff => {
                let after_chunks = rng.random_range(1..4);
                let fault = match rng.random() {
                    true => Fault::ResetStream { after_chunks },
                    false => Fault::CloseStream { after_chunks },
                };
                plan.fault(&vec![Some(fault); ATTEMPTS]);
            }
            Fate::Stalled => {
                plan.fault(&vec![Some(Fault::Stall); ATTEMPTS]);
                plan.leaves_after = Some(Duration::from_millis(rng.random_range(200..800)));
            }
            Fate::LeavesHead => {
                plan.body_sent = Some(0);
                plan.leaves_after = Some(Duration::from_millis(rng.random_range(0..40)));
            }
            Fate::LeavesBody => {
                let length = plan.body.as_ref().map_or(1, Bytes::len);
                plan.body_sent = Some(rng.random_range(0..length));
                plan.leaves_after = Some(Duration::from_millis(rng.random_range(1..150)));
            }
            Fate::LeavesWait => {
                plan.fault(&vec![Some(Fault::DelayHeaders { millis: 2000 }); ATTEMPTS]);
                plan.leaves_after = Some(Duration::from_millis(rng.random_range(1..300)));
            }
            Fate::LeavesStream => plan.leaves_after_pieces = Some(rng.random_range(1..6)),
        }
        plan
    }

    /// A stream that lasts until its client leaves or somebody dies.
    pub(super) fn lasting(rng: &mut SmallRng, number: usize) -> Self {
        let mut plan = Self::chat(rng, number, Fate::LeavesStream);
        let text = prompt(rng, number, 400);
        plan.body = Some(body(MODELS[number % MODELS.len()], &text, true, 4096));
        plan
    }

    fn chat(rng: &mut SmallRng, number: usize, fate: Fate) -> Self {
        let model = MODELS.choose(rng).copied().unwrap_or(MODELS[0]);
        let length = rng.random_range(40..3000);
        let text = prompt(rng, number, length);
        let body = match fate {
            Fate::UnknownModel => body("nobody-has-this", &text, false, 4),
            Fate::Big => {
                let length = rng.random_range(100_000..300_000);
                body(model, &prompt(rng, number, length), rng.random(), 4)
            }
            // Behind the messages, so that the filter has to hold the body on to its end.
            Fate::TooLarge => {
                let text = prompt(rng, number, BODY_LIMIT + (200 << 10));
                format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}],\"model\":\"{model}\"}}").into()
            }
            // Long enough to be left in the middle, or to be cut.
            Fate::LeavesStream | Fate::BrokenOff => body(model, &text, true, 40),
            Fate::Streamed => body(model, &text, true, rng.random_range(1..30)),
            _ => body(model, &text, rng.random_ratio(1, 2) && fate != Fate::Whole, rng.random_range(1..10)),
        };
        let mut headers = vec![("content-type", "application/json".to_owned())];
        if rng.random_ratio(1, 2) {
            headers.push(("x-smg-routing-key", format!("user {}", rng.random_range(0..50))));
        }
        Self {
            fate,
            path: "/v1/chat/completions",
            headers,
            body: Some(body),
            body_sent: None,
            leaves_after: None,
            leaves_after_pieces: None,
        }
    }

    fn fault(&mut self, faults: &[Option<Fault>]) {
        let text = serde_json::to_string(faults).unwrap_or_default();
        self.headers.push((crate::fake_engine::FAULT_HEADER, text));
    }
}

/// What Envoy's route retries.
fn failure(rng: &mut SmallRng) -> Fault {
    match rng.random_range(0..5) {
        0 => Fault::Reset,
        1 => Fault::Close,
        2 => Fault::Status { status: 429 },
        3 => Fault::Status { status: 500 },
        _ => Fault::Status { status: 503 },
    }
}

/// A text of about `length` bytes: one of a few beginnings, and an end of its own.
fn prompt(rng: &mut SmallRng, number: usize, length: usize) -> String {
    let topic = rng.random_range(0..40);
    let sentence = format!("This is what everybody says about topic {topic}. ");
    let own = format!("Request {number} asks something else. ");
    let mut text = sentence.repeat(length / 2 / sentence.len() + 1);
    text.push_str(&own.repeat(length / 2 / own.len() + 1));
    text
}

fn body(model: &str, text: &str, stream: bool, tokens: usize) -> Bytes {
    // In this order: the model first, as careful clients write it.
    let messages: Value = json!([{ "role": "user", "content": text }]);
    format!("{{\"model\":\"{model}\",\"stream\":{stream},\"max_tokens\":{tokens},\"messages\":{messages}}}").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_requests_again_and_every_fate_is_met() {
        let fates = |seed| (0..2000).map(|number| Plan::of(seed, number).fate).collect::<Vec<_>>();
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        let met: std::collections::BTreeSet<_> = fates(1).into_iter().collect();
        assert_eq!(met.len(), SHARES.len());
        assert_eq!(SHARES.iter().map(|(_, share)| share).sum::<u32>(), 100);
    }
}
