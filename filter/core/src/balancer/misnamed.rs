//! Names of policies that are none, in workers' labels and in routes' metadata: each is told once.

use super::{Balancer, Context, Level};
use crate::config::PolicyName;
use crate::fleet::PolicyRef;

/// So many names of routes are told; a configuration has few, and whoever mends those finds the rest.
const NAMES: usize = 16;
/// So many bytes of each.
const NAME_BYTES: usize = 64;

/// What routes have named in vain.
#[derive(Debug, Default)]
pub(super) struct Misnamed {
    /// The beginnings of the names.
    names: Vec<Vec<u8>>,
    /// So many of them have been told.
    told: usize,
}

impl Misnamed {
    fn note(&mut self, name: &[u8]) {
        let name = name.get(..NAME_BYTES).unwrap_or(name);
        // Where nothing is given there is nothing to mend.
        if !name.is_empty() && self.names.len() < NAMES && !self.names.iter().any(|known| known == name) {
            self.names.push(name.to_owned());
        }
    }

    fn tell(&mut self, context: &mut Context<'_>) {
        for name in self.names.iter().skip(self.told) {
            let shown = String::from_utf8_lossy(name);
            let line = format!(
                "a route's metadata smg: {{policy: {shown:?}}} names no policy and changes nothing; known: {}",
                known()
            );
            context.log.line(Level::Warn, &line);
        }
        self.told = self.names.len();
    }
}

impl Balancer {
    /// The policy that a route's metadata calls `name`, spelled as labels may be. A name that is none changes nothing and
    /// is warned of at the next tick.
    pub fn policy_of_route(&mut self, name: &[u8]) -> Option<PolicyName> {
        let policy = std::str::from_utf8(name).ok().and_then(PolicyRef::spelled);
        if policy.is_none() {
            self.misnamed.note(name);
        }
        policy
    }

    /// Says once of each name that it names no policy.
    pub(super) fn warn_policies(&mut self, context: &mut Context<'_>) {
        self.misnamed.tell(context);
        let unknown = self.fleet.unknown_policies();
        if unknown != self.warned_policies {
            self.warned_policies = unknown.to_vec();
            for label in &self.warned_policies {
                let line = format!(
                    "the worker label policy={label:?} names no policy and changes nothing; known: {}",
                    known()
                );
                context.log.line(Level::Warn, &line);
            }
        }
    }
}

fn known() -> String {
    PolicyName::ALL.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ")
}
