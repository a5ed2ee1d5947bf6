//! `prefix_hash`: the owner of the prompt's head on the hash ring, unless it is clearly overloaded.
//!
//! Optimises that prompts with the same head meet the same cache, without any memory. Reads the head of the prompt and
//! requests in flight. The wrong choice when prompts share long prefixes of different length (`cache_aware` finds the
//! longest). Source: SMG's load-balancing page.

use rand::RngCore;
use xxhash_rust::xxh3::xxh3_64;

use super::{Branch, Candidate, Family, Keys, Needs, Pick, Policy, View};
use crate::config;
use crate::fleet::ring::position;

/// A token is taken for so many characters.
const CHARACTERS_PER_TOKEN: usize = 4;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct PrefixHash {
    config: config::PrefixHash,
    /// Depths in tokens, ascending.
    boundaries: Vec<u32>,
}

/// How busy the workers are, and from where on one is too busy.
struct Gate {
    /// None: nothing is in flight, so nobody is.
    threshold: Option<f64>,
}

impl Gate {
    fn new(config: &config::PrefixHash, candidates: &[Candidate<'_>]) -> Self {
        let total: f64 = candidates.iter().map(|candidate| f64::from(candidate.in_flight)).sum();
        if total <= 0.0 {
            return Self { threshold: None };
        }
        #[expect(clippy::cast_precision_loss, reason = "the number of workers is small")]
        let average = (total + 1.0) / candidates.len() as f64;
        let threshold = (average * config.load_factor).max(average + f64::from(config.balance_abs));
        Self { threshold: Some(threshold) }
    }

    fn lets(&self, candidate: &Candidate<'_>) -> bool {
        self.threshold.is_none_or(|threshold| f64::from(candidate.in_flight) <= threshold)
    }
}

impl PrefixHash {
    pub(super) fn new(config: &config::PrefixHash, boundaries: &[u32]) -> Self {
        Self { config: *config, boundaries: boundaries.to_vec() }
    }

    /// Where the request's heads are on the ring, the deepest first, each with its depth in tokens (0 where no boundary
    /// made it).
    fn heads(&self, view: &View<'_>) -> Vec<(u32, u64)> {
        let said = &view.said;
        if let Some(key) = said.routing_key {
            return vec![(0, ring_position(key))];
        }
        let deepest_first = self.boundaries.iter().rev().copied();
        if !said.tokens.is_empty() {
            let head = |count: usize| {
                let ids = said.tokens.get(..count).unwrap_or(said.tokens);
                ring_position(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
            };
            let reached = deepest_first.filter(|&depth| depth as usize <= said.tokens.len());
            let heads: Vec<_> = reached.map(|depth| (depth, head(depth as usize))).collect();
            return if heads.is_empty() { vec![(0, head(self.config.token_count as usize))] } else { heads };
        }
        if said.text.is_empty() {
            return Vec::new();
        }
        let deepest = self.boundaries.last().map_or(0, |&depth| depth as usize).max(self.config.token_count as usize);
        let ends = ends_of_characters(said.text, deepest.saturating_mul(CHARACTERS_PER_TOKEN));
        // Where the first `depth` tokens end, if the text has so many.
        let end = |depth: u32| ends(depth as usize * CHARACTERS_PER_TOKEN);
        let head = |end: usize| ring_position(said.text.get(..end).unwrap_or(said.text));
        let heads: Vec<_> = deepest_first.filter_map(|depth| Some((depth, head(end(depth)?)))).collect();
        if heads.is_empty() { vec![(0, head(end(self.config.token_count).unwrap_or(said.text.len())))] } else { heads }
    }
}

/// Where the first so many characters of `text` end, asked for numbers up to `most`; none if there are fewer. Bytes that
/// go on with a character of UTF-8 are none of their own.
fn ends_of_characters(text: &[u8], most: usize) -> impl Fn(usize) -> Option<usize> + use<'_> {
    // Plain text has a byte for each character, and then nothing is to be counted.
    let head = text.get(..most).unwrap_or(text);
    let plain = head.is_ascii();
    move |characters| {
        if plain {
            return (characters <= text.len()).then_some(characters);
        }
        let mut begins = text.iter().enumerate().filter(|(_, byte)| **byte & 0xc0 != 0x80).map(|(at, _)| at);
        // The character behind the last one wanted begins where that ends.
        match begins.nth(characters) {
            Some(end) => Some(end),
            None => (begin_count(text) == characters).then_some(text.len()),
        }
    }
}

fn begin_count(text: &[u8]) -> usize {
    text.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

/// A head is hashed twice, as SMG does: the ring knows it by the digits of its first hash.
fn ring_position(head: &[u8]) -> u64 {
    position(format!("{:016x}", xxh3_64(head)).as_bytes())
}

/// The first of those that have the fewest requests in flight.
fn least<'a>(candidates: impl Iterator<Item = (usize, &'a Candidate<'a>)>) -> Option<usize> {
    candidates.min_by_key(|(_, candidate)| candidate.in_flight).map(|(index, _)| index)
}

impl Policy for PrefixHash {
    fn needs(&self) -> Needs {
        let keys = Keys { configured: true, ..Keys::default() };
        Needs { keys, ring: true, head: true, ..Needs::default() }
    }

