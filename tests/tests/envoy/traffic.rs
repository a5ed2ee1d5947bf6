//! Clients that send one request after the other while something happens.

use std::net::SocketAddr;
use std::time::Duration;

use testbed::envoy::Connection;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::{CHAT, chat};

/// Between two requests of a client: the machine shall have time for what happens beside.
const PAUSE: Duration = Duration::from_millis(5);

/// Clients under way. They keep their connections as long as Envoy lets them.
pub struct Traffic {
    clients: JoinSet<Outcome>,
    stop: watch::Sender<bool>,
}

/// What the clients have seen.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Answers of engines.
    pub answered: usize,
    /// Everything else: the status, or the error of a connection that was cut.
    pub failures: Vec<String>,
}

impl Outcome {
    /// Checks that requests were sent and none has failed.
    pub fn is_flawless(&self) {
        assert!(self.failures.is_empty(), "{} answered, failed: {:?}", self.answered, self.failures);
        assert!(self.answered > 20, "{} answered", self.answered);
    }
}

impl Traffic {
    pub fn start(address: SocketAddr, clients: usize) -> Self {
        let stop = watch::Sender::new(false);
        let clients = (0..clients).map(|number| client(address, number, stop.subscribe())).collect();
        Self { clients, stop }
    }

    /// Lets the clients go on for `time` and then end their last request.
    pub async fn stop_after(self, time: Duration) -> Outcome {
        tokio::time::sleep(time).await;
        self.stop.send_replace(true);
        let mut all = Outcome::default();
        for mut one in self.clients.join_all().await {
            all.answered += one.answered;
            all.failures.append(&mut one.failures);
        }
        all
    }
}

async fn client(address: SocketAddr, number: usize, stop: watch::Receiver<bool>) -> Outcome {
    let mut outcome = Outcome::default();
    let mut kept: Option<Connection> = None;
    while !*stop.borrow() {
        let text = format!("Client {number} has a conversation of its own. ").repeat(20);
        let reply = match kept.take() {
            Some(connection) => Ok(connection),
            None => Connection::open(address).await,
        };
        let reply = match reply {
            Ok(mut connection) => {
                let reply = connection.post(CHAT, chat("m", &text)).await;
                let closes = reply.as_ref().map_or(true, |reply| reply.header("connection") == Some("close"));
                kept = (!closes).then_some(connection);
                reply
            }
            Err(error) => Err(error),
        };
        match reply {
            Ok(reply) if reply.status == 200 => outcome.answered += 1,
            Ok(reply) => outcome.failures.push(reply.status.as_u16().to_string()),
            Err(error) => outcome.failures.push(format!("{error:#}")),
        }
        tokio::time::sleep(PAUSE).await;
    }
    outcome
}
