//! What a run has measured, as JSON and as a table.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::{Value, json};

use super::cells::{Cell, Group};
use super::clients::Measurement;
use super::goals::{Goal, goals};
use super::saturation::Saturation;

pub(super) const BARE: &str = "envoy";

/// One setup with one kind of requests.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) setup: String,
    workers: usize,
    concurrency: usize,
    pub(super) cell: Cell,
    /// One per round.
    measurements: Vec<Measurement>,
    failures: BTreeMap<String, usize>,
}

impl Row {
    pub(super) fn new(setup: &str, group: &Group, cell: Cell) -> Self {
        Self {
            setup: setup.to_owned(),
            workers: group.workers,
            concurrency: group.concurrency,
            cell,
            measurements: Vec::new(),
            failures: BTreeMap::new(),
        }
    }

    /// Takes a measurement; of one that does not count only its failures.
    pub(super) fn note(&mut self, measurement: Measurement, counts: bool) {
        for (what, number) in &measurement.failures {
            *self.failures.entry(what.clone()).or_default() += number;
        }
        if counts {
            self.measurements.push(measurement);
        }
    }

    fn spread(&self, value: impl Fn(&Measurement) -> f64) -> Spread {
        Spread::of(self.measurements.iter().map(value))
    }

    /// What `value` makes of this row's CPU time and another's, round by round.
    pub(super) fn beside(&self, other: &Self, value: impl Fn(f64, f64) -> f64) -> Spread {
        let both = self.measurements.iter().zip(&other.measurements);
        Spread::of(both.map(|(own, other)| value(own.cpu_us, other.cpu_us)))
    }

    /// As many workers and threads.
    pub(super) fn same_group(&self, other: &Self) -> bool {
        (self.workers, self.concurrency) == (other.workers, other.concurrency)
    }

    pub(super) fn same_cell(&self, other: &Self) -> bool {
        self.same_group(other) && self.cell == other.cell
    }
}

/// Median, least and most of some values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Spread {
    pub(super) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let median = if sorted.len() % 2 == 1 { at(middle) } else { (at(middle.saturating_sub(1)) + at(middle)) / 2.0 };
        Self { median, min: at(0), max: at(sorted.len().saturating_sub(1)) }
    }

    /// Writes the three numbers as `name`, `name_min` and `name_max`.
    fn into(self, name: &str, row: &mut Value) {
        let rounded = |value: f64| json!((value * 1000.0).round() / 1000.0);
        row[name] = rounded(self.median);
        row[format!("{name}_min")] = rounded(self.min);
        row[format!("{name}_max")] = rounded(self.max);
    }
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub(super) rows: Vec<Row>,
    pub(super) saturation: Vec<Saturation>,
}

impl Outcome {
    /// The rows as JSON: medians over the rounds, with the least and the most; CPU time in microseconds per request,
    /// latencies in milliseconds. `ratio` and `added_us` compare with Envoy alone, round by round.
    pub fn json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let mut value = json!({
                "setup": row.setup,
                "prompt_kb": row.cell.prompt_kb,
                "mix": row.cell.mix.to_string(),
                "stream_chunks": row.cell.stream_chunks,
                "workers": row.workers,
                "concurrency": row.concurrency,
                "rounds": row.measurements.len(),
                "failures": row.failures.values().sum::<usize>(),
            });
            row.spread(|all| all.cpu_us).into("cpu_us", &mut value);
            row.spread(|all| all.latency.p50).into("p50_ms", &mut value);
            row.spread(|all| all.latency.p99).into("p99_ms", &mut value);
            if let Some(bare) = self.bare(row) {
                row.beside(bare, |own, bare| own / bare).into("ratio", &mut value);
                row.beside(bare, |own, bare| own - bare).into("added_us", &mut value);
            }
            value
        });
        let rows: Vec<Value> = rows.collect();
        let saturation: Vec<Value> = self.saturation.iter().map(Saturation::json).collect();
        let goals: Vec<Value> = goals(self).iter().map(Goal::json).collect();
        json!({ "rows": rows, "saturation": saturation, "goals": goals })
    }

    /// The rows for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let mut last: Option<&Row> = None;
        for row in &self.rows {
            if last.is_none_or(|last| !last.same_group(row)) {
                let _ = write!(
                    text,
                    "\n{} workers, {} threads of Envoy; CPU of the proxy per request in µs: median (least, most)\n\
                     {:<21} {:<18} {:>26} {:>7} {:>9} {:>9} {:>9}\n",
                    row.workers, row.concurrency, "requests", "setup", "cpu", "ratio", "added", "p50 ms", "p99 ms"
                );
            }
            let named = last.is_some_and(|last| last.same_cell(row));
            let cell = if named { String::new() } else { row.cell.to_string() };
            let cpu = row.spread(|all| all.cpu_us);
            let cpu = format!("{:.0} ({:.0}, {:.0})", cpu.median, cpu.min, cpu.max);
            let (ratio, added) = match self.bare(row).filter(|_| row.setup != BARE) {
                Some(bare) => (
                    format!("{:.2}", row.beside(bare, |own, bare| own / bare).median),
                    format!("{:+.0}", row.beside(bare, |own, bare| own - bare).median),
                ),
                None => Default::default(),
            };
            let (p50, p99) = (row.spread(|all| all.latency.p50).median, row.spread(|all| all.latency.p99).median);
            let line = format!("{cell:<21} {:<18} {cpu:>26} {ratio:>7} {added:>9} {p50:>9.2} {p99:>9.2}", row.setup);
            let _ = writeln!(text, "{}", line.trim_end());
            last = Some(row);
        }
        for all in &self.saturation {
            let _ = write!(
                text,
                "\n{} under saturation, {} threads, {}: {} conflicts in {} picks, {:.3} per pick, {:.0} requests/s",
                all.policy,
                all.concurrency,
                all.mix,
                all.conflicts,
                all.picks,
                all.conflicts_per_pick(),
                all.requests_per_second
            );
        }
        text += "\n\ngoals\n";
        for goal in goals(self) {
            let _ = writeln!(text, "{goal}");
        }
        text
    }

    /// Requests that were not answered 200, each kind with its number and the row it belongs to.
    pub fn failures(&self) -> Vec<String> {
        let each = |row: &Row| {
            let place = format!("{} at {}, {} workers, {} threads", row.setup, row.cell, row.workers, row.concurrency);
            let told = row.failures.iter().map(move |(what, number)| format!("{place}: {number} × {what}"));
            told.collect::<Vec<_>>()
        };
        self.rows.iter().flat_map(each).collect()
    }

    /// Envoy alone with the same requests.
    fn bare(&self, row: &Row) -> Option<&Row> {
        self.rows.iter().find(|other| other.setup == BARE && other.same_cell(row))
    }
}

