//! What one VM has added to the shared counts: kept so that it comes back exactly, whoever dies.
//!
//! A ledger belongs to a VM and a set of shared tables; all configurations of the VM that work on the same tables share
//! it. Its row in shared data says what stands in the load table for this VM. A change that loses every race waits on
//! the pending list and enters the row when it enters the table.

use std::collections::HashMap;

use super::reaper::Reaper;
use super::table::{Changed, Delta, LoadTable, TRIES};
use super::{Context, Level};
use crate::config::Config;
use crate::state::keys::{Change, KeyPage, KeyTable};
use crate::state::load::SlotId;
use crate::state::names::with_slots;
use crate::state::rows::{Claim, Claims, RowImage, Rows};
use crate::store::{Store, StoreError, Write};

/// A store that always fails must not fill the memory: further keys that end then stay in their table until a sweep.
const MOST_PENDING: usize = 16_384;

/// What one VM has in flight.
#[derive(Debug)]
pub struct Ledger {
    pub(super) load: LoadTable,
    pub(super) keys: KeyTable,
    pub(super) rows: Rows,
    /// Names this life of the VM; a VM that finds itself buried starts another.
    pub(super) incarnation: u64,
    pub(super) row: Option<u16>,
    image: RowImage,
    /// The image differs from the row.
    changed: bool,
    /// No row was free: said once.
    told: bool,
    /// Requests in flight by routing key and worker.
    keyed: HashMap<(u64, SlotId), u32>,
    pending: Vec<Pending>,
    reaper: Reaper,
}

/// A change that has lost every race so far; the next tick applies it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Pending {
    /// Of a worker's counts.
    Load(SlotId, Delta),
    /// One request of a routing key less at a worker, under the incarnation that had counted it.
    Key(u64, u64, SlotId),
}

impl Ledger {
    /// An empty ledger for the tables of `config`; `incarnation` is a random number other than 0.
    #[must_use]
    pub fn new(config: &Config, incarnation: u64) -> Self {
        let load = LoadTable::of(config);
        let incarnation = incarnation.max(1);
        Self {
            rows: Rows::new(&config.instance, u64::from(config.max_workers)),
            keys: KeyTable::new(&with_slots(&config.instance, config.max_workers)),
            load,
            incarnation,
            row: None,
            image: RowImage::new(incarnation),
            changed: false,
            told: false,
            keyed: HashMap::new(),
            pending: Vec::new(),
            reaper: Reaper::default(),
        }
    }

    /// Names the tables that a ledger for `config` works on.
    #[must_use]
    pub fn tables(config: &Config) -> String {
        LoadTable::of(config).load_key(0)
    }

