//! Two ways to choose an engine without a gateway: they show what the workload can tell apart at all.

use std::any::Any;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Running;
use crate::fake_engine::EngineOptions;
use crate::fake_engine::body::text_prompt;
use crate::load::{Destination, Target};
use crate::workload::Request;

/// The policies that need no gateway: the baseline first, the best case second.
pub const DIRECT_POLICIES: [&str; 2] = ["direct-round-robin", "ideal-affinity"];

/// Share of a prompt that an engine must have for a new session to go there.
const WORTHWHILE: f64 = 0.5;

/// The chooser of that name, if it is one of [`DIRECT_POLICIES`].
pub(super) fn start(policy: &str, engines: &[String]) -> Option<Running> {
    let urls: Vec<Arc<str>> = engines.iter().map(|url| Arc::from(url.as_str())).collect();
    let target: Arc<dyn Target> = match policy {
        "direct-round-robin" => Arc::new(RoundRobin { urls, next: AtomicUsize::new(0) }),
        "ideal-affinity" => Arc::new(IdealAffinity::new(urls)),
        _ => return None,
    };
    Some(Running { target, until_stopped: Box::new(()) })
}

/// One engine after the other.
#[derive(Debug)]
pub struct RoundRobin {
    urls: Vec<Arc<str>>,
    next: AtomicUsize,
}

impl Target for RoundRobin {
    fn choose(&self, _: &Request) -> Destination {
        let engine = self.next.fetch_add(1, Ordering::Relaxed) % self.urls.len();
        Destination { base_url: Arc::clone(&self.urls[engine]), until_end: None }
    }
}

/// A session stays where it began; a prompt that some engine has mostly seen goes there, any other to the engine with
/// the least in flight. It knows what no gateway can: the session of a request.
#[derive(Debug)]
pub struct IdealAffinity {
    urls: Vec<Arc<str>>,
    rules: EngineOptions,
    in_flight: Vec<Arc<AtomicUsize>>,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    sessions: HashMap<usize, usize>,
    blocks: HashMap<u64, usize>,
    assigned: Vec<usize>,
}

impl IdealAffinity {
    /// A chooser among engines that are all empty.
    pub fn new(urls: Vec<Arc<str>>) -> Self {
        let in_flight = urls.iter().map(|_| Arc::default()).collect();
        let places = Places { assigned: vec![0; urls.len()], ..Places::default() };
        Self { urls, rules: EngineOptions::default(), in_flight, places: Mutex::new(places) }
    }

    fn place(&self, request: &Request) -> usize {
        let prompt = text_prompt(&request.engine_text(), &self.rules);
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = prompt.blocks.iter().take_while(|block| places.blocks.contains_key(block)).count();
        let worthwhile = seen as f64 > prompt.blocks.len() as f64 * WORTHWHILE;
        let holder = prompt.blocks[..seen].last().filter(|_| worthwhile).map(|block| places.blocks[block]);
        let least = || {
            let load = |&engine: &usize| (self.in_flight[engine].load(Ordering::Relaxed), places.assigned[engine]);
            (0..self.urls.len()).min_by_key(load).unwrap_or(0)
        };
        let engine = places.sessions.get(&request.session).copied().or(holder).unwrap_or_else(least);
        places.assigned[engine] += prompt.tokens;
        places.sessions.insert(request.session, engine);
        places.blocks.extend(prompt.blocks.into_iter().map(|block| (block, engine)));
        engine
    }
}

impl Target for IdealAffinity {
    fn choose(&self, request: &Request) -> Destination {
        let engine = self.place(request);
        self.in_flight[engine].fetch_add(1, Ordering::Relaxed);
        let until_end: Box<dyn Any + Send> = Box::new(InFlight(Arc::clone(&self.in_flight[engine])));
        Destination { base_url: Arc::clone(&self.urls[engine]), until_end: Some(until_end) }
    }
}

struct InFlight(Arc<AtomicUsize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
