//! What a sequence of single steps would have left: every write to the load table is held against it.

use std::collections::HashMap;

use filter_core::state::load::{LoadBlock, SlotId};
use filter_core::store::{MemoryStore, Store};
use testbed::wasm::Access;

/// A VM that has lost so many races in a row gives up: a pick stays what it was and is written as a mere change, a change
/// waits for the next tick.
const TRIES: u32 = 16;

/// What a VM is allowed to change now, once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Due {
    /// One more in flight at a worker of its choice.
    Pick,
    /// This many more at this worker.
    Change(usize, i64),
}

/// The sequential model: requests in flight by worker, and what each VM still owes.
pub(super) struct Oracle {
    key: String,
    slots: Vec<SlotId>,
    /// The policy takes an idle worker whenever there is one.
    prefers_idle: bool,
    counts: Vec<u32>,
    vms: Vec<Vm>,
    pub(super) seen: Seen,
}

#[derive(Default, Clone)]
struct Vm {
    due: Vec<Due>,
    picked: Option<usize>,
    conflicts: u32,
    /// What waits for a tick, by worker.
    owed: HashMap<usize, i64>,
}

/// How much the schedules have made happen.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Seen {
    /// Picks written.
    pub(super) picks: u64,
    /// Of those, such as had an idle worker to go to.
    pub(super) idle: u64,
    /// Writes to the load table that lost their race.
    pub(super) conflicts: u64,
    /// Calls into shared data.
    pub(super) calls: u64,
    /// Changes that lost all their races.
    pub(super) worn_out: u64,
}

impl Seen {
    pub(super) fn add(&mut self, other: Self) {
        self.picks += other.picks;
        self.idle += other.idle;
        self.conflicts += other.conflicts;
        self.calls += other.calls;
        self.worn_out += other.worn_out;
    }
}

impl Oracle {
    pub(super) fn new(key: String, vms: usize, prefers_idle: bool) -> Self {
        let vms = vec![Vm::default(); vms];
        Self { key, slots: Vec::new(), prefers_idle, counts: Vec::new(), vms, seen: Seen::default() }
    }

    /// Where the workers stand in the table, once they stand there.
    pub(super) fn settle(&mut self, slots: Vec<SlotId>) {
        self.counts = vec![0; slots.len()];
        self.slots = slots;
    }

    /// Requests in flight by worker.
    pub(super) fn counts(&self) -> &[u32] {
        &self.counts
    }

    /// VM `vm` begins something that must make these changes and no others.
    pub(super) fn begin(&mut self, vm: usize, due: &[Due]) {
        let owed = std::mem::take(&mut self.vms[vm].owed);
        self.vms[vm] = Vm { due: due.to_vec(), picked: None, conflicts: 0, owed };
    }

    /// VM `vm` has done it, and has named `worker` if that was to pick one.
    pub(super) fn end(&mut self, number: usize, worker: Option<usize>) {
        let vm = &mut self.vms[number];
        for due in std::mem::take(&mut vm.due) {
            let (worker, by) = match due {
                Due::Pick => (worker.unwrap(), 1),
                Due::Change(worker, by) => (worker, by),
            };
            // What takes back something that waits is never written, nor is that.
            let opposed = vm.owed.get(&worker).is_some_and(|owed| owed.signum() != by.signum());
            assert!(opposed || vm.conflicts >= TRIES, "VM {number} has not made this change: {due:?}");
            self.seen.worn_out += u64::from(!opposed);
            let owed = vm.owed.entry(worker).or_default();
            *owed += by;
            if *owed == 0 {
                vm.owed.remove(&worker);
            }
        }
        let named = vm.picked.is_none() || vm.picked == worker;
        assert!(named, "VM {number} counts {:?} and names {worker:?}", vm.picked);
    }

    /// Whether nothing waits for a tick.
    pub(super) fn is_settled(&self) -> bool {
        self.vms.iter().all(|vm| vm.owed.is_empty())
    }

    /// VM `vm` is about to do this, and nobody else comes between.
    pub(super) fn look(&mut self, vm: usize, access: &Access<'_>, store: &mut MemoryStore) {
        self.seen.calls += 1;
        let Access::Set { key, value, version } = *access else { return };
        if key != self.key {
            return;
        }
        let Some(found) = store.get(key).unwrap() else { return };
        if version.is_some_and(|version| version != found.version) {
            self.seen.conflicts += 1;
            self.vms[vm].conflicts += 1;
            return;
        }
        let (before, after) = (LoadBlock::new(found.value), LoadBlock::new(value.to_vec()));
        let counted = |block: &LoadBlock, worker: usize| block.slot(self.slots[worker].position()).in_flight;
        let before: Vec<_> = (0..self.slots.len()).map(|worker| counted(&before, worker)).collect();
        assert_eq!(before, self.counts, "VM {vm} finds what no sequence of steps would have left");
        let after: Vec<_> = (0..self.slots.len()).map(|worker| counted(&after, worker)).collect();
        for (worker, (before, after)) in
            before.iter().zip(&after).enumerate().filter(|(_, (before, after))| before != after)
        {
            self.changes(vm, worker, i64::from(*after) - i64::from(*before));
        }
        self.counts = after;
    }

    fn changes(&mut self, number: usize, worker: usize, by: i64) {
        let idle = self.counts.contains(&0);
        let vm = &mut self.vms[number];
        let named = vm.due.iter().position(|due| *due == Due::Change(worker, by));
        let pick = vm.due.iter().position(|due| by == 1 && *due == Due::Pick);
        let Some(at) = named.or(pick) else {
            if vm.owed.get(&worker) == Some(&by) {
                vm.owed.remove(&worker);
                return;
            }
            panic!("VM {number} adds {by} at worker {worker}, but {:?} is due; in flight: {:?}", vm.due, self.counts)
        };
        if vm.due.remove(at) != Due::Pick {
            return;
        }
        vm.picked = Some(worker);
        let worn_out = vm.conflicts >= TRIES;
        self.seen.picks += 1;
        self.seen.idle += u64::from(idle);
        self.seen.worn_out += u64::from(worn_out);
        let doubled = self.prefers_idle && idle && self.counts[worker] > 0;
        assert!(
            !doubled || worn_out,
            "VM {number} picks worker {worker} though another is idle; in flight: {:?}",
            self.counts
        );
    }
}
