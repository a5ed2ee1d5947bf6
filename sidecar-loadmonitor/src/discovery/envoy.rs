//! Workers that Envoy itself knows: the hosts of its clusters, and what it thinks of their health.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::SocketAddr,
    str::FromStr,
    time::Duration,
};

use filter_core::report::Health;
use futures_util::stream::BoxStream;
use reqwest::Client;
use serde::Deserialize;
use tokio::time::Instant;
use url::Url;

use super::{Found, Look, Source, look_every};
use crate::{fetch::exchange, spec::WorkerSpec};

/// What the admin endpoint may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// A mesh with tens of thousands of hosts fits, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// The admin endpoint of an Envoy, and which of its clusters have engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyAdmin {
    /// `http://host:port`.
    pub url: Url,
    /// At least one.
    pub clusters: Vec<EnvoyCluster>,
}

/// A cluster of engines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvoyCluster {
    name: String,
    leg: String,
}

impl FromStr for EnvoyCluster {
    type Err = String;

    /// `NAME[=LEG]`. A name may hold equals signs; what follows the last one is a leg only if it is one.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, leg) = match text.rsplit_once('=') {
            Some((name, leg @ ("regular" | "prefill" | "decode"))) => (name, leg),
            _ => (text, ""),
        };
        if name.is_empty() {
            return Err("must be the name of a cluster, with =prefill or =decode behind it for one leg only".to_owned());
        }
        Ok(Self { name: name.to_owned(), leg: leg.to_owned() })
    }
}

/// Asks Envoy's admin endpoint for its hosts.
#[derive(Debug)]
pub(crate) struct EnvoyClusters {
    admin: EnvoyAdmin,
    client: Client,
    scheme: &'static str,
    every: Duration,
    /// By the places of the clusters.
    known: Vec<Known>,
}

/// What is known of a cluster.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Its hosts, as the last page that had it said.
    hosts: Vec<Found>,
    /// The last page did not have it.
    missing: bool,
}

impl EnvoyClusters {
    /// The hosts of the clusters of `admin`, which speak `scheme`.
    pub(crate) fn new(admin: EnvoyAdmin, client: Client, scheme: &'static str, every: Duration) -> Self {
        let known = vec![Known::default(); admin.clusters.len()];
        Self { admin, client, scheme, every, known }
    }

    /// Takes a page: the hosts of all clusters. Of one that the page does not have what was known stands, and it does not
    /// keep the others from being seen.
    fn take(&mut self, page: &[u8]) -> Result<Vec<Found>, String> {
        let page = hosts(page, &self.admin.clusters, self.scheme)?;
        if page.iter().all(Option::is_none) {
            let names: Vec<_> = self.admin.clusters.iter().map(|cluster| format!("{:?}", cluster.name)).collect();
            return Err(format!("there is no cluster {}", names.join(", ")));
        }
        for ((cluster, known), seen) in self.admin.clusters.iter().zip(&mut self.known).zip(page) {
            let missing = seen.is_none();
            if missing && !known.missing {
                let (cluster, kept) = (&cluster.name, known.hosts.len());
                tracing::warn!(cluster, kept, "Envoy has no cluster of this name: those that were known of it stay");
            }
            *known = Known { hosts: seen.unwrap_or_else(|| std::mem::take(&mut known.hosts)), missing };
        }
        Ok(merged(self.known.iter().flat_map(|known| &known.hosts)))
    }
}

impl Source for EnvoyClusters {
    fn name(&self) -> String {
        format!("Envoy at {}", self.admin.url)
    }

    fn sets(self: Box<Self>) -> BoxStream<'static, Vec<Found>> {
        look_every(self.every, *self)
    }
}

impl Look for EnvoyClusters {
    fn name(&self) -> String {
        Source::name(self)
    }

    async fn look(&mut self) -> Result<Option<Vec<Found>>, String> {
        let mut url = self.admin.url.clone();
        url.set_path("/clusters");
        url.set_query(Some("format=json"));
        let answer = exchange(self.client.get(url), MAX_BYTES, Instant::now() + PATIENCE).await;
        let answer = answer.map_err(|error| format!("/clusters {error}"))?;
        if answer.status != 200 {
            return Err(format!("/clusters answered {}", answer.status));
        }
        self.take(&answer.body).map(Some)
    }
}

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    cluster_statuses: Vec<ClusterStatus>,
}

#[derive(Deserialize)]
struct ClusterStatus {
    #[serde(default)]
    name: String,
    #[serde(default)]
    host_statuses: Vec<HostStatus>,
}

#[derive(Deserialize)]
struct HostStatus {
    #[serde(default)]
    address: Address,
    #[serde(default)]
    health_status: HostHealth,
}

