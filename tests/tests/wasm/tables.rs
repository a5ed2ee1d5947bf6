//! The shared tables as they stand, read behind the filter's back: gauges are as old as the leader's last tick.

use filter_core::balancer::LoadTable;
use filter_core::config::Config;
use filter_core::state::fleet::{FleetTable, url_hash};
use filter_core::state::load::{Slot, SlotId};
use filter_core::state::rows::Rows;
use filter_core::store::MemoryStore;

/// The tables of one configuration.
pub(crate) struct Tables {
    config: Config,
    load: LoadTable,
    fleet: FleetTable,
    rows: Rows,
    store: MemoryStore,
}

impl Tables {
    /// The tables that `config` (the plugin configuration's JSON) works on in `store`.
    pub(crate) fn new(config: &str, store: MemoryStore) -> Self {
        let config = Config::parse(config.as_bytes()).unwrap();
        let capacity = u16::try_from(config.max_workers).unwrap();
        let fleet = FleetTable::new(&config.instance, capacity);
        let rows = Rows::new(&config.instance, u64::from(capacity));
        Self { load: LoadTable::of(&config), fleet, rows, config, store }
    }

    /// Each configured worker's entry, in the order of the configuration.
    pub(crate) fn slots(&self) -> Vec<Slot> {
        let mut store = self.store.clone();
        let blocks: Vec<_> =
            (0..self.load.blocks()).map(|block| self.load.read(&mut store, block).unwrap().block).collect();
        let ids = self.ids().into_iter();
        ids.map(|id| blocks[usize::from(id.block())].slot(id.position())).collect()
    }

    /// Each configured worker's place, in the order of the configuration.
    pub(crate) fn ids(&self) -> Vec<SlotId> {
        let slots = self.fleet.read(&mut self.store.clone()).unwrap().slots();
        self.config.workers.iter().map(|worker| slots[&url_hash(&worker.url)]).collect()
    }

    /// The key of the first 64 workers' entries.
    pub(crate) fn load_key(&self) -> String {
        self.load.load_key(0)
    }

    /// VMs that count as living.
    pub(crate) fn claimed(&self) -> usize {
        let claims = self.rows.claims(&mut self.store.clone()).unwrap();
        claims.claims.iter().filter(|claim| claim.incarnation != 0).count()
    }
}
