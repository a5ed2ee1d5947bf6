//! The demo's workload: chat sessions over shared system prompts, with long one-off prompts among them.

use std::time::Duration;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_distr::{Distribution, Exp, Zipf};

use super::{Message, PromptText, Prose, Request, Workload};

/// How far a pause between two turns lies from the mean pause at most, as a share of it.
const PAUSE_SPREAD: f64 = 0.4;

/// What the sessions are like; the default is the workload of `make demo`.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Seed of everything random here.
    pub seed: u64,
    /// Number of chat sessions.
    pub sessions: usize,
    /// Turns of a session, both ends included.
    pub turns: (usize, usize),
    /// How likely another turn is, once a session has the fewest: 1 makes each number as likely, less makes short
    /// sessions more frequent, as they are in real chat services.
    pub another_turn: f64,
    /// Number of system prompts.
    pub system_prompts: usize,
    /// Bytes of a system prompt.
    pub system_bytes: (usize, usize),
    /// Exponent of the system prompts' popularity.
    pub zipf: f64,
    /// Share of all requests that are one-off prompts.
    pub one_off_share: f64,
    /// Bytes of a one-off prompt, log-uniform.
    pub one_off_bytes: (usize, usize),
    /// Bytes of a user message, log-uniform.
    pub user_bytes: (usize, usize),
    /// Bytes of an answer, log-uniform.
    pub answer_bytes: (usize, usize),
    /// Sessions that are open at once.
    pub open_sessions: usize,
    /// Arrivals in a second (a Poisson process).
    pub requests_per_second: f64,
    /// Completion tokens to ask for.
    pub max_tokens: usize,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            sessions: 400,
            turns: (2, 8),
            another_turn: 0.75,
            system_prompts: 24,
            system_bytes: (1 << 10, 8 << 10),
            zipf: 1.2,
            one_off_share: 0.1,
            one_off_bytes: (16 << 10, 64 << 10),
            user_bytes: (8 << 10, 24 << 10),
            answer_bytes: (256, 2 << 10),
            open_sessions: 64,
            requests_per_second: 53.0,
            max_tokens: 4,
        }
    }
}

/// A session while it is open.
struct Session {
    number: usize,
    left: usize,
    turn: usize,
    messages: Vec<Message>,
    /// The arrival at which it speaks next, if nobody is due before.
    due_slot: usize,
}

impl SessionOptions {
    /// Makes the workload; equal options make equal workloads.
    pub fn generate(&self) -> Workload {
        let mut rng = SmallRng::seed_from_u64(self.seed);
        let prose = Prose::new();
        let systems: Vec<Message> =
            (0..self.system_prompts.max(1)).map(|rank| self.system_prompt(&mut rng, &prose, rank)).collect();
        let mut closed: Vec<Session> = (0..self.sessions)
            .rev()
            .map(|number| {
                let system = self.popular(&mut rng, systems.len());
                Session {
                    number,
                    left: self.session_turns(&mut rng),
                    turn: 0,
                    messages: vec![systems[system].clone()],
                    due_slot: rng.random_range(0..self.open_sessions.max(1)),
                }
            })
            .collect();
        let turns: usize = closed.iter().map(|session| session.left).sum();
        let one_offs = (turns as f64 * self.one_off_share / (1.0 - self.one_off_share)).round() as usize;
        let mut kinds: Vec<bool> = (0..turns + one_offs).map(|slot| slot < one_offs).collect();
        rand::seq::SliceRandom::shuffle(kinds.as_mut_slice(), &mut rng);

        let mut open: Vec<Session> = Vec::new();
        let mut requests = Vec::with_capacity(kinds.len());
        let mut clock = 0.0;
        let mut next_one_off = self.sessions;
        for (slot, is_one_off) in kinds.into_iter().enumerate() {
            clock += self.pause(&mut rng);
            let arrival = Duration::from_secs_f64(clock);
            if is_one_off {
                let size = log_uniform(&mut rng, self.one_off_bytes);
                let prompt = PromptText::Chat(vec![message("user", prose.text(&mut rng, size))]);
                requests.push(Request { arrival, session: next_one_off, turn: 0, prompt, max_tokens: self.max_tokens });
                next_one_off += 1;
                continue;
            }
            while open.len() < self.open_sessions.max(1)
                && let Some(session) = self.open_next(&mut closed)
            {
                open.push(session);
            }
            let Some(at) = (0..open.len()).min_by_key(|&at| open[at].due_slot) else { continue };
            let session = &mut open[at];
            let size = log_uniform(&mut rng, self.user_bytes);
            session.messages.push(message("user", prose.text(&mut rng, size)));
            requests.push(Request {
                arrival,
                session: session.number,
                turn: session.turn,
                prompt: PromptText::Chat(session.messages.clone()),
                max_tokens: self.max_tokens,
            });
            let size = log_uniform(&mut rng, self.answer_bytes);
            session.messages.push(message("assistant", prose.text(&mut rng, size)));
            session.turn += 1;
            session.left -= 1;
            let pause = self.open_sessions as f64 / (1.0 - self.one_off_share);
            session.due_slot = slot + (pause * rng.random_range(1.0 - PAUSE_SPREAD..1.0 + PAUSE_SPREAD)) as usize;
            if session.left == 0 {
                open.swap_remove(at);
            }
        }
        Workload { requests }
    }

