//! A port that keeps its engine's place while the engine is dead.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpSocket;

use super::{EngineOptions, FakeEngine};

/// A port and the engine that is on it, if it lives.
#[derive(Debug)]
pub struct Seat {
    options: EngineOptions,
    address: SocketAddr,
    engine: Option<FakeEngine>,
    /// Bound and never listening: while the engine is dead nobody else is given its port.
    _port: TcpSocket,
}

impl Seat {
    /// A free port with an engine of these options on it.
    ///
    /// # Errors
    /// When no port can be bound or the engine cannot be started.
    pub fn start(options: EngineOptions) -> io::Result<Self> {
        let port = TcpSocket::new_v4()?;
        // Both must have it, or the engine could not bind the port beside this.
        port.set_reuseaddr(true)?;
        port.bind(([127, 0, 0, 1], 0).into())?;
        let address = port.local_addr()?;
        let options = EngineOptions { port: address.port(), ..options };
        let mut seat = Self { options, address, engine: None, _port: port };
        seat.revive()?;
        Ok(seat)
    }

    /// Where the engine listens while it lives.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The engine, if it lives.
    pub fn engine(&self) -> Option<&FakeEngine> {
        self.engine.as_ref()
    }

    /// Ends the engine: it stops listening and drops its connections.
    pub fn kill(&mut self) {
        self.engine = None;
    }

    /// Starts an engine like the first one on the same port, if there is none.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn revive(&mut self) -> io::Result<()> {
        if self.engine.is_none() {
            self.engine = Some(FakeEngine::try_start(self.options.clone())?);
        }
        Ok(())
    }
}
