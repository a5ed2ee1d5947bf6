//! What has been taken of each reporter: in which order its snapshots came, and what its next delta may build on.
//!
//! One small value: an entry per reporter, at most [`MAX_REPORTERS`]; the one that has been silent for longest makes room.

use super::bytes::{read_u32, read_u64, write};
use super::names::Name;
use super::report::MISSED_INTERVALS;
use crate::report::{Scope, Snapshot};
use crate::store::{Store, StoreError, Write, version_of};

/// So many reporters are remembered.
pub const MAX_REPORTERS: usize = 64;

const ENTRY_BYTES: usize = 64;
const HAS_WHOLE: u32 = 1;
const TRIES: usize = 16;

/// What a snapshot is to who has taken the earlier ones of its reporter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be taken as it stands.
    #[default]
    News,
    /// It or a later one has been taken: nothing is to change.
    Old,
    /// A delta on something that has not been taken: it counts for the workers it names, and says nothing of others.
    Gap,
}

/// What is known of one reporter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Known {
    /// The hash of its name, see [`super::named::reporter_hash`]; 0 is nobody.
    pub reporter: u64,
    /// See [`Snapshot`]; of the newest one that has come.
    pub epoch: u64,
    /// See [`Snapshot`]; of the newest one that has come.
    pub sequence: u64,
    /// The newest sequence number of this epoch up to which all it said has been taken, if that holds for any.
    pub whole: Option<u64>,
    /// The fleet that `whole` holds for, see [`super::fleet::FleetState::owners`]: who has got a slot since was passed over.
    pub fleet: u64,
    /// When the newest one came, in Unix milliseconds.
    pub received_ms: u64,
    /// How often they are to be expected.
    pub interval_ms: u32,
    /// The hash of the cluster that it was fetched from, 0 if it never was.
    pub cluster: u64,
}

impl Known {
    /// What `snapshot` is, coming at `now_ms` to a fleet of hash `fleet`. A reporter that has been silent for too long
    /// is heard whatever it says: its clock may have been set back.
    #[must_use]
    pub fn judge(&self, snapshot: &Snapshot, fleet: u64, now_ms: u64) -> Verdict {
        let newer = (snapshot.epoch, snapshot.sequence) > (self.epoch, self.sequence);
        if self.reporter != 0 && !newer && !self.is_silent(now_ms) {
            return Verdict::Old;
        }
        match snapshot.scope {
            // What has not been heard of for too long counts no more, statuses among it: it must be told again.
            Scope::Since(_) if self.is_silent(now_ms) => Verdict::Gap,
            Scope::Since(base) if !self.can_build_on(snapshot.epoch, base, fleet) => Verdict::Gap,
            _ => Verdict::News,
        }
    }

    fn can_build_on(&self, epoch: u64, base: u64, fleet: u64) -> bool {
        self.reporter != 0
            && self.epoch == epoch
            && self.fleet == fleet
            && self.whole.is_some_and(|whole| whole >= base)
    }

    /// Whether nothing has come for too long.
    #[must_use]
    pub fn is_silent(&self, now_ms: u64) -> bool {
        now_ms > self.received_ms.saturating_add(MISSED_INTERVALS * u64::from(self.interval_ms))
    }

    /// Adds what another thread, or this one, has taken of the same reporter.
    fn merge(&mut self, news: &Self) {
        if self.is_silent(news.received_ms) {
            self.whole = None;
        }
        let cluster = self.cluster;
        if self.reporter != news.reporter || (self.epoch != news.epoch && self.yields_to(news)) {
            *self = *news;
        } else if self.epoch == news.epoch {
            if news.whole.is_some() && (news.whole > self.whole || news.fleet != self.fleet) {
                (self.whole, self.fleet) = (news.whole, news.fleet);
            }
            self.sequence = self.sequence.max(news.sequence);
            (self.received_ms, self.interval_ms) = (self.received_ms.max(news.received_ms), news.interval_ms);
        }
        self.cluster = cluster;
    }

    fn yields_to(&self, news: &Self) -> bool {
        news.epoch > self.epoch || self.is_silent(news.received_ms)
    }

    fn decode(bytes: &[u8], number: usize) -> Self {
        let at = number * ENTRY_BYTES;
        let whole = (read_u32(bytes, at + 60) & HAS_WHOLE != 0).then(|| read_u64(bytes, at + 24));
        Self {
            reporter: read_u64(bytes, at),
            epoch: read_u64(bytes, at + 8),
            sequence: read_u64(bytes, at + 16),
            whole,
            fleet: read_u64(bytes, at + 32),
            received_ms: read_u64(bytes, at + 40),
            cluster: read_u64(bytes, at + 48),
            interval_ms: read_u32(bytes, at + 56),
        }
    }

