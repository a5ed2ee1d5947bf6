//! The hash ring, position for position SMG's, so that a fleet that moves from one to the other keeps its placement.
//!
//! A worker has 150 places, the first 8 bytes of BLAKE3 of `<url>#<number>`, little-endian. A key belongs to the first
//! place at or behind its own position, which is the same function of the key, and goes on to the next worker's place
//! while a worker cannot be chosen. So a worker that comes or goes moves only its own keys.

use std::collections::HashMap;

/// Places of one worker.
pub const PLACES: usize = 150;

/// Who owns which part of the keys, among the workers of one pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ring {
    /// Position, and the worker as a position in the fleet; in order.
    places: Vec<(u64, u16)>,
}

/// Where `key` is on any ring.
#[must_use]
pub fn position(key: &[u8]) -> u64 {
    blake3::hash(key).as_bytes().first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

impl Ring {
    /// The ring of `workers`, given as positions in the fleet with their URLs.
    pub fn new<'a>(workers: impl Iterator<Item = (u16, &'a str)>) -> Self {
        let mut places = Vec::with_capacity(workers.size_hint().0 * PLACES);
        let mut name = String::new();
        for (worker, url) in workers {
            for number in 0..PLACES {
                name.clear();
                name.push_str(url);
                name.push('#');
                name.push_str(&number.to_string());
                places.push((position(name.as_bytes()), worker));
            }
        }
        places.sort_unstable();
        Self { places }
    }

    /// The ring of these workers, with what `before` has of them: hashing is what a ring costs, 150 times for each worker.
    /// `formerly` tells where a worker was in the fleet of `before`.
    pub fn after<'a>(
        before: &Self,
        workers: impl Iterator<Item = (u16, &'a str)>,
        formerly: impl Fn(&str) -> Option<u16>,
    ) -> Self {
        let (mut moved, mut new) = (HashMap::new(), Vec::new());
        for (worker, url) in workers {
            match formerly(url) {
                Some(old) => drop(moved.insert(old, worker)),
                None => new.push((worker, url)),
            }
        }
        let mut places = Self::new(new.into_iter()).places;
        places.extend(before.places.iter().filter_map(|(place, old)| Some((*place, *moved.get(old)?))));
        // Two runs in order: that is a merge.
        places.sort();
        Self { places }
    }

    /// The part of the ring that belongs to the workers for which `keep` holds. Their keys stay theirs.
    #[must_use]
    pub fn part(&self, keep: impl Fn(u16) -> bool) -> Self {
        Self { places: self.places.iter().copied().filter(|&(_, worker)| keep(worker)).collect() }
    }

    /// The first worker at or behind `position` that `accepts`, as a position in the fleet.
    pub fn owner(&self, position: u64, accepts: impl Fn(u16) -> bool) -> Option<u16> {
        let start = self.places.partition_point(|&(place, _)| place < position);
        let (before, behind) = self.places.split_at_checked(start)?;
        behind.iter().chain(before).map(|&(_, worker)| worker).find(|&worker| accepts(worker))
    }

    /// The first `most` workers at or behind `position` that `accepts`, each once.
    pub fn order(&self, position: u64, most: usize, accepts: impl Fn(u16) -> bool) -> Vec<u16> {
        let start = self.places.partition_point(|&(place, _)| place < position);
        let (before, behind) = self.places.split_at_checked(start).unwrap_or_default();
        let mut order: Vec<u16> = Vec::with_capacity(most);
        for &(_, worker) in behind.iter().chain(before) {
            if order.len() >= most {
                break;
            }
            if !order.contains(&worker) && accepts(worker) {
                order.push(worker);
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URLS: [&str; 4] = ["http://w1:8000", "http://w2:8000", "http://w3:8000", "http://w4:8000"];

    fn ring(workers: usize) -> Ring {
        Ring::new((0..).zip(URLS).take(workers))
    }

    /// The workers that a key comes to one after the other, by the digits of their names.
    fn order(ring: &Ring, key: &str) -> Vec<u16> {
        let order = ring.order(position(key.as_bytes()), 9, |_| true);
        let first = ring.owner(position(key.as_bytes()), |_| true);
        assert_eq!(first, order.first().copied());
        order.into_iter().map(|worker| worker + 1).collect()
    }

    #[test]
    fn places_are_smgs() {
        for (name, expected) in [
            ("http://w1:8000#0", 0x0589_3f24_461a_2751),
            ("http://w1:8000#1", 0x665b_af3f_c0dd_6d13),
            ("http://w1:8000#149", 0x9301_ee71_9453_d575),
            ("http://w2:8000#0", 0x26d5_7892_47a2_f0f3),
            ("http://w3:8000#0", 0xd8fc_47e7_e120_e84e),
        ] {
            assert_eq!(position(name.as_bytes()), expected, "{name}");
        }
        let places = ring(3).places;
        assert_eq!(places.len(), 3 * PLACES);
        assert_eq!(places.first(), Some(&(0x0002_bdb9_befa_97e1, 0)));
        assert_eq!(places.last(), Some(&(0xff3e_9c92_ff54_f92e, 1)));
    }

    #[test]
    fn keys_come_to_smgs_workers_in_smgs_order() {
        for (key, at, expected) in [
            ("user-123", 0x54b3_e313_138a_db57, [3, 1, 2]),
            ("user-1", 0x5826_52fd_0524_859d, [3, 2, 1]),
            ("user-3", 0x2f90_1fd8_ae04_3c23, [3, 1, 2]),
            ("conv", 0xfbf7_29d3_cbed_9581, [2, 3, 1]),
            ("alice", 0x4744_43dc_f378_b271, [1, 3, 2]),
            ("Bearer sk-abc", 0x2692_70ba_b3db_6302, [1, 2, 3]),
        ] {
            assert_eq!(position(key.as_bytes()), at, "{key}");
            assert_eq!(order(&ring(3), key), expected, "{key}");
        }
    }

    #[test]
    fn a_worker_that_comes_takes_its_share_and_nothing_else_moves() {
        let owner = |ring: &Ring, key: &str| ring.owner(position(key.as_bytes()), |_| true).unwrap();
        let (three, four) = (ring(3), ring(4));
        let keys: Vec<String> = (0..10_000).map(|number| format!("key-{number}")).collect();
        let mut counts = [0; 3];
        let mut moved = 0;
        for key in &keys {
            let before = owner(&three, key);
            counts[usize::from(before)] += 1;
            let after = owner(&four, key);
            assert!(after == before || after == 3, "{key} moved between workers that stay");
            moved += usize::from(after != before);
        }
        assert_eq!((counts, moved), ([3415, 3088, 3497], 2661));
    }

    #[test]
    fn a_changed_fleet_has_the_ring_of_its_own() {
        let urls: Vec<String> = (0..8).map(|number| format!("http://w{number}:8000")).collect();
        let ring = |members: &[usize]| Ring::new((0..).zip(members.iter().map(|&member| urls[member].as_str())));
        for (before, after) in [
            (vec![0, 1, 2, 3], vec![0, 1, 2, 3]),
            (vec![0, 1, 2, 3], vec![3, 1, 0]),
            (vec![0, 1], vec![5, 0, 4, 1, 6]),
            (vec![0, 1], vec![2, 3]),
            (vec![], vec![2, 3]),
            (vec![2, 3], vec![]),
        ] {
            let formerly = |url: &str| before.iter().position(|&member| urls[member] == url).map(|at| at as u16);
            let members = (0..).zip(after.iter().map(|&member| urls[member].as_str()));
            assert_eq!(Ring::after(&ring(&before), members, formerly), ring(&after), "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_part_has_the_owners_of_a_ring_of_its_own() {
        let part = ring(4).part(|worker| worker != 1);
        assert_eq!(part, Ring::new((0..).zip(URLS).filter(|(worker, _)| *worker != 1)));
        assert!(!order(&part, "conv").contains(&2));
    }

    #[test]
    fn nobody_owns_anything_on_an_empty_ring() {
        assert_eq!(Ring::default().owner(7, |_| true), None);
        assert_eq!(ring(3).owner(7, |_| false), None);
    }
}
