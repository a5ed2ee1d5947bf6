//! Short versions of what `make chaos` and `make soak` do for long.

use testbed::chaos::{ChaosSettings, run};
use testbed::soak::{self, Soak};

use crate::support::SOON;

#[tokio::test]
async fn nothing_is_left_counted_and_no_retry_missed_when_all_goes_wrong_at_once() {
    let settings = ChaosSettings {
        requests: 500,
        samples: 3,
        clients: 16,
        // No matter how slow the machine is.
        sample_within: SOON,
        end_within: SOON,
        ..ChaosSettings::default()
    };
    let report = run(settings).await.unwrap();
    assert!(report.broken().is_empty(), "{:?}\n{report}", report.broken());
}

#[tokio::test]
async fn the_tree_and_the_keys_stay_within_their_bounds() {
    for soak in [
        Soak::Tree { bytes: 1 << 20, requests: 6000 },
        Soak::Keys { requests: 6000 },
        // Three and a half keys for each place, some 110 to a page of 32.
        Soak::Pins { most: 1000, requests: 6000 },
        Soak::Pins { most: 6000, requests: 3000 },
    ] {
        let report = soak::run(soak).await.unwrap();
        assert!(report.broken().is_empty(), "{:?}\n{report}", report.broken());
    }
}
