//! Whether the bodies of held requests come at all.
//!
//! Without `allow_on_headers_stop_iteration` in the plugin's Envoy configuration a request that is held on its headers
//! never sees its body and would hang. Neither Istio's nor Envoy Gateway's own resources can set that flag, so its
//! absence must not be fatal: it is noticed, and from then on requests are routed on their headers.

use crate::balancer::{Context, Level};

/// A held request is let go when nothing has come of its body for so long, in milliseconds.
pub const PATIENCE_MS: u64 = 2_000;

/// A body that comes within this time of its request's release had been waiting for it: the flag is missing. A client
/// that is merely slow sends at another moment.
const AT_ONCE_MS: u64 = 500;

/// What one configuration knows of bodies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Bodies {
    /// No held request has seen its body yet.
    #[default]
    Unproven,
    /// Held requests see their bodies.
    Seen,
    /// They do not: nothing is held any more.
    Missing,
}

impl Bodies {
    /// A held request has been handed a part of its body.
    pub(super) fn come(&mut self, context: &mut Context<'_>) {
        if *self != Self::Seen {
            *self = Self::Seen;
            context.metrics.set(METRIC, LABELS, 0);
        }
    }

    /// A request that was let go after waiting in vain is handed a part of its body, `after_ms` after its release.
    pub(super) fn late(&mut self, context: &mut Context<'_>, after_ms: u64) {
        if *self != Self::Unproven || after_ms > AT_ONCE_MS {
            return;
        }
        *self = Self::Missing;
        context.metrics.set(METRIC, LABELS, 1);
        let line = "requests that are held on their headers do not see their bodies: the Wasm plugin lacks \
             allow_on_headers_stop_iteration: true (Istio: an EnvoyFilter sets it; Envoy Gateway: an EnvoyPatchPolicy). \
             Until it is set, policies that read the body give way to least_load, and the model is known from \
             `model_header` only";
        context.log.line(Level::Error, line);
    }
}

const METRIC: &str = "smg_degraded";
const LABELS: &[(&str, &str)] = &[("reason", "no_stop_iteration")];
