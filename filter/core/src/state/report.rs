//! The cold load table: the last load report of each worker, 64 workers a block.
//!
//! Only the consumer of snapshots writes it, before it bumps the version in the hot block; readers fetch it again when
//! that version has changed, so a request never pays for it.

use super::bytes::{read_f64, read_u16, read_u32, read_u64, write};
use super::load::SLOTS_PER_BLOCK;
use crate::report::Load;

const ENTRY_BYTES: usize = 96;

const HAS_LOAD: u16 = 1;
const SILENT: u16 = 2;

/// A worker that has missed this many intervals counts as not reporting.
pub(super) const MISSED_INTERVALS: u64 = 3;

/// One worker's last report.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Entry {
    /// The last load that was told, if any was.
    pub load: Option<Load>,
    /// Which poll told it, see [`crate::report::WorkerReport`].
    pub poll: u64,
    /// When the load arrived, in Unix milliseconds.
    pub loaded_ms: u64,
    /// A later poll has failed.
    pub silent: bool,
    /// When the last report arrived, with or without a load, in Unix milliseconds.
    pub received_ms: u64,
    /// How often reports are to be expected.
    pub interval_ms: u32,
    /// See [`crate::report::Snapshot`].
    pub epoch: u64,
    /// See [`crate::report::Snapshot`].
    pub sequence: u64,
    /// Whose report it is, see [`super::named::reporter_hash`].
    pub reporter: u64,
    /// The owner of the slot that the report is about.
    pub generation: u16,
}

impl Entry {
    /// The load, as long as it counts.
    #[must_use]
    pub fn load_at(&self, now_ms: u64) -> Option<&Load> {
        self.load.as_ref().filter(|_| now_ms <= self.expires_ms(self.loaded_ms))
    }

    /// Whether nothing that the last report says counts any more: whoever sent it has fallen silent.
    #[must_use]
    pub fn is_expired(&self, now_ms: u64) -> bool {
        now_ms > self.expires_ms(self.received_ms)
    }

    /// When what has arrived at `arrived_ms` stops counting, in Unix milliseconds.
    fn expires_ms(&self, arrived_ms: u64) -> u64 {
        arrived_ms.saturating_add(MISSED_INTERVALS * u64::from(self.interval_ms))
    }

    /// Whether its load comes from another poll than that of `earlier`, the last report of the same worker.
    #[must_use]
    pub fn tells_news_after(&self, earlier: &Self) -> bool {
        let same_life = (self.reporter, self.epoch) == (earlier.reporter, earlier.epoch);
        self.load.is_some() && (self.poll == 0 || !same_life || self.poll > earlier.poll)
    }

    /// Keeps the load of `earlier` if this report, of the same worker, has none.
    pub fn follow(&mut self, earlier: &Self) {
        self.silent = self.load.is_none();
        if self.silent {
            (self.load, self.loaded_ms, self.poll) = (earlier.load, earlier.loaded_ms, earlier.poll);
        }
    }

    /// Makes the report as fresh as a snapshot of the same reporter and epoch that has nothing new of the worker.
    pub fn refresh(&mut self, sequence: u64, interval_ms: u32, now_ms: u64) {
        (self.sequence, self.interval_ms, self.received_ms) = (sequence, interval_ms, now_ms);
        if self.tells_load() {
            self.loaded_ms = now_ms;
        }
    }

    /// Whether the last report had a load.
    #[must_use]
    pub fn tells_load(&self) -> bool {
        self.load.is_some() && !self.silent
    }

    /// Whether a snapshot of (`epoch`, `sequence`) arriving at `now_ms` is news. An expired entry yields to anything:
    /// a sidecar that restarts with an older clock is heard again.
    #[must_use]
    pub fn is_superseded_by(&self, epoch: u64, sequence: u64, now_ms: u64) -> bool {
        (epoch, sequence) > (self.epoch, self.sequence) || self.is_expired(now_ms)
    }
}

/// One block of the table: a copy of its bytes.
#[derive(Debug, Clone)]
pub struct ReportBlock {
    bytes: Vec<u8>,
}

