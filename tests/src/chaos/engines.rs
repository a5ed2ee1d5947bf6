//! Engines that die and return on the same port.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::net::TcpSocket;

use super::fate::MODELS;
use crate::fake_engine::{EngineOptions, FakeEngine};

/// Between two pieces of a stream: so many streams shall be open at once that they must not cost much.
const STEP: Duration = Duration::from_millis(20);

/// Engines dead at once at most; with the faults that requests bring along, an attempt is left for a healthy one.
const DEAD_AT_MOST: usize = 2;

/// The engines of a run.
#[derive(Debug)]
pub(super) struct Engines {
    seats: Vec<Seat>,
    /// Seats whose engine is dead, for longest first.
    dead: Vec<usize>,
}

/// A port and the engine that is on it, if it lives.
#[derive(Debug)]
struct Seat {
    name: String,
    address: SocketAddr,
    engine: Option<FakeEngine>,
    /// Bound and never listening: while the engine is dead nobody else is given its port.
    _port: TcpSocket,
}

impl Engines {
    pub(super) fn start(number: usize) -> Result<Self> {
        let seats = (1..=number).map(Seat::new).collect::<Result<_>>()?;
        Ok(Self { seats, dead: Vec::new() })
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.seats.iter().map(|seat| seat.address).collect()
    }

    /// The name of the engine that [`Engines::kill`] would kill for this choice; none if enough are dead.
    pub(super) fn victim(&self, choice: usize) -> Option<String> {
        if self.dead.len() >= DEAD_AT_MOST {
            return None;
        }
        let living: Vec<_> = self.seats.iter().filter(|seat| seat.engine.is_some()).collect();
        Some(living.get(choice % living.len())?.name.clone())
    }

    /// Ends the engine of this name: it stops listening and drops its connections.
    pub(super) fn kill(&mut self, name: &str) {
        let Some(at) = self.seats.iter().position(|seat| seat.name == name) else { return };
        self.seats[at].engine = None;
        self.dead.push(at);
    }

    /// Brings back the engine that has been dead for longest, if one is.
    pub(super) fn revive(&mut self) -> Result<bool> {
        if self.dead.is_empty() {
            return Ok(false);
        }
        let at = self.dead.remove(0);
        self.seats[at].start()?;
        Ok(true)
    }
}

impl Seat {
    fn new(number: usize) -> Result<Self> {
        let port = TcpSocket::new_v4()?;
        // Both must have it, or the engine could not bind the port beside this.
        port.set_reuseaddr(true)?;
        port.bind(([127, 0, 0, 1], 0).into())?;
        let address = port.local_addr()?;
        let mut seat = Self { name: format!("engine-{number}"), address, engine: None, _port: port };
        seat.start()?;
        Ok(seat)
    }

    fn start(&mut self) -> Result<()> {
        let options = EngineOptions {
            port: self.address.port(),
            models: MODELS.map(str::to_owned).to_vec(),
            prefill_tokens_per_second: 1e6,
            decode_step: STEP,
            ..EngineOptions::default()
        };
        let started = FakeEngine::try_start(options.named(&self.name));
        self.engine = Some(started.with_context(|| format!("{} cannot listen on {}", self.name, self.address))?);
        Ok(())
    }
}