#[derive(Default, Deserialize)]
struct Address {
    socket_address: Option<SocketAddress>,
}

#[derive(Deserialize)]
struct SocketAddress {
    address: String,
    /// Absent where it is 0.
    #[serde(default)]
    port_value: u16,
}

/// Envoy's `HostHealthStatus`; what does not hold is absent.
#[derive(Default, Deserialize)]
#[serde(default)]
struct HostHealth {
    failed_active_health_check: bool,
    failed_outlier_check: bool,
    pending_dynamic_removal: bool,
    pending_active_hc: bool,
    excluded_via_immediate_hc_fail: bool,
    eds_health_status: String,
}

impl HostHealth {
    /// What speaks against the host.
    fn verdict(&self) -> Option<Health> {
        let failed = self.failed_active_health_check
            || self.failed_outlier_check
            || self.pending_active_hc
            || self.excluded_via_immediate_hc_fail;
        match self.eds_health_status.as_str() {
            "DRAINING" => Some(Health::Draining),
            _ if self.pending_dynamic_removal => Some(Health::Draining),
            "UNHEALTHY" | "TIMEOUT" => Some(Health::NotReady),
            _ => failed.then_some(Health::NotReady),
        }
    }
}

/// One worker for each host, and the worst of what its clusters have against it.
fn merged<'a>(all: impl Iterator<Item = &'a Found>) -> Vec<Found> {
    let mut places: HashMap<String, usize> = HashMap::new();
    let mut found: Vec<Found> = Vec::new();
    for one in all {
        match places.entry(one.worker.route("")) {
            Entry::Vacant(place) => {
                place.insert(found.len());
                found.push(one.clone());
            }
            Entry::Occupied(place) => {
                if let Some(known) = found.get_mut(*place.get()).filter(|known| known.verdict != Some(Health::Draining))
                {
                    known.verdict = one.verdict.or(known.verdict);
                }
            }
        }
    }
    found
}