impl ReportBlock {
    /// The block in `bytes`; missing bytes are zeros.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>) -> Self {
        bytes.resize(ENTRY_BYTES * SLOTS_PER_BLOCK, 0);
        Self { bytes }
    }

    /// What is to be stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The entry at `position`.
    #[must_use]
    pub fn entry(&self, position: usize) -> Entry {
        let at = position * ENTRY_BYTES;
        let Some(raw) = self.bytes.get(at..at + ENTRY_BYTES) else { return Entry::default() };
        let load = Load {
            queued_tokens: read_f64(raw, 0),
            waiting: read_f64(raw, 8),
            running: read_f64(raw, 16),
            kv_usage: read_f64(raw, 24),
            throughput: read_f64(raw, 32),
        };
        Entry {
            load: (read_u16(raw, 70) & HAS_LOAD != 0).then(|| load.sanitized()),
            loaded_ms: read_u64(raw, 72),
            silent: read_u16(raw, 70) & SILENT != 0,
            received_ms: read_u64(raw, 40),
            epoch: read_u64(raw, 48),
            sequence: read_u64(raw, 56),
            reporter: read_u64(raw, 80),
            poll: read_u64(raw, 88),
            interval_ms: read_u32(raw, 64),
            generation: read_u16(raw, 68),
        }
    }

    /// Replaces the entry at `position`.
    pub fn set_entry(&mut self, position: usize, entry: &Entry) {
        let at = position * ENTRY_BYTES;
        let Some(raw) = self.bytes.get_mut(at..at + ENTRY_BYTES) else { return };
        let load = entry.load.unwrap_or_default();
        for (number, value) in
            [load.queued_tokens, load.waiting, load.running, load.kv_usage, load.throughput].into_iter().enumerate()
        {
            write(raw, number * 8, value.to_le_bytes());
        }
        write(raw, 40, entry.received_ms.to_le_bytes());
        write(raw, 48, entry.epoch.to_le_bytes());
        write(raw, 56, entry.sequence.to_le_bytes());
        write(raw, 64, entry.interval_ms.to_le_bytes());
        write(raw, 68, entry.generation.to_le_bytes());
        let flags = (u16::from(entry.load.is_some()) * HAS_LOAD) | (u16::from(entry.silent) * SILENT);
        write(raw, 70, flags.to_le_bytes());
        write(raw, 72, entry.loaded_ms.to_le_bytes());
        write(raw, 80, entry.reporter.to_le_bytes());
        write(raw, 88, entry.poll.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            load: Some(Load { queued_tokens: 1.5, waiting: 2.0, running: 3.0, kv_usage: 0.25, throughput: 5.0 }),
            poll: 7,
            loaded_ms: 900_000,
            silent: true,
            received_ms: 1_000_000,
            interval_ms: 10_000,
            epoch: 9,
            sequence: 3,
            reporter: 6,
            generation: 4,
        }
    }

    #[test]
    fn an_entry_reads_back_as_it_was_written() {
        let mut block = ReportBlock::new(Vec::new());
        block.set_entry(63, &entry());
        block.set_entry(62, &Entry { load: None, silent: false, ..entry() });
        assert_eq!(block.entry(63), entry());
        assert_eq!((block.entry(62).load, block.entry(62).silent), (None, false));
        assert_eq!(block.entry(0), Entry::default());
    }

    #[test]
    fn a_load_is_news_once() {
        let of = |poll| Entry { poll, ..entry() };
        let unheard = Entry { load: None, ..of(0) };
        for (entry, earlier, expected) in [
            (of(8), of(7), true),
            (of(7), of(7), false),
            (of(6), of(7), false),
            (of(7), unheard, true),
            (unheard, of(7), false),
            (of(0), of(7), true),
            (of(0), of(0), true),
            (of(1), Entry { epoch: 8, ..of(7) }, true),
            (of(1), Entry { reporter: 1, ..of(7) }, true),
        ] {
            assert_eq!(entry.tells_news_after(&earlier), expected, "{entry:?} after {earlier:?}");
        }
    }

    #[test]
    fn only_news_supersedes_until_the_report_has_expired() {
        let now = 1_000_001;
        for (epoch, sequence, expected) in [(9, 4, true), (9, 3, false), (9, 2, false), (10, 0, true), (8, 99, false)] {
            assert_eq!(entry().is_superseded_by(epoch, sequence, now), expected, "{epoch} {sequence}");
        }
        assert!(!entry().is_superseded_by(1, 1, 1_030_000));
        assert!(entry().is_superseded_by(1, 1, 1_030_001));
    }
}
