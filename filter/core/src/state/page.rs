//! A small set-associative table in shared pages: fixed-width entries under a 64-bit tag, the least recently used
//! replaced. One implementation serves prefix tree and turns; its size is bounded by its geometry for ever.

use super::bytes::{read_u32, read_u64, write};
use super::names::Name;
use crate::store::{ABSENT, Store, StoreError, Versioned, Write};

const HEADER_BYTES: usize = 8;
const TAG_BYTES: usize = 8;
const STAMP_BYTES: usize = 4;

/// The geometry of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageTable {
    name: Name,
    pages: u32,
    entry_bytes: usize,
    entries: usize,
}

impl PageTable {
    /// A table of at most `pages` pages of `entries` entries, each with `payload_bytes` beside tag and stamp.
    #[must_use]
    pub fn new(kind: char, instance: &str, pages: u32, entries: usize, payload_bytes: usize) -> Self {
        let pages = pages.max(1);
        let geometry = u64::from(pages) << 32 ^ (entries as u64) << 16 ^ payload_bytes as u64;
        Self {
            name: Name::new(kind, instance, geometry),
            pages,
            entry_bytes: TAG_BYTES + STAMP_BYTES + payload_bytes,
            entries,
        }
    }

    /// The number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.pages
    }

    /// The most bytes one page can take.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        HEADER_BYTES + self.entries * self.entry_bytes
    }

    /// The page that holds `tag`, if anything does.
    #[must_use]
    pub fn page_of(&self, tag: u64) -> u32 {
        // Multiply-shift spreads the tag's high bits over any number of pages.
        ((u128::from(tag) * u128::from(self.pages)) >> 64) as u32
    }

    /// Reads page `index`; a page nobody has written is empty.
    ///
    /// # Errors
    /// When the host cannot answer.
    pub fn read(&self, store: &mut dyn Store, index: u32) -> Result<Page, StoreError> {
        Ok(self.page(index, store.get(&self.name.part(index))?))
    }

    /// As [`PageTable::read`], at the same cost however many entries the page has.
    ///
    /// # Errors
    /// When the host cannot answer.
    pub fn read_evenly(&self, store: &mut dyn Store, index: u32) -> Result<Page, StoreError> {
        Ok(self.page(index, store.get_with_room(&self.name.part(index), self.page_bytes())?))
    }

    fn page(&self, index: u32, stored: Option<Versioned>) -> Page {
        let (mut bytes, version) = stored.map_or((Vec::new(), None), |stored| (stored.value, Some(stored.version)));
        let entry_bytes = bytes.len().checked_sub(HEADER_BYTES);
        if entry_bytes.is_none_or(|bytes| bytes % self.entry_bytes != 0 || bytes > self.entries * self.entry_bytes) {
            bytes.clear();
            bytes.resize(HEADER_BYTES, 0);
        }
        Page { index, version, bytes, entry_bytes: self.entry_bytes, entries: self.entries }
    }

    /// Stores a changed page if nobody has written it since it was read.
    ///
    /// # Errors
    /// When the host cannot store the value.
    pub fn write(&self, store: &mut dyn Store, page: &Page) -> Result<Write, StoreError> {
        store.set(&self.name.part(page.index), &page.bytes, Some(page.version.unwrap_or(ABSENT)))
    }
}

/// How an entry came into its page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entered {
    /// It was there.
    Known,
    /// There was room.
    Added,
    /// The least recently used one made room.
    Replaced,
}

/// A copy of one page.
#[derive(Debug, Clone)]
pub struct Page {
    index: u32,
    version: Option<u32>,
    bytes: Vec<u8>,
    entry_bytes: usize,
    entries: usize,
}

impl Page {
    /// Which page this is.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Entries in use.
    #[must_use]
    pub fn used(&self) -> usize {
        (self.bytes.len() - HEADER_BYTES.min(self.bytes.len())) / self.entry_bytes
    }

    /// Bytes that the page takes in the store; 0 if nobody has written it.
    #[must_use]
    pub fn stored_bytes(&self) -> usize {
        if self.version.is_some() { self.bytes.len() } else { 0 }
    }

