//! The table of named workers: what each reporter (sidecar) has said there is, and what each of its workers is.
//!
//! Only load snapshots write it, and seldom: a snapshot that says nothing new about who there is leaves it alone. Its
//! count of changes stands in the head of the fleet table, so that nobody copies it to learn that it is as it was.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use xxhash_rust::xxh3::xxh3_64;

use super::bytes::{read_u32, read_u64, write};
use super::fleet::url_hash;
use super::names::Name;
use crate::config::is_worker_url;
use crate::report::{Info, Scope, Snapshot, WorkerReport};
use crate::store::{Store, StoreError, Write, version_of};

const HEADER_BYTES: usize = 8;
const RECORD_HEADER_BYTES: usize = 20;
const TRIES: usize = 16;

/// What is said of one worker is not kept if it takes more bytes than this.
pub const MAX_WORKER_BYTES: usize = 4096;

/// The table holds so many bytes for each slot of the fleet table; a worker with a model or two takes about 150, once
/// for each reporter that names it.
pub const BYTES_PER_SLOT: usize = 512;

/// The table's place in the shared store.
#[derive(Debug, Clone)]
pub struct NamedTable {
    key: String,
    capacity: usize,
}

/// A copy of the table.
#[derive(Debug, Clone, Default)]
pub struct Named {
    changes: u64,
    records: Vec<Record>,
}

/// What one reporter says of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Stands for the reporter's name.
    pub reporter: u64,
    /// Stands for the worker's URL, see [`url_hash`].
    pub hash: u64,
    /// The URL as it was first written.
    pub url: String,
    /// The last address that was told, as Envoy writes it.
    pub address: Option<String>,
    /// What the worker is, as it was last told.
    pub info: Option<Box<Info>>,
    /// The change of the table with which this was said: a greater one was said later.
    pub since: u64,
    /// Its bytes in the table.
    bytes: usize,
}

/// What became of the workers that a snapshot names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Noted {
    /// The table has changed.
    pub changed: bool,
    /// Workers that are not kept: their URL is none, what is said of them is too large, or the table is full.
    pub dropped: u64,
}

impl Record {
    fn encoded(&self) -> Vec<u8> {
        let report = WorkerReport {
            url: self.url.clone(),
            address: self.address.clone(),
            info: self.info.clone(),
            ..WorkerReport::default()
        };
        serde_json::to_vec(&report).unwrap_or_default()
    }
}

impl Named {
    fn decode(bytes: &[u8]) -> Self {
        let (mut records, mut at) = (Vec::new(), HEADER_BYTES);
        while let Some(head) = bytes.get(at..at + RECORD_HEADER_BYTES) {
            let length = read_u32(head, 16) as usize;
            let start = at + RECORD_HEADER_BYTES;
            let Some(report) = start.checked_add(length).and_then(|end| bytes.get(start..end)) else { break };
            let Ok(report) = serde_json::from_slice::<WorkerReport>(report) else { break };
            records.push(Record {
                reporter: read_u64(head, 0),
                hash: url_hash(&report.url),
                url: report.url,
                address: report.address,
                info: report.info,
                since: read_u64(head, 8),
                bytes: RECORD_HEADER_BYTES + length,
            });
            at = start + length;
        }
        Self { changes: read_u64(bytes, 0), records }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        write(&mut bytes, 0, self.changes.to_le_bytes());
        for record in &self.records {
            let report = record.encoded();
            bytes.extend_from_slice(&record.reporter.to_le_bytes());
            bytes.extend_from_slice(&record.since.to_le_bytes());
            bytes.extend_from_slice(&u32::try_from(report.len()).unwrap_or(0).to_le_bytes());
            bytes.extend_from_slice(&report);
        }
        bytes
    }

    /// How often the table has changed; 0 if nobody has ever named a worker.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// What is said, in the order in which it was first said. A worker whose address has changed stands at the end.
    #[must_use]
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Whether `snapshot` says anything new about who there is.
    fn is_news(&self, snapshot: &Snapshot) -> bool {
        let reporter = reporter_hash(&snapshot.reporter);
        let mine = self.records.iter().filter(|record| record.reporter == reporter);
        let mine: HashMap<u64, &Record> = mine.map(|record| (record.hash, record)).collect();
        let differs = |worker: &WorkerReport| {
            let Some(known) = mine.get(&url_hash(&worker.url)) else { return true };
            let address = worker.address.as_deref();
            let moved = address.is_some() && address != known.address.as_deref() && {
                let address = address.and_then(canonical);
                address.is_some() && address != known.address
            };
            moved || (worker.info.is_some() && worker.info != known.info)
        };
        let named: HashSet<u64> = snapshot.workers.iter().map(|worker| url_hash(&worker.url)).collect();
        let gone = |url: &String| mine.contains_key(&url_hash(url)) && !named.contains(&url_hash(url));
        // Where none differs, all that are named are mine, so that as many of them are all of mine.
        snapshot.workers.iter().any(differs)
            || (snapshot.scope == Scope::Full && named.len() != mine.len())
            || snapshot.removed.iter().any(gone)
    }

