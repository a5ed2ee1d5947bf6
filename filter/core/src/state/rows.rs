//! What each VM has in flight, so that it can be taken back when the VM dies.
//!
//! A VM that traps says no farewell: its streams are cut without an end, and what they had counted would stay for ever.
//! So each VM has a *row*, a copy of what it has added to the load table, and a *claim* on it with a counter that it
//! moves on every tick. Whoever sees a counter stand still for some of its own ticks takes the claim away and the
//! row's counts back. Clocks are never compared: a process that was suspended would bury the living.

use super::bytes::{read_u16, read_u32, read_u64, write};
use super::load::SlotId;
use super::names::Name;
use crate::store::{Store, StoreError, Write, version_of};

/// As many VMs have rows; Envoy has one VM per worker thread and one on its main thread.
pub const MAX_ROWS: usize = 512;

const CLAIMS_HEADER: usize = 8;
const CLAIM_BYTES: usize = 12;
const ROW_HEADER: usize = 8;
const COUNT_BYTES: usize = 8;

/// The places of rows and claims in the shared store.
#[derive(Debug, Clone)]
pub struct Rows {
    claims: String,
    rows: Name,
}

/// Who owns a row.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Claim {
    /// Random; names one life of a VM. 0 is nobody.
    pub incarnation: u64,
    /// Moves on each of the owner's ticks.
    pub beat: u32,
}

/// All claims, as read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Claims {
    version: Option<u32>,
    /// Counts the claims that were ever taken away from VMs that seemed dead.
    pub reaped: u32,
    /// A VM has found no free row: what rows tell is not the whole.
    pub overflowed: bool,
    /// By row.
    pub claims: Vec<Claim>,
}

impl Claims {
    /// The row that `incarnation` has claimed.
    #[must_use]
    pub fn row_of(&self, incarnation: u64) -> Option<u16> {
        let row = self.claims.iter().position(|claim| claim.incarnation == incarnation)?;
        u16::try_from(row).ok()
    }

    /// The lowest row that nobody has claimed, if there is any.
    pub fn free(&mut self) -> Option<(u16, &mut Claim)> {
        let row = self.claims.iter().position(|claim| claim.incarnation == 0).unwrap_or(self.claims.len());
        if row >= MAX_ROWS {
            return None;
        }
        if row == self.claims.len() {
            self.claims.push(Claim::default());
        }
        Some((u16::try_from(row).ok()?, self.claims.get_mut(row)?))
    }
}

/// A row as read: whose it is, and what that VM has added to the load table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row {
    /// See [`Claim::incarnation`].
    pub incarnation: u64,
    /// Requests in flight by worker.
    pub counts: Vec<(SlotId, u32)>,
}

impl Rows {
    /// The rows of `instance` for a load table of `geometry`.
    #[must_use]
    pub fn new(instance: &str, geometry: u64) -> Self {
        Self { claims: Name::new('c', instance, geometry).part(0), rows: Name::new('v', instance, geometry) }
    }

    /// All claims.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn claims(&self, store: &mut dyn Store) -> Result<Claims, StoreError> {
        let stored = store.get(&self.claims)?;
        let version = version_of(stored.as_ref());
        let bytes = stored.map(|stored| stored.value).unwrap_or_default();
        let claims = bytes.get(CLAIMS_HEADER..).unwrap_or_default().chunks_exact(CLAIM_BYTES).take(MAX_ROWS);
        Ok(Claims {
            version,
            reaped: read_u32(&bytes, 0),
            overflowed: read_u32(&bytes, 4) != 0,
            claims: claims.map(|raw| Claim { incarnation: read_u64(raw, 0), beat: read_u32(raw, 8) }).collect(),
        })
    }

    /// Stores changed claims if nobody has written them since.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn write_claims(&self, store: &mut dyn Store, claims: &Claims) -> Result<Write, StoreError> {
        let used = claims.claims.iter().rposition(|claim| claim.incarnation != 0).map_or(0, |last| last + 1);
        let mut bytes = vec![0; CLAIMS_HEADER + used * CLAIM_BYTES];
        write(&mut bytes, 0, claims.reaped.to_le_bytes());
        write(&mut bytes, 4, u32::from(claims.overflowed).to_le_bytes());
        for (row, claim) in claims.claims.iter().take(used).enumerate() {
            write(&mut bytes, CLAIMS_HEADER + row * CLAIM_BYTES, claim.incarnation.to_le_bytes());
            write(&mut bytes, CLAIMS_HEADER + row * CLAIM_BYTES + 8, claim.beat.to_le_bytes());
        }
        store.set(&self.claims, &bytes, claims.version)
    }

    /// Row `row`.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn read(&self, store: &mut dyn Store, row: u16) -> Result<Row, StoreError> {
        let bytes = store.get(&self.rows.part(u32::from(row)))?.map(|stored| stored.value).unwrap_or_default();
        let counts = bytes.get(ROW_HEADER..).unwrap_or_default().chunks_exact(COUNT_BYTES);
        let count = |raw: &[u8]| (SlotId { slot: read_u16(raw, 0), generation: read_u16(raw, 2) }, read_u32(raw, 4));
        Ok(Row { incarnation: read_u64(&bytes, 0), counts: counts.map(count).collect() })
    }

    /// The incarnation that has written row `row` last; 0 if it is empty.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn writer(&self, store: &mut dyn Store, row: u16) -> Result<u64, StoreError> {
        Ok(store.get(&self.rows.part(u32::from(row)))?.map_or(0, |stored| read_u64(&stored.value, 0)))
    }

    /// Writes row `row`. Only its owner does (and who was its owner and has not noticed, which the owner mends).
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn write(&self, store: &mut dyn Store, row: u16, image: &RowImage) -> Result<Write, StoreError> {
        store.set(&self.rows.part(u32::from(row)), &image.bytes, None)
    }

    /// Empties row `row` after its owner's death.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn clear(&self, store: &mut dyn Store, row: u16) -> Result<Write, StoreError> {
        store.set(&self.rows.part(u32::from(row)), &[], None)
    }
}

