//! The specification's vectors for `cache_aware`, on both indexes. The shared tree knows texts from 64 bytes on, so
//! there every character of a vector stands 64 times.

use std::collections::BTreeSet;

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::super::path::Root;
use super::super::{Match, PrefixIndex, Units};
use super::{ROOT, exact, shared, worker};
use crate::config::Config;
use crate::fleet::PolicyRef;
use crate::policy::testing::candidate;
use crate::policy::{self, Branch, Candidate, Policy, View};
use crate::request::{Endpoint, Facts};

/// An index, the policy over it, and the workers that are available.
struct Bench {
    index: Box<dyn PrefixIndex>,
    scale: usize,
    policy: Box<dyn Policy>,
    rng: SmallRng,
    available: Vec<Candidate<'static>>,
}

impl Bench {
    /// The same bench on each index, with workers 1 to 3 available.
    fn on_both(threshold: f32) -> [Self; 2] {
        let exact: Box<dyn PrefixIndex> = Box::new(exact());
        let shared: Box<dyn PrefixIndex> = Box::new(shared(1 << 20));
        [(exact, 1), (shared, 64)].map(|(index, scale)| {
            let mut config = Config::default();
            config.cache.threshold = threshold;
            let available = vec![candidate(1, 0), candidate(2, 0), candidate(3, 0)];
            Self {
                index,
                scale,
                policy: policy::named(PolicyRef::tuned(config.policy), &config),
                rng: SmallRng::seed_from_u64(1),
                available,
            }
        })
    }

    fn scaled(&self, text: &str) -> String {
        text.chars().flat_map(|unit| std::iter::repeat_n(unit, self.scale)).collect()
    }

    fn insert(&mut self, text: &str, slot: u16) {
        let text = self.scaled(text);
        self.index.insert(ROOT, Units::Text(&text), worker(slot));
    }

    fn search(&mut self, text: &str) -> Match {
        let text = self.scaled(text);
        self.index.search(ROOT, Units::Text(&text))
    }

    /// The ratio in thousandths, the branch, and every worker that can win.
    fn decide(&mut self, text: &str) -> (u32, Branch, Vec<u16>) {
        let found = self.search(text);
        self.decide_on(&found)
    }

    fn decide_on(&mut self, found: &Match) -> (u32, Branch, Vec<u16>) {
        let view = View { candidates: &self.available, prefix: found, ..View::of_nobody() };
        let picks: Vec<_> = (0..100).map(|_| self.policy.pick(&view, &mut self.rng).unwrap()).collect();
        let branch = picks[0].branch.unwrap();
        assert!(picks.iter().all(|pick| pick.branch == Some(branch)));
        let winners: BTreeSet<u16> = picks.iter().map(|pick| self.available[pick.index].id.slot).collect();
        ((found.ratio() * 1000.0).round() as u32, branch, winners.into_iter().collect())
    }
}

#[test]
fn a_long_enough_match_leads_to_its_holder() {
    for mut bench in Bench::on_both(0.3) {
        bench.insert("hello world", 1);
        assert_eq!(bench.decide("hello there"), (545, Branch::TreeMatch, vec![1]));
    }
}

#[test]
fn a_short_match_is_a_fallback_and_the_chosen_worker_holds_the_new_branch() {
    for mut bench in Bench::on_both(0.3) {
        bench.insert("hello world", 1);
        let (ratio, branch, winners) = bench.decide("help me please");
        assert_eq!((ratio, branch, winners), (214, Branch::ExpectedWaitFallback, vec![1, 2, 3]));
        bench.insert("help me please", 2);
        let (ratio, branch, winners) = bench.decide("help me please");
        assert!(ratio > 900 && branch == Branch::TreeMatch && winners == [2], "{ratio}");
    }
}

#[test]
fn the_threshold_itself_is_a_miss() {
    for mut bench in Bench::on_both(0.3) {
        bench.insert("abcd", 1);
        assert_eq!(bench.decide("abc1234567").1, Branch::ExpectedWaitFallback);
        assert_eq!(bench.decide("abcd123456"), (400, Branch::TreeMatch, vec![1]));
    }
    for mut bench in Bench::on_both(0.0) {
        bench.insert("abcd", 1);
        assert_eq!(bench.decide("a123456789"), (100, Branch::TreeMatch, vec![1]));
        assert_eq!(bench.decide("x123456789"), (0, Branch::ExpectedWaitFallback, vec![1, 2, 3]));
    }
}

