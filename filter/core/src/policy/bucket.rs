//! `bucket`: each worker takes the prompts of its range of lengths, unless their recent loads are too far apart.
//!
//! Optimises the prefill of mixed lengths: short prompts do not queue behind long ones. The wrong choice when prompts
//! share prefixes. Only a prefill leg has buckets; elsewhere the policy picks by chance. Source: SMG's load-balancing
//! page, and its prefill-decode page.
//!
//! Unlike SMG, only available workers are compared and chosen: a request whose range belongs to a worker that is out goes
//! to the least loaded one that is not, where SMG answers 503.

use std::collections::VecDeque;

use rand::{Rng, RngCore};

use crate::config::{CacheAware, Config};
use crate::state::bytes::{read_u16, read_u32, read_u64, write};
use crate::state::load::SlotId;

/// Lengths below this are shared out evenly to begin with; longer ones are the last worker's.
const FIRST_SPAN: u64 = 4096;

/// Requests remembered at most. When more come within an interval, the oldest are let go before their time: the loads of
/// all workers are then those of the last so many requests.
pub const MAX_WINDOW: usize = 1024;

const HEADER_BYTES: usize = 28;
const SHARE_BYTES: usize = 12;
const ENTRY_BYTES: usize = 10;

/// What an operator tunes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// The least busy worker takes the request if the loads are further apart than this, in tokens or characters ...
    pub balance_abs: u64,
    /// ... and by more than this factor. At least 1.
    pub balance_rel: f64,
    /// A request is part of its worker's load for so long, and ranges are adjusted as often; in milliseconds.
    pub interval_ms: u64,
}

impl Rules {
    /// Those of the operator's flags.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        let CacheAware { balance_abs, balance_rel, .. } = config.cache;
        Self { balance_abs, balance_rel, interval_ms: u64::from(config.bucket_adjust_secs) * 1000 }
    }

    /// Those of a model whose workers name the policy by their label, whatever the operator's flags say.
    pub const BUILT_IN: Self = Self { balance_abs: 32, balance_rel: 1.0001, interval_ms: 5000 };
}

/// Which rule has decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// The worker of the request's range.
    Range,
    /// The least loaded worker: the loads are too far apart.
    Imbalance,
    /// The least loaded worker: that of the range is out.
    Failover,
    /// Any: none of the available workers has a range. Worth a warning.
    Random,
}

/// A worker's range: lengths up to `most`, from where that of the worker before ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Share {
    worker: SlotId,
    most: u64,
    /// What it was sent within the window.
    load: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sent {
    size: u32,
    share: u16,
    at_ms: u64,
}

/// The ranges of one model's workers and what they were sent lately.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Buckets {
    shares: Vec<Share>,
    window: VecDeque<Sent>,
    /// The load per worker for which the ranges were made; 0 if they are the first ones.
    per_worker: u64,
    /// When an adjustment was last looked into, in Unix milliseconds.
    adjusted_ms: u64,
}

impl Buckets {
    /// The first ranges of `workers`, in their order: each an equal part of the lengths below 4,096, the last one also
    /// all above. Must be made anew whenever workers come or go; what they were sent is forgotten then.
    #[must_use]
    pub fn init(workers: &[SlotId], now_ms: u64) -> Self {
        let workers = workers.get(..usize::from(u16::MAX)).unwrap_or(workers);
        let gap = (FIRST_SPAN / (workers.len() as u64).max(1)).max(1);
        let shares = (1..).zip(workers).map(|(number, &worker)| {
            let most = if number == workers.len() as u64 { u64::MAX } else { number * gap - 1 };
            Share { worker, most, load: 0 }
        });
        Self { shares: shares.collect(), window: VecDeque::new(), per_worker: 0, adjusted_ms: now_ms }
    }