    fn pick(&self, view: &View<'_>, _rng: &mut dyn RngCore) -> Option<Pick> {
        let pick = |index, branch| Pick { branch: Some(branch), ..Pick::unscored(index) };
        let all = || view.candidates.iter().enumerate();
        let heads = self.heads(view);
        if heads.is_empty() {
            return least(all()).map(|index| pick(index, Branch::NoRoutingKey));
        }
        let gate = Gate::new(&self.config, view.candidates);
        let mut deepest = None;
        for (level, head) in heads {
            let Some(owner) = view.owner(head) else { continue };
            if view.candidates.get(owner).is_some_and(|candidate| gate.lets(candidate)) {
                return Some(Pick { position: Some(head), ..pick(owner, Branch::RingHit(level)) });
            }
            deepest = deepest.or(Some((level, owner)));
        }
        let Some((level, owner)) = deepest else {
            return least(all()).map(|index| pick(index, Branch::FallbackLeastLoad));
        };
        let free = least(all().filter(|(_, candidate)| gate.lets(candidate)));
        Some(free.map_or_else(
            || pick(owner, Branch::LoadBalanceWalk(level)),
            |index| pick(index, Branch::LoadBalanceWalk(0)),
        ))
    }

    fn why_none(&self, _view: &View<'_>) -> Option<Branch> {
        Some(Branch::NoHealthyWorkers(Family::PrefixHash))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::ring::Ring;
    use crate::policy::Said;
    use crate::policy::testing::{candidate, view};
    use crate::prefix::Match;
    use rand::SeedableRng;
    use rand::rngs::SmallRng;

    fn policy(token_count: u32, boundaries: &[u32]) -> PrefixHash {
        PrefixHash::new(&config::PrefixHash { token_count, ..config::PrefixHash::default() }, boundaries)
    }

    /// The worker (1 to 3) that takes a request, with so many in flight at each.
    #[track_caller]
    fn check(policy: &PrefixHash, said: Said<'_>, loads: [u32; 3], worker: u16, branch: Branch) {
        let ring = Ring::new((0..).zip(["http://w1:8000", "http://w2:8000", "http://w3:8000"]));
        let candidates: Vec<Candidate<'_>> = (0..).zip(loads).map(|(number, load)| candidate(number, load)).collect();
        let prefix = Match::default();
        let view = View { said, ring: Some(&ring), ..view(&candidates, &prefix) };
        let pick = policy.pick(&view, &mut SmallRng::seed_from_u64(1)).unwrap();
        assert_eq!((candidates[pick.index].worker + 1, pick.branch), (worker, Some(branch)));
    }

    fn text(text: &str) -> Said<'_> {
        Said { text: text.as_bytes(), ..Said::default() }
    }

    fn key(key: &str) -> Said<'_> {
        Said { routing_key: Some(key.as_bytes()), ..Said::default() }
    }

    const HIT: Branch = Branch::RingHit(0);

    #[test]
    fn the_head_decides_as_in_smg() {
        let usual = policy(256, &[]);
        check(&usual, key("user-123"), [0; 3], 1, HIT);
        check(&usual, key("conv"), [0; 3], 3, HIT);
        check(&usual, text("hello world"), [0; 3], 3, HIT);
        for longer in ["abcdefgh", "abcdefghi", "abcdefgh and so on"] {
            check(&policy(2, &[]), text(longer), [0; 3], 2, HIT);
        }
        let ids: Vec<u32> = (1..=10).collect();
        check(&usual, Said { tokens: &ids, ..Said::default() }, [0; 3], 2, HIT);
        check(&usual, Said { tokens: &ids, text: b"hello world", ..Said::default() }, [0; 3], 2, HIT);
        check(&usual, Said { routing_key: Some(b"conv"), text: b"hello world", ..Said::default() }, [0; 3], 3, HIT);
    }

