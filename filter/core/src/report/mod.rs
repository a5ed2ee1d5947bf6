//! The one format that the sidecar and the filter share: a snapshot of what the engines say about themselves.
//!
//! A snapshot is a JSON object; unknown members are ignored, so that old filters understand newer sidecars. It is the
//! same whether the sidecar pushes it or the filter fetches it. `(epoch, sequence)` orders the snapshots of one
//! reporter: a later one supersedes an earlier one for the workers it names.

mod load;
mod worker;

use serde::{Deserialize, Serialize};

pub use load::Load;
pub use worker::{Health, Info, Overload, Resilience, WorkerReport};

/// The format's version. A snapshot of another version is refused whole.
pub const VERSION: u32 = 2;

/// Larger snapshots are refused unread, in bytes. 4,096 workers need about a quarter of it.
pub const MAX_SNAPSHOT_BYTES: usize = 4 << 20;

/// What a sidecar knows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// [`VERSION`].
    pub version: u32,
    /// Names the sidecar among others, and outlives its process. A worker that only a sidecar has named is removed by
    /// the same one only.
    #[serde(default)]
    pub reporter: String,
    /// Names the life of one sidecar process: its start in Unix milliseconds.
    pub epoch: u64,
    /// Grows by one with each snapshot of an epoch.
    pub sequence: u64,
    /// Milliseconds until the next snapshot is due. A worker whose last report is older than
    /// three intervals counts as not reporting.
    pub interval_ms: u32,
    /// What it says of workers that it does not name.
    #[serde(default)]
    pub scope: Scope,
    /// One entry per worker.
    pub workers: Vec<WorkerReport>,
    /// URLs of workers that have left since the snapshot that a delta builds on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
}

/// What a snapshot says of workers that it does not name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Nothing: what is known of them stands, and ages.
    #[default]
    Some,
    /// It names everybody that the reporter knows: its other workers are gone.
    Full,
    /// It names everybody of whom anything has changed after this sequence number of the same epoch. For who has
    /// taken that snapshot the others are as they were, and as fresh as this snapshot; who has not must ask for a
    /// full one.
    Since(u64),
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
    /// A snapshot of some workers, of a reporter without a name.
    #[must_use]
    pub fn of(epoch: u64, sequence: u64, interval_ms: u32, workers: Vec<WorkerReport>) -> Self {
        Self {
            version: VERSION,
            reporter: String::new(),
            epoch,
            sequence,
            interval_ms,
            scope: Scope::Some,
            workers,
            removed: Vec::new(),
        }
    }

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
        let load = Load { queued_tokens: 9216.0, waiting: 4.0, running: 17.0, kv_usage: 0.4375, throughput: 812.45 };
        let info = Info {
            models: vec!["m".into(), "lora".into()],
            runtime: "sglang".into(),
            overload: Overload { token_usage: Some(0.9), ..Overload::default() },
            resilience: Resilience { capacity_status_codes: Some(vec![429, 503]), ..Resilience::default() },
            ..Info::default()
        };
        let worker = WorkerReport {
            url: "http://10.0.0.1:8000".into(),
            address: Some("10.0.0.1:8000".into()),
            health: Some(Health::Ready),
            load: Some(load),
            poll: 4711,
            info: Some(Box::new(info)),
        };
        Snapshot {
            reporter: "rack-1".into(),
            scope: Scope::Since(6),
            removed: vec!["http://10.0.0.2:8000".into()],
            ..Snapshot::of(1_790_000_000_000, 7, 10_000, vec![worker])
        }
    }

    #[test]
    fn reads_what_it_wrote() {
        for scope in [Scope::Some, Scope::Full, Scope::Since(u64::MAX)] {
            let snapshot = Snapshot { scope, ..snapshot() };
            assert_eq!(Snapshot::parse(&snapshot.to_bytes()), Ok(snapshot));
        }
    }

    #[test]
    fn a_thousand_workers_are_compact() {
        let of = |number: usize| WorkerReport {
            url: format!("http://10.0.{}.{}:8000", number / 250, number % 250),
            address: Some(format!("10.0.{}.{}:8000", number / 250, number % 250)),
            health: Some(Health::Ready),
            load: snapshot().workers[0].load,
            poll: 9_999,
            info: None,
        };
        let bytes = Snapshot::of(1, 1, 1000, (0..1000).map(of).collect()).to_bytes().len();
        assert!(bytes < 130_000, "{bytes} bytes");
    }

    #[test]
    fn unknown_members_are_ignored() {
        let text = r#"{"version":2,"epoch":1,"sequence":2,"interval_ms":3,"new":[1],"workers":[{"url":"http://a","x":1,"info":{"y":2}}]}"#;
        let parsed = Snapshot::parse(text.as_bytes()).unwrap();
        assert_eq!((parsed.workers[0].load, parsed.scope), (None, Scope::Some));
        assert_eq!(parsed.workers[0].info.as_deref(), Some(&Info::default()));
    }

    #[test]
    fn another_version_is_refused_by_its_number() {
        assert_eq!(Snapshot::parse(br#"{"version":1,"anything":true}"#), Err(Refused::Version(1)));
    }

    #[test]
    fn garbage_and_huge_ones_are_refused() {
        assert!(matches!(Snapshot::parse(b"\xff\x00garbage"), Err(Refused::Malformed(_))));
        assert!(matches!(Snapshot::parse(b""), Err(Refused::Malformed(_))));
        let huge = vec![b' '; MAX_SNAPSHOT_BYTES + 1];
        assert_eq!(Snapshot::parse(&huge), Err(Refused::TooLarge(MAX_SNAPSHOT_BYTES + 1)));
    }
}
