//! Workers behind a DNS name: each of its addresses is one.

use std::{io, net::SocketAddr, str::FromStr, time::Duration};

use futures_util::{StreamExt, stream::BoxStream};
use tokio::{
    net::lookup_host,
    time::{Instant, timeout_at},
};
use url::Host;

use super::{Found, Look, Source, look_every};
use crate::spec::WorkerSpec;

/// A name server may take so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A name whose addresses are workers, such as that of a headless service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsName {
    leg: String,
    host: String,
    port: u16,
}

impl FromStr for DnsName {
    type Err = String;

    /// `[LEG=]NAME:PORT`.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}; write [LEG=]NAME:PORT, such as prefill=engines.default.svc:8000");
        let (leg, name) = text.split_once('=').unwrap_or(("", text));
        if !matches!(leg, "" | "regular" | "prefill" | "decode") {
            return Err(wrong(&format!("leg {leg:?} must be regular, prefill or decode")));
        }
        let (host, port) = name.rsplit_once(':').ok_or_else(|| wrong("the port is missing"))?;
        let port = port.parse().ok().filter(|port| *port != 0).ok_or_else(|| wrong("the port is no port"))?;
        match Host::parse(host) {
            Ok(Host::Domain(host)) => Ok(Self { leg: leg.to_owned(), host, port }),
            Ok(_) => Err(wrong("an address needs no look-up: name it as a worker")),
            Err(error) => Err(wrong(&format!("{host:?} is no host name ({error})"))),
        }
    }
}

/// Looks a name up again and again.
#[derive(Debug)]
pub(crate) struct Dns {
    name: DnsName,
    scheme: &'static str,
    every: Duration,
}

impl Dns {
    /// The workers behind `name`, which speak `scheme`.
    pub(crate) const fn new(name: DnsName, scheme: &'static str, every: Duration) -> Self {
        Self { name, scheme, every }
    }
}

impl Source for Dns {
    fn name(&self) -> String {
        format!("DNS {}:{}", self.name.host, self.name.port)
    }

    fn sets(self: Box<Self>) -> BoxStream<'static, Vec<Found>> {
        look_every(self.every, *self).boxed()
    }
}

impl Look for Dns {
    fn name(&self) -> String {
        Source::name(self)
    }

    async fn look(&mut self) -> Result<Option<Vec<Found>>, String> {
        let asked = lookup_host((self.name.host.as_str(), self.name.port));
        let answer = match timeout_at(Instant::now() + PATIENCE, asked).await {
            Ok(answer) => answer.map(Iterator::collect),
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
        };
        workers(&self.name.leg, self.scheme, answer).map(Some)
    }
}

/// The workers at the addresses of an answer. An engine with two addresses is one worker, so only one family counts.
fn workers(leg: &str, scheme: &str, answer: io::Result<Vec<SocketAddr>>) -> Result<Vec<Found>, String> {
    let addresses = answer.map_err(|error| format!("does not resolve: {error}"))?;
    let four: Vec<_> = addresses.iter().filter(|address| address.is_ipv4()).copied().collect();
    let mut addresses = if four.is_empty() { addresses } else { four };
    if addresses.is_empty() {
        return Err("has no address".to_owned());
    }
    addresses.sort_unstable();
    addresses.dedup();
    let spec = |address: SocketAddr| WorkerSpec {
        url: format!("{scheme}://{address}"),
        leg: leg.to_owned(),
        ..WorkerSpec::default()
    };
    addresses.into_iter().map(|address| Found::new(spec(address), None)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_a_leg() {
        let name = |leg: &str, host: &str, port| DnsName { leg: leg.into(), host: host.into(), port };
        assert_eq!("engines.svc:8000".parse(), Ok(name("", "engines.svc", 8000)));
        assert_eq!("prefill=p.svc:30000".parse(), Ok(name("prefill", "p.svc", 30000)));
        for (wrong, part) in [
            ("engines", "the port is missing"),
            ("engines:0", "no port"),
            ("engines:http", "no port"),
            ("first=engines:1", "leg \"first\""),
            ("10.0.0.1:80", "an address needs no look-up"),
            ("a b:80", "no host name"),
        ] {
            let why = wrong.parse::<DnsName>().unwrap_err();
            assert!(why.contains(part), "{why:?} does not say {part:?}");
        }
    }

    #[test]
    fn every_address_of_one_family_is_a_worker() {
        let all = |addresses: &[&str]| addresses.iter().map(|address| address.parse().unwrap()).collect::<Vec<_>>();
        let urls = |addresses: &[&str]| -> Vec<String> {
            let found = workers("decode", "http", Ok(all(addresses))).unwrap();
            assert!(found.iter().all(|found| found.spec.leg == "decode"));
            found.iter().map(|found| found.worker.url().to_owned()).collect()
        };
        let both = ["[fd00::1]:8000", "10.0.0.2:8000", "10.0.0.1:8000", "10.0.0.2:8000"];
        assert_eq!(urls(&both), ["http://10.0.0.1:8000", "http://10.0.0.2:8000"]);
        assert_eq!(urls(&both[..1]), ["http://[fd00::1]:8000"]);
    }

    #[test]
    fn no_answer_and_an_empty_one_name_nobody_anew() {
        assert!(workers("", "http", Ok(Vec::new())).unwrap_err().contains("no address"));
        assert!(workers("", "http", Err(io::Error::other("SERVFAIL"))).unwrap_err().contains("SERVFAIL"));
    }
}
