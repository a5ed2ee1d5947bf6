//! Who is in the fleet: the workers of the configuration and those that reporters name, as they come and go.

use std::rc::Rc;

use super::gauges::show_gone;
use super::{Balancer, Context};
use crate::config::Config;
use crate::fleet::Fleet;
use crate::metrics::Metrics;
use crate::report::Snapshot;
use crate::state::fleet::{FleetState, FleetTable, url_hash};
use crate::state::named::{Named, NamedTable};
use crate::store::{Store, StoreError};

/// The tables that say who there is, and what was read of them last.
#[derive(Debug)]
pub(super) struct Roster {
    pub(super) fleet: FleetTable,
    named_table: NamedTable,
    named: Rc<Named>,
    /// The version of the fleet table that was read last.
    version: Option<u32>,
    /// What the fleet was made of: the owners of the slots, and the count of changes of the named workers.
    made_of: (u64, u64),
}

impl Roster {
    /// Gives the workers of `config` slots. The fleet as it stands.
    pub(super) fn open(config: &Config, store: &mut dyn Store, now_secs: u32) -> Result<(Self, Rc<Fleet>), StoreError> {
        let capacity = u16::try_from(config.max_workers).unwrap_or(u16::MAX);
        let fleet = FleetTable::new(&config.instance, capacity);
        let named_table = NamedTable::new(&config.instance, capacity);
        let named = named_table.read(store)?;
        let mut roster = Self { fleet, named_table, named: Rc::new(named), version: None, made_of: Default::default() };
        // Refreshed, not only interned: a worker that comes back after a while is not to be given up by a configuration
        // that ticks before this one.
        roster.fleet.refresh(store, &roster.wanted(config), config.discovers(), now_secs)?;
        let state = roster.fleet.read(store)?;
        let fleet = roster.make(config, &state, None);
        Ok((roster, fleet))
    }

    /// The hashes of all workers that `config` may choose.
    fn wanted(&self, config: &Config) -> Vec<u64> {
        let mut hashes: Vec<u64> = config.workers.iter().map(|worker| url_hash(&worker.url)).collect();
        if config.discovers() {
            hashes.extend(self.named.records().iter().map(|record| record.hash));
        }
        hashes
    }

    /// Notes that the workers of `config` are in use. The fleet table as it stands.
    pub(super) fn refresh(
        &self,
        config: &Config,
        store: &mut dyn Store,
        now_secs: u32,
    ) -> Result<FleetState, StoreError> {
        self.fleet.refresh(store, &self.wanted(config), config.discovers(), now_secs)
    }

    fn make(&mut self, config: &Config, state: &FleetState, before: Option<&Fleet>) -> Rc<Fleet> {
        self.version = state.version();
        self.made_of = (state.owners(), self.named.changes());
        Rc::new(Fleet::new(config, state, &self.named, before))
    }

    /// Reads the named workers again if they have changed.
    fn learn(&mut self, store: &mut dyn Store, state: &FleetState) -> Result<(), StoreError> {
        if state.named() > self.named.changes() {
            self.named = Rc::new(self.named_table.read(store)?);
        }
        Ok(())
    }

    /// The fleet of `config`, if it is another one than `before`, which was made last.
    pub(super) fn renew(
        &mut self,
        config: &Config,
        store: &mut dyn Store,
        before: &Fleet,
    ) -> Result<Option<Rc<Fleet>>, StoreError> {
        let Some(state) = self.fleet.read_newer(store, self.version)? else { return Ok(None) };
        self.learn(store, &state)?;
        if self.made_of == (state.owners(), self.named.changes()) {
            self.version = state.version();
            return Ok(None);
        }
        Ok(Some(self.make(config, &state, Some(before))))
    }

    /// Hashes of the workers that the reporter of hash `reporter` has named.
    pub(super) fn named_by(&self, reporter: u64) -> impl Iterator<Item = u64> {
        self.named.records().iter().filter(move |record| record.reporter == reporter).map(|record| record.hash)
    }

    /// Takes what `snapshot` says about who there is, and gives slots to workers that some configuration wants only
    /// because it is named here. The fleet table as it stands then, and how many workers are not kept; nothing if every race
    /// was lost.
    pub(super) fn note(
        &mut self,
        store: &mut dyn Store,
        snapshot: &Snapshot,
        now_secs: u32,
    ) -> Result<(FleetState, Option<u64>), StoreError> {
        let state = self.fleet.read(store)?;
        self.learn(store, &state)?;
        let discovers = state.discovers(now_secs);
        let slots = state.slots();
        let homeless = |named: &Named| -> Vec<u64> {
            let hashes = named.records().iter().map(|record| record.hash);
            if discovers { hashes.filter(|hash| !slots.contains_key(hash)).collect() } else { Vec::new() }
        };
        // Slots come first: who reads the table at once is to find a place for everybody.
        let fleet = &self.fleet;
        let intern = |store: &mut dyn Store, next: &Named| match homeless(next) {
            urls if urls.is_empty() => Ok(()),
            urls => fleet.intern(store, &urls, now_secs).map(drop),
        };
        let Some((named, noted)) = self.named_table.take(store, &self.named, snapshot, intern)? else {
            // A snapshot that is not a delta says it again.
            return Ok((state, None));
        };
        let urls = homeless(&named);
        self.named = named;
        if urls.is_empty() && self.named.changes() <= state.named() {
            return Ok((state, Some(noted.dropped)));
        }
        Ok((self.fleet.heed(store, self.named.changes(), &urls, now_secs)?, Some(noted.dropped)))
    }
}

impl Balancer {
    /// Brings the fleet up to date. Whoever leads takes the gauges of those that have left.
    pub(super) fn renew_fleet(&mut self, context: &mut Context<'_>, leads: bool) -> Result<(), StoreError> {
        let Some(fleet) = self.roster.renew(&self.config, context.store, &self.fleet)? else { return Ok(()) };
        let before = std::mem::replace(&mut self.fleet, fleet);
        self.prepare_ring();
        self.gauges.clear();
        if leads {
            self.clear_gauges(context.metrics, &before);
        }
        Ok(())
    }

    fn clear_gauges(&self, metrics: &mut Metrics, before: &Fleet) {
        let stays = |url: &str| self.fleet.workers().iter().any(|worker| worker.url == url);
        for worker in before.workers().iter().filter(|worker| self.fleet.by_slot(worker.id).is_none()) {
            if !stays(&worker.url) {
                show_gone(metrics, &worker.url);
            }
        }
        let models = self.fleet.models();
        for model in before.models().into_iter().filter(|model| models.binary_search(model).is_err()) {
            super::gauges::show_pool(metrics, before, model, |_| 0);
            if before.is_limited() {
                metrics.set("smg_workers_overloaded", &[("model", model)], 0);
            }
        }
    }
}
