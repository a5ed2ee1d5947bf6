//! Whether what a client has seen may be.

use std::time::{Duration, Instant};

use super::client::{Answer, End};
use super::fate::{Expected, Fate, Plan};

/// How long after its order a crash may still be felt: a VM told to die on its tick does so up to 250 ms later, the
/// leader on a later one, and for a while after its death a thread answers 503.
const AFTERMATH: Duration = Duration::from_secs(2);

/// What Envoy gives as the reason of an answer that stands for a dead VM.
const VM_DIED: &str = "wasm_fail_stream";

/// Who has died when.
#[derive(Debug, Default)]
pub(super) struct History {
    engines: Vec<(String, Instant)>,
    crashes: Vec<Instant>,
    /// Envoy is older than 1.37.
    old_envoy: bool,
}

/// A judgement on one request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// As its fate has it.
    Expected,
    /// Its VM has died.
    VmDied,
    /// The engine has died that had begun to answer it.
    EngineDied,
    /// An error before any answer of an engine, although a healthy engine was there.
    Avoidable(String),
    /// Something else that cannot be explained.
    Strange(String),
}

impl History {
    /// To be called before the engine dies.
    pub(super) fn engine_dies(&mut self, name: String) {
        self.engines.push((name, Instant::now()));
    }

    /// To be called before the first request, with what Envoy says of its version.
    pub(super) fn envoy_is(&mut self, version: &str) {
        self.old_envoy = version.contains("/1.36.");
    }

    /// What Envoy 1.36 does otherwise: it refuses bodies that are larger than the filter holds, having no bound of their
    /// own for them, and lets an answer that its engine has broken off look whole to the HTTP/2 client.
    fn is_old_way(&self, plan: &Plan, answer: &Answer) -> bool {
        let two = answer.protocol == "HTTP/2";
        self.old_envoy
            && answer.end == End::Whole
            && (plan.fate == Fate::Big && answer.status == Some(413)
                || plan.fate == Fate::BrokenOff && two && answer.status == Some(200))
    }

    /// To be called before a request is sent that makes a VM trap.
    pub(super) fn vm_dies(&mut self) {
        self.crashes.push(Instant::now());
    }

    /// Whether a VM may have died while this request was under way, or just before it.
    fn vm_died_under(&self, answer: &Answer) -> bool {
        self.crashes.iter().any(|&crash| answer.ended >= crash && answer.started <= crash + AFTERMATH)
    }

    fn engine_died_under(&self, answer: &Answer) -> bool {
        let Some(engine) = &answer.engine else { return false };
        self.engines.iter().any(|(name, death)| name == engine && answer.started <= *death && *death <= answer.ended)
    }

    /// Judges a request. At least one engine was healthy all the time, and the faults that a request asks for itself
    /// leave it attempts enough to find that one.
    pub(super) fn judge(&self, plan: &Plan, answer: &Answer) -> Verdict {
        let expected = plan.fate.expected();
        let as_expected = match (expected, answer.status, &answer.end) {
            (_, _, End::Hung) => false,
            (Expected::Answered, Some(200), End::Whole) => true,
            (Expected::Cut, Some(200), End::Cut(_)) => true,
            (Expected::Failed, Some(429 | 500 | 503), End::Whole) => true,
            (Expected::Refused(status), Some(seen), End::Whole) => seen == status,
            (Expected::Left, None | Some(200), End::Left) | (Expected::Left, Some(200), End::Whole) => true,
            _ => self.is_old_way(plan, answer),
        };
        let of_dead_vm = answer.details.as_deref().is_some_and(|details| details.contains(VM_DIED));
        if as_expected && !of_dead_vm {
            return Verdict::Expected;
        }
        let what = format!("{:?} over {}: {}", plan.fate, answer.protocol, answer.described());
        if of_dead_vm {
            return match self.vm_died_under(answer) {
                true => Verdict::VmDied,
                false => Verdict::Strange(format!("{what}, but no VM was told to die")),
            };
        }
        let begun = answer.status.is_some_and(|status| status < 400);
        if begun && self.engine_died_under(answer) {
            return Verdict::EngineDied;
        }
        if matches!(answer.end, End::Cut(_)) && self.vm_died_under(answer) {
            return Verdict::VmDied;
        }
        match begun || expected == Expected::Failed || matches!(expected, Expected::Refused(_)) {
            true => Verdict::Strange(what),
            false => Verdict::Avoidable(what),
        }
    }
}

impl Answer {
    fn described(&self) -> String {
        let status = self.status.map_or("no answer".to_owned(), |status| format!("status {status}"));
        let details = self.details.as_ref().map_or(String::new(), |details| format!(" ({details})"));
        let engine = self.engine.as_ref().map_or(String::new(), |engine| format!(" of {engine}"));
        let after = self.ended.duration_since(self.started);
        format!("{status}{details}{engine}, {:?} after {after:.0?}", self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status: Option<u16>, end: End) -> Answer {
        let started = Instant::now();
        let ended = started + Duration::from_millis(5);
        Answer { started, ended, protocol: "HTTP/2", status, details: None, engine: None, end }
    }

    fn plan(fate: Fate) -> Plan {
        (0..).map(|number| Plan::of(1, number)).find(|plan| plan.fate == fate).unwrap()
    }

    #[test]
    fn an_error_of_a_request_that_could_be_tried_again_is_avoidable() {
        let mut history = History::default();
        for fate in [Fate::Whole, Fate::Retried, Fate::BrokenOff, Fate::LeavesStream] {
            let refused = history.judge(&plan(fate), &answer(Some(503), End::Whole));
            assert!(matches!(refused, Verdict::Avoidable(_)), "{refused:?}");
            let cut = history.judge(&plan(fate), &answer(None, End::Cut(String::new())));
            assert!(matches!(cut, Verdict::Avoidable(_)), "{cut:?}");
        }
        assert_eq!(history.judge(&plan(Fate::Failing), &answer(Some(503), End::Whole)), Verdict::Expected);
        history.vm_dies();
        let cut = answer(None, End::Cut(String::new()));
        assert_eq!(history.judge(&plan(Fate::Whole), &cut), Verdict::VmDied);
        let refused = history.judge(&plan(Fate::Whole), &answer(Some(503), End::Whole));
        assert!(matches!(refused, Verdict::Avoidable(_)), "only what Envoy says is a VM's death: {refused:?}");
    }

    #[test]
    fn a_cut_stream_needs_a_death() {
        let mut history = History::default();
        let cut = || Answer { engine: Some("a".to_owned()), ..answer(Some(200), End::Cut(String::new())) };
        assert!(matches!(history.judge(&plan(Fate::Streamed), &cut()), Verdict::Strange(_)));
        let cut = Answer { ended: Instant::now() + Duration::from_secs(1), ..cut() };
        history.engine_dies("b".to_owned());
        assert!(matches!(history.judge(&plan(Fate::Streamed), &cut), Verdict::Strange(_)));
        history.engine_dies("a".to_owned());
        assert_eq!(history.judge(&plan(Fate::Streamed), &cut), Verdict::EngineDied);
    }
}