/// The hosts of each of `clusters`, if the page has it. Hosts without an IP address (pipes, internal listeners) or a port
/// are left out.
pub(super) fn hosts(page: &[u8], clusters: &[EnvoyCluster], scheme: &str) -> Result<Vec<Option<Vec<Found>>>, String> {
    let page: Page = serde_json::from_slice(page).map_err(|error| format!("/clusters is no such page: {error}"))?;
    let of = |EnvoyCluster { name, leg }: &EnvoyCluster| {
        let cluster = page.cluster_statuses.iter().find(|cluster| cluster.name == *name)?;
        let host = |host: &HostStatus| {
            let address = host.address.socket_address.as_ref()?;
            let address = SocketAddr::new(address.address.parse().ok()?, address.port_value);
            let spec = WorkerSpec {
                url: format!("{scheme}://{address}"),
                leg: leg.clone(),
                cluster: Some(name.clone()),
                ..WorkerSpec::default()
            };
            Found::new(spec, host.health_status.verdict()).ok()
        };
        Some(cluster.host_statuses.iter().filter_map(host).collect())
    };
    Ok(clusters.iter().map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(clusters: &[&str]) -> EnvoyClusters {
        let clusters = clusters.iter().map(|name| name.parse().unwrap()).collect();
        let admin = EnvoyAdmin { url: "http://127.0.0.1:9901".parse().unwrap(), clusters };
        EnvoyClusters::new(admin, Client::new(), "http", Duration::from_secs(1))
    }

    fn host(port: u16, health: &str) -> String {
        format!(
            r#"{{"address":{{"socket_address":{{"address":"10.0.0.1","port_value":{port}}}}},"stats":[{{"name":"x"}}],
                "health_status":{health},"weight":1,"hostname":"h","locality":{{}}}}"#
        )
    }

    #[test]
    fn hosts_are_workers_with_what_envoy_has_against_them() {
        let healths = [
            (r#"{"eds_health_status":"HEALTHY"}"#, None),
            (r#"{"eds_health_status":"DEGRADED"}"#, None),
            ("{}", None),
            (r#"{"eds_health_status":"UNHEALTHY"}"#, Some(Health::NotReady)),
            (r#"{"eds_health_status":"TIMEOUT"}"#, Some(Health::NotReady)),
            (r#"{"eds_health_status":"HEALTHY","failed_active_health_check":true}"#, Some(Health::NotReady)),
            (r#"{"failed_outlier_check":true}"#, Some(Health::NotReady)),
            (r#"{"pending_active_hc":true}"#, Some(Health::NotReady)),
            (r#"{"excluded_via_immediate_hc_fail":true}"#, Some(Health::NotReady)),
            (r#"{"eds_health_status":"DRAINING","failed_outlier_check":true}"#, Some(Health::Draining)),
            (r#"{"pending_dynamic_removal":true}"#, Some(Health::Draining)),
        ];
        let odd = [r#""address":"10.0.0.1""#, r#""address":"a.name","port_value":1"#];
        let odd = odd.map(|address| format!(r#"{{"address":{{"socket_address":{{{address}}}}}}}"#)).join(",");
        let rows: Vec<_> = healths.iter().zip(8000..).map(|((health, _), port)| host(port, health)).collect();
        let pipe = r#"{"address":{"pipe":{"path":"/x"}}}"#;
        let page = format!(
            r#"{{"cluster_statuses":[{{"name":"admin"}},{{"name":"engines","host_statuses":[{pipe},{odd},{}]}}]}}"#,
            rows.join(",")
        );
        let found = source(&["engines=decode"]).take(page.as_bytes()).unwrap();
        assert_eq!(found.len(), healths.len());
        for ((found, (health, verdict)), port) in found.iter().zip(healths).zip(8000..) {
            assert_eq!(
                (found.worker.url(), found.verdict),
                (format!("http://10.0.0.1:{port}").as_str(), verdict),
                "{health}"
            );
            assert_eq!((found.spec.cluster.as_deref(), found.spec.leg.as_str()), (Some("engines"), "decode"));
        }
        assert!(source(&["admin"]).take(page.as_bytes()).unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_names_nobody_anew() {
        for (page, part) in [("{}", "no cluster \"engines\""), ("engines::x", "no such page"), ("[", "no such page")] {
            let why = source(&["engines"]).take(page.as_bytes()).unwrap_err();
            assert!(why.contains(part), "{why:?} does not say {part:?}");
        }
    }

    fn page(clusters: &[(&str, &[String])]) -> Vec<u8> {
        let cluster =
            |(name, hosts): &(&str, &[String])| format!(r#"{{"name":"{name}","host_statuses":[{}]}}"#, hosts.join(","));
        let clusters: Vec<_> = clusters.iter().map(cluster).collect();
        format!(r#"{{"cluster_statuses":[{}]}}"#, clusters.join(",")).into_bytes()
    }

    fn seen(found: &[Found]) -> Vec<(u16, Option<Health>)> {
        let port = |found: &Found| found.worker.url().rsplit_once(':').unwrap().1.parse().unwrap();
        found.iter().map(|found| (port(found), found.verdict)).collect()
    }

    #[test]
    fn a_cluster_that_is_missing_blinds_nobody_to_the_others() {
        let mut source = source(&["a", "b"]);
        let (well, ill) = (host(1, "{}"), host(1, r#"{"failed_outlier_check":true}"#));
        let without = source.take(&page(&[("a", &[well.clone(), host(0, "{}")])])).unwrap();
        assert_eq!(seen(&without), [(1, None)]);
        let with = source.take(&page(&[("a", &[well]), ("b", &[host(2, "{}")])])).unwrap();
        assert_eq!(seen(&with), [(1, None), (2, None)]);
        let again = source.take(&page(&[("a", &[ill])])).unwrap();
        assert_eq!(seen(&again), [(1, Some(Health::NotReady)), (2, None)]);
        assert!(source.take(&page(&[])).is_err());
    }

    #[test]
    fn of_a_host_of_several_clusters_the_worst_counts() {
        let (well, ill, leaves) = (
            host(1, "{}"),
            host(1, r#"{"failed_outlier_check":true}"#),
            host(1, r#"{"eds_health_status":"DRAINING"}"#),
        );
        for (hosts, verdict) in [
            ([&well, &ill], Health::NotReady),
            ([&ill, &well], Health::NotReady),
            ([&ill, &leaves], Health::Draining),
            ([&leaves, &ill], Health::Draining),
        ] {
            let [a, b] = hosts.map(|host| [host.clone()]);
            let found = source(&["a", "b"]).take(&page(&[("a", &a), ("b", &b)])).unwrap();
            assert_eq!(seen(&found), [(1, Some(verdict))]);
        }
    }

    #[test]
    fn a_cluster_may_have_a_leg() {
        let cluster = |text: &str| text.parse::<EnvoyCluster>().map(|cluster| (cluster.name, cluster.leg));
        assert_eq!(cluster("outbound|8000||e"), Ok(("outbound|8000||e".into(), String::new())));
        assert_eq!(cluster("a=b=prefill"), Ok(("a=b".into(), "prefill".into())));
        assert_eq!(cluster("a=b"), Ok(("a=b".into(), String::new())));
        assert!(cluster("=decode").is_err());
    }
}
