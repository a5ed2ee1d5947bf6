//! A process that stands still for long: nobody is taken for dead because time has passed.

use std::time::{Duration, Instant};

use testbed::envoy::{Envoy, EnvoyOptions};

use crate::gate::{FIRST_PIECE, Gate, HOLD, NEXT_PIECE};
use crate::support::{chat, counts_become, no_vm_was_lost, settles};
use crate::wire::Http2;

const STREAMS: u64 = 200;

/// How long Envoy stands still: longer than it takes to find a VM dead. `SUSPEND_SECONDS` sets another time.
fn pause() -> Duration {
    let seconds = std::env::var("SUSPEND_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(5))
}

#[tokio::test]
async fn a_suspended_envoy_goes_on_where_it_was() {
    let gates = [Gate::start().await, Gate::start().await];
    let options = EnvoyOptions {
        concurrency: 4,
        exact_balance: true,
        ..EnvoyOptions::with_workers(gates.each_ref().map(Gate::address))
    };
    let envoy = Envoy::start(options).await.unwrap();
    let mut threads = envoy.spread(async || Http2::open(envoy.address()).await).await;
    let mut open = Vec::new();
    for number in 0..STREAMS {
        let thread = &mut threads[number as usize % 4];
        let mut answer = thread.send(&[(HOLD, "body")], chat("m", "Hold on")).await.unwrap();
        assert_eq!(answer.piece().await.unwrap(), FIRST_PIECE);
        open.push(answer);
    }
    counts_become(&envoy, STREAMS, "before").await;

    envoy.suspend(pause()).await;
    let resumed = Instant::now();
    counts_become(&envoy, STREAMS, "after").await;
    println!("counts agree {:?} after the process goes on", resumed.elapsed());
    // More than twice as long as it takes to find a VM dead: the counts stay.
    tokio::time::sleep(Duration::from_secs(3)).await;
    settles(&envoy, STREAMS, "m", "a while after").await;

    gates.iter().for_each(Gate::pulse);
    for answer in &mut open {
        assert_eq!(answer.piece().await.as_deref(), Some(NEXT_PIECE));
    }
    gates.iter().for_each(Gate::open);
    for answer in open {
        assert!(answer.rest().await.unwrap().ends_with(b"[DONE]\n\n"));
    }
    counts_become(&envoy, 0, "at the end").await;
    no_vm_was_lost(&envoy).await;
}
