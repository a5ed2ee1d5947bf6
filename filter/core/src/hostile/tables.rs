//! Shared data that some other code has written: what no table of ours looks like.

use super::vm::{Vm, of_three};
use crate::balancer::{Answered, Prompt};
use crate::breaker::Outcome;
use crate::report::{Load, Scope, Snapshot, WorkerReport};
use crate::store::{MemoryStore, Store, StoreError, Versioned, Write};

/// The first letters of the tables' keys: load, reports, fleet, prefix tree, claims, rows, key counts, turns, start of the
/// turns, meta, named workers, reporters' order.
pub const TABLES: [u8; 12] = *b"lpftcvkrsmno";

/// A store in which every value of one table is spoiled when it is read.
struct Spoiled {
    inner: MemoryStore,
    table: char,
    /// Laid over what stands there instead of in its place.
    overlay: bool,
    bytes: Vec<u8>,
}

impl Store for Spoiled {
    fn get(&mut self, key: &str) -> Result<Option<Versioned>, StoreError> {
        let mut found = self.inner.get(key)?;
        if key.starts_with(self.table)
            && let Some(found) = &mut found
        {
            if self.overlay {
                found.value.iter_mut().zip(&self.bytes).for_each(|(byte, change)| *byte ^= change);
            } else {
                found.value.clone_from(&self.bytes);
            }
        }
        Ok(found)
    }

    fn set(&mut self, key: &str, value: &[u8], version: Option<u32>) -> Result<Write, StoreError> {
        assert!(value.len() <= 1 << 17, "{key} grows to {} bytes", value.len());
        self.inner.set(key, value, version)
    }
}

/// Everything that a VM does, over tables of which one is spoiled: the first byte names it, the second tells whether the
/// rest is laid over what stands there or stands there itself. Requests go to workers all the same.
pub fn tables(bytes: &[u8]) {
    let [table, mode, rest @ ..] = bytes else { return };
    let table = TABLES.get(usize::from(*table) % TABLES.len()).copied().unwrap_or(b'l');
    let policy = if mode & 2 == 0 { "cache_aware" } else { "round_robin" };
    let overlay = mode & 1 == 0;
    let spoiled = Spoiled { inner: MemoryStore::default(), table: char::from(table), overlay, bytes: rest.to_vec() };
    let Some(mut vm) = of_three(policy).and_then(|config| Vm::over(config, Box::new(spoiled))) else { return };
    let load = Some(Load { queued_tokens: 1.0, ..Load::default() });
    let report = WorkerReport {
        url: "http://engine:1".to_owned(),
        address: Some("10.0.0.3:1".to_owned()),
        load,
        ..WorkerReport::default()
    };
    let mut held = Vec::new();
    for round in 0..3_u64 {
        let text = format!("{:<200}", "A prompt that comes again ");
        let key = vm.run(|_, balancer, _| balancer.key_hash(b"key"));
        let prompts = [
            Prompt {
                model: "m",
                text: text.as_bytes(),
                text_bytes: text.len() as u64,
                key: Some(key),
                ..Prompt::default()
            },
            Prompt { tokens: &[1; 64], token_count: 64, ..Prompt::default() },
            Prompt { any_worker: true, ..Prompt::default() },
        ];
        for prompt in prompts {
            if let Some(ticket) = vm.place(prompt) {
                assert!(!ticket.destination().is_empty(), "placed nowhere");
                held.push(ticket);
            }
        }
        for ticket in &mut held {
            let (attempts, address) = (Some(1 + round % 2), Some("10.0.0.2:1"));
            let answered = Answered { attempts, address, status: 500, outcome: Some(Outcome::Failure) };
            vm.run(|context, balancer, ledger| balancer.answered(context, ticket, answered, ledger));
        }
        held.drain(1.min(held.len())..).for_each(|ticket| vm.end(ticket));
        let workers = vec![report.clone()];
        let scope = [Scope::Full, Scope::Since(1), Scope::Some].get(round as usize).copied().unwrap_or_default();
        let snapshot = Snapshot { scope, ..Snapshot::of(1, round + 1, 1000, workers) };
        // An error is the store's.
        let _ = vm.run(|context, balancer, _| balancer.apply(context, &snapshot));
        (0..8).for_each(|_| vm.tick());
    }
    held.into_iter().for_each(|ticket| vm.end(ticket));
    vm.run(|context, _, ledger| ledger.resign(context.store));
}
