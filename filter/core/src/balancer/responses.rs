//! Which worker holds a response, so that what refers to it by its id goes there.
//!
//! A response lives at the engine that has made it. Its id stands in that engine's answer, so it is known only where the
//! module reads answers.

use super::place::Prompt;
use super::table::TRIES;
use super::{Balancer, Context};
use crate::config::DEFAULT_RESPONSE_IDS;
use crate::fleet::Fleet;
use crate::policy::sticky::Pins;
use crate::policy::{Branch, Candidate};
use crate::request::Target;
use crate::state::pins::PinTable;
use crate::store::{Store, StoreError, Write};

/// The scope of ids, see [`PinTable::tag`]: they are nobody's model.
const SCOPE: &str = "\0response";

/// What is known of the response that a request refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    /// The request refers to none, or names its worker itself.
    None,
    /// Nobody is remembered to hold it.
    Unknown,
    /// The worker with this hash holds it.
    Known(u64),
}

impl Holder {
    /// The position of the holder among those that may be chosen.
    pub(super) fn among(self, fleet: &Fleet, candidates: &[Candidate<'_>]) -> Option<usize> {
        let Self::Known(hash) = self else { return None };
        let worker = fleet.by_hash(hash)?;
        candidates.binary_search_by_key(&worker, |candidate| candidate.worker).ok()
    }

    /// How a placement is counted that found the holder available, or not.
    pub(super) fn branch(self, available: bool) -> Option<Branch> {
        match self {
            Self::None => None,
            Self::Unknown => Some(Branch::ResponseUnknown),
            Self::Known(_) if available => Some(Branch::ResponseHeld),
            Self::Known(_) => Some(Branch::ResponseOut),
        }
    }
}

impl Balancer {
    /// From now on responses are remembered: the module reads answers.
    pub fn remember_responses(&mut self) {
        let ids = self.config.max_response_ids.unwrap_or(DEFAULT_RESPONSE_IDS);
        self.responses = Some(PinTable::of_responses(&self.config.instance, ids));
    }

    /// Whether responses are remembered.
    #[must_use]
    pub fn remembers_responses(&self) -> bool {
        self.responses.is_some()
    }

    /// Who holds the response that `prompt` refers to.
    pub(super) fn holder(&self, store: &mut dyn Store, prompt: Prompt<'_>) -> Result<Holder, StoreError> {
        let (Some(table), Some(id), Target::Absent) = (&self.responses, prompt.response, prompt.target) else {
            return Ok(Holder::None);
        };
        let pinned = table.read(store, PinTable::tag(self.seed, SCOPE, id))?;
        let worker = pinned.pins().and_then(|pins| pins.iter().next());
        Ok(worker.map_or(Holder::Unknown, Holder::Known))
    }

    /// Notes that the worker with hash `worker` holds the response `id`. Best effort: a store that fails, or a page that
    /// others keep writing, costs a hint.
    pub fn remember_response(&self, context: &mut Context<'_>, id: &str, worker: u64) {
        let Some(table) = &self.responses else { return };
        let (tag, now_secs) = (PinTable::tag(self.seed, SCOPE, id.as_bytes()), context.now_secs());
        for _ in 0..TRIES {
            let Ok(mut pinned) = table.read(context.store, tag) else { return };
            pinned.set(Pins([worker, 0]), now_secs);
            match table.write(context.store, &pinned) {
                Ok(Write::Done) | Err(_) => return,
                Ok(_) => {}
            }
        }
    }
}