    /// The system prompt of a popularity rank (from 0). Their sizes are spread evenly over the range, and the popular
    /// ones are short, as they are where a plain assistant has more users than an expert with a manual.
    fn system_prompt(&self, rng: &mut SmallRng, prose: &Prose, rank: usize) -> Message {
        let (low, high) = (self.system_bytes.0 as f64, self.system_bytes.1 as f64);
        let position = (rank as f64 + rng.random::<f64>()) / self.system_prompts.max(1) as f64;
        message("system", prose.text(rng, (low * (high / low).powf(position)) as usize))
    }

    /// Opens the next session. The last ones open longest first, so that all end at about the same time.
    fn open_next(&self, closed: &mut Vec<Session>) -> Option<Session> {
        if closed.len() > self.open_sessions {
            return closed.pop();
        }
        let longest = (0..closed.len()).max_by_key(|&at| (closed[at].left, at))?;
        Some(closed.remove(longest))
    }

    fn session_turns(&self, rng: &mut SmallRng) -> usize {
        let numbers: Vec<usize> = (self.turns.0..=self.turns.1).collect();
        let weight = |&turns: &usize| self.another_turn.powi((turns - self.turns.0) as i32);
        numbers.choose_weighted(rng, weight).map_or(self.turns.0, |&turns| turns)
    }

    fn popular(&self, rng: &mut SmallRng, systems: usize) -> usize {
        Zipf::new(systems as f64, self.zipf).map_or(0, |zipf| zipf.sample(rng) as usize - 1)
    }

    /// Seconds to the next arrival.
    fn pause(&self, rng: &mut SmallRng) -> f64 {
        Exp::new(self.requests_per_second).map_or(0.0, |exp| exp.sample(rng))
    }
}

fn message(role: &'static str, content: String) -> Message {
    Message { role, content: content.into() }
}

fn log_uniform(rng: &mut SmallRng, (low, high): (usize, usize)) -> usize {
    let (low, high) = (low.max(1) as f64, high.max(1) as f64);
    (low * (high / low).powf(rng.random::<f64>())).round() as usize
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn the_workload_is_what_the_options_say() {
        let options = SessionOptions::default();
        let workload = options.generate();
        let mut turns: HashMap<usize, Vec<&Request>> = HashMap::new();
        for request in &workload.requests {
            turns.entry(request.session).or_default().push(request);
        }
        let (sessions, one_offs): (Vec<_>, Vec<_>) = turns.values().partition(|turns| turns[0].session < 400);
        assert_eq!(sessions.len(), 400);
        assert!(sessions.iter().all(|turns| (2..=8).contains(&turns.len())));
        let share = one_offs.len() as f64 / workload.requests.len() as f64;
        assert!((0.095..0.105).contains(&share), "{share}");
        for turns in sessions {
            for (number, pair) in turns.windows(2).enumerate() {
                let [earlier, later] = pair else { unreachable!() };
                assert_eq!((earlier.turn, later.turn), (number, number + 1));
                assert!(later.engine_text().starts_with(&earlier.engine_text()), "a turn extends the last one");
            }
        }
        for turns in one_offs {
            assert!((16 << 10..66 << 10).contains(&turns[0].engine_text().len()));
        }
        let seconds = workload.duration().as_secs_f64();
        let rate = workload.requests.len() as f64 / seconds;
        assert!((rate / options.requests_per_second - 1.0).abs() < 0.1, "{rate}");
        assert!(workload.requests.is_sorted_by_key(|request| request.arrival));
    }

    #[test]
    fn equal_seeds_make_equal_workloads() {
        let make = |seed| SessionOptions { seed, sessions: 10, ..SessionOptions::default() }.generate();
        let bodies = |workload: Workload| workload.requests.iter().map(|one| one.body("m")).collect::<Vec<_>>();
        assert_eq!(bodies(make(7)), bodies(make(7)));
        assert_ne!(bodies(make(7)), bodies(make(8)));
    }
}
