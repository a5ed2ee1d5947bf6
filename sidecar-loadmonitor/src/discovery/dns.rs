//! Workers behind a DNS name: each of its addresses is one.

use std::{collections::BTreeMap, io, net::SocketAddr, str::FromStr, time::Duration};

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

/// Servers that answer with some of the addresses each time are told by an address that returns within so many answers.
/// From then on an address stays until it has been missing from so many in a row.
const ANSWERS: u32 = 12;

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
    seen: Seen,
}

impl Dns {
    /// The workers behind `name`, which speak `scheme`.
    pub(crate) const fn new(name: DnsName, scheme: &'static str, every: Duration) -> Self {
        Self { name, scheme, every, seen: Seen::new() }
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
        let all = self.seen.with(addresses(answer)?);
        all.into_iter().map(|address| worker(&self.name.leg, self.scheme, address)).collect::<Result<_, _>>().map(Some)
    }
}

/// The addresses of earlier answers.
#[derive(Debug)]
struct Seen {
    /// From how many answers in a row each has been missing.
    missing: BTreeMap<SocketAddr, u32>,
    /// For so many answers yet they are taken for parts of what there is.
    parts: u32,
}

impl Seen {
    const fn new() -> Self {
        Self { missing: BTreeMap::new(), parts: 0 }
    }

    /// All that is there, by this answer and, if answers are parts, by the last ones.
    fn with(&mut self, answer: Vec<SocketAddr>) -> Vec<SocketAddr> {
        self.parts = self.parts.saturating_sub(1);
        self.missing.values_mut().for_each(|answers| *answers += 1);
        for address in answer {
            if self.missing.insert(address, 0).is_some_and(|answers| answers > 1) {
                self.parts = ANSWERS;
            }
        }
        self.missing.retain(|_, answers| *answers < ANSWERS);
        let stays = |answers: u32| answers == 0 || self.parts > 0;
        self.missing.iter().filter(|(_, answers)| stays(**answers)).map(|(address, _)| *address).collect()
    }
}

/// The addresses of an answer. An engine with two addresses is one worker, so only one family counts.
fn addresses(answer: io::Result<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>, String> {
    let addresses = answer.map_err(|error| format!("does not resolve: {error}"))?;
    let four: Vec<_> = addresses.iter().filter(|address| address.is_ipv4()).copied().collect();
    let addresses = if four.is_empty() { addresses } else { four };
    if addresses.is_empty() { Err("has no address".to_owned()) } else { Ok(addresses) }
}

fn worker(leg: &str, scheme: &str, address: SocketAddr) -> Result<Found, String> {
    let spec = WorkerSpec { url: format!("{scheme}://{address}"), leg: leg.to_owned(), ..WorkerSpec::default() };
    Found::new(spec, None)
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

    fn all(addresses: &[&str]) -> Vec<SocketAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn every_address_of_one_family_is_a_worker() {
        let both = ["[fd00::1]:8000", "10.0.0.2:8000", "10.0.0.1:8000", "10.0.0.2:8000"];
        let seen = |answer| Seen::new().with(addresses(Ok(answer)).unwrap());
        assert_eq!(seen(all(&both)), all(&["10.0.0.1:8000", "10.0.0.2:8000"]));
        assert_eq!(seen(all(&both[..1])), all(&both[..1]));
        let found = worker("decode", "http", all(&both)[0]).unwrap();
        assert_eq!((found.worker.url(), found.spec.leg.as_str()), ("http://[fd00::1]:8000", "decode"));
    }

    #[test]
    fn who_is_missing_has_left_unless_answers_are_parts() {
        let (a, b, c) = ("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80");
        let mut seen = Seen::new();
        assert_eq!(seen.with(all(&[a, b, c])), all(&[a, b, c]));
        assert_eq!(seen.with(all(&[a, b])), all(&[a, b]), "it leaves at once");
        assert_eq!(seen.with(all(&[a, c])), all(&[a, b, c]), "it is back: answers are parts");
        for part in [[a, b], [b, c], [c, a]].iter().cycle().take(30) {
            assert_eq!(seen.with(all(part)), all(&[a, b, c]));
        }
        let others = (0..ANSWERS).filter(|_| seen.with(all(&[a, c])).len() == 3).count();
        assert!((10..12).contains(&others), "{others}: it leaves after a minute at the usual pace");
        assert_eq!(seen.with(all(&[a])), all(&[a]), "answers are whole again");
        assert_eq!(seen.missing.len(), 2, "the others are forgotten");
    }

    #[test]
    fn no_answer_and_an_empty_one_name_nobody_anew() {
        assert!(addresses(Ok(Vec::new())).unwrap_err().contains("no address"));
        assert!(addresses(Err(io::Error::other("SERVFAIL"))).unwrap_err().contains("SERVFAIL"));
    }
}
