//! What an engine can be told to do wrong: by `POST /control` or by a method, or by a request for itself.
//!
//! ```json
//! {"fault": {"kind": "status", "status": 503}, "count": 3, "probability": 0.5}
//! {"loads": {"kind": "body", "body": "not json"}, "health": 500}
//! {"clear": true}
//! ```
//!
//! A request brings its own faults in [`FAULT_HEADER`], the first for the first attempt; null is none, and so is what is
//! not there. Which attempt it is Envoy says in `x-envoy-attempt-count`, if it was told to.
//!
//! ```text
//! x-fault: [{"kind": "reset"}, null, {"kind": "status", "status": 503}]
//! ```

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Response;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// Request header with the faults of this request's attempts.
pub const FAULT_HEADER: &str = "x-fault";

/// Request header in which Envoy counts attempts, from 1.
const ATTEMPT_HEADER: &str = "x-envoy-attempt-count";

/// One order to an engine; what is absent stays as it is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Control {
    /// Takes back everything told before, then applies the rest.
    pub clear: bool,
    /// A fault of generation requests; several wait in line, the first that applies is used.
    pub fault: Option<Fault>,
    /// Requests the fault hits; all from now on if absent.
    pub count: Option<u64>,
    /// Probability that a request is hit, 0 to 1; always if absent.
    pub probability: Option<f64>,
    /// What `/v1/loads` answers.
    pub loads: Option<Probe>,
    /// What `/metrics` answers.
    pub metrics: Option<Probe>,
    /// Status that `/health` answers.
    pub health: Option<u16>,
}

/// A fault of one generation request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fault {
    /// Answer an error in OpenAI's shape with this status.
    Status {
        /// HTTP status.
        status: u16,
    },
    /// Read the request and never answer.
    Stall,
    /// Reset the connection (TCP RST) before any byte of the answer.
    Reset,
    /// Close the connection before any byte of the answer.
    Close,
    /// Wait before the request is looked at, headers and all; then serve it.
    DelayHeaders {
        /// Milliseconds of real time.
        millis: u64,
    },
    /// Send the headers of a stream and this many chunks, then nothing any more.
    StallStream {
        /// Chunks sent before.
        after_chunks: usize,
    },
    /// Reset the connection (TCP RST) in mid-stream.
    ResetStream {
        /// Chunks sent before.
        after_chunks: usize,
    },
    /// Close the connection in mid-stream, without the end of the body.
    CloseStream {
        /// Chunks sent before.
        after_chunks: usize,
    },
}

impl Fault {
    /// The fault that a request asks for in its own headers; a header that cannot be read asks for none.
    pub(crate) fn of_request(headers: &HeaderMap) -> Option<Self> {
        let faults: Vec<Option<Self>> = serde_json::from_slice(headers.get(FAULT_HEADER)?.as_bytes()).ok()?;
        let attempt = headers.get(ATTEMPT_HEADER).and_then(|value| value.to_str().ok()?.parse().ok());
        faults.into_iter().nth(attempt.map_or(0, |attempt: usize| attempt.saturating_sub(1)))?
    }
}

/// What a load route answers instead of the truth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// The truth again.
    True,
    /// These bytes.
    Body {
        /// The body.
        body: String,
        /// HTTP status; 200 if absent.
        status: Option<u16>,
    },
    /// A status with an empty body.
    Status {
        /// HTTP status.
        status: u16,
    },
    /// A valid JSON string of about this many bytes.
    Huge {
        /// Size of the body.
        bytes: usize,
    },
    /// Bytes that are no text at all.
    Garbage,
    /// The truth, late.
    Slow {
        /// Milliseconds of real time.
        millis: u64,
    },
    /// No answer.
    Stall,
}

/// The faults an engine has been told.
#[derive(Debug)]
pub(crate) struct Faults {
    rules: Vec<Rule>,
    rng: SmallRng,
    pub(crate) loads: Probe,
    pub(crate) metrics: Probe,
    pub(crate) health: StatusCode,
}

