//! The headers of a request that may name a key or a worker, and which of them counts for what.

use super::Http;
use crate::balancer::{KeySource, StickyKey};
use crate::config::{Config, TrustRoutingHeaders};
use crate::policy::Keys;
use crate::request::{Target, implicit_key, manual_key, rid_key, routing_key, strip_lineage, target_worker};

/// Names a worker by its position among those that are available.
pub const TARGET_HEADER: &str = "x-smg-target-worker";

/// The routing key's usual header.
pub const KEY_HEADER: &str = "x-smg-routing-key";

/// Set by Envoy, and removed from what comes from outside.
const INTERNAL_HEADER: &str = "x-envoy-internal";

/// What the headers of a request say. Read while it is held or in its first callback; Envoy lends them no longer.
#[derive(Debug, Default)]
pub(super) struct HeaderKeys {
    /// Whether what a client says in routing headers counts.
    pub(super) trusted: bool,
    pub(super) target: Target,
    /// The first configured header with a valid key, as it came.
    pub(super) configured: Option<Vec<u8>>,
    /// [`KEY_HEADER`], as it came.
    fixed: Option<Vec<u8>>,
    implicit: Option<String>,
}

impl HeaderKeys {
    /// Reads what policies go by that need these `keys`, and the key that requests are counted under.
    pub(super) fn read(http: &mut dyn Http, config: &Config, keys: Keys) -> Self {
        let trusted = match config.trust_routing_headers {
            TrustRoutingHeaders::Always => true,
            TrustRoutingHeaders::Never => false,
            TrustRoutingHeaders::Internal => http.request_header(INTERNAL_HEADER).is_some_and(|value| value == b"true"),
        };
        let mut read = Self { trusted, ..Self::default() };
        let mut asked_fixed = false;
        if trusted {
            if keys.target {
                read.target = http.request_header(TARGET_HEADER).map_or(Target::Absent, |raw| target_worker(&raw));
            }
            for name in &config.routing_key_headers {
                let raw = http.request_header(name);
                if name == KEY_HEADER {
                    asked_fixed = true;
                    read.fixed.clone_from(&raw);
                }
                if let Some(raw) = raw.filter(|raw| routing_key(raw).is_some()) {
                    read.configured = Some(raw);
                    break;
                }
            }
            if !asked_fixed && (keys.fixed || (keys.implicit && read.configured.is_none())) {
                read.fixed = http.request_header(KEY_HEADER);
            }
        }
        if keys.implicit && read.target == Target::Absent && read.header_key().is_none() {
            read.implicit = implicit_key(|name| http.request_header(name));
        }
        read
    }

    /// The key that a header names for the hash ring.
    fn header_key(&self) -> Option<&[u8]> {
        let fixed = || self.fixed.as_deref().filter(|raw| routing_key(raw).is_some());
        self.configured.as_deref().or_else(fixed)
    }

    /// The key that `consistent_hashing` goes by. `rid` is the body's, where it counts.
    pub(super) fn hash_key<'a>(&'a self, rid: Option<&'a str>) -> Option<&'a [u8]> {
        let rid = rid.and_then(rid_key).map(str::as_bytes);
        rid.or_else(|| self.header_key()).or(self.implicit.as_ref().map(String::as_bytes))
    }

    /// The key that `manual` goes by.
    pub(super) fn manual_key<'a>(&'a self, rid: Option<&'a str>) -> Option<StickyKey<'a>> {
        let of_rid = rid.and_then(rid_key).map(|key| StickyKey { key: key.as_bytes(), source: KeySource::Rid });
        of_rid.or_else(|| {
            let key = manual_key(self.fixed.as_deref()?)?;
            Some(StickyKey { key: key.as_bytes(), source: KeySource::Header })
        })
    }

    /// The key that requests are counted under and that the routing-key override goes by. Its lineage counts only where
    /// the override is off.
    pub(super) fn key<'a>(&'a self, rid: Option<&'a str>, is_override: bool) -> Option<StickyKey<'a>> {
        let of_rid = rid.and_then(rid_key).map(|key| StickyKey { key: key.as_bytes(), source: KeySource::Rid });
        of_rid.or_else(|| {
            let key = routing_key(self.configured.as_deref()?)?;
            let key = if is_override { strip_lineage(key) } else { key };
            Some(StickyKey { key: key.as_bytes(), source: KeySource::Header })
        })
    }
}