#[test]
fn tokens_match_in_whole_pages() {
    let ids: Vec<u32> = (0..40).collect();
    let longer: Vec<u32> = (0..64).map(|id| if id < 16 { id } else { id + 1000 }).collect();
    for mut bench in Bench::on_both(0.3) {
        bench.index.insert(ROOT, Units::Tokens(&ids[..15]), worker(1));
        assert_eq!(bench.index.search(ROOT, Units::Tokens(&ids[..15])).matched, 0);
        assert_eq!(bench.index.search(ROOT, Units::Tokens(&ids)).matched, 0, "nothing was inserted");
        bench.index.insert(ROOT, Units::Tokens(&ids), worker(1));
        let again = bench.index.search(ROOT, Units::Tokens(&ids));
        assert_eq!((again.matched, again.total, &*again.holders), (32, 40, &[worker(1)][..]));
        assert_eq!(bench.decide_on(&again), (800, Branch::TreeMatch, vec![1]));
        let quarter = bench.index.search(ROOT, Units::Tokens(&longer));
        assert_eq!(bench.decide_on(&quarter), (250, Branch::ExpectedWaitFallback, vec![1, 2, 3]));
        let text = String::from_utf8(ids.iter().flat_map(|id| id.to_le_bytes()).collect()).unwrap();
        assert_eq!(bench.index.search(ROOT, Units::Text(&text)).matched, 0, "text and tokens never match");
    }
}

#[test]
fn an_empty_prompt_matches_nothing() {
    for mut bench in Bench::on_both(0.0) {
        bench.insert("", 1);
        assert_eq!(bench.decide(""), (0, Branch::ExpectedWaitFallback, vec![1, 2, 3]));
    }
}

#[test]
fn a_match_whose_holder_is_out_spills() {
    for mut bench in Bench::on_both(0.3) {
        bench.insert("hello world", 1);
        bench.available.remove(0);
        assert_eq!(bench.decide("hello there"), (545, Branch::Spill, vec![2, 3]));
    }
}

#[test]
fn only_holders_of_the_longest_prefix_count() {
    for mut bench in Bench::on_both(0.3) {
        bench.insert("ab", 1);
        bench.insert("abcdef", 2);
        assert_eq!(bench.search("abcdef").holders, [worker(2)]);
        assert_eq!(bench.decide("abcdef").2, [2]);
        assert_eq!(bench.decide("abzzz"), (400, Branch::TreeMatch, vec![1, 2]));
    }
}

/// The namespace of a chat whose body has these members besides model and messages.
fn namespace(members: &str) -> Option<u64> {
    let mut facts = Facts::default();
    let body = format!(r#"{{"model":"m",{members}"messages":[{{"role":"user","content":"hi"}}]}}"#);
    facts.read_body(Endpoint::Chat, body.as_bytes(), true);
    facts.namespace
}

#[test]
fn namespaces_and_models_never_match_each_other() {
    let roots = [
        ROOT,
        Root { namespace: namespace(r#""cache_salt":"ab","extra_key":"c","#), ..ROOT },
        Root { namespace: namespace(r#""cache_salt":"a","extra_key":"bc","#), ..ROOT },
        Root { namespace: namespace(r#""extra_key":"ab","#), ..ROOT },
        Root { model: "n", ..ROOT },
    ];
    assert_eq!(namespace(r#""cache_salt":"","#), None);
    for mut bench in Bench::on_both(0.3) {
        let text = bench.scaled("hell");
        for (slot, root) in (0..).zip(roots) {
            assert_eq!(bench.index.search(root, Units::Text(&text)).matched, 0, "{root:?}");
            bench.index.insert(root, Units::Text(&text), worker(slot));
            let found = bench.index.search(root, Units::Text(&text));
            assert_eq!((found.ratio(), &*found.holders), (1.0, &[worker(slot)][..]), "{root:?}");
        }
    }
}
