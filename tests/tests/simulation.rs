//! The demo in virtual time: what its policies reach does not depend on luck.

use testbed::demo::DemoSettings;
use testbed::simulate::Simulation;

fn demo(cache_divisor: usize) -> Simulation {
    Simulation::new(&DemoSettings { cache_divisor, ..DemoSettings::default() }).unwrap()
}

/// Every criterion of `make demo`: shares of the bound, balance, times to first token, no errors.
#[track_caller]
fn meets_its_criteria(cache_divisor: usize) {
    let simulation = demo(cache_divisor);
    for seed in 1..=5 {
        let outcome = simulation.outcome(seed).unwrap();
        let missed: Vec<String> = outcome.missed().map(ToString::to_string).collect();
        assert!(missed.is_empty(), "seed {seed}: {missed:?}\n{}", outcome.table());
        assert!(outcome.criteria.iter().any(|criterion| criterion.name.contains("busiest")), "it was judged");
    }
}

#[test]
fn the_demo_meets_its_criteria_with_caches_of_a_quarter() {
    meets_its_criteria(4);
}

#[test]
fn the_demo_meets_its_criteria_with_caches_of_a_sixteenth() {
    meets_its_criteria(16);
}

#[test]
fn the_balance_keeps_a_distance_from_its_limit() {
    let settings = DemoSettings { policies: vec!["cache_aware".to_owned()], ..DemoSettings::default() };
    for workload in 1..=3 {
        let simulation = Simulation::new(&DemoSettings { seed: workload, ..settings.clone() }).unwrap();
        for seed in 11..=15 {
            let outcome = simulation.outcome(seed).unwrap();
            let busiest = outcome.policies["cache_aware"].busiest_over_mean;
            assert!(busiest < 1.35, "workload {workload}, seed {seed}\n{}", outcome.table());
        }
    }
}

#[test]
fn equal_seeds_make_equal_replays() {
    let simulation = demo(4);
    let run = |seed| simulation.outcome(seed).unwrap().json();
    assert_eq!(run(7), run(7));
    assert_ne!(run(7)["policies"]["cache_aware"], run(8)["policies"]["cache_aware"]);
}

#[test]
fn what_the_filter_refuses_is_refused() {
    let mut simulation = demo(4);
    assert!(simulation.replay("ideal-affinity", 1).unwrap_err().to_string().contains("ideal-affinity"));
    simulation.plugin = serde_json::json!({"cache_threshold": 2});
    assert!(simulation.replay("cache_aware", 1).unwrap_err().to_string().contains("cache_threshold"));
}
