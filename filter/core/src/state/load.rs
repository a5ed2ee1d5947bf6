//! The hot load table: what changes with every exchange, 64 workers a block.
//!
//! A pick reads the blocks its pool spans and swaps the winner's block, so that choosing and crediting is one atomic
//! step. Load belongs to a worker, not to a pool: a worker that serves ten models has one count.

use super::bytes::{read_i32, read_u16, read_u32, write};

/// Workers in one block.
pub const SLOTS_PER_BLOCK: usize = 64;

const HEADER_BYTES: usize = 32;
const SLOT_BYTES: usize = 28;
const BLOCK_BYTES: usize = HEADER_BYTES + SLOTS_PER_BLOCK * SLOT_BYTES;

const REPORT_VERSION: usize = 4;

/// Where a worker stands: its slot, and the generation that grows when the slot is given to another worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SlotId {
    /// 0-based, below the configured `max_workers`.
    pub slot: u16,
    /// Names the slot's present owner.
    pub generation: u16,
}

impl SlotId {
    /// The block that holds the slot.
    #[must_use]
    pub fn block(self) -> u16 {
        self.slot / SLOTS_PER_BLOCK as u16
    }

    /// The slot's position in its block.
    #[must_use]
    pub fn position(self) -> usize {
        usize::from(self.slot) % SLOTS_PER_BLOCK
    }
}

/// The circuit breaker's state as stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum BreakerState {
    /// Requests pass; failures are counted.
    #[default]
    Closed,
    /// Not selectable until the timeout.
    Open,
    /// Selectable; the next outcomes decide.
    HalfOpen,
}

impl BreakerState {
    /// The word used in metrics and logs.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// What a sidecar has said of a worker's health. `Unset` is what a worker has that nobody probes: it may be chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Status {
    /// Nobody has said anything.
    #[default]
    Unset,
    /// Registered, never proven.
    Pending,
    /// May be chosen.
    Ready,
    /// Left rotation after failed probes.
    NotReady,
    /// Gave up.
    Failed,
    /// Being removed.
    Draining,
}

impl Status {
    /// Whether a worker of this status may be chosen.
    #[must_use]
    pub fn is_selectable(self) -> bool {
        matches!(self, Self::Unset | Self::Ready)
    }
}

/// One worker's entry in the hot table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slot {
    /// Requests dispatched and not ended.
    pub in_flight: u32,
    /// Tokens credited since the last load report.
    pub tally_tokens: u32,
    /// Requests credited since the last load report.
    pub tally_requests: u32,
    /// When the breaker opened, in tenths of a second of Unix time that start again every 13 years.
    pub opened_at: u32,
    /// Consecutive failures while closed.
    pub failures: u16,
    /// Consecutive successes while half open.
    pub successes: u16,
    /// The slot's owner; see [`SlotId`].
    pub generation: u16,
    /// The breaker.
    pub breaker: BreakerState,
    /// Health as the sidecar sees it.
    pub status: Status,
    /// Distinct routing keys with requests in flight here. It may pass below 0 for a moment: of two threads that share
    /// a key, the one that ends it can be faster than the one that has begun it.
    pub keys: i32,
}

/// One block of the table: a copy of its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadBlock {
    bytes: Vec<u8>,
}

impl LoadBlock {
    /// The block in `bytes`; missing bytes are zeros, as in a block that was just created.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>) -> Self {
        bytes.resize(BLOCK_BYTES, 0);
        Self { bytes }
    }

    /// What is to be stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Changes whenever the block's cold reports change.
    #[must_use]
    pub fn report_version(&self) -> u32 {
        read_u32(&self.bytes, REPORT_VERSION)
    }

    /// Marks the block's reports as changed.
    pub fn bump_report_version(&mut self) {
        let next = self.report_version().wrapping_add(1);
        write(&mut self.bytes, REPORT_VERSION, next.to_le_bytes());
    }

    /// The entry at `position` (below [`SLOTS_PER_BLOCK`]).
    #[must_use]
    pub fn slot(&self, position: usize) -> Slot {
        self.view(position).map(SlotView::decode).unwrap_or_default()
    }

    /// The entry at `position`, not decoded.
    #[must_use]
    pub fn view(&self, position: usize) -> Option<SlotView<'_>> {
        self.bytes.get(HEADER_BYTES + position * SLOT_BYTES..)?.first_chunk().map(SlotView)
    }

    /// Replaces the entry at `position`.
    pub fn set_slot(&mut self, position: usize, slot: Slot) {
        let at = HEADER_BYTES + position * SLOT_BYTES;
        let Some(raw) = self.bytes.get_mut(at..at + SLOT_BYTES) else { return };
        write(raw, 0, slot.in_flight.to_le_bytes());
        write(raw, 4, slot.tally_tokens.to_le_bytes());
        write(raw, 8, slot.tally_requests.to_le_bytes());
        write(raw, 12, slot.opened_at.to_le_bytes());
        write(raw, 16, slot.failures.to_le_bytes());
        write(raw, 18, slot.successes.to_le_bytes());
        write(raw, 20, slot.generation.to_le_bytes());
        let flags = slot.breaker as u16 | (slot.status as u16) << 3;
        write(raw, 22, flags.to_le_bytes());
        write(raw, 24, slot.keys.to_le_bytes());
    }
}

