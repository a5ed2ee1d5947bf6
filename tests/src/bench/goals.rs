//! What the filter may cost: figures of a machine with two cores, shared with clients and engines.

use std::fmt;

use serde_json::{Value, json};

use super::cells::Mix;
use super::outcome::{BARE, Outcome, Row};
use super::settings::READ_BODIES;

/// Size of the prompts in KiB, mix, and what `cache_aware` may add to Envoy alone, in µs per request.
const ADDED: [(usize, Mix, f64); 6] = [
    (4, Mix::Turn, 45.0),
    (4, Mix::Cold, 65.0),
    (48, Mix::Turn, 75.0),
    (48, Mix::Cold, 110.0),
    (400, Mix::Turn, 350.0),
    (400, Mix::Cold, 420.0),
];
/// What a policy that needs no body may add at 4 KB.
const ADDED_ON_HEADERS: f64 = 20.0;
/// How much of bare Envoy's cost a stream may cost.
const STREAM: f64 = 1.02;
/// Size of the prompts in KiB, and how many times as much SMG costs at least with turns.
const SMG: [(usize, f64); 3] = [(4, 1.3), (48, 1.7), (400, 2.0)];
const SMG_STREAM: f64 = 1.0;
const CONFLICTS_PER_PICK: f64 = 0.2;

/// A goal and what was found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    what: String,
    found: f64,
    /// `found` must not be above it, or not below it.
    bound: f64,
    at_least: bool,
}

impl Goal {
    fn at_most(what: String, found: f64, bound: f64) -> Self {
        Self { what, found, bound, at_least: false }
    }

    fn at_least(what: String, found: f64, bound: f64) -> Self {
        Self { what, found, bound, at_least: true }
    }

    fn met(&self) -> bool {
        if self.at_least { self.found >= self.bound } else { self.found <= self.bound }
    }

    pub(super) fn json(&self) -> Value {
        json!({ "goal": self.what, "found": self.found, "bound": self.bound, "met": self.met() })
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.met() { "met   " } else { "MISSED" };
        let relation = if self.at_least { "at least" } else { "at most" };
        write!(f, "{verdict}  {}: {:.2}, {relation} {} wanted", self.what, self.found, self.bound)
    }
}

/// The goals that a run has something to say about, for the workers and threads that everything is measured with.
pub(super) fn goals(outcome: &Outcome) -> Vec<Goal> {
    let mut goals = Vec::new();
    let Some(first) = outcome.rows.first() else { return goals };
    let usual: Vec<&Row> = outcome.rows.iter().filter(|row| row.same_group(first)).collect();
    let find =
        |setup: &str, row: &Row| usual.iter().copied().find(|other| other.setup == setup && other.same_cell(row));
    for row in &usual {
        let Some(bare) = find(BARE, row) else { continue };
        let (setup, cell) = (&row.setup, row.cell);
        let added = row.beside(bare, |own, bare| own - bare).median;
        let ratio = row.beside(bare, |own, bare| own / bare).median;
        match (setup.as_str(), cell.stream_chunks) {
            (BARE | "extproc", _) => {}
            ("smg", chunks) => {
                let Some(own) = find("cache_aware", row) else { continue };
                let times = row.beside(own, |smg, own| smg / own).median;
                let what = format!("smg costs so many times as much as cache_aware at {cell}");
                let wanted = SMG.iter().find(|(kb, _)| *kb == cell.prompt_kb && cell.mix == Mix::Turn);
                match (chunks, wanted) {
                    (1.., _) => goals.push(Goal::at_least(what, times, SMG_STREAM)),
                    (0, Some(&(_, bound))) => goals.push(Goal::at_least(what, times, bound)),
                    (0, None) => {}
                }
            }
            (_, 1..) => goals.push(Goal::at_most(format!("{setup} over Envoy alone at {cell}"), ratio, STREAM)),
            ("cache_aware", 0) => {
                if let Some(&(_, _, bound)) = ADDED.iter().find(|goal| (goal.0, goal.1) == (cell.prompt_kb, cell.mix)) {
                    goals.push(Goal::at_most(format!("{setup} adds µs at {cell}"), added, bound));
                }
            }
            (policy, 0) if cell.prompt_kb == 4 && !READ_BODIES.contains(&policy) => {
                goals.push(Goal::at_most(format!("{setup} adds µs at {cell}"), added, ADDED_ON_HEADERS));
            }
            (_, 0) => {}
        }
    }
    for all in &outcome.saturation {
        let what = format!("{} loses races per pick, {} threads, {}", all.policy, all.concurrency, all.mix);
        goals.push(Goal::at_most(what, all.conflicts_per_pick(), CONFLICTS_PER_PICK));
    }
    goals
}