/// A row's bytes, kept by its owner and changed in place: a request changes one count of perhaps a thousand.
#[derive(Debug, Clone)]
pub struct RowImage {
    bytes: Vec<u8>,
    places: std::collections::HashMap<SlotId, usize>,
}

impl RowImage {
    /// The empty row of `incarnation`.
    #[must_use]
    pub fn new(incarnation: u64) -> Self {
        Self { bytes: incarnation.to_le_bytes().to_vec(), places: std::collections::HashMap::new() }
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> Vec<(SlotId, u32)> {
        self.places.iter().map(|(id, at)| (*id, read_u32(&self.bytes, at + 4))).collect()
    }

    /// Whether nothing is counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Adds `change` to the count of `id`, which stops at 0.
    pub fn add(&mut self, id: SlotId, change: i32) {
        let at = self.places.get(&id).copied();
        let count = at.map_or(0, |at| read_u32(&self.bytes, at + 4)).saturating_add_signed(change);
        match (at, count) {
            (None, 0) => {}
            (Some(_), 0) => self.remove(id),
            (Some(at), count) => write(&mut self.bytes, at + 4, count.to_le_bytes()),
            (None, count) => {
                let at = self.bytes.len();
                self.bytes.resize(at + COUNT_BYTES, 0);
                write(&mut self.bytes, at, id.slot.to_le_bytes());
                write(&mut self.bytes, at + 2, id.generation.to_le_bytes());
                write(&mut self.bytes, at + 4, count.to_le_bytes());
                self.places.insert(id, at);
            }
        }
    }

    /// Forgets `id`: its slot has another owner now.
    pub fn remove(&mut self, id: SlotId) {
        let Some(at) = self.places.remove(&id) else { return };
        let last = self.bytes.len().saturating_sub(COUNT_BYTES);
        let moved = SlotId { slot: read_u16(&self.bytes, last), generation: read_u16(&self.bytes, last + 2) };
        if at != last {
            self.bytes.copy_within(last.., at);
            self.places.insert(moved, at);
        }
        self.bytes.truncate(last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn id(slot: u16) -> SlotId {
        SlotId { slot, generation: slot + 1 }
    }

    #[test]
    fn a_row_reads_back_as_its_owner_has_it() {
        let (rows, mut store) = (Rows::new("", 1), MemoryStore::default());
        let mut image = RowImage::new(7);
        for slot in 0..5 {
            image.add(id(slot), i32::from(slot));
        }
        image.add(id(1), -1);
        image.add(id(2), -5);
        image.add(id(9), -1);
        image.add(id(4), 10);
        image.remove(id(3));
        rows.write(&mut store, 3, &image).unwrap();
        assert_eq!(rows.read(&mut store, 3), Ok(Row { incarnation: 7, counts: vec![(id(4), 14)] }));
        assert_eq!(image.counts(), [(id(4), 14)]);
        rows.clear(&mut store, 3).unwrap();
        assert_eq!(rows.read(&mut store, 3), Ok(Row::default()));
        assert_eq!(rows.read(&mut store, 4), Ok(Row::default()));
    }

    #[test]
    fn claims_read_back_and_end_with_the_last_one() {
        let (rows, mut store) = (Rows::new("", 1), MemoryStore::default());
        let mut claims = rows.claims(&mut store).unwrap();
        assert!(claims.claims.is_empty());
        for incarnation in 1..=3 {
            let (_, claim) = claims.free().unwrap();
            *claim = Claim { incarnation, beat: 9 };
        }
        claims.reaped = 2;
        assert_eq!(rows.write_claims(&mut store, &claims), Ok(Write::Done));
        let mut seen = rows.claims(&mut store).unwrap();
        assert_eq!(
            (seen.row_of(2), seen.row_of(4), seen.reaped, seen.claims[2].beat, seen.claims.len()),
            (Some(1), None, 2, 9, 3)
        );
        seen.claims[1] = Claim::default();
        seen.claims[2] = Claim::default();
        assert_eq!(rows.write_claims(&mut store, &seen), Ok(Write::Done));
        assert_eq!(rows.write_claims(&mut store, &claims), Ok(Write::Conflict));
        assert_eq!(rows.claims(&mut store).unwrap().claims.len(), 1);
    }

    #[test]
    fn there_are_no_more_rows_than_allowed() {
        let mut claims = Claims::default();
        for incarnation in 1..=MAX_ROWS as u64 {
            *claims.free().unwrap().1 = Claim { incarnation, beat: 0 };
        }
        assert!(claims.free().is_none());
    }
}