    /// Whether nothing is counted and nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.image.is_empty() && self.keyed.is_empty() && self.pending.is_empty()
    }

    /// Changes that have lost every race so far.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Adds `delta` to the counts of `id`; what loses every race waits for a later try.
    ///
    /// An in-flight change of the other sign that still waits is reduced instead: the count stops at 0, so to subtract
    /// now and add later would leave one too many for ever. One entry a worker keeps the list short, whatever the store
    /// does.
    pub(super) fn count(&mut self, store: &mut dyn Store, id: SlotId, delta: Delta) {
        let waits =
            self.pending.iter().position(|waiting| matches!(waiting, Pending::Load(worker, _) if *worker == id));
        let opposed = waits.and_then(|at| self.pending.get(at)).is_some_and(|waiting| {
            matches!(waiting, Pending::Load(_, waiting)
                if waiting.in_flight.signum() * delta.in_flight.signum() < 0)
        });
        if !opposed {
            match self.load.add(store, id, delta) {
                Ok(Changed::Done) => return self.note(id, delta.in_flight),
                Ok(Changed::Gone) => return self.forget(id),
                Ok(Changed::Lost) | Err(_) => {}
            }
        }
        match waits.and_then(|at| self.pending.get_mut(at)) {
            Some(Pending::Load(_, waiting)) => {
                waiting.in_flight = waiting.in_flight.saturating_add(delta.in_flight);
                waiting.keys = waiting.keys.saturating_add(delta.keys);
            }
            _ => self.pending.push(Pending::Load(id, delta)),
        }
        self.pending.retain(|waiting| !matches!(waiting, Pending::Load(_, delta) if *delta == Delta::default()));
    }

    /// Notes that `change` stands in the load table for this VM.
    pub(super) fn note(&mut self, id: SlotId, change: i32) {
        if change != 0 {
            self.image.add(id, change);
            self.changed = true;
        }
    }

    fn forget(&mut self, id: SlotId) {
        self.image.remove(id);
        self.changed = true;
    }

    /// Counts a request of `key` at `id`: whether it is tracked now, and what that did to the worker's number of distinct
    /// keys. A full page or a failing store leaves it untracked.
    pub(super) fn join(&mut self, store: &mut dyn Store, known: KeyPage, key: u64, id: SlotId) -> (bool, i32) {
        if self.row.is_none() {
            // Sweeps take what has no claim for a dead VM's.
            return (false, 0);
        }
        match self.keys.add(store, self.incarnation, known, id, 1) {
            Ok(Change::Keys(keys)) => {
                *self.keyed.entry((key, id)).or_default() += 1;
                (true, keys)
            }
            Ok(Change::Untracked | Change::Lost) | Err(_) => (false, 0),
        }
    }

    /// Counts a request of `key` less at `id` and returns what that did to the worker's number of distinct keys.
    pub(super) fn leave(&mut self, store: &mut dyn Store, key: u64, id: SlotId) -> i32 {
        if let Some(count) = self.keyed.get_mut(&(key, id)) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.keyed.remove(&(key, id));
            }
        }
        self.drop_key(store, self.incarnation, key, id)
    }

    fn drop_key(&mut self, store: &mut dyn Store, incarnation: u64, key: u64, id: SlotId) -> i32 {
        match self.keys.remove(store, incarnation, key, id) {
            Ok(Change::Keys(keys)) => keys,
            Ok(Change::Untracked) => 0,
            Ok(Change::Lost) | Err(_) => {
                if self.pending.len() < MOST_PENDING {
                    self.pending.push(Pending::Key(incarnation, key, id));
                }
                0
            }
        }
    }

    /// Claims a row. To be called before anything is counted: not only on the first tick, since until then what is
    /// counted would be nobody's; and not when configured, since the VM that only tries a configuration counts nothing.
    pub(super) fn prepare(&mut self, store: &mut dyn Store) {
        if self.row.is_none() {
            self.row = self.claim(store).unwrap_or(None);
        }
    }

    /// Brings the row up to date. To be called at the end of every step that has changed counts.
    pub(super) fn save(&mut self, store: &mut dyn Store) {
        if !self.changed {
            return;
        }
        self.prepare(store);
        if let Some(row) = self.row
            && self.rows.write(store, row, &self.image) == Ok(Write::Done)
        {
            self.changed = false;
        }
    }

    fn claim(&self, store: &mut dyn Store) -> Result<Option<u16>, StoreError> {
        for _ in 0..TRIES {
            let mut claims = self.rows.claims(store)?;
            let overflowed = claims.overflowed;
            let row = match claims.free() {
                Some((row, claim)) => {
                    *claim = Claim { incarnation: self.incarnation, beat: 0 };
                    Some(row)
                }
                None if overflowed => return Ok(None),
                None => {
                    claims.overflowed = true;
                    None
                }
            };
            if self.rows.write_claims(store, &claims)? == Write::Done {
                return Ok(row);
            }
        }
        Ok(None)
    }

    /// Gives the row back: the VM is about to go, or works on other tables from now on. Without this the others would take
    /// it for dead. A VM that has anything counted keeps its row, and what counts again claims another.
    pub fn resign(&mut self, store: &mut dyn Store) {
        let Some(row) = self.row.filter(|_| self.is_empty()) else { return };
        for _ in 0..TRIES {
            let Ok(mut claims) = self.rows.claims(store) else { return };
            match claims.claims.get_mut(usize::from(row)) {
                Some(claim) if claim.incarnation == self.incarnation => *claim = Claim::default(),
                // Buried already.
                _ => break,
            }
            match self.rows.write_claims(store, &claims) {
                Ok(Write::Done) => break,
                Ok(Write::Conflict) => {}
                Err(_) => return,
            }
        }
        self.row = None;
    }

    /// What a VM does once per tick: tries again what waits, shows that it lives, and takes back what the dead have left.
    ///
    /// # Errors
    /// When the store cannot answer; the next tick tries again.
    pub fn tick(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        self.retry(context.store);
        let claims = self.beat(context)?;
        if let Some(claims) = claims {
            let mut reaper = std::mem::take(&mut self.reaper);
            let done = reaper.observe(self, context, &claims).and_then(|()| reaper.sweep(self, context));
            self.reaper = reaper;
            done?;
        }
        self.defend(context.store)?;
        self.save(context.store);
        Ok(())
    }

    /// A VM that was buried and has not noticed yet writes to the row that it had, which may be this VM's by now.
    fn defend(&mut self, store: &mut dyn Store) -> Result<(), StoreError> {
        if let Some(row) = self.row {
            let writer = self.rows.writer(store, row)?;
            self.changed |= writer != 0 && writer != self.incarnation;
        }
        Ok(())
    }

    /// Tries what waits again.
    fn retry(&mut self, store: &mut dyn Store) {
        for waiting in std::mem::take(&mut self.pending) {
            match waiting {
                Pending::Load(id, delta) => self.count(store, id, delta),
                Pending::Key(incarnation, key, id) => {
                    let keys = self.drop_key(store, incarnation, key, id);
                    if keys != 0 {
                        self.count(store, id, Delta { in_flight: 0, keys });
                    }
                }
            }
        }
    }

    /// Moves this VM's counter, or starts a new life if the claim was taken away. All claims as they stand now.
    fn beat(&mut self, context: &mut Context<'_>) -> Result<Option<Claims>, StoreError> {
        for _ in 0..TRIES {
            let mut claims = self.rows.claims(context.store)?;
            let Some(row) = self.row else {
                if claims.overflowed && !self.told {
                    self.told = true;
                    let line = "more VMs than rows: counts that crashes leave behind are not taken back";
                    context.log.line(Level::Warn, line);
                }
                return Ok(Some(claims));
            };
            match claims.claims.get_mut(usize::from(row)) {
                Some(claim) if claim.incarnation == self.incarnation => claim.beat = claim.beat.wrapping_add(1),
                _ => {
                    self.rise(context);
                    return Ok(None);
                }
            }
            if self.rows.write_claims(context.store, &claims)? == Write::Done {
                return Ok(Some(claims));
            }
        }
        Ok(None)
    }

    /// The other VMs have buried this one and taken its counts back, but it lives (its thread stood still for a while):
    /// it takes a new incarnation and adds its streams again.
    fn rise(&mut self, context: &mut Context<'_>) {
        let line =
            "this VM stood still for so long that the others took its requests in flight back; adding them again";
        context.log.line(Level::Warn, line);
        context.metrics.add("smg_vm_returned_total", &[], 1);
        self.incarnation = context.rng.next_u64().max(1);
        self.row = None;
        let counts = self.image.counts();
        self.image = RowImage::new(self.incarnation);
        self.changed = true;
        self.prepare(context.store);
        for (id, count) in counts {
            self.count(context.store, id, Delta { in_flight: i32::try_from(count).unwrap_or(i32::MAX), keys: 0 });
        }
        for ((key, id), count) in self.keyed.clone() {
            if self.row.is_none() {
                self.keyed.remove(&(key, id));
                continue;
            }
            let added = self
                .keys
                .read(context.store, key)
                .and_then(|known| self.keys.add(context.store, self.incarnation, known, id, count));
            match added {
                Ok(Change::Keys(0)) => {}
                Ok(Change::Keys(keys)) => self.count(context.store, id, Delta { in_flight: 0, keys }),
                // Untracked from now on; what the streams take away later finds no entry and changes nothing.
                Ok(Change::Untracked | Change::Lost) | Err(_) => {
                    self.keyed.remove(&(key, id));
                }
            }
        }
        self.save(context.store);
    }

    /// The leader's slow round over the key counts.
    pub(super) fn patrol(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let mut reaper = std::mem::take(&mut self.reaper);
        let done = reaper.patrol(self, context);
        self.reaper = reaper;
        done
    }
}