#[derive(Debug)]
struct Rule {
    fault: Fault,
    left: Option<u64>,
    probability: f64,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            rules: Vec::new(),
            rng: SmallRng::seed_from_u64(seed),
            loads: Probe::True,
            metrics: Probe::True,
            health: StatusCode::OK,
        }
    }

    pub(crate) fn apply(&mut self, control: Control) {
        if control.clear {
            self.rules.clear();
            self.loads = Probe::True;
            self.metrics = Probe::True;
            self.health = StatusCode::OK;
        }
        if let Some(fault) = control.fault {
            let probability = control.probability.unwrap_or(1.0);
            self.rules.push(Rule { fault, left: control.count, probability });
        }
        if let Some(loads) = control.loads {
            self.loads = loads;
        }
        if let Some(metrics) = control.metrics {
            self.metrics = metrics;
        }
        if let Some(health) = control.health {
            self.health = status(health);
        }
    }

    /// The fault that hits the next request, if any.
    pub(crate) fn next(&mut self) -> Option<Fault> {
        let rng = &mut self.rng;
        let rule =
            self.rules.iter_mut().find(|rule| rule.probability >= 1.0 || rng.random::<f64>() < rule.probability)?;
        let fault = rule.fault.clone();
        if let Some(left) = &mut rule.left {
            *left = left.saturating_sub(1);
        }
        self.rules.retain(|rule| rule.left != Some(0));
        Some(fault)
    }
}

impl Probe {
    /// The answer told, or `None` for the truth (after a wait, if that was told).
    pub(crate) async fn answer(self) -> Option<Response> {
        let with = |code: StatusCode, body: Body| {
            let mut response = Response::new(body);
            *response.status_mut() = code;
            let json = header::HeaderValue::from_static("application/json");
            response.headers_mut().insert(header::CONTENT_TYPE, json);
            Some(response)
        };
        match self {
            Self::True => None,
            Self::Body { body, status: code } => with(status(code.unwrap_or(200)), Body::from(body)),
            Self::Status { status: code } => with(status(code), Body::empty()),
            Self::Huge { bytes } => with(StatusCode::OK, Body::from(format!("\"{}\"", "x".repeat(bytes)))),
            Self::Garbage => with(StatusCode::OK, Body::from(vec![0xff, 0xfe, 0x00, b'{', 0x80, 0xc0])),
            Self::Slow { millis } => {
                tokio::time::sleep(Duration::from_millis(millis)).await;
                None
            }
            Self::Stall => std::future::pending().await,
        }
    }
}

/// A status that HTTP knows; anything else becomes 500.
pub(crate) fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_hits_as_often_as_told() {
        let mut faults = Faults::new(1);
        assert_eq!(faults.next(), None);
        faults.apply(Control { fault: Some(Fault::Stall), count: Some(2), ..Control::default() });
        faults.apply(serde_json::from_str(r#"{"fault":{"kind":"status","status":503}}"#).unwrap());
        let order: Vec<_> = (0..4).map(|_| faults.next().unwrap()).collect();
        let failed = Fault::Status { status: 503 };
        assert_eq!(order, [Fault::Stall, Fault::Stall, failed.clone(), failed]);
        faults.apply(Control { clear: true, ..Control::default() });
        assert_eq!(faults.next(), None);
    }

    #[test]
    fn a_request_brings_the_faults_of_its_attempts() {
        let fault = |faults: &str, attempt: Option<&str>| {
            let mut headers = HeaderMap::new();
            headers.insert(FAULT_HEADER, faults.parse().unwrap());
            if let Some(number) = attempt {
                headers.insert(ATTEMPT_HEADER, number.parse().unwrap());
            }
            Fault::of_request(&headers)
        };
        let faults = r#"[{"kind": "reset"}, null, {"kind": "status", "status": 503}]"#;
        assert_eq!(fault(faults, None), Some(Fault::Reset));
        let all = ["1", "2", "3", "4"].map(|attempt| fault(faults, Some(attempt)));
        assert_eq!(all, [Some(Fault::Reset), None, Some(Fault::Status { status: 503 }), None]);
        assert_eq!(fault("nonsense", None), None);
        assert_eq!(Fault::of_request(&HeaderMap::new()), None);
    }

    #[test]
    fn a_fault_hits_with_its_probability() {
        let mut faults = Faults::new(1);
        faults.apply(Control { fault: Some(Fault::Reset), probability: Some(0.25), ..Control::default() });
        let hits = (0..4000).filter(|_| faults.next().is_some()).count();
        assert!((800..1200).contains(&hits), "{hits}");
    }
}