/// One worker's entry as it stands in its block: a pick looks at a few fields of every worker, and at all of one.
#[derive(Debug, Clone, Copy)]
pub struct SlotView<'a>(&'a [u8; SLOT_BYTES]);

impl SlotView<'_> {
    /// See [`Slot::in_flight`].
    #[must_use]
    pub fn in_flight(self) -> u32 {
        read_u32(self.0, 0)
    }

    /// See [`Slot::tally_tokens`].
    #[must_use]
    pub fn tally_tokens(self) -> u32 {
        read_u32(self.0, 4)
    }

    /// See [`Slot::tally_requests`].
    #[must_use]
    pub fn tally_requests(self) -> u32 {
        read_u32(self.0, 8)
    }

    /// See [`Slot::keys`]; what is below 0 for a moment is 0.
    #[must_use]
    pub fn keys(self) -> u32 {
        read_u32(self.0, 24).cast_signed().max(0).unsigned_abs()
    }

    /// See [`Slot::generation`].
    #[must_use]
    pub fn generation(self) -> u16 {
        read_u16(self.0, 20)
    }

    /// Whether the worker may be chosen, as far as its health says.
    #[must_use]
    pub fn is_selectable(self) -> bool {
        self.status().is_selectable()
    }

    /// See [`Slot::breaker`].
    #[must_use]
    pub fn breaker(self) -> BreakerState {
        match self.flags() & 3 {
            1 => BreakerState::Open,
            2 => BreakerState::HalfOpen,
            _ => BreakerState::Closed,
        }
    }

    /// All of it.
    #[must_use]
    pub fn decode(self) -> Slot {
        Slot {
            in_flight: self.in_flight(),
            tally_tokens: self.tally_tokens(),
            tally_requests: self.tally_requests(),
            opened_at: read_u32(self.0, 12),
            failures: read_u16(self.0, 16),
            successes: read_u16(self.0, 18),
            generation: self.generation(),
            breaker: self.breaker(),
            status: self.status(),
            keys: read_i32(self.0, 24),
        }
    }

    fn status(self) -> Status {
        match (self.flags() >> 3) & 7 {
            1 => Status::Pending,
            2 => Status::Ready,
            3 => Status::NotReady,
            4 => Status::Failed,
            5 => Status::Draining,
            _ => Status::Unset,
        }
    }

    fn flags(self) -> u16 {
        read_u16(self.0, 22)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_reads_back_as_it_was_written() {
        let mut block = LoadBlock::new(Vec::new());
        for (index, status) in
            [Status::Unset, Status::Pending, Status::Ready, Status::NotReady, Status::Failed, Status::Draining]
                .into_iter()
                .enumerate()
        {
            for breaker in [BreakerState::Closed, BreakerState::Open, BreakerState::HalfOpen] {
                let slot = Slot {
                    in_flight: u32::MAX,
                    tally_tokens: 7,
                    tally_requests: 8,
                    opened_at: 1_790_000_000,
                    failures: 9,
                    successes: 10,
                    generation: 11,
                    breaker,
                    status,
                    keys: -3,
                };
                block.set_slot(63 - index, slot);
                assert_eq!(block.slot(63 - index), slot);
            }
        }
        assert_eq!(block.slot(0), Slot::default());
    }

    #[test]
    fn versions_and_slots_do_not_overlap() {
        let mut block = LoadBlock::new(Vec::new());
        block.set_slot(0, Slot { in_flight: 5, ..Slot::default() });
        block.bump_report_version();
        assert_eq!((block.report_version(), block.slot(0).in_flight), (1, 5));
        assert_eq!(LoadBlock::new(block.as_bytes().to_vec()), block);
    }
}
