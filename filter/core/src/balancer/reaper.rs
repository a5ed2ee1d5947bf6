//! Taking back what dead VMs have left behind.
//!
//! Every VM watches the others' counters: one that has stood still for five of the watcher's own ticks counts as dead.
//! Who takes the claim away (one compare-and-swap) also takes the row's counts back.
//! The dead may still live, as a thread that stood still for long does; it finds its claim gone and adds itself again.

use super::ledger::Ledger;
use super::table::{Delta, TRIES};
use super::{Context, Level};
use crate::state::rows::{Claim, Claims};
use crate::store::{StoreError, Write};

/// Ticks without a sign of life after which a VM counts as dead.
const PATIENCE: u32 = 5;

/// After a death the key counts are swept in so many pages a tick, about a millisecond: done in two ticks.
const PAGES_PER_TICK: u32 = 1024;

/// What one VM has seen of the others.
#[derive(Debug, Default)]
pub(super) struct Reaper {
    /// By row: the claim as it was last seen, and for how many ticks it has been so.
    seen: Vec<(Claim, u32)>,
    /// The next page of key counts to sweep, while a sweep is under way.
    sweep: Option<u32>,
    /// The next page that the leader's slow patrol looks at.
    patrol: u32,
}

impl Reaper {
    /// Looks at `claims` as they stand on this tick, and buries whose counter has stood still for too long.
    pub(super) fn observe(
        &mut self,
        ledger: &Ledger,
        context: &mut Context<'_>,
        claims: &Claims,
    ) -> Result<(), StoreError> {
        self.seen.resize(claims.claims.len(), (Claim::default(), 0));
        for (row, claim) in (0..).zip(&claims.claims) {
            let Some(seen) = self.seen.get_mut(usize::from(row)) else { continue };
            let still = if seen.0 == *claim { seen.1.saturating_add(1) } else { 0 };
            *seen = (*claim, still);
            let other = claim.incarnation != 0 && claim.incarnation != ledger.incarnation;
            if other && still >= PATIENCE && Self::reap(ledger, context, row, *claim)? {
                self.sweep = Some(0);
            }
        }
        Ok(())
    }

    /// Takes the claim on `row` away and its counts back; false if another was faster or the owner has moved.
    fn reap(ledger: &Ledger, context: &mut Context<'_>, row: u16, claim: Claim) -> Result<bool, StoreError> {
        let mut won = false;
        for _ in 0..TRIES {
            let mut claims = ledger.rows.claims(context.store)?;
            match claims.claims.get_mut(usize::from(row)) {
                Some(found) if *found == claim => *found = Claim::default(),
                _ => return Ok(false),
            }
            claims.reaped = claims.reaped.wrapping_add(1);
            if ledger.rows.write_claims(context.store, &claims)? == Write::Done {
                won = true;
                break;
            }
        }
        if !won {
            return Ok(false);
        }
        let left = ledger.rows.read(context.store, row)?;
        let mut requests = 0;
        if left.incarnation == claim.incarnation {
            for (id, count) in left.counts {
                requests += u64::from(count);
                let back = i32::try_from(count).unwrap_or(i32::MAX);
                // What loses every race here is seen by the audit.
                ledger.load.add(context.store, id, Delta { in_flight: -back, keys: 0 })?;
            }
            ledger.rows.clear(context.store, row)?;
        }
        context.metrics.add("smg_vm_reaped_total", &[], 1);
        let line = format!("a VM has died: {requests} requests that it had in flight are taken back");
        context.log.line(Level::Warn, &line);
        Ok(true)
    }

    /// Goes on with a sweep of the key counts after a death.
    pub(super) fn sweep(&mut self, ledger: &Ledger, context: &mut Context<'_>) -> Result<(), StoreError> {
        let Some(first) = self.sweep else { return Ok(()) };
        let pages = ledger.keys.table().pages();
        let end = first.saturating_add(PAGES_PER_TICK).min(pages);
        purge(ledger, context, first..end)?;
        self.sweep = (end < pages).then_some(end);
        Ok(())
    }

    /// The leader's slow round over the key counts: finds what a sweep has missed because its VM died too.
    pub(super) fn patrol(&mut self, ledger: &Ledger, context: &mut Context<'_>) -> Result<(), StoreError> {
        const PAGES: u32 = 8;
        let pages = ledger.keys.table().pages();
        let first = if self.patrol < pages { self.patrol } else { 0 };
        self.patrol = first.saturating_add(PAGES);
        purge(ledger, context, first..self.patrol.min(pages))
    }
}

/// Removes the key counts of VMs that have no claim.
pub(super) fn purge(ledger: &Ledger, context: &mut Context<'_>, pages: std::ops::Range<u32>) -> Result<(), StoreError> {
    let mut claims = ledger.rows.claims(context.store)?;
    for page in pages {
        let left = ledger.keys.purge(context.store, page, &mut |store, vm| {
            if vm == ledger.incarnation || claims.row_of(vm).is_some() {
                return false;
            }
            // A VM claims its row before it counts anything: of claims that are read after the page, a living one is part.
            let Ok(fresh) = ledger.rows.claims(store) else { return false };
            claims = fresh;
            claims.row_of(vm).is_none() && !claims.overflowed
        })?;
        for worker in left {
            ledger.load.add(context.store, worker, Delta { in_flight: 0, keys: -1 })?;
        }
    }
    Ok(())
}
