//! Workers that Envoy itself knows: the hosts of its clusters, and what it thinks of their health.

use std::{
    net::{IpAddr, SocketAddr},
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
}

impl EnvoyClusters {
    /// The hosts of the clusters of `admin`, which speak `scheme`.
    pub(crate) const fn new(admin: EnvoyAdmin, client: Client, scheme: &'static str, every: Duration) -> Self {
        Self { admin, client, scheme, every }
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
        hosts(&answer.body, &self.admin.clusters, self.scheme).map(Some)
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
    address: IpAddr,
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

/// The hosts of `clusters` on the page. Hosts without an IP address (pipes, internal listeners) are left out.
pub(super) fn hosts(page: &[u8], clusters: &[EnvoyCluster], scheme: &str) -> Result<Vec<Found>, String> {
    let page: Page = serde_json::from_slice(page).map_err(|error| format!("/clusters is no such page: {error}"))?;
    let mut found = Vec::new();
    for EnvoyCluster { name, leg } in clusters {
        let of_name = page.cluster_statuses.iter().find(|cluster| cluster.name == *name);
        let cluster = of_name.ok_or_else(|| format!("there is no cluster {name:?}"))?;
        for host in &cluster.host_statuses {
            let Some(address) = &host.address.socket_address else { continue };
            let address = SocketAddr::new(address.address, address.port_value);
            let spec = WorkerSpec {
                url: format!("{scheme}://{address}"),
                leg: leg.clone(),
                cluster: Some(name.clone()),
                ..WorkerSpec::default()
            };
            found.push(Found::new(spec, host.health_status.verdict())?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let rows: Vec<_> = healths.iter().zip(8000..).map(|((health, _), port)| host(port, health)).collect();
        let pipe = r#"{"address":{"pipe":{"path":"/x"}}}"#;
        let page = format!(
            r#"{{"cluster_statuses":[{{"name":"admin"}},{{"name":"engines","host_statuses":[{pipe},{}]}}]}}"#,
            rows.join(",")
        );
        let found = hosts(page.as_bytes(), &["engines=decode".parse().unwrap()], "http").unwrap();
        assert_eq!(found.len(), healths.len());
        for ((found, (health, verdict)), port) in found.iter().zip(healths).zip(8000..) {
            assert_eq!(
                (found.worker.url(), found.verdict),
                (format!("http://10.0.0.1:{port}").as_str(), verdict),
                "{health}"
            );
            assert_eq!((found.spec.cluster.as_deref(), found.spec.leg.as_str()), (Some("engines"), "decode"));
        }
        assert!(hosts(page.as_bytes(), &["admin".parse().unwrap()], "http").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_names_nobody_anew() {
        let cluster: EnvoyCluster = "engines".parse().unwrap();
        for (page, part) in [("{}", "no cluster \"engines\""), ("engines::x", "no such page"), ("[", "no such page")] {
            let why = hosts(page.as_bytes(), std::slice::from_ref(&cluster), "http").unwrap_err();
            assert!(why.contains(part), "{why:?} does not say {part:?}");
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
