//! The workers one configuration may choose from, and the pools that requests see.
//!
//! A fleet is built when the configuration or the fleet table changes and is immutable afterwards; exchanges keep the
//! one they were placed with.

use std::collections::{HashMap, HashSet};

use crate::config::{Config, Leg, WorkerConfig};
use crate::state::fleet::{FleetState, url_hash};
use crate::state::load::SlotId;

/// The reserved model id that means "any worker".
pub const UNKNOWN_MODEL: &str = "unknown";

/// One worker that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Worker {
    /// As configured, byte for byte: the worker's identity.
    pub url: String,
    /// `ip:port`; what Envoy knows the host by.
    pub address: String,
    /// The models it serves; empty if nobody has said: then it serves any.
    pub models: Vec<String>,
    /// Where its load is kept.
    pub id: SlotId,
}

impl Worker {
    /// Its first model, or [`UNKNOWN_MODEL`].
    #[must_use]
    pub fn model(&self) -> &str {
        self.models.first().map_or(UNKNOWN_MODEL, String::as_str)
    }
}

/// The workers that match a request, whatever their state, in order of registration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pool {
    /// Positions in [`Fleet::workers`].
    pub workers: Vec<u16>,
    /// Their slots, in the same order: what every pick goes through.
    pub ids: Vec<SlotId>,
    /// The load blocks they span.
    pub blocks: Vec<u16>,
}

/// Everything one configuration may choose from.
#[derive(Debug, Clone, Default)]
pub struct Fleet {
    workers: Vec<Worker>,
    by_model: HashMap<String, Pool>,
    any: Pool,
    /// Workers that have named no model: they serve the models nobody has named.
    unnamed: Pool,
    by_address: HashMap<String, u16>,
    by_slot: HashMap<SlotId, u16>,
    unplaced: Vec<String>,
    needs_model: bool,
}

impl Fleet {
    /// The fleet of `config` as the fleet table places it. Workers without an address or a slot are left out.
    #[must_use]
    pub fn new(config: &Config, table: &FleetState) -> Self {
        let slots = table.slots();
        let mut fleet = Self::default();
        let regular = || config.workers.iter().filter(|worker| worker.leg == Leg::Regular);
        let configured: HashSet<&str> = regular().filter_map(|worker| worker.address.as_deref()).collect();
        for worker in regular() {
            let hash = url_hash(&worker.url);
            // What a sidecar has found must not lead to a host that is somebody else.
            let found = table
                .address(hash)
                .filter(|found| !configured.contains(found) && !fleet.by_address.contains_key(*found));
            let address = worker.address.as_deref().or(found);
            match (address, slots.get(&hash)) {
                (Some(address), Some(&id)) => fleet.add(worker, address.to_owned(), id),
                _ => fleet.unplaced.push(worker.url.clone()),
            }
        }
        fleet.needs_model = regular().any(|one| {
            let lacks =
                |model: &String| regular().any(|other| !other.models.is_empty() && !other.models.contains(model));
            one.models.iter().any(lacks)
        }) || (regular().any(|worker| worker.models.is_empty())
            && regular().any(|worker| !worker.models.is_empty()));
        fleet.build_pools();
        fleet
    }

    fn add(&mut self, worker: &WorkerConfig, address: String, id: SlotId) {
        let Ok(index) = u16::try_from(self.workers.len()) else { return };
        self.by_address.entry(address.clone()).or_insert(index);
        self.by_slot.insert(id, index);
        self.workers.push(Worker { url: worker.url.clone(), address, models: worker.models.clone(), id });
    }

    fn build_pools(&mut self) {
        let models: Vec<String> = self.workers.iter().flat_map(|worker| worker.models.iter().cloned()).collect();
        for model in models {
            if self.by_model.contains_key(&model) {
                continue;
            }
            let pool = self.pool_where(|worker| worker.models.is_empty() || worker.models.contains(&model));
            self.by_model.insert(model, pool);
        }
        self.unnamed = self.pool_where(|worker| worker.models.is_empty());
        self.any = self.pool_where(|_| true);
    }

    fn pool_where(&self, matches: impl Fn(&Worker) -> bool) -> Pool {
        let mut pool = Pool::default();
        for (index, worker) in self.workers.iter().enumerate().filter(|(_, worker)| matches(worker)) {
            let Ok(index) = u16::try_from(index) else { break };
            pool.workers.push(index);
            pool.ids.push(worker.id);
            if !pool.blocks.contains(&worker.id.block()) {
                pool.blocks.push(worker.id.block());
            }
        }
        pool
    }

    /// All workers, in order of registration.
    #[must_use]
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The worker at `index`.
    #[must_use]
    pub fn worker(&self, index: u16) -> Option<&Worker> {
        self.workers.get(usize::from(index))
    }

    /// The worker that Envoy knows as `address`.
    #[must_use]
    pub fn by_address(&self, address: &str) -> Option<u16> {
        self.by_address.get(address).copied()
    }

    /// The workers for a request that names `model`; an empty name and [`UNKNOWN_MODEL`] mean any worker.
    #[must_use]
    pub fn pool(&self, model: &str) -> &Pool {
        match model {
            "" | UNKNOWN_MODEL => &self.any,
            model => self.by_model.get(model).unwrap_or(&self.unnamed),
        }
    }

