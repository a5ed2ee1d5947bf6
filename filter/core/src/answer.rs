//! Answers that the filter gives itself, in SMG's form.

use serde_json::json;

/// An HTTP response of our own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: String,
}

/// Why a request cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody serves the model.
    ModelNotFound(String),
    /// Workers exist, but none may be chosen now.
    NoAvailableWorkers,
    /// Overload protection keeps all workers of the pool out.
    Overloaded {
        /// What the request has asked for.
        model: String,
        /// When they report again, in seconds.
        retry_after_secs: u32,
    },
}

impl Refusal {
    /// SMG's code for it, also the value of `x-smg-error-code`.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::ModelNotFound(_) => "model_not_found",
            Self::NoAvailableWorkers => "no_available_workers",
            Self::Overloaded { .. } => "worker_overload_protection_shed",
        }
    }

    /// The response that says so.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self {
            Self::ModelNotFound(model) => {
                error(404, self.code(), &format!("No worker available for model '{}'", shortened(model)))
            }
            Self::NoAvailableWorkers => {
                let message = "All workers are unavailable (circuit breaker open or unhealthy)";
                unavailable(self.code(), message, 1)
            }
            Self::Overloaded { model, retry_after_secs } => {
                let message = format!("All workers for model '{}' are overloaded", shortened(model));
                unavailable(self.code(), &message, *retry_after_secs)
            }
        }
    }
}

fn unavailable(code: &str, message: &str, retry_after_secs: u32) -> Answer {
    let mut answer = error(503, code, message);
    answer.headers.push(("retry-after", retry_after_secs.to_string()));
    answer
}

/// An error in the form that OpenAI's client libraries read.
#[must_use]
pub fn error(status: u16, code: &str, message: &str) -> Answer {
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    let body = json!({"error": {"type": kind, "code": code, "message": message, "param": null}});
    let mut answer = as_json(status, &body);
    answer.headers.push(("x-smg-error-code", code.to_owned()));
    answer
}

/// The fleet's models, as `GET /v1/models` lists them.
#[must_use]
pub fn models(models: &[&str]) -> Answer {
    let data: Vec<_> =
        models.iter().map(|id| json!({"id": id, "object": "model", "created": 0, "owned_by": "smg"})).collect();
    as_json(200, &json!({"object": "list", "data": data}))
}

fn as_json(status: u16, body: &serde_json::Value) -> Answer {
    let mut answer = Answer { status, headers: Vec::new(), body: body.to_string() };
    answer.headers.push(("content-type", "application/json".to_owned()));
    answer
}

/// Client text in a message is cut: it comes back in a response header-sized answer, not as an echo of megabytes.
fn shortened(text: &str) -> String {
    const MOST: usize = 256;
    match text.char_indices().nth(MOST) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_smgs_form() {
        let answer = Refusal::ModelNotFound("m\"1".into()).answer();
        assert_eq!(answer.status, 404);
        let body: serde_json::Value = serde_json::from_str(&answer.body).unwrap();
        assert_eq!(
            body,
            json!({"error": {"type": "invalid_request_error", "code": "model_not_found",
                   "message": "No worker available for model 'm\"1'", "param": null}})
        );
        assert!(answer.headers.contains(&("x-smg-error-code", "model_not_found".into())));
        assert!(answer.headers.contains(&("content-type", "application/json".into())));
        let busy = Refusal::NoAvailableWorkers.answer();
        assert!(busy.headers.contains(&("retry-after", "1".into())) && busy.body.contains("server_error"));
    }

    #[test]
    fn a_huge_model_name_is_not_echoed() {
        assert!(Refusal::ModelNotFound("é".repeat(1 << 20)).answer().body.len() < 1000);
    }
}