    fn encode(&self, bytes: &mut [u8], number: usize) {
        let at = number * ENTRY_BYTES;
        write(bytes, at, self.reporter.to_le_bytes());
        write(bytes, at + 8, self.epoch.to_le_bytes());
        write(bytes, at + 16, self.sequence.to_le_bytes());
        write(bytes, at + 24, self.whole.unwrap_or(0).to_le_bytes());
        write(bytes, at + 32, self.fleet.to_le_bytes());
        write(bytes, at + 40, self.received_ms.to_le_bytes());
        write(bytes, at + 48, self.cluster.to_le_bytes());
        write(bytes, at + 56, self.interval_ms.to_le_bytes());
        write(bytes, at + 60, (u32::from(self.whole.is_some()) * HAS_WHOLE).to_le_bytes());
    }
}

/// The table's place in the shared store.
#[derive(Debug, Clone)]
pub struct Reporters {
    key: String,
}

impl Reporters {
    /// The table that belongs to a fleet table of `instance` with `capacity` slots.
    #[must_use]
    pub fn new(instance: &str, capacity: u16) -> Self {
        Self { key: Name::new('o', instance, u64::from(capacity)).part(0) }
    }

    /// What is known of the reporter of hash `reporter`; all zeros if nothing is.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn of(&self, store: &mut dyn Store, reporter: u64) -> Result<Known, StoreError> {
        Ok(self.find(store, |known| known.reporter == reporter)?.unwrap_or_default())
    }

    /// What is known of the reporter that was last heard of through the cluster of hash `cluster`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn behind(&self, store: &mut dyn Store, cluster: u64) -> Result<Option<Known>, StoreError> {
        self.find(store, |known| known.cluster == cluster)
    }

    /// Notes what has been taken; what others have noted meanwhile stays. Losing every race is no harm: the next delta
    /// finds a gap.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn note(&self, store: &mut dyn Store, news: &Known) -> Result<(), StoreError> {
        self.change(store, news.reporter, news.received_ms, |known| known.merge(news))
    }

    /// Changes the entry of the reporter of hash `reporter`, which is made if there is none. At 0 ms no other makes room.
    fn change(
        &self,
        store: &mut dyn Store,
        reporter: u64,
        now_ms: u64,
        change: impl Fn(&mut Known),
    ) -> Result<(), StoreError> {
        for _ in 0..TRIES {
            let stored = store.get(&self.key)?;
            let version = version_of(stored.as_ref());
            let mut bytes = stored.map(|stored| stored.value).unwrap_or_default();
            bytes.resize(MAX_REPORTERS * ENTRY_BYTES, 0);
            let all: Vec<_> = (0..MAX_REPORTERS).map(|number| Known::decode(&bytes, number)).collect();
            let own = all.iter().position(|known| known.reporter == reporter);
            // A free place was never heard of, so it goes first.
            let heard = |known: &Known| if known.reporter == 0 { 0 } else { known.received_ms.max(1) };
            let longest_silent = (0..MAX_REPORTERS).min_by_key(|number| all.get(*number).map_or(0, heard));
            let Some(number) = own.or(longest_silent.filter(|_| now_ms > 0)) else { return Ok(()) };
            let before = all.get(number).copied().unwrap_or_default();
            let mut entry = if own.is_some() { before } else { Known::default() };
            change(&mut entry);
            if entry == before {
                return Ok(());
            }
            entry.encode(&mut bytes, number);
            if store.set(&self.key, &bytes, version)? == Write::Done {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Forgets what a delta of the reporter of hash `reporter` could build on: it must tell everything again.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn forget_base(&self, store: &mut dyn Store, reporter: u64) -> Result<(), StoreError> {
        self.change(store, reporter, 0, |known| known.whole = None)
    }

    /// Notes that the reporter of hash `reporter` was fetched from the cluster of hash `cluster`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn note_cluster(&self, store: &mut dyn Store, reporter: u64, cluster: u64) -> Result<(), StoreError> {
        self.change(store, reporter, 0, |known| known.cluster = cluster)
    }

    /// The one of the reporters that match which was heard of last.
    fn find(&self, store: &mut dyn Store, matches: impl Fn(&Known) -> bool) -> Result<Option<Known>, StoreError> {
        let bytes = store.get(&self.key)?.map(|stored| stored.value).unwrap_or_default();
        let all = (0..MAX_REPORTERS).map(|number| Known::decode(&bytes, number));
        Ok(all.filter(|known| known.reporter != 0 && matches(known)).max_by_key(|known| known.received_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    const FLEET: u64 = 77;

    fn known(sequence: u64, whole: Option<u64>) -> Known {
        Known {
            reporter: 5,
            epoch: 9,
            sequence,
            whole,
            fleet: FLEET,
            received_ms: 1_000_000,
            interval_ms: 10_000,
            cluster: 0,
        }
    }

    fn snapshot(epoch: u64, sequence: u64, scope: Scope) -> Snapshot {
        Snapshot { scope, ..Snapshot::of(epoch, sequence, 10_000, Vec::new()) }
    }

    #[test]
    fn order_and_base_decide_what_a_snapshot_is() {
        use Scope::{Full, Since, Some as Few};
        let now = 1_000_001;
        for (epoch, sequence, scope, expected) in [
            (9, 8, Few, Verdict::News),
            (9, 8, Full, Verdict::News),
            (9, 8, Since(6), Verdict::News),
            (9, 8, Since(4), Verdict::News),
            (9, 9, Since(7), Verdict::Gap),
            (10, 1, Since(0), Verdict::Gap),
            (10, 1, Full, Verdict::News),
            (9, 7, Full, Verdict::Old),
            (9, 7, Since(6), Verdict::Old),
            (8, 99, Full, Verdict::Old),
        ] {
            let found = known(7, Some(6)).judge(&snapshot(epoch, sequence, scope), FLEET, now);
            assert_eq!(found, expected, "{epoch} {sequence} {scope:?}");
        }
        assert_eq!(known(7, Some(6)).judge(&snapshot(9, 8, Since(6)), FLEET + 1, now), Verdict::Gap, "another fleet");
        assert_eq!(known(7, None).judge(&snapshot(9, 8, Since(6)), FLEET, now), Verdict::Gap);
        assert_eq!(Known::default().judge(&snapshot(0, 0, Full), FLEET, now), Verdict::News, "the first word");
        assert_eq!(Known::default().judge(&snapshot(0, 0, Since(0)), 0, now), Verdict::Gap);
    }

    #[test]
    fn who_has_been_silent_for_three_intervals_is_heard_again() {
        assert_eq!(known(7, Some(7)).judge(&snapshot(1, 1, Scope::Full), FLEET, 1_030_000), Verdict::Old);
        assert_eq!(known(7, Some(7)).judge(&snapshot(1, 1, Scope::Full), FLEET, 1_030_001), Verdict::News);
    }

    #[test]
    fn silence_and_forgetting_take_the_base_away() {
        let (table, mut store) = (Reporters::new("", 64), MemoryStore::default());
        table.forget_base(&mut store, 5).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(Known::default()), "who is not known has none");
        table.note(&mut store, &known(7, Some(7))).unwrap();
        table.forget_base(&mut store, 5).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(known(7, None)));
        table.note(&mut store, &known(8, Some(8))).unwrap();
        let late = Known { received_ms: 1_030_001, ..known(9, None) };
        assert_eq!(known(8, Some(8)).judge(&snapshot(9, 9, Scope::Since(8)), FLEET, 1_030_001), Verdict::Gap);
        table.note(&mut store, &late).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(late));
    }

    #[test]
    fn what_is_noted_only_grows() {
        let (table, mut store) = (Reporters::new("", 64), MemoryStore::default());
        assert_eq!(table.of(&mut store, 5), Ok(Known::default()));
        table.note(&mut store, &known(7, Some(7))).unwrap();
        table.note(&mut store, &known(6, Some(6))).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(known(7, Some(7))));
        table.note(&mut store, &known(9, None)).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(known(9, Some(7))), "a gap leaves the base where it was");
        table.note(&mut store, &Known { epoch: 8, ..known(20, Some(20)) }).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(known(9, Some(7))), "an earlier life");
        let fresh = Known { epoch: 10, ..known(1, None) };
        table.note(&mut store, &fresh).unwrap();
        assert_eq!(table.of(&mut store, 5), Ok(fresh), "a later one begins anew");
    }

    #[test]
    fn a_reporter_is_found_by_its_cluster() {
        let (table, mut store) = (Reporters::new("", 64), MemoryStore::default());
        table.note_cluster(&mut store, 5, 3).unwrap();
        assert_eq!(table.behind(&mut store, 3), Ok(None), "nothing is known of it yet");
        table.note(&mut store, &known(7, Some(7))).unwrap();
        table.note_cluster(&mut store, 5, 3).unwrap();
        table.note(&mut store, &known(8, Some(8))).unwrap();
        assert_eq!(table.behind(&mut store, 3), Ok(Some(Known { cluster: 3, ..known(8, Some(8)) })));
        assert_eq!(table.behind(&mut store, 4), Ok(None));
    }

    #[test]
    fn their_number_is_bounded_and_the_longest_silent_goes() {
        let (table, mut store) = (Reporters::new("", 64), MemoryStore::default());
        for reporter in 1..=100 {
            let heard = Known { reporter, received_ms: 1_000_000 + reporter, ..known(1, None) };
            table.note(&mut store, &heard).unwrap();
            table.note(&mut store, &Known { reporter: 1, received_ms: heard.received_ms, ..known(1, None) }).unwrap();
        }
        let mut is_known = |reporter| table.of(&mut store, reporter).unwrap().reporter == reporter;
        assert!(is_known(1), "it was never silent");
        assert_eq!((2..=100).filter(|reporter| is_known(*reporter)).count(), MAX_REPORTERS - 1);
        assert!(is_known(100) && is_known(38) && !is_known(37));
        assert_eq!(store.sizes().iter().map(|(_, size)| size).sum::<usize>(), MAX_REPORTERS * ENTRY_BYTES);
    }
}
