//! From the host in a worker's URL to the address that the filter sends requests to.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tokio::{
    net::lookup_host,
    task::JoinHandle,
    time::{Instant, timeout_at},
};
use url::{Host, Url};

/// The address each host name stands for now; also what the HTTP client connects to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Names(Arc<Mutex<HashMap<String, IpAddr>>>);

impl Names {
    fn get(&self, name: &str) -> Option<IpAddr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(name).copied()
    }

    fn set(&self, name: &str, ip: IpAddr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), ip);
    }
}

impl Resolve for Names {
    fn resolve(&self, name: Name) -> Resolving {
        let known = self.get(name.as_str());
        Box::pin(async move {
            let addresses: Addrs = match known {
                Some(ip) => Box::new(std::iter::once(SocketAddr::new(ip, 0))),
                // The host of a push URL, which no worker has.
                None => Box::new(lookup_host((name.as_str(), 0)).await?.collect::<Vec<_>>().into_iter()),
            };
            Ok(addresses)
        })
    }
}

/// Keeps the address of one worker's host.
#[derive(Debug)]
pub(crate) struct Resolver {
    host: Target,
    port: u16,
}

#[derive(Debug)]
enum Target {
    Literal(IpAddr),
    Name {
        name: String,
        names: Names,
        known: Option<IpAddr>,
        /// A look-up that outlasted its poll. The system's resolver cannot be cancelled and blocks a thread, so there
        /// is never a second one for the same worker.
        running: Option<JoinHandle<io::Result<Vec<IpAddr>>>>,
    },
}

impl Resolver {
    pub(crate) fn new(url: &Url, names: &Names) -> Self {
        let host = match url.host() {
            Some(Host::Ipv4(ip)) => Target::Literal(ip.into()),
            Some(Host::Ipv6(ip)) => Target::Literal(ip.into()),
            Some(Host::Domain(name)) => {
                Target::Name { name: name.to_owned(), names: names.clone(), known: None, running: None }
            }
            None => Target::Name { name: String::new(), names: names.clone(), known: None, running: None },
        };
        Self { host, port: url.port_or_known_default().unwrap_or(80) }
    }

    /// The address now: of a literal the literal; of a name what the resolver says before `deadline`, else the last
    /// address it ever said.
    pub(crate) async fn refresh(&mut self, deadline: Instant) -> Result<SocketAddr, String> {
        let ip = match &mut self.host {
            Target::Literal(ip) => *ip,
            Target::Name { name, names, known, running } => {
                let asked = name.clone();
                let mut lookup = running.take().unwrap_or_else(|| {
                    tokio::spawn(async move {
                        lookup_host((asked, 0)).await.map(|all| all.map(|address| address.ip()).collect())
                    })
                });
                let answer = match timeout_at(deadline, &mut lookup).await {
                    Ok(Ok(answer)) => answer,
                    Ok(Err(ended)) => Err(io::Error::other(ended)),
                    Err(_late) => {
                        *running = Some(lookup);
                        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time"))
                    }
                };
                let ip = choose(*known, answer).map_err(|why| format!("host {name:?} does not resolve: {why}"))?;
                if *known != Some(ip) {
                    tracing::debug!(name, %ip, "resolved");
                    *known = Some(ip);
                    names.set(name, ip);
                }
                ip
            }
        };
        Ok(SocketAddr::new(ip, self.port))
    }
}

/// The address to use: the known one as long as the name still stands for it, or if nothing better is known; else the
/// first IPv4 address, else the first one.
fn choose(known: Option<IpAddr>, answer: io::Result<Vec<IpAddr>>) -> Result<IpAddr, String> {
    let found = answer.map_err(|error| error.to_string()).and_then(|all| {
        let kept = known.filter(|known| all.contains(known));
        let first = || all.iter().find(|ip| ip.is_ipv4()).or_else(|| all.first()).copied();
        kept.or_else(first).ok_or_else(|| "no address".to_owned())
    });
    found.or_else(|why| known.ok_or(why))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    #[tokio::test]
    async fn literals_pass_through_with_the_default_ports() {
        for (url, address) in [
            ("http://10.0.0.1:8000/x", "10.0.0.1:8000"),
            ("http://10.0.0.1", "10.0.0.1:80"),
            ("https://10.0.0.1", "10.0.0.1:443"),
            ("http://[fd00::7]:8000", "[fd00::7]:8000"),
            ("https://[fd00::7]", "[fd00::7]:443"),
        ] {
            let mut resolver = Resolver::new(&Url::parse(url).unwrap(), &Names::default());
            assert_eq!(resolver.refresh(soon()).await.unwrap().to_string(), address);
        }
    }

    #[tokio::test]
    async fn a_name_is_looked_up_and_told_to_the_http_client() {
        let names = Names::default();
        let mut resolver = Resolver::new(&Url::parse("http://LOCALHOST:8000").unwrap(), &names);
        let address = resolver.refresh(soon()).await.unwrap();
        assert!(address.ip().is_loopback() && address.port() == 8000, "{address}");
        assert_eq!(names.get("localhost"), Some(address.ip()));
    }

    #[tokio::test]
    async fn a_name_that_never_resolved_says_so() {
        let mut resolver = Resolver::new(&Url::parse("http://nowhere.invalid").unwrap(), &Names::default());
        let why = resolver.refresh(soon()).await.unwrap_err();
        assert!(why.contains("\"nowhere.invalid\" does not resolve"), "{why}");
    }

    #[test]
    fn ipv4_is_preferred_and_a_known_address_kept() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let (four, other, six) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::7"));
        assert_eq!(choose(None, Ok(vec![six, four, other])), Ok(four));
        assert_eq!(choose(None, Ok(vec![six])), Ok(six));
        assert_eq!(choose(Some(other), Ok(vec![four, other])), Ok(other), "round-robin DNS moves no worker");
        assert_eq!(choose(Some(other), Ok(vec![six, four])), Ok(four), "a changed name does");
        assert_eq!(choose(Some(other), Ok(vec![])), Ok(other));
        assert_eq!(choose(Some(other), Err(io::Error::other("down"))), Ok(other));
        assert!(choose(None, Ok(vec![])).is_err());
        assert!(choose(None, Err(io::Error::other("down"))).is_err());
    }
}
