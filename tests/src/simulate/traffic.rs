//! A workload as filter and engine see it: read once, replayed many times.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use filter_core::request::{Endpoint, Facts};

use crate::fake_engine::EngineOptions;
use crate::fake_engine::body::text_prompt;
use crate::fake_engine::rank::Prompt;
use crate::load::LoadOptions;
use crate::workload::Workload;

/// One request.
pub(super) struct Arrival {
    /// When it comes, from the start of the replay.
    pub(super) at: Duration,
    pub(super) session: usize,
    pub(super) turn: usize,
    /// What the filter reads in its body.
    pub(super) facts: Facts,
    /// What the engine makes of it.
    pub(super) prompt: Prompt,
    pub(super) max_tokens: usize,
}

/// Requests by session.
pub(super) struct Traffic(BTreeMap<usize, Vec<Rc<Arrival>>>);

impl Traffic {
    pub(super) fn new(workload: &Workload, engine: &EngineOptions) -> Self {
        let model = LoadOptions::default().model;
        let mut sessions: BTreeMap<usize, Vec<Rc<Arrival>>> = BTreeMap::new();
        for request in &workload.requests {
            let mut facts = Facts::default();
            facts.read_body(Endpoint::Chat, &request.body(&model), true);
            sessions.entry(request.session).or_default().push(Rc::new(Arrival {
                at: request.arrival,
                session: request.session,
                turn: request.turn,
                facts,
                prompt: text_prompt(&request.engine_text(), engine),
                max_tokens: request.max_tokens,
            }));
        }
        Self(sessions)
    }

    /// The turns of each session.
    pub(super) fn sessions(&self) -> impl Iterator<Item = Vec<Rc<Arrival>>> {
        self.0.values().cloned()
    }
}
