//! The one format that the sidecar and the filter share: a snapshot of what the engines say about themselves.
//!
//! A snapshot is a JSON object; unknown members are ignored, so that old filters understand newer sidecars.
//! `(epoch, sequence)` orders snapshots: a later one supersedes an earlier one for the workers it names.

use serde::{Deserialize, Serialize};

/// The format's version. A snapshot of another version is refused whole.
pub const VERSION: u32 = 1;

/// Larger snapshots are refused unread, in bytes. 4,096 workers need about a quarter of it.
pub const MAX_SNAPSHOT_BYTES: usize = 4 << 20;

/// What one poll of all workers has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Names the life of one sidecar process: its start in Unix milliseconds.
    pub epoch: u64,
    /// Grows by one with each snapshot of an epoch.
    pub sequence: u64,
    /// Milliseconds until the next snapshot is due. A worker whose last report is older than
    /// three intervals counts as not reporting.
    pub interval_ms: u32,
    /// One entry per polled worker; a worker that is not named keeps what is known of it.
    pub workers: Vec<WorkerReport>,
}

/// What is known of one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// The worker's URL, byte for byte as it stands in the configuration.
    pub url: String,
    /// Where the URL's host is reached: `ip:port`, IPv6 in brackets. Absent if it did not resolve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The load, or absent if the poll failed or told nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// A worker's load, its data-parallel ranks already added up (`policies` rules: queue, waiting and throughput are
/// sums over the ranks, KV usage is their mean).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Tokens of waiting requests that no cache holds.
    #[serde(default)]
    pub queued_tokens: f64,
    /// Requests that wait.
    #[serde(default)]
    pub waiting: f64,
    /// Requests that run.
    #[serde(default)]
    pub running: f64,
    /// Share of the KV memory in use, 0 to 1.
    #[serde(default)]
    pub kv_usage: f64,
    /// Generated tokens per second, 0 when the engine does not say.
    #[serde(default)]
    pub throughput: f64,
}

impl Load {
    /// The load with every number that cannot be true made harmless: not finite or negative becomes 0,
    /// KV usage is at most 1, counts fit 32 bits.
    #[must_use]
    pub fn sanitized(self) -> Self {
        let clean = |value: f64, most: f64| if value.is_finite() { value.clamp(0.0, most) } else { 0.0 };
        let most = f64::from(u32::MAX);
        Self {
            queued_tokens: clean(self.queued_tokens, most),
            waiting: clean(self.waiting, most),
            running: clean(self.running, most),
            kv_usage: clean(self.kv_usage, 1.0),
            throughput: clean(self.throughput, 1e12),
        }
    }
}

/// Why a snapshot is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// More than [`MAX_SNAPSHOT_BYTES`]; the size in bytes.
    TooLarge(usize),
    /// Not a snapshot: the parser's message.
    Malformed(String),
    /// Another version of the format.
    Version(u32),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge(bytes) => {
                write!(f, "a snapshot of {bytes} bytes; at most {MAX_SNAPSHOT_BYTES} are read")
            }
            Self::Malformed(why) => write!(f, "not a load snapshot: {why}"),
            Self::Version(version) => write!(
                f,
                "a snapshot of format version {version}; this filter reads version {VERSION}: run the sidecar of the same release"
            ),
        }
    }
}

impl std::error::Error for Refused {}

impl Snapshot {
    /// The snapshot in `bytes`, its numbers sanitized.
    ///
    /// # Errors
    /// When the bytes are too many, are not a snapshot, or are one of another version.
    pub fn parse(bytes: &[u8]) -> Result<Self, Refused> {
        #[derive(Deserialize)]
        struct Head {
            version: u32,
        }
        if bytes.len() > MAX_SNAPSHOT_BYTES {
            return Err(Refused::TooLarge(bytes.len()));
        }
        let malformed = |error: serde_json::Error| Refused::Malformed(error.to_string());
        let head: Head = serde_json::from_slice(bytes).map_err(malformed)?;
        if head.version != VERSION {
            return Err(Refused::Version(head.version));
        }
        let mut snapshot: Self = serde_json::from_slice(bytes).map_err(malformed)?;
        for worker in &mut snapshot.workers {
            worker.load = worker.load.map(Load::sanitized);
        }
        Ok(snapshot)
    }

    /// The bytes that [`Snapshot::parse`] reads.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot() -> Snapshot {
        Snapshot {
            version: VERSION,
            epoch: 1_790_000_000_000,
            sequence: 7,
            interval_ms: 10_000,
            workers: vec![WorkerReport {
                url: "http://10.0.0.1:8000".into(),
                address: Some("10.0.0.1:8000".into()),
                load: Some(Load {
                    queued_tokens: 9216.0,
                    waiting: 4.0,
                    running: 17.0,
                    kv_usage: 0.4375,
                    throughput: 812.45,
                }),
            }],
        }
    }

    #[test]
    fn reads_what_it_wrote() {
        assert_eq!(Snapshot::parse(&snapshot().to_bytes()), Ok(snapshot()));
    }

    #[test]
    fn unknown_members_are_ignored() {
        let text =
            r#"{"version":1,"epoch":1,"sequence":2,"interval_ms":3,"new":[1],"workers":[{"url":"http://a","x":1}]}"#;
        assert_eq!(Snapshot::parse(text.as_bytes()).unwrap().workers[0].load, None);
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        assert_eq!(Snapshot::parse(br#"{"version":2,"anything":true}"#), Err(Refused::Version(2)));
    }

    #[test]
    fn garbage_and_huge_ones_are_refused() {
        assert!(matches!(Snapshot::parse(b"\xff\x00garbage"), Err(Refused::Malformed(_))));
        assert!(matches!(Snapshot::parse(b""), Err(Refused::Malformed(_))));
        let huge = vec![b' '; MAX_SNAPSHOT_BYTES + 1];
        assert_eq!(Snapshot::parse(&huge), Err(Refused::TooLarge(MAX_SNAPSHOT_BYTES + 1)));
    }

    #[test]
    fn numbers_that_cannot_be_true_are_made_harmless() {
        let load =
            Load { queued_tokens: -5.0, waiting: f64::NAN, running: 1e300, kv_usage: 5.0, throughput: f64::INFINITY };
        let expected =
            Load { queued_tokens: 0.0, waiting: 0.0, running: f64::from(u32::MAX), kv_usage: 1.0, throughput: 0.0 };
        assert_eq!(load.sanitized(), expected);
    }
}
