//! Up to eight VMs over one store, in any order of their calls into shared data: every count is what a sequence of single
//! steps would have left, and no pick goes to a busy worker while another is idle.

mod oracle;
mod player;
mod turns;

use std::sync::Arc;
use std::time::Instant;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::json;

use self::oracle::{Oracle, Seen};
use self::player::{Table, What, play};
use crate::fleet::worker_url;
use crate::tables::Tables;

const VMS: usize = 8;

/// In `make test`; `make soak` runs a million.
const INTERLEAVINGS: u64 = 2000;

/// Rounds of one set of VMs; the next begins with empty tables.
const ROUNDS: u64 = 400;

/// Every VM ticks in each round of this number, so that none counts as dead. Every other time nothing else happens: the
/// leader's audit takes a request for lost that it finds half counted on three ticks in a row, which are 250 ms apart and
/// not, as here, a few calls.
const TICKS_EVERY: u64 = 4;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Plays `rounds` rounds with new VMs, over a store that is `careless` or not.
///
/// # Errors
/// When a VM's thread has panicked; its message says at what.
fn play_world(seed: u64, rounds: u64, careless: bool) -> Result<Seen, String> {
    let mut rng = SmallRng::seed_from_u64(seed);
    let policy = *["least_load", "least_load", "cache_aware", "round_robin", "random"].choose(&mut rng).unwrap();
    let workers = *[1, 2, 3, 8, 13, 24].choose(&mut rng).unwrap();
    let urls: Vec<_> = (0..workers).map(worker_url).collect();
    let config = json!({
        "max_workers": 64, "workers": urls, "policy": policy, "disable_circuit_breaker": true, "max_tree_size": 1 << 20,
    })
    .to_string();
    let tables = |table: &Table| Tables::new(&table.config, table.store.clone());
    let load_key = Tables::new(&config, filter_core::store::MemoryStore::default()).load_key();
    let table =
        Arc::new(Table::new(config, VMS, workers, careless, Oracle::new(load_key, VMS, policy == "least_load")));
    let threads: Vec<_> = (0..VMS)
        .map(|me| {
            let table = Arc::clone(&table);
            std::thread::spawn(move || play(table, me, seed))
        })
        .collect();
    while table.turns.joined() < VMS {
        assert!(threads.iter().all(|thread| !thread.is_finished()), "a VM has not started");
        std::thread::yield_now();
    }
    let mut round = |what: What| {
        let some = rng.random_range(2..=VMS);
        let mut who: Vec<_> = (0..VMS).collect();
        if what == What::Requests {
            who = rand::seq::index::sample(&mut rng, VMS, some).into_vec();
            who.sort_unstable();
        }
        let seed = rng.random();
        *table.plan() = player::Plan { seed, what };
        if table.turns.round(seed, who) {
            return Ok(());
        }
        table.turns.end();
        Err(format!("{policy} over {workers} workers, {what:?}: see the panic of a VM's thread above"))
    };
    round(What::Configure)?;
    table.oracle().settle(tables(&table).ids());
    for number in 0..rounds {
        round(match number % (2 * TICKS_EVERY) {
            0 => What::Settle,
            TICKS_EVERY => What::Tick,
            _ => What::Requests,
        })?;
    }
    round(What::Finish)?;
    // A tick can lose its races too.
    for _ in 0..10 {
        round(What::Settle)?;
    }
    assert!(table.oracle().is_settled(), "a change still waits after ten ticks");
    let counted: Vec<_> = tables(&table).slots().iter().map(|slot| slot.in_flight).collect();
    assert_eq!(counted, vec![0; workers], "something is in flight at the end");
    assert_eq!(table.oracle().counts(), counted);
    table.turns.end();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let seen = table.oracle().seen;
    Ok(seen)
}

#[test]
fn any_interleaving_counts_like_a_sequence_and_leaves_no_idle_worker_out() {
    let (seed, interleavings) = (number("SEED", 1), number("INTERLEAVINGS", INTERLEAVINGS));
    println!("SEED={seed} INTERLEAVINGS={interleavings}");
    let (mut seen, begin) = (Seen::default(), Instant::now());
    for world in 0..interleavings.div_ceil(ROUNDS) {
        let of_world = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(world);
        println!("world {world}, {:?} so far", begin.elapsed());
        seen.add(play_world(of_world, ROUNDS.min(interleavings - world * ROUNDS), false).unwrap());
    }
    println!("{seen:?} in {:?}", begin.elapsed());
    assert!(seen.conflicts > 0 && seen.idle > 0, "the schedules have made nothing happen: {seen:?}");
    assert!(seen.worn_out * 1000 <= seen.picks, "too many picks have lost all their races: {seen:?}");
}

#[test]
fn a_store_without_compare_and_swap_is_found_out() {
    assert!(play_world(1, ROUNDS, true).is_err(), "the model would not notice a lost update");
}
