//! What a run has shown, in words and as promises kept or broken.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::ChaosSettings;
use super::client::{Answer, End};
use super::fate::{Fate, Plan};
use super::judge::Verdict;
use super::sample::{Counts, Sample};

/// Errors that are shown in full.
const SHOWN: usize = 20;

/// Judgements so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    fates: BTreeMap<Fate, usize>,
    answered: usize,
    refused: usize,
    left: usize,
    cut: usize,
    /// Of those hurt by the death of their VM: refused, cut before an answer had begun, cut in an answer.
    vm_died: [usize; 3],
    engine_died: usize,
    avoidable: Vec<String>,
    strange: Vec<String>,
}

impl Tally {
    pub(super) fn add(&mut self, number: usize, plan: &Plan, answer: &Answer, verdict: Verdict) {
        *self.fates.entry(plan.fate).or_default() += 1;
        match verdict {
            Verdict::Expected => match (&answer.end, answer.status) {
                (End::Left, _) => self.left += 1,
                (End::Cut(_), _) => self.cut += 1,
                (_, Some(200)) => self.answered += 1,
                _ => self.refused += 1,
            },
            Verdict::VmDied => {
                let kind = match (&answer.end, answer.status) {
                    (_, Some(503)) => 0,
                    (_, None) => 1,
                    _ => 2,
                };
                self.vm_died[kind] += 1;
            }
            Verdict::EngineDied => self.engine_died += 1,
            Verdict::Avoidable(what) => self.avoidable.push(format!("request {number}, {what}")),
            Verdict::Strange(what) => self.strange.push(format!("request {number}, {what}")),
        }
    }

    fn requests(&self) -> usize {
        self.fates.values().sum()
    }
}

/// How a run has ended.
#[derive(Debug)]
pub(super) struct Ending {
    /// The counts when they were 0, or when the time was up.
    pub(super) last: Counts,
    pub(super) took: Duration,
    /// They were 0 for longer than the filter needs to correct itself.
    pub(super) stays: bool,
    /// Distinct routing keys in flight by the filter's gauge.
    pub(super) keys: u64,
    pub(super) reaped: u64,
    pub(super) returned: u64,
    pub(super) corrections: u64,
    /// Attempts after the first that Envoy has made.
    pub(super) retries: u64,
    /// Lines in Envoy's log of code that has panicked.
    pub(super) panicked: usize,
}

/// What a run has shown; its text is for people.
#[derive(Debug)]
pub struct ChaosReport {
    pub(super) settings: ChaosSettings,
    pub(super) tally: Tally,
    pub(super) made: BTreeMap<String, usize>,
    pub(super) samples: Vec<Sample>,
    pub(super) ending: Ending,
    pub(super) traffic: Duration,
    pub(super) log: String,
}

impl ChaosReport {
    /// What Envoy and the filter have logged.
    pub fn log(&self) -> &str {
        &self.log
    }

    /// The promises that were broken, a sentence for each; none if all is well.
    pub fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let (settings, tally, ending) = (&self.settings, &self.tally, &self.ending);
        let mut promise = |kept: bool, why: String| {
            if !kept {
                broken.push(why);
            }
        };
        promise(
            tally.requests() == settings.requests,
            format!("{} of {} requests have ended", tally.requests(), settings.requests),
        );
        promise(
            tally.avoidable.is_empty(),
            format!("{} errors that a retry could have avoided", tally.avoidable.len()),
        );
        promise(tally.strange.is_empty(), format!("{} ends without an explanation", tally.strange.len()));
        let agree = self.samples.iter().filter(|sample| sample.agrees).count();
        promise(agree == settings.samples, format!("the counts agree at {agree} of {} samples", settings.samples));
        promise(
            ending.last == Counts::default(),
            format!(
                "{:?} after the last request the filter counts {} in flight and Envoy {}",
                ending.took, ending.last.filter, ending.last.envoy
            ),
        );
        promise(ending.stays, "after the end the counts have not stayed 0".to_owned());
        promise(ending.keys == 0, format!("{} routing keys are counted after the end", ending.keys));
        promise(ending.panicked == 0, format!("the module has panicked {} times", ending.panicked));
        broken
    }
}

impl Display for ChaosReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (settings, tally, ending) = (&self.settings, &self.tally, &self.ending);
        writeln!(
            f,
            "seed {}: {} requests in {:.0?}, {} clients, {} engines, {} threads, {} retries",
            settings.seed,
            tally.requests(),
            self.traffic,
            settings.clients,
            settings.engines,
            settings.concurrency,
            ending.retries
        )?;
        writeln!(f, "fates     {}", listed(tally.fates.iter().map(|(fate, count)| (format!("{fate:?}"), *count))))?;
        writeln!(f, "troubles  {}", listed(self.made.iter().map(|(name, count)| (name.clone(), *count))))?;
        writeln!(
            f,
            "ends      {} answered, {} refused as they had to be, {} left by their clients, {} cut as they asked for",
            tally.answered, tally.refused, tally.left, tally.cut
        )?;
        let [refused, before, within] = tally.vm_died;
        writeln!(
            f,
            "          {} hurt by the death of their VM: {refused} refused, {before} cut before an answer, {within} cut in one",
            refused + before + within
        )?;
        writeln!(f, "          {} cut by the death of the engine that was answering", tally.engine_died)?;
        writeln!(f, "          {} avoidable errors, {} unexplained", tally.avoidable.len(), tally.strange.len())?;
        let agree = self.samples.iter().filter(|sample| sample.agrees).count();
        let streams = |pick: fn(u64, u64) -> u64| self.samples.iter().map(|sample| sample.streams).reduce(pick);
        let slowest = |crash: bool| self.samples.iter().filter(|s| s.crash.is_some() == crash).map(|s| s.took).max();
        writeln!(
            f,
            "samples   {agree} of {} agree, with {} to {} streams open; after {:.0?} at most, {:.0?} where a VM died",
            self.samples.len(),
            streams(u64::min).unwrap_or(0),
            streams(u64::max).unwrap_or(0),
            slowest(false).unwrap_or_default(),
            slowest(true).unwrap_or_default()
        )?;
        writeln!(
            f,
            "VMs       {} found dead, {} of them returned, {} counts corrected",
            ending.reaped, ending.returned, ending.corrections
        )?;
        writeln!(
            f,
            "end       the filter counts {} in flight and Envoy {}, {:.0?} after the last request",
            ending.last.filter, ending.last.envoy, ending.took
        )?;
        for sample in self.samples.iter().filter(|sample| !sample.agrees) {
            writeln!(
                f,
                "! {} streams are open, the filter counts {} and Envoy {}, after {:.0?} (VM told to die: {:?})",
                sample.streams, sample.counts.filter, sample.counts.envoy, sample.took, sample.crash
            )?;
        }
        for what in tally.avoidable.iter().take(SHOWN) {
            writeln!(f, "! avoidable: {what}")?;
        }
        for what in tally.strange.iter().take(SHOWN) {
            writeln!(f, "! unexplained: {what}")?;
        }
        Ok(())
    }
}

fn listed(items: impl Iterator<Item = (String, usize)>) -> String {
    items.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
