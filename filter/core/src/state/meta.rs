//! The head of an instance's shared state: its random seed and who leads.
//!
//! The leader does what must be done once per process (gauges, sweeps). Its lease is a counter it moves on every
//! tick; another VM takes over when the counter has stood still for five of its own ticks. Clocks are never compared:
//! a process that was suspended would depose the living.

use super::bytes::{read_u32, read_u64, write};
use super::names::Name;
use crate::store::{Store, StoreError, Write, version_of};

const BYTES: usize = 32;

/// Ticks without a heartbeat after which the leader counts as gone.
const PATIENCE: u32 = 5;

/// The decoded value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    /// Random, chosen once per instance; 0 before.
    pub seed: u64,
    /// The leading VM's random identity; 0 is nobody.
    pub leader: u64,
    /// Moves with each of the leader's ticks.
    pub beat: u32,
}

impl Meta {
    fn decode(bytes: &[u8]) -> Self {
        Self { seed: read_u64(bytes, 0), leader: read_u64(bytes, 8), beat: read_u32(bytes, 16) }
    }

    fn encode(self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        write(&mut bytes, 0, self.seed.to_le_bytes());
        write(&mut bytes, 8, self.leader.to_le_bytes());
        write(&mut bytes, 16, self.beat.to_le_bytes());
        bytes
    }
}

/// One VM's view of the lease.
#[derive(Debug)]
pub struct Lease {
    key: String,
    /// This VM's identity, random and not 0.
    me: u64,
    last_beat: u32,
    still: u32,
}

impl Lease {
    /// The lease of `instance` as VM `me` sees it.
    #[must_use]
    pub fn new(instance: &str, me: u64) -> Self {
        Self { key: Name::new('m', instance, 0).part(0), me: me.max(1), last_beat: 0, still: 0 }
    }

    /// The seed of the instance, made of `proposal` if there is none yet.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn seed(&self, store: &mut dyn Store, proposal: u64) -> Result<u64, StoreError> {
        let stored = store.get(&self.key)?;
        let version = version_of(stored.as_ref());
        let meta = stored.map_or(Meta::default(), |stored| Meta::decode(&stored.value));
        if meta.seed != 0 {
            return Ok(meta.seed);
        }
        let fresh = Meta { seed: proposal.max(1), ..meta };
        store.set(&self.key, &fresh.encode(), version)?;
        // Another may have been first; what stands now is what counts.
        Ok(store.get(&self.key)?.map_or(fresh, |stored| Meta::decode(&stored.value)).seed)
    }

    /// To be called once per tick: whether this VM leads now, and the seed as it stands.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn beat(&mut self, store: &mut dyn Store) -> Result<(bool, u64), StoreError> {
        let Some(stored) = store.get(&self.key)? else { return Ok((false, 0)) };
        let meta = Meta::decode(&stored.value);
        if meta.leader != self.me && meta.leader != 0 {
            if meta.beat != self.last_beat {
                (self.last_beat, self.still) = (meta.beat, 0);
                return Ok((false, meta.seed));
            }
            self.still += 1;
            if self.still < PATIENCE {
                return Ok((false, meta.seed));
            }
        }
        let next = Meta { leader: self.me, beat: meta.beat.wrapping_add(1), ..meta };
        let written = store.set(&self.key, &next.encode(), Some(stored.version))?;
        (self.last_beat, self.still) = (next.beat, 0);
        Ok((written == Write::Done, meta.seed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;

    #[test]
    fn all_vms_agree_on_the_seed() {
        let mut store = MemoryStore::default();
        assert_eq!(Lease::new("", 1).seed(&mut store, 77), Ok(77));
        assert_eq!(Lease::new("", 2).seed(&mut store, 88), Ok(77));
    }

    #[test]
    fn one_vm_leads_and_another_follows_when_it_is_gone() {
        let mut store = MemoryStore::default();
        let (mut one, mut two) = (Lease::new("", 1), Lease::new("", 2));
        one.seed(&mut store, 7).unwrap();
        for _ in 0..20 {
            assert_eq!(one.beat(&mut store), Ok((true, 7)));
            assert_eq!(two.beat(&mut store), Ok((false, 7)));
        }
        let ticks = (0..20).take_while(|_| !two.beat(&mut store).unwrap().0).count();
        assert!((4..=5).contains(&ticks));
        assert_eq!(one.beat(&mut store), Ok((false, 7)));
    }
}