    /// Whether a new tag would replace another.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.used() >= self.entries
    }

    /// The entry with `tag`.
    #[must_use]
    pub fn find(&self, tag: u64) -> Option<usize> {
        let entries = self.bytes.get(HEADER_BYTES..)?;
        // As numbers: comparing slices is a call for each.
        let is_wanted = |entry: &[u8]| entry.first_chunk().is_some_and(|raw| u64::from_le_bytes(*raw) == tag);
        entries.chunks_exact(self.entry_bytes).position(is_wanted)
    }

    /// As [`Page::find`], at the same cost wherever the tag stands and however many others do: it looks as often as a
    /// full page has entries.
    #[must_use]
    pub fn find_evenly(&self, tag: u64) -> Option<usize> {
        let last = self.used().checked_sub(1)?;
        let mut found = usize::MAX;
        for entry in 0..self.entries {
            let entry = entry.min(last);
            let is_wanted = read_u64(&self.bytes, self.at(entry)) == tag;
            // No branch, which would tell the places apart: all bits are set where the tag does not stand.
            found &= entry | usize::from(is_wanted).wrapping_sub(1);
        }
        (found <= last).then_some(found)
    }

    /// The entry with `tag`, made if need be, and freshly stamped. A new one's payload is zeros.
    pub fn find_or_insert(&mut self, tag: u64) -> (usize, Entered) {
        if let Some(entry) = self.find(tag) {
            self.touch(entry);
            return (entry, Entered::Known);
        }
        let (entry, entered) = if self.is_full() {
            (self.least_recently_used(), Entered::Replaced)
        } else {
            self.bytes.resize(self.bytes.len() + self.entry_bytes, 0);
            (self.used().saturating_sub(1), Entered::Added)
        };
        let at = self.at(entry);
        if let Some(raw) = self.bytes.get_mut(at..at + self.entry_bytes) {
            raw.fill(0);
            write(raw, 0, tag.to_le_bytes());
        }
        self.touch(entry);
        (entry, entered)
    }

    /// The entry with `tag`, made if there is room; never at another's expense. A new one's payload is zeros.
    pub fn find_or_add(&mut self, tag: u64) -> Option<(usize, Entered)> {
        (!self.is_full() || self.find(tag).is_some()).then(|| self.find_or_insert(tag))
    }

    /// Removes `entry`; the last one takes its place.
    pub fn remove(&mut self, entry: usize) {
        let Some(last) = self.used().checked_sub(1).filter(|&last| entry <= last) else { return };
        let (from, to) = (self.at(last), self.at(entry));
        self.bytes.copy_within(from.., to);
        self.bytes.truncate(from);
    }

    /// Stamps `entry` as the most recently used of the page.
    pub fn touch(&mut self, entry: usize) {
        let now = self.clock().wrapping_add(1);
        write(&mut self.bytes, 0, now.to_le_bytes());
        let at = self.at(entry) + TAG_BYTES;
        write(&mut self.bytes, at, now.to_le_bytes());
    }

    /// The page's logical clock: the number of stamps it has given.
    #[must_use]
    pub fn clock(&self) -> u32 {
        read_u32(&self.bytes, 0)
    }

    /// How many stamps ago `entry` was touched.
    #[must_use]
    pub fn age(&self, entry: usize) -> u32 {
        self.clock().wrapping_sub(read_u32(&self.bytes, self.at(entry) + TAG_BYTES))
    }

    /// Whether `entry` is among the half of a full page that will be replaced first.
    #[must_use]
    pub fn is_fading(&self, entry: usize) -> bool {
        let age = self.age(entry);
        self.is_full() && (0..self.used()).filter(|&other| self.age(other) > age).count() < self.entries / 2
    }

    /// The entry's payload.
    #[must_use]
    pub fn payload(&self, entry: usize) -> &[u8] {
        let at = self.at(entry);
        self.bytes.get(at + TAG_BYTES + STAMP_BYTES..at + self.entry_bytes).unwrap_or_default()
    }

    /// The entry's payload, to be changed.
    pub fn payload_mut(&mut self, entry: usize) -> &mut [u8] {
        let at = self.at(entry);
        self.bytes.get_mut(at + TAG_BYTES + STAMP_BYTES..at + self.entry_bytes).unwrap_or_default()
    }

    fn at(&self, entry: usize) -> usize {
        HEADER_BYTES + entry * self.entry_bytes
    }

    fn least_recently_used(&self) -> usize {
        (0..self.used()).max_by_key(|&entry| self.age(entry)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    fn table() -> PageTable {
        PageTable::new('t', "", 4, 3, 4)
    }

    #[test]
    fn an_entry_is_found_again_after_it_was_stored() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read(&mut store, 2).unwrap();
        let (entry, entered) = page.find_or_insert(77);
        assert_eq!(entered, Entered::Added);
        page.payload_mut(entry).copy_from_slice(b"data");
        assert_eq!(table.write(&mut store, &page), Ok(Write::Done));
        let page = table.read(&mut store, 2).unwrap();
        assert_eq!(page.payload(page.find(77).unwrap()), b"data");
        assert_eq!(page.find(78), None);
    }

    #[test]
    fn looking_everywhere_finds_the_same() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read_evenly(&mut store, 0).unwrap();
        for tag in [0, 7, 9, 0] {
            assert_eq!(page.find_evenly(tag), page.find(tag), "{tag} of {}", page.used());
            page.find_or_insert(tag);
            for tag in [0, 7, 9, 11, u64::MAX] {
                assert_eq!(page.find_evenly(tag), page.find(tag), "{tag} of {}", page.used());
            }
        }
    }

    #[test]
    fn the_least_recently_used_entry_goes_first() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read(&mut store, 0).unwrap();
        for tag in [1, 2, 3, 1] {
            page.find_or_insert(tag);
        }
        let (entry, entered) = page.find_or_insert(4);
        assert!(entered == Entered::Replaced && page.payload(entry) == [0; 4]);
        assert_eq!(page.find(2), None);
        assert!([1, 3, 4].into_iter().all(|tag| page.find(tag).is_some()));
    }

    #[test]
    fn a_removed_entry_leaves_the_others_alone() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read(&mut store, 0).unwrap();
        for tag in [1, 2, 3] {
            let (entry, _) = page.find_or_add(tag).unwrap();
            page.payload_mut(entry).copy_from_slice(&[tag as u8; 4]);
        }
        assert!(page.find_or_add(4).is_none() && page.find_or_add(2).is_some());
        page.remove(page.find(1).unwrap());
        assert!((page.used(), page.find(1)) == (2, None) && page.payload(page.find(3).unwrap()) == [3; 4]);
        page.remove(page.find(3).unwrap());
        page.remove(page.find(2).unwrap());
        page.remove(0);
        assert_eq!(page.used(), 0);
    }

    #[test]
    fn a_page_never_grows_beyond_its_size() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read(&mut store, 0).unwrap();
        for tag in 0..1000 {
            page.find_or_insert(tag);
        }
        assert_eq!(page.used(), 3);
        table.write(&mut store, &page).unwrap();
        assert!(store.sizes().iter().all(|(_, bytes)| *bytes <= table.page_bytes()));
    }

    #[test]
    fn a_lost_race_is_a_conflict() {
        let (table, mut store) = (table(), MemoryStore::default());
        let mut page = table.read(&mut store, 0).unwrap();
        page.find_or_insert(1);
        table.write(&mut store, &page).unwrap();
        let (mut one, mut two) = (table.read(&mut store, 0).unwrap(), table.read(&mut store, 0).unwrap());
        one.find_or_insert(2);
        two.find_or_insert(3);
        assert_eq!(table.write(&mut store, &one), Ok(Write::Done));
        assert_eq!(table.write(&mut store, &two), Ok(Write::Conflict));
    }

    #[test]
    fn two_creators_of_a_page_do_not_overwrite_each_other() {
        let (table, mut store) = (table(), MemoryStore::default());
        let (mut one, mut two) = (table.read(&mut store, 0).unwrap(), table.read(&mut store, 0).unwrap());
        one.find_or_insert(2);
        two.find_or_insert(3);
        assert_eq!(table.write(&mut store, &one), Ok(Write::Done));
        assert_eq!(table.write(&mut store, &two), Ok(Write::Conflict));
    }

    #[test]
    fn bytes_of_another_shape_read_as_an_empty_page() {
        let (table, mut store) = (table(), MemoryStore::default());
        store.set(&table.name.part(0), &[9; 4000], None).unwrap();
        assert_eq!(table.read(&mut store, 0).unwrap().used(), 0);
    }

    #[test]
    fn every_tag_has_a_page() {
        let table = PageTable::new('t', "", 17_000, 3, 4);
        for tag in [0, 1, u64::MAX / 2, u64::MAX] {
            assert!(table.page_of(tag) < 17_000);
        }
    }
}