#[cfg(test)]
mod tests {
    use super::super::cells::Mix;
    use super::*;

    fn row(setup: &str, cpu: &[f64]) -> Row {
        let group =
            Group { workers: 2, concurrency: 1, setups: Vec::new(), cells: Vec::new(), sparse: Default::default() };
        let mut row = Row::new(setup, &group, Cell { prompt_kb: 4, mix: Mix::Turn, stream_chunks: 0 });
        for &cpu_us in cpu {
            row.note(Measurement { cpu_us, ..Measurement::default() }, true);
        }
        row
    }

    #[test]
    fn ratios_are_taken_within_a_round() {
        // The machine was twice as slow in the second round, which changes no ratio.
        let rows = vec![row("envoy", &[50.0, 100.0, 60.0]), row("random", &[75.0, 150.0, 90.0])];
        let outcome = Outcome { rows, saturation: Vec::new() };
        let json = outcome.json();
        assert_eq!(json["rows"][1]["ratio"], 1.5);
        assert_eq!(json["rows"][1]["ratio_max"], 1.5);
        assert_eq!(json["rows"][1]["added_us"], 30.0);
        assert_eq!(json["rows"][0]["cpu_us"], 60.0);
        assert_eq!((&json["rows"][0]["cpu_us_min"], &json["rows"][0]["cpu_us_max"]), (&json!(50.0), &json!(100.0)));
        let table = outcome.table();
        let line: Vec<_> = table.lines().find(|line| line.contains("random")).unwrap().split_whitespace().collect();
        assert_eq!(line[..6], ["random", "90", "(75,", "150)", "1.50", "+30"]);
    }

    #[test]
    fn goals_are_said_to_be_met_or_missed() {
        let rows =
            vec![row("envoy", &[50.0, 100.0]), row("cache_aware", &[90.0, 140.0]), row("random", &[75.0, 125.0])];
        let smg = row("smg", &[180.0, 280.0]);
        let outcome = Outcome { rows: rows.into_iter().chain([smg]).collect(), saturation: Vec::new() };
        let met = |goal: &Value| (goal["found"].as_f64().unwrap(), goal["met"] == true);
        let goals = outcome.json()["goals"].as_array().unwrap().iter().map(met).collect::<Vec<_>>();
        assert_eq!(goals, [(40.0, true), (25.0, false), (2.0, true)]);
        assert!(outcome.table().contains("MISSED  random adds µs at 4 KB turn: 25.00, at most 20 wanted"));
    }

    #[test]
    fn failures_of_a_round_that_does_not_count_are_told() {
        let mut row = row("envoy", &[]);
        let failures = BTreeMap::from([("status 503: no".to_owned(), 2)]);
        row.note(Measurement { failures, ..Measurement::default() }, false);
        let outcome = Outcome { rows: vec![row], saturation: Vec::new() };
        assert_eq!(outcome.failures(), ["envoy at 4 KB turn, 2 workers, 1 threads: 2 × status 503: no"]);
        assert_eq!(outcome.json()["rows"][0]["failures"], 2);
        assert_eq!(outcome.json()["rows"][0]["rounds"], 0);
    }
}