    /// Whether a request must name its model to find its pool, also among workers that cannot be chosen yet.
    #[must_use]
    pub fn needs_model(&self) -> bool {
        self.needs_model
    }

    /// The worker that owns `id`.
    #[must_use]
    pub fn by_slot(&self, id: SlotId) -> Option<u16> {
        self.by_slot.get(&id).copied()
    }

    /// `model` as a metric label or log field: only names that the fleet itself has named, since a client could
    /// invent any number of them.
    #[must_use]
    pub fn model_label<'a>(&'a self, model: &str) -> &'a str {
        self.by_model.get_key_value(model).map_or(UNKNOWN_MODEL, |(known, _)| known.as_str())
    }

    /// The models anybody serves, sorted.
    #[must_use]
    pub fn models(&self) -> Vec<&str> {
        let mut models: Vec<&str> = self.by_model.keys().map(String::as_str).collect();
        models.sort_unstable();
        models
    }

    /// URLs of workers that cannot be chosen: no address is known yet, or the fleet table is full.
    #[must_use]
    pub fn unplaced(&self) -> &[String] {
        &self.unplaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::fleet::FleetTable;
    use crate::store::MemoryStore;

    fn fleet(workers: &str) -> Fleet {
        let config = Config::parse(format!(r#"{{"workers":{workers}}}"#).as_bytes()).unwrap();
        let urls: Vec<u64> = config.workers.iter().map(|worker| url_hash(&worker.url)).collect();
        let table = FleetTable::new("", 1024).intern(&mut MemoryStore::default(), &urls, 0).unwrap();
        Fleet::new(&config, &table)
    }

    #[test]
    fn a_worker_serves_each_of_its_models() {
        let fleet = fleet(
            r#"[{"url":"http://1.1.1.1:1","models":["base","lora"]},{"url":"http://1.1.1.1:2","models":["base"]},
               {"url":"http://1.1.1.1:3","models":["other"]}]"#,
        );
        assert_eq!(fleet.pool("base").workers, [0, 1]);
        assert_eq!(fleet.pool("lora").workers, [0]);
        assert!(fleet.pool("nobody's").workers.is_empty());
        for any in ["", "unknown"] {
            assert_eq!(fleet.pool(any).workers, [0, 1, 2]);
        }
        assert!(fleet.needs_model());
        assert_eq!(fleet.models(), ["base", "lora", "other"]);
        assert_eq!((fleet.model_label("lora"), fleet.model_label("nobody's")), ("lora", "unknown"));
    }

    #[test]
    fn a_worker_that_names_no_model_serves_any() {
        let fleet = fleet(r#"["http://1.1.1.1:1",{"url":"http://1.1.1.1:2","models":["a"]}]"#);
        assert_eq!(fleet.pool("a").workers, [0, 1]);
        assert_eq!(fleet.pool("b").workers, [0]);
        assert!(fleet.needs_model());
    }

    #[test]
    fn one_model_everywhere_need_not_be_named() {
        let fleet = fleet(r#"[{"url":"http://1.1.1.1:1","models":["a"]},{"url":"http://1.1.1.1:2","models":["a"]}]"#);
        assert!(!fleet.needs_model());
    }

    #[test]
    fn workers_that_wait_for_an_address_have_models_too() {
        let fleet =
            fleet(r#"[{"url":"http://1.1.1.1:1","models":["a"]},{"url":"http://engine-0:8000","models":["b"]}]"#);
        assert!(fleet.needs_model());
    }

    #[test]
    fn a_found_address_must_not_be_somebody_elses() {
        let workers = r#"["http://engine-0:8000","http://engine-1:8000","http://1.1.1.1:2"]"#;
        let config = Config::parse(format!(r#"{{"workers":{workers}}}"#).as_bytes()).unwrap();
        let urls: Vec<u64> = config.workers.iter().map(|worker| url_hash(&worker.url)).collect();
        let (table, mut store) = (FleetTable::new("", 1024), MemoryStore::default());
        table.intern(&mut store, &urls, 0).unwrap();
        let found = [(urls[0], "1.1.1.1:2".to_owned()), (urls[1], "1.1.1.1:3".to_owned())];
        table.set_addresses(&mut store, &found).unwrap();
        let fleet = Fleet::new(&config, &table.read(&mut store).unwrap());
        assert_eq!(fleet.unplaced(), ["http://engine-0:8000"]);
        assert_eq!(
            fleet.by_address("1.1.1.1:2").and_then(|at| fleet.worker(at)).map(|w| w.url.as_str()),
            Some("http://1.1.1.1:2")
        );
        assert_eq!(
            fleet.by_address("1.1.1.1:3").and_then(|at| fleet.worker(at)).map(|w| w.url.as_str()),
            Some("http://engine-1:8000")
        );
    }

    #[test]
    fn a_worker_without_an_address_waits_for_one() {
        let fleet = fleet(r#"["http://engine-0:8000","http://1.1.1.1:2"]"#);
        assert_eq!(fleet.unplaced(), ["http://engine-0:8000"]);
        assert_eq!(fleet.pool("").workers, [0]);
        assert_eq!(fleet.by_address("1.1.1.1:2"), Some(0));
    }
}
