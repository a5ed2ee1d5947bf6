//! What a request with a key costs, however many keys are remembered, and what the policies that go by hashes cost.

use filter_core::policy::sticky::Pins;
use filter_core::state::fleet::url_hash;
use filter_core::state::meta::Lease;
use filter_core::state::pins::PinTable;
use filter_core::store::Write;
use serde_json::{Value, json};
use testbed::wasm::{Counters, Process};

use crate::fleet::{Fleet, chat, prompt, worker_url};

const KEY: &str = "x-smg-routing-key";
/// `max_sticky_keys` of a configuration without it.
const MOST_KEYS: u32 = 1 << 20;
/// The shared table of keys, behind the filter's back.
struct Keys {
    process: Process,
    table: PinTable,
    seed: u64,
}

impl Keys {
    fn of(fleet: &Fleet) -> Self {
        let process = fleet.process.clone();
        let seed = Lease::new("", 1).seed(&mut process.store(), 0).unwrap();
        Self { process, table: PinTable::new("", MOST_KEYS), seed }
    }

    fn tag(&self, key: &str) -> u64 {
        PinTable::tag(self.seed, "\0manual", key.as_bytes())
    }

    /// Gives the key of `tag` to the first worker.
    fn pin(&self, tag: u64) {
        let mut store = self.process.store();
        let mut pinned = self.table.read(&mut store, tag).unwrap();
        pinned.set(Pins([url_hash(&worker_url(0)), 0]), self.process.now().as_secs() as u32);
        assert_eq!(self.table.write(&mut store, &pinned), Ok(Write::Done));
    }

    fn is_known(&self, key: &str) -> bool {
        self.table.read(&mut self.process.store(), self.tag(key)).unwrap().pins().is_some()
    }
}

/// What a request with `key` costs: the cheapest of a few, since one draws a second random number now and then; without the
/// first ones, which find the VM's heap as others left it.
#[track_caller]
fn cost(fleet: &Fleet, key: &str) -> Counters {
    let costs = (0..10).map(|_| fleet.complete(0, chat("hello").header(KEY, key)).1).skip(2);
    costs.min_by_key(|counters| counters.fuel).unwrap()
}

#[track_caller]
fn assert_same(all: &[(String, Counters)]) {
    for (what, counters) in all {
        eprintln!("{what}: {} host calls, fuel {}", counters.host_calls_total(), counters.fuel);
    }
    for (what, counters) in all {
        assert_eq!(counters.host_calls, all[0].1.host_calls, "{what}");
        assert_eq!(counters.fuel, all[0].1.fuel, "{what}");
    }
}

/// `PINS=1000000` goes on to as many.
#[test]
fn a_known_key_costs_the_same_however_many_are_known() {
    let fleet = Fleet::new(1, 2, json!({"policy": "manual"}));
    let keys = Keys::of(&fleet);
    let most: u32 = std::env::var("PINS").ok().map_or(100_000, |pins| pins.parse().unwrap());
    let mut levels = vec![1000, 100_000, most];
    levels.dedup();
    // The first keys, that soon have company on their pages.
    let users = [0, 1, 2, 500, 998, 999].map(|user| format!("user-{user:07}"));
    let mut found = users.each_ref().map(|_| Vec::new());
    let mut pinned = 0;
    for level in levels {
        while pinned < level {
            keys.pin(keys.tag(&format!("user-{pinned:07}")));
            pinned += 1;
        }
        for (user, found) in users.iter().zip(&mut found) {
            assert!(keys.is_known(user), "the test looks into the filter's own table");
            found.push((format!("{user} of {level} pins"), cost(&fleet, user)));
        }
    }
    // Keys differ among themselves by the digits in the names of their pages.
    found.iter().for_each(|of_one_key| assert_same(of_one_key));
}

#[test]
fn a_full_page_costs_no_more_than_an_empty_one() {
    let fleet = Fleet::new(1, 2, json!({"policy": "manual"}));
    let keys = Keys::of(&fleet);
    keys.pin(keys.tag("user-1"));
    let mut found = Vec::new();
    let mut others = 0;
    for level in [0, 1, 10, 20, 26, 27, 28, 31] {
        while others < level {
            others += 1;
            // Tags so near each other share a page.
            keys.pin(keys.tag("user-1").wrapping_add(others));
        }
        found.push((format!("beside {level}"), cost(&fleet, "user-1")));
    }
    assert_same(&found);
}

/// Host calls of the first request and of the next one under `config`, with these headers.
fn calls(config: Value, headers: &[(&str, &str)]) -> [u64; 2] {
    let fleet = Fleet::new(1, 2, config.clone());
    fleet.complete(0, chat(&prompt(3, 4 << 10)));
    [0, 1].map(|_| {
        let request =
            headers.iter().fold(chat(&prompt(7, 4 << 10)), |request, (name, value)| request.header(*name, *value));
        let (_, counters) = fleet.complete(0, request);
        eprintln!(
            "{config} {headers:?}: {} host calls, fuel {}, {:?}",
            counters.host_calls_total(),
            counters.fuel,
            counters.host_calls
        );
        counters.host_calls_total()
    })
}

#[test]
fn policies_that_go_by_keys_and_hashes_keep_their_budgets_of_host_calls() {
    let keyed: &[(&str, &str)] = &[(KEY, "user-1")];
    let sticky = |policy: &str| json!({"policy": policy, "sticky_sessions": true});
    for (config, headers, most) in [
        (json!({"policy": "random"}), &[][..], [13, 13]),
        (json!({"policy": "power_of_two"}), &[][..], [13, 13]),
        (json!({"policy": "consistent_hashing"}), keyed, [17, 17]),
        (json!({"policy": "consistent_hashing"}), &[("x-smg-target-worker", "1")], [14, 14]),
        (json!({"policy": "consistent_hashing"}), &[("authorization", "Bearer me")], [13, 13]),
        (json!({"policy": "prefix_hash"}), &[][..], [14, 14]),
        (json!({"policy": "manual"}), keyed, [19, 18]),
        (sticky("random"), keyed, [20, 19]),
    ] {
        let found = calls(config.clone(), headers);
        let within = found.iter().zip(most).all(|(&found, most)| found <= most);
        assert!(within, "{config} {headers:?}: {found:?} host calls, at most {most:?} wanted");
    }
}

/// The hash ring of 1,000 workers has 150,000 places; no request waits for it.
#[test]
fn the_ring_is_made_before_the_first_request() {
    let fleet = Fleet::new(1, 1000, json!({ "policy": "consistent_hashing", "max_workers": 1024 }));
    let fuel = || fleet.complete(0, chat("hello").header(KEY, "user-1")).1.fuel;
    let (first, second) = (fuel(), fuel());
    eprintln!("fuel of the first and the second request: {first} and {second}");
    assert!(first < second + second / 10, "{first} for the first, {second} for the second");
}