    #[test]
    fn the_second_and_third_owner_follow_in_smgs_order() {
        let down = |numbers: &[u16], said: Said<'_>| {
            let ring = Ring::new((0..).zip(["http://w1:8000", "http://w2:8000", "http://w3:8000"]));
            let candidates: Vec<Candidate<'_>> =
                (0..3).filter(|number| !numbers.contains(number)).map(|number| candidate(number, 0)).collect();
            let prefix = Match::default();
            let view = View { said, ring: Some(&ring), ..view(&candidates, &prefix) };
            let pick = policy(256, &[]).pick(&view, &mut SmallRng::seed_from_u64(1)).unwrap();
            candidates[pick.index].worker + 1
        };
        for (said, order) in [(key("user-123"), [1, 2, 3]), (key("conv"), [3, 1, 2]), (text("hello world"), [3, 2, 1])]
        {
            assert_eq!(down(&[order[0] - 1], said), order[1]);
            assert_eq!(down(&[order[0] - 1, order[1] - 1], said), order[2]);
        }
    }

    #[test]
    fn shallower_boundaries_take_what_is_too_much_for_the_deepest() {
        let bounded = policy(256, &[4, 8]);
        let fox = text("The quick brown fox jumps over the lazy dog.");
        check(&bounded, fox, [0; 3], 1, Branch::RingHit(8));
        check(&bounded, fox, [30, 0, 0], 3, Branch::RingHit(4));
        check(&bounded, fox, [40, 0, 40], 2, Branch::LoadBalanceWalk(0));
        // 15 characters reach no boundary.
        let short = "The quick brown";
        let all = policy(256, &[]);
        let ring = Ring::new((0..).zip(["http://w1:8000", "http://w2:8000", "http://w3:8000"]));
        let owner = ring.owner(all.heads(&view_of(text(short)))[0].1, |_| true).unwrap();
        check(&bounded, text(short), [0; 3], owner + 1, HIT);
    }

    fn view_of(said: Said<'_>) -> View<'_> {
        static NOTHING: Match = Match { matched: 0, total: 0, holders: Vec::new() };
        View { said, ..view(&[], &NOTHING) }
    }

    #[test]
    fn an_overloaded_owner_is_passed_over() {
        for (loads, threshold, overloaded) in [
            (vec![20, 2, 2], 18.3333, true),
            (vec![18, 2, 2], 17.6667, true),
            (vec![17, 2, 2], 17.3333, false),
            (vec![60, 40, 40], 58.75, true),
            (vec![30, 30, 30], 40.3333, false),
            (vec![22, 0], 21.5, true),
            (vec![21, 0], 21.0, false),
        ] {
            let candidates: Vec<Candidate<'_>> =
                (0..).zip(&loads).map(|(number, load)| candidate(number, *load)).collect();
            let gate = Gate::new(&config::PrefixHash::default(), &candidates);
            assert!((gate.threshold.unwrap() - threshold).abs() < 1e-4, "{loads:?}");
            assert_eq!(gate.lets(&candidates[0]), !overloaded, "{loads:?}");
        }
        assert!(Gate::new(&config::PrefixHash::default(), &[candidate(0, 0), candidate(1, 0)]).threshold.is_none());
    }

    #[test]
    fn when_all_are_overloaded_the_deepest_owner_takes_it() {
        let strict = config::PrefixHash { load_factor: 1.0, balance_abs: 0, ..config::PrefixHash::default() };
        let one = [candidate(0, 5)];
        let ring = Ring::new(std::iter::once((0, "http://w1:8000")));
        let prefix = Match::default();
        let view = View { said: key("conv"), ring: Some(&ring), ..view(&one, &prefix) };
        let pick = PrefixHash::new(&strict, &[]).pick(&view, &mut SmallRng::seed_from_u64(1)).unwrap();
        assert_eq!((pick.index, pick.branch), (0, Some(HIT)), "one more than the average of one is no overload");
    }

    #[test]
    fn without_a_key_the_first_of_the_least_loaded_takes_it() {
        check(&policy(256, &[]), Said::default(), [3, 1, 1], 2, Branch::NoRoutingKey);
    }

    #[test]
    fn heads_are_counted_in_characters() {
        let text = "añb€c".as_bytes();
        for most in [6, 9] {
            let ends = ends_of_characters(text, most);
            assert_eq!([ends(0), ends(1), ends(2), ends(4), ends(5)], [Some(0), Some(1), Some(3), Some(7), Some(8)]);
            assert_eq!(ends(6), None);
        }
        assert_eq!(ends_of_characters(b"abc", 8)(3), Some(3));
        assert_eq!(ends_of_characters(b"abc", 8)(4), None);
    }
}
