//! The scheduler in paused time.

use super::*;
use crate::fake_engine::block_cache::block_hashes;

fn rank(options: EngineOptions) -> Arc<Rank> {
    Rank::new(Arc::new(options))
}

/// A thousand tokens a second, blocks of 10 tokens, steps of 10 ms.
fn options() -> EngineOptions {
    EngineOptions {
        block_tokens: 10,
        prefill_tokens_per_second: 1000.0,
        decode_step: Duration::from_millis(10),
        ..EngineOptions::default()
    }
}

fn prompt(name: u8, tokens: usize) -> Prompt {
    Prompt { tokens, blocks: block_hashes(&vec![name; tokens * 4], 40, 0) }
}

#[tokio::test(start_paused = true)]
async fn only_uncached_tokens_take_time() {
    let rank = rank(options());
    let begin = Instant::now();
    let first = rank.admit(prompt(1, 105)).await;
    assert_eq!((first.cached_tokens(), begin.elapsed().as_millis()), (0, 105));
    drop(first);
    let begin = Instant::now();
    let again = rank.admit(prompt(1, 105)).await;
    assert_eq!((again.cached_tokens(), begin.elapsed().as_millis()), (100, 5));
    assert_eq!(rank.load().cached_tokens, 100);
}

#[tokio::test(start_paused = true)]
async fn prefill_is_served_in_order_of_arrival() {
    let rank = rank(options());
    let begin = Instant::now();
    let requests: Vec<_> = (1..=3u8)
        .map(|name| {
            let rank = Arc::clone(&rank);
            tokio::spawn(async move {
                let running = rank.admit(prompt(name, 100)).await;
                let at = begin.elapsed().as_millis();
                drop(running);
                at
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    let load = rank.load();
    assert_eq!((load.running, load.waiting, load.waiting_uncached_tokens), (1, 2, 200));
    let mut ends = Vec::new();
    for request in requests {
        ends.push(request.await.unwrap());
    }
    assert_eq!(ends, [100, 200, 300]);
    let load = rank.load();
    assert_eq!((load.running, load.waiting, load.waiting_uncached_tokens, load.used_tokens), (0, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_full_batch_lets_nobody_in() {
    let rank = rank(EngineOptions { max_running: 1, ..options() });
    let begin = Instant::now();
    let mut first = rank.admit(prompt(1, 100)).await;
    let second = tokio::spawn({
        let rank = Arc::clone(&rank);
        async move {
            drop(rank.admit(prompt(2, 100)).await);
            begin.elapsed().as_millis()
        }
    });
    first.decode(11, 1).await;
    assert_eq!(begin.elapsed().as_millis(), 200);
    assert_eq!((rank.load().running, rank.load().waiting), (1, 1));
    drop(first);
    assert_eq!(second.await.unwrap(), 300);
}

#[tokio::test(start_paused = true)]
async fn leaving_frees_the_slot_the_prefill_and_the_queue() {
    let rank = rank(EngineOptions { max_running: 1, ..options() });
    let spawn = |name: u8| {
        let rank = Arc::clone(&rank);
        tokio::spawn(async move { rank.admit(prompt(name, 1000)).await })
    };
    let (in_prefill, in_line, last) = (spawn(1), spawn(2), spawn(3));
    tokio::time::sleep(Duration::from_millis(300)).await;
    in_line.abort();
    in_prefill.abort();
    let begin = Instant::now();
    let running = last.await.unwrap();
    assert_eq!(begin.elapsed().as_millis(), 1000, "it starts when the first leaves, not later and not earlier");
    assert_eq!((rank.load().running, rank.load().waiting), (1, 0));
    assert_eq!(rank.cached_blocks(), 100, "an aborted prefill caches nothing");
    drop(running);
    assert_eq!(rank.load().used_tokens, 0);
}

#[tokio::test(start_paused = true)]
async fn time_scale_speeds_everything_up_and_throughput_is_counted() {
    let rank = rank(EngineOptions { time_scale: 10.0, ..options() });
    let begin = Instant::now();
    let mut running = rank.admit(prompt(1, 1000)).await;
    assert_eq!(begin.elapsed().as_millis(), 100);
    for _ in 0..1001 {
        running.decode(1, 1).await;
    }
    assert_eq!(begin.elapsed().as_millis(), 1100);
    assert_eq!(rank.load().used_tokens, 2001);
    let rate = rank.load().gen_throughput;
    assert!((900.0..1100.0).contains(&rate), "{rate}");
    drop(running);
    assert!((900.0..1100.0).contains(&rank.load().gen_throughput), "the rate is kept while idle");
}
