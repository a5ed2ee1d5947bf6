//! Held requests whose bodies do not come.

use super::{Bench, Script, chat, routed};
use crate::balancer::Level;
use crate::balancer::tests::{config, parse, url};
use crate::exchange::{Exchange, PATIENCE_MS, Step};

fn tick(bench: &mut Bench, exchange: &mut Exchange, http: &mut Script) -> Step {
    bench.on(http, |scene| exchange.on_tick(scene))
}

/// A request that has been held and let go.
fn let_go(bench: &mut Bench, http: &mut Script) -> (Exchange, Step) {
    let mut exchange = Exchange::default();
    assert_eq!(bench.headers(&mut exchange, http, false), Step::Pause);
    bench.vm.pass(PATIENCE_MS - 1);
    assert_eq!(tick(bench, &mut exchange, http), Step::Pause);
    bench.vm.pass(1);
    let step = tick(bench, &mut exchange, http);
    (exchange, step)
}

fn degraded(bench: &mut Bench) -> u64 {
    bench.vm.metric("smg_degraded;reason=no_stop_iteration")
}

#[test]
fn a_request_that_waits_in_vain_is_routed_by_load_and_later_ones_do_not_wait() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", &"long enough to be remembered ".repeat(9)));
    let (mut exchange, step) = let_go(&mut bench, &mut http);
    let first = routed(&step);
    assert!(exchange.is_counted());
    assert_eq!(degraded(&mut bench), 0, "the client may only be slow");
    assert_eq!(bench.body(&mut exchange, &mut http, 100, false), Step::Continue, "its body had been waiting for it");
    assert_eq!(degraded(&mut bench), 1);
    let (_, step) = bench.send(&mut http);
    assert_ne!(routed(&step), first, "placed at once, where less is in flight");
    assert_eq!(bench.vm.metric("smg_cache_aware_policy_branch_total;branch=expected_wait_fallback"), 0);
    let told = bench.vm.world.log.0.iter().filter(|(level, _)| *level == Level::Error).count();
    assert_eq!(told, 1);
    bench.done(&mut exchange, &mut http);
}

#[test]
fn a_slow_client_proves_nothing() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", "hello"));
    let (mut exchange, _) = let_go(&mut bench, &mut http);
    bench.vm.pass(3_000);
    assert_eq!(bench.body(&mut exchange, &mut http, 10, true), Step::Continue);
    assert_eq!(degraded(&mut bench), 0);
    let mut next = Exchange::default();
    assert_eq!(bench.headers(&mut next, &mut http, false), Step::Pause, "the next one is held again");
}

#[test]
fn where_bodies_come_a_slow_one_is_waited_for() {
    let mut bench = Bench::new(config("cache_aware", 2, ""));
    let mut http = Script::chat(chat("m", "hello"));
    bench.send(&mut http);
    let mut slow = Exchange::default();
    assert_eq!(bench.headers(&mut slow, &mut http, false), Step::Pause);
    bench.vm.pass(PATIENCE_MS * 100);
    assert_eq!(tick(&mut bench, &mut slow, &mut http), Step::Pause);
}

#[test]
fn without_bodies_tokens_and_a_model_header_still_decide() {
    let workers = format!(r#"[{{"url":"{}","models":["a"]}},{{"url":"{}","models":["b"]}}]"#, url(0), url(1));
    let mut bench = Bench::new(parse(&format!(r#"{{"model_header":"x-model","workers":{workers}}}"#)));
    let mut http = Script::chat(chat("b", "hello"));
    let (mut exchange, _) = let_go(&mut bench, &mut http);
    bench.body(&mut exchange, &mut http, 10, false);
    let ids = ["7"; 64].join(",");
    let mut http = http.header("x-model", "b").header("x-smg-routing-tokens", ids);
    for _ in 0..2 {
        let (_, step) = bench.send(&mut http);
        assert_eq!(routed(&step), 1);
    }
    assert_eq!(bench.vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match"), 1);
}
