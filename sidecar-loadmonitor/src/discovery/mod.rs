//! Where workers come from. Every source says again and again whom it names; the registry does the rest.

mod dns;
mod envoy;
mod file;
mod list;

use std::{sync::Arc, time::Duration};

use filter_core::report::Health;
use futures_util::{
    StreamExt,
    stream::{BoxStream, unfold},
};
use tokio::time::{Interval, MissedTickBehavior, interval};

pub(crate) use dns::Dns;
pub use dns::DnsName;
pub(crate) use envoy::EnvoyClusters;
pub use envoy::{EnvoyAdmin, EnvoyCluster};
pub(crate) use file::WorkersFile;
pub(crate) use list::List;

use crate::{config::Worker, spec::WorkerSpec};

/// One worker as a source names it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// Its URL, checked.
    pub(crate) worker: Worker,
    /// What is said of it.
    pub(crate) spec: Arc<WorkerSpec>,
    /// [`Health::NotReady`] or [`Health::Draining`], if the source knows that it is.
    pub(crate) verdict: Option<Health>,
}

impl Found {
    /// The worker that `spec` describes.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub(crate) fn new(spec: WorkerSpec, verdict: Option<Health>) -> Result<Self, String> {
        let worker = spec.check()?;
        Ok(Self { worker, spec: Arc::new(spec), verdict })
    }
}

/// A source of workers.
pub(crate) trait Source: Send {
    /// What the log calls it.
    fn name(&self) -> String;

    /// All that it names, each time that may have changed. It never says less because it could not find out: then it
    /// says nothing.
    fn sets(self: Box<Self>) -> BoxStream<'static, Vec<Found>>;
}

/// A source that has to look again and again.
trait Look: Send + 'static {
    /// What the log calls it.
    fn name(&self) -> String;

    /// All that is named now; none if nothing has changed. An error, and what was named before stands.
    fn look(&mut self) -> impl Future<Output = Result<Option<Vec<Found>>, String>> + Send;
}

/// What `source` sees each time it looks. Trouble is logged when it begins and when it ends.
fn look_every<L: Look>(every: Duration, source: L) -> BoxStream<'static, Vec<Found>> {
    struct Watch<L> {
        source: L,
        schedule: Interval,
        trouble: Option<String>,
    }
    let mut schedule = interval(every);
    schedule.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let next = async |mut watch: Watch<L>| loop {
        watch.schedule.tick().await;
        let seen = watch.source.look().await;
        let name = watch.source.name();
        match seen {
            Ok(set) => {
                if watch.trouble.take().is_some() {
                    tracing::info!(source = name, "workers can be found again");
                }
                if let Some(set) = set {
                    tracing::trace!(source = name, workers = set.len(), "workers found");
                    return Some((set, watch));
                }
            }
            Err(why) if watch.trouble.as_ref() == Some(&why) => tracing::debug!(source = name, why, "still in trouble"),
            Err(why) => {
                tracing::warn!(source = name, why, "workers cannot be found: those that are known stay");
                watch.trouble = Some(why);
            }
        }
    };
    unfold(Watch { source, schedule, trouble: None }, next).boxed()
}

/// Whom these bytes name, whatever they are: the contents of a file, Envoy's admin page, or a DNS name.
#[cfg(any(test, fuzzing))]
pub(crate) fn readings(bytes: &[u8]) -> Vec<Found> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = text.parse::<DnsName>();
        let _ = text.parse::<EnvoyCluster>();
    }
    let clusters: Vec<EnvoyCluster> =
        ["engines", "engines=decode"].iter().filter_map(|name| name.parse().ok()).collect();
    let of_envoy = envoy::hosts(bytes, &clusters, "http").into_iter().flatten().flatten().flatten();
    file::parse(bytes).into_iter().flatten().chain(of_envoy).collect()
}