    /// Takes what `snapshot` says about who there is. `capacity` is the most workers and bounds the bytes.
    fn take(&mut self, snapshot: &Snapshot, capacity: usize) -> Noted {
        let reporter = reporter_hash(&snapshot.reporter);
        let mut noted = Noted::default();
        let named: HashSet<u64> = snapshot.workers.iter().map(|worker| url_hash(&worker.url)).collect();
        let removed: HashSet<u64> = snapshot.removed.iter().map(|url| url_hash(url)).collect();
        let before = self.records.len();
        self.records.retain(|record| {
            let gone = snapshot.scope == Scope::Full || removed.contains(&record.hash);
            record.reporter != reporter || named.contains(&record.hash) || !gone
        });
        noted.changed = self.records.len() != before;
        let mine = self.records.iter().enumerate().filter(|(_, record)| record.reporter == reporter);
        let mut at: HashMap<u64, usize> = mine.map(|(at, record)| (record.hash, at)).collect();
        let mut room = Room::of(&self.records, capacity);
        let mut moved = Vec::new();
        for worker in &snapshot.workers {
            let hash = url_hash(&worker.url);
            let address = worker.address.as_deref().and_then(canonical);
            let known = at.get(&hash).and_then(|&at| self.records.get(at));
            let mut next = known.cloned().unwrap_or_else(|| Record {
                reporter,
                hash,
                url: worker.url.clone(),
                address: None,
                info: None,
                since: 0,
                bytes: 0,
            });
            next.address = address.or(next.address);
            next.info = worker.info.clone().or(next.info);
            if known == Some(&next) {
                continue;
            }
            next.since = self.changes.saturating_add(1);
            next.bytes = RECORD_HEADER_BYTES + next.encoded().len();
            if !is_worker_url(&worker.url) || !room.fits(&next, known) {
                noted.dropped += 1;
                continue;
            }
            noted.changed = true;
            match at.get(&hash).and_then(|&at| Some((at, self.records.get_mut(at)?))) {
                Some((at, record)) => {
                    if record.address.is_some() && record.address != next.address {
                        moved.push(at);
                    }
                    *record = next;
                }
                None => {
                    at.insert(hash, self.records.len());
                    self.records.push(next);
                }
            }
        }
        moved.sort_unstable();
        moved.dedup();
        let replaced: Vec<Record> = moved.iter().rev().map(|&at| self.records.remove(at)).collect();
        self.records.extend(replaced.into_iter().rev());
        noted
    }
}

/// What there is room for.
struct Room {
    workers: HashSet<u64>,
    capacity: usize,
    bytes: usize,
}

impl Room {
    fn of(records: &[Record], capacity: usize) -> Self {
        let workers = records.iter().map(|record| record.hash).collect();
        Self { workers, capacity, bytes: records.iter().map(|record| record.bytes).sum() }
    }

    /// Makes room for `next` in place of `before`, if there is any.
    fn fits(&mut self, next: &Record, before: Option<&Record>) -> bool {
        let bytes = self.bytes - before.map_or(0, |before| before.bytes).min(self.bytes) + next.bytes;
        let fits = next.bytes <= MAX_WORKER_BYTES
            && bytes <= self.capacity * BYTES_PER_SLOT
            && (self.workers.contains(&next.hash) || self.workers.len() < self.capacity);
        if fits {
            self.workers.insert(next.hash);
            self.bytes = bytes;
        }
        fits
    }
}

impl NamedTable {
    /// The table of `instance` with `capacity` slots.
    #[must_use]
    pub fn new(instance: &str, capacity: u16) -> Self {
        Self { key: Name::new('n', instance, u64::from(capacity)).part(0), capacity: usize::from(capacity) }
    }

    /// Reads the table.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store) -> Result<Named, StoreError> {
        Ok(store.get(&self.key)?.map_or_else(Named::default, |stored| Named::decode(&stored.value)))
    }

    /// Takes what `snapshot` says about who there is, if it is anything new to `known`. The table as it stands then,
    /// and what became of the snapshot's workers; none if every try has lost its race. `prepare` is told what the table
    /// will be before it is so.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn take(
        &self,
        store: &mut dyn Store,
        known: &Rc<Named>,
        snapshot: &Snapshot,
        mut prepare: impl FnMut(&mut dyn Store, &Named) -> Result<(), StoreError>,
    ) -> Result<Option<(Rc<Named>, Noted)>, StoreError> {
        if !known.is_news(snapshot) {
            return Ok(Some((Rc::clone(known), Noted::default())));
        }
        for _ in 0..TRIES {
            let stored = store.get(&self.key)?;
            let version = version_of(stored.as_ref());
            let mut named = stored.map_or_else(Named::default, |stored| Named::decode(&stored.value));
            let noted = named.take(snapshot, self.capacity);
            named.changes = named.changes.saturating_add(u64::from(noted.changed));
            if noted.changed {
                prepare(store, &named)?;
            }
            if !noted.changed || store.set(&self.key, &named.encode(), version)? == Write::Done {
                return Ok(Some((Rc::new(named), noted)));
            }
        }
        Ok(None)
    }
}

/// The hash that stands for a reporter's name; never 0.
#[must_use]
pub fn reporter_hash(reporter: &str) -> u64 {
    xxh3_64(reporter.as_bytes()).max(1)
}

/// The `ip:port` in `text` as Envoy writes it, if it is one that a host can have.
fn canonical(text: &str) -> Option<String> {
    let address: std::net::SocketAddr = text.parse().ok()?;
    let scoped = matches!(address, std::net::SocketAddr::V6(v6) if v6.scope_id() != 0);
    (address.port() != 0 && !scoped).then(|| address.to_string())
}

#[cfg(test)]
#[path = "tests/named.rs"]
mod tests;
