//! Engines that die and return on the same port.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};

use super::fate::MODELS;
use crate::fake_engine::{EngineOptions, Seat};

/// Between two pieces of a stream: so many streams shall be open at once that they must not cost much.
const STEP: Duration = Duration::from_millis(20);

/// Engines dead at once at most; with the faults that requests bring along, an attempt is left for a healthy one.
const DEAD_AT_MOST: usize = 2;

/// The engines of a run.
#[derive(Debug)]
pub(super) struct Engines {
    /// By name.
    seats: Vec<(String, Seat)>,
    /// Seats whose engine is dead, for longest first.
    dead: Vec<usize>,
}

impl Engines {
    pub(super) fn start(number: usize) -> Result<Self> {
        let options = EngineOptions {
            models: MODELS.map(str::to_owned).to_vec(),
            prefill_tokens_per_second: 1e6,
            decode_step: STEP,
            ..EngineOptions::default()
        };
        let seat = |number| {
            let name = format!("engine-{number}");
            let seat = Seat::start(options.clone().named(&name)).with_context(|| format!("{name} cannot start"))?;
            Ok((name, seat))
        };
        Ok(Self { seats: (1..=number).map(seat).collect::<Result<_>>()?, dead: Vec::new() })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.seats.iter().map(|(_, seat)| seat.address()).collect()
    }

    /// The name of the engine that [`Engines::kill`] would kill for this choice; none if enough are dead.
    pub(super) fn victim(&self, choice: usize) -> Option<String> {
        if self.dead.len() >= DEAD_AT_MOST {
            return None;
        }
        let living: Vec<_> = self.seats.iter().filter(|(_, seat)| seat.engine().is_some()).collect();
        Some(living.get(choice % living.len())?.0.clone())
    }

    /// Ends the engine of this name: it stops listening and drops its connections.
    pub(super) fn kill(&mut self, name: &str) {
        let Some(at) = self.seats.iter().position(|(known, _)| known == name) else { return };
        self.seats[at].1.kill();
        self.dead.push(at);
    }

    /// Brings back the engine that has been dead for longest, if one is.
    pub(super) fn revive(&mut self) -> Result<bool> {
        if self.dead.is_empty() {
            return Ok(false);
        }
        let at = self.dead.remove(0);
        let (name, seat) = &mut self.seats[at];
        seat.revive().with_context(|| format!("{name} cannot listen on {} again", seat.address()))?;
        Ok(true)
    }
}
