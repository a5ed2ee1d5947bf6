//! Requests that `bucket` has placed by chance, for want of buckets: told once a second at most. SMG warns of each, which
//! would let clients write the log full.

use super::{Context, Level};

const PAUSE_MS: u64 = 1000;

/// Requests to be warned of.
#[derive(Debug, Default)]
pub(super) struct Bucketless {
    requests: u64,
    told_ms: u64,
}

impl Bucketless {
    /// A request went to a random worker.
    pub(super) fn note(&mut self) {
        self.requests += 1;
    }

    /// Warns of what was noted, if the last warning is a second ago.
    pub(super) fn tell(&mut self, context: &mut Context<'_>) {
        if self.requests == 0 || context.now_ms.abs_diff(self.told_ms) < PAUSE_MS {
            return;
        }
        self.told_ms = context.now_ms;
        let line = format!(
            "the policy bucket has buckets only for prefill workers: {} requests went to a random available worker; choose \
             another policy",
            std::mem::take(&mut self.requests)
        );
        context.log.line(Level::Warn, &line);
    }
}