    /// The workers that have ranges, in order.
    pub fn workers(&self) -> impl Iterator<Item = SlotId> + '_ {
        self.shares.iter().map(|share| share.worker)
    }

    /// The range of each worker: least and most length, both inclusive.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let least = std::iter::once(0).chain(self.shares.iter().map(|share| share.most.saturating_add(1)));
        least.zip(&self.shares).map(|(least, share)| (least, share.most))
    }

    /// What each worker was sent within the window, in order.
    pub fn loads(&self) -> impl Iterator<Item = u64> + '_ {
        self.shares.iter().map(|share| share.load)
    }

    /// Requests remembered.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.window.len()
    }

    /// Which of `available` takes a request of `size` (token ids, else characters, else 0), which is noted as its load.
    /// None if nobody is available. As in SMG, what has become too old is let go after the decision, not before.
    pub fn select(
        &mut self,
        rules: &Rules,
        available: &[SlotId],
        size: u64,
        now_ms: u64,
        rng: &mut dyn RngCore,
    ) -> Option<(SlotId, Rule)> {
        let Some((share, rule)) = self.choose(rules, available, size, rng) else {
            let any = available.len().checked_sub(1).map(|last| rng.random_range(0..=last))?;
            return Some((*available.get(any)?, Rule::Random));
        };
        let worker = self.shares.get(share)?.worker;
        self.note(rules, share, size, now_ms);
        Some((worker, rule))
    }

    fn choose(&self, rules: &Rules, available: &[SlotId], size: u64, rng: &mut dyn RngCore) -> Option<(usize, Rule)> {
        let is_candidate = |share: &Share| available.contains(&share.worker);
        let candidates = || self.shares.iter().enumerate().filter(|(_, share)| is_candidate(share));
        let loads = || candidates().map(|(_, share)| share.load);
        let (least, most) = (loads().min()?, loads().max()?);
        #[expect(clippy::cast_precision_loss, reason = "a comparison of loads")]
        let imbalanced = most - least > rules.balance_abs && most as f64 > rules.balance_rel * least as f64;
        let owner = self.shares.iter().position(|share| size <= share.most);
        let owner = owner.filter(|&owner| self.shares.get(owner).is_some_and(is_candidate));
        if let (false, Some(owner)) = (imbalanced, owner) {
            return Some((owner, Rule::Range));
        }
        let idlest: Vec<usize> = candidates().filter(|(_, share)| share.load == least).map(|(at, _)| at).collect();
        let drawn = if idlest.len() > 1 { rng.random_range(0..idlest.len()) } else { 0 };
        Some((*idlest.get(drawn)?, if imbalanced { Rule::Imbalance } else { Rule::Failover }))
    }

    fn note(&mut self, rules: &Rules, share: usize, size: u64, now_ms: u64) {
        if self.window.back().is_some_and(|newest| newest.at_ms > now_ms) {
            // The clock was set back: what would lie in the future is taken for new.
            self.window.iter_mut().for_each(|sent| sent.at_ms = sent.at_ms.min(now_ms));
        }
        while let Some(oldest) = self.window.front()
            && (now_ms.saturating_sub(oldest.at_ms) > rules.interval_ms || self.window.len() >= MAX_WINDOW)
        {
            let (share, size) = (usize::from(oldest.share), u64::from(oldest.size));
            if let Some(share) = self.shares.get_mut(share) {
                share.load = share.load.saturating_sub(size);
            }
            self.window.pop_front();
        }
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        if let (Some(of), Ok(number)) = (self.shares.get_mut(share), u16::try_from(share)) {
            of.load = of.load.saturating_add(u64::from(size));
            self.window.push_back(Sent { size, share: number, at_ms: now_ms });
        }
    }

    /// Fits the ranges to what was sent lately, if an interval has passed since this was last looked into, anything was
    /// sent, and the load per worker is not within half and twice the one for which they were made. Whether it has
    /// looked: then there is something to be stored.
    pub fn adjust(&mut self, rules: &Rules, now_ms: u64) -> bool {
        if now_ms.abs_diff(self.adjusted_ms) < rules.interval_ms {
            return false;
        }
        self.adjusted_ms = now_ms;
        self.refit();
        true
    }

    fn refit(&mut self) {
        let total: u64 = self.window.iter().map(|sent| u64::from(sent.size)).sum();
        let Some(per_worker) = total.checked_div(self.shares.len() as u64).filter(|_| !self.window.is_empty()) else {
            return;
        };
        let before = self.per_worker;
        if before > 0 && per_worker <= before.saturating_mul(2) && before <= per_worker.saturating_mul(2) {
            return;
        }
        self.per_worker = per_worker;
        let mut sizes: Vec<u64> = self.window.iter().map(|sent| u64::from(sent.size)).collect();
        sizes.sort_unstable();
        let mut sizes = sizes.into_iter();
        let last = self.shares.len().saturating_sub(1);
        let mut upper = 0_u64;
        for share in self.shares.iter_mut().take(last) {
            let mut sum = 0;
            let reached = sizes.find(|size| {
                sum += size;
                sum >= per_worker
            });
            share.most = reached.filter(|&size| size > upper).unwrap_or(upper.saturating_add(per_worker));
            upper = share.most.saturating_add(1);
        }
        if let Some(share) = self.shares.last_mut() {
            share.most = u64::MAX;
        }
    }

    /// As stored: a header, 12 bytes for each worker and 10 for each remembered request. The rules are not part of it.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES + self.shares.len() * SHARE_BYTES + self.window.len() * ENTRY_BYTES];
        let newest_ms = self.window.back().map_or(0, |sent| sent.at_ms);
        write(&mut bytes, 0, (self.shares.len() as u16).to_le_bytes());
        write(&mut bytes, 2, (self.window.len() as u16).to_le_bytes());
        write(&mut bytes, 4, self.per_worker.to_le_bytes());
        write(&mut bytes, 12, self.adjusted_ms.to_le_bytes());
        write(&mut bytes, 20, newest_ms.to_le_bytes());
        for (at, share) in (HEADER_BYTES..).step_by(SHARE_BYTES).zip(&self.shares) {
            write(&mut bytes, at, share.worker.slot.to_le_bytes());
            write(&mut bytes, at + 2, share.worker.generation.to_le_bytes());
            write(&mut bytes, at + 4, share.most.to_le_bytes());
        }
        let window = HEADER_BYTES + self.shares.len() * SHARE_BYTES;
        for (at, sent) in (window..).step_by(ENTRY_BYTES).zip(&self.window) {
            let age_ms = u32::try_from(newest_ms.saturating_sub(sent.at_ms)).unwrap_or(u32::MAX);
            write(&mut bytes, at, sent.size.to_le_bytes());
            write(&mut bytes, at + 4, sent.share.to_le_bytes());
            write(&mut bytes, at + 6, age_ms.to_le_bytes());
        }
        bytes
    }

    /// What [`Self::to_bytes`] has made; none of bytes of another shape.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (workers, sent) = (usize::from(read_u16(bytes, 0)), usize::from(read_u16(bytes, 2)));
        let window_at = HEADER_BYTES + workers * SHARE_BYTES;
        if sent > MAX_WINDOW || bytes.len() != window_at + sent * ENTRY_BYTES {
            return None;
        }
        let shares = bytes.get(HEADER_BYTES..window_at)?.chunks_exact(SHARE_BYTES).map(|raw| Share {
            worker: SlotId { slot: read_u16(raw, 0), generation: read_u16(raw, 2) },
            most: read_u64(raw, 4),
            load: 0,
        });
        let newest_ms = read_u64(bytes, 20);
        let window = bytes.get(window_at..)?.chunks_exact(ENTRY_BYTES).map(|raw| Sent {
            size: read_u32(raw, 0),
            share: read_u16(raw, 4),
            at_ms: newest_ms.saturating_sub(u64::from(read_u32(raw, 6))),
        });
        let mut buckets = Self {
            shares: shares.collect(),
            window: window.collect(),
            per_worker: read_u64(bytes, 4),
            adjusted_ms: read_u64(bytes, 12),
        };
        let rising = buckets.shares.is_sorted_by(|one, two| one.most < two.most);
        if !rising || buckets.shares.last().is_some_and(|share| share.most != u64::MAX) {
            return None;
        }
        for sent in &buckets.window {
            // A worker's load is what of it the window remembers.
            let share = buckets.shares.get_mut(usize::from(sent.share))?;
            share.load = share.load.saturating_add(u64::from(sent.size));
        }
        Some(buckets)
    }
}

#[cfg(test)]
#[path = "tests/bucket.rs"]
mod tests;
