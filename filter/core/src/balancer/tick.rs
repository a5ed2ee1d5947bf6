//! What is done on ticks, and what a load snapshot changes.

use std::collections::HashMap;
use std::rc::Rc;

use super::table::TRIES;
use super::{Balancer, Changed, Context, Ledger, Level};
use crate::config::PolicyName;
use crate::fleet::{PolicyRef, UNKNOWN_MODEL};
use crate::report::{Health, Scope, Snapshot};
use crate::state::fleet::url_hash;
use crate::state::load::{Slot, SlotId, Status};
use crate::state::named::{BYTES_PER_SLOT, MAX_WORKER_BYTES, reporter_hash};
use crate::state::report::{Entry, ReportBlock};
use crate::state::reporters::{Known, Verdict};
use crate::store::{StoreError, Write, version_of};

/// What became of a snapshot's workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Applied {
    /// What the snapshot is to who has taken the earlier ones of its reporter.
    pub verdict: Verdict,
    /// Reports taken, those that a delta leaves as they were among them.
    pub taken: u64,
    /// Reports older than what is known.
    pub old: u64,
    /// Reports of workers that no configuration names or wants.
    pub foreign: u64,
    /// Workers of which it is not kept that they are there, see [`crate::state::named::Noted`].
    pub dropped: u64,
    /// Reports that lost every race; the next snapshot brings newer ones.
    pub lost: u64,
}

/// What a snapshot says of the owner of a slot.
#[derive(Debug, Clone, Copy)]
struct Told {
    id: SlotId,
    /// The report; none where it is as it was.
    entry: Option<Entry>,
    /// The status; none where it is as it was.
    status: Option<Status>,
    /// Whether the load comes from a poll that was not known: it has what was sent to the worker before.
    polled: bool,
}

/// What has been written of one block of reports.
struct Written {
    /// What was news, with the reports as they stand now.
    taken: Vec<Told>,
    old: u64,
    /// Workers that a delta leaves as they were, and of whom nobody has spoken for too long.
    expired: u64,
}

/// A sidecar that claims to report less often than that is not believed: one wrong number would freeze a worker's load.
const MAX_INTERVAL_MS: u32 = 600_000;

/// The leader looks for forgotten slots once in so many of its ticks.
const BEATS_PER_SWEEP: u32 = 16;

impl Balancer {
    /// One tick of this configuration in this VM: the lease, the fleet as it stands, and, as leader, what is done once
    /// per process.
    ///
    /// # Errors
    /// When the store cannot answer; the next tick tries again.
    pub fn tick(&mut self, context: &mut Context<'_>, ledger: &mut Ledger) -> Result<(), StoreError> {
        self.publish(context.metrics);
        self.leads = false;
        let (leads, seed) = self.lease.beat(context.store)?;
        self.leads = leads;
        if seed != 0 {
            self.seed = seed;
        }
        self.renew_fleet(context, leads)?;
        self.warn_unplaced(context);
        self.warn_policies(context);
        self.bucketless.tell(context);
        self.count_keys(context.store)?;
        if leads {
            self.lead(context, ledger)?;
        }
        Ok(())
    }

    fn warn_unplaced(&mut self, context: &mut Context<'_>) {
        if self.fleet.unplaced().is_empty() {
            self.warned_unplaced = false;
        } else if !self.warned_unplaced {
            self.warned_unplaced = true;
            let line = format!(
                "workers without an address or a slot cannot be chosen: {}; a URL with a host name needs an `address` \
                 in the configuration or from the sidecar, and all workers of an instance must fit `max_workers`",
                self.fleet.unplaced().join(" ")
            );
            context.log.line(Level::Warn, &line);
        }
    }

    /// Says of a reporter that it names workers that cannot be kept, whenever their number changes.
    fn warn_dropped(&mut self, context: &mut Context<'_>, dropped: u64) {
        if std::mem::replace(&mut self.dropped, dropped) != dropped && dropped > 0 {
            let line = format!(
                "{dropped} workers of a snapshot are not kept: their URL is none, what is said of one takes more than \
                 {MAX_WORKER_BYTES} bytes, or `max_workers` is too small ({} workers, {BYTES_PER_SLOT} bytes each on average)",
                self.config.max_workers
            );
            context.log.line(Level::Warn, &line);
        }
    }

    /// Says once that all but one worker of a pool stay idle under `passthrough`.
    fn warn_passthrough(&mut self, context: &mut Context<'_>) {
        if self.config.policy != PolicyName::Passthrough || self.warned_passthrough {
            return;
        }
        let mut models = self.fleet.models();
        if models.is_empty() {
            models.push(UNKNOWN_MODEL);
        }
        let widest = models.iter().map(|model| self.fleet.pool(model).workers.len()).max().unwrap_or(0);
        if widest > 1 {
            self.warned_passthrough = true;
            let line = format!(
                "the policy passthrough is for a single backend: of {widest} workers only the first available one \
                 receives traffic"
            );
            context.log.line(Level::Warn, &line);
        }
    }

    fn lead(&mut self, context: &mut Context<'_>, ledger: &mut Ledger) -> Result<(), StoreError> {
        self.beats = self.beats.wrapping_add(1);
        if self.beats.is_multiple_of(BEATS_PER_SWEEP) {
            context.metrics.forget_delivered();
            self.sweep(context)?;
        }
        self.warn_passthrough(context);
        self.audit.check(context, ledger)?;
        ledger.patrol(context)?;
        self.count_tree(context)?;
        self.sweep_placements(context)?;
        self.sweep_keys(context)?;
        self.watch(context)
    }

    /// Goes on counting the prefix tree, where any policy has one.
    fn count_tree(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        if !self.keeps_tree() {
            return Ok(());
        }
        let fleet = Rc::clone(&self.fleet);
        if let Some(counted) = self.census.step(context.store, &self.tree, &|id| fleet.by_slot(id).is_some())? {
            super::gauges::show_trees(context.metrics, &fleet, &counted);
            let line = format!("prefix tree: {} nodes in {} bytes", counted.nodes, counted.bytes);
            context.log.line(Level::Info, &line);
        }
        Ok(())
    }

    /// Whether any request may come to a policy that goes by the prefix tree.
    fn keeps_tree(&self) -> bool {
        let grows = |policy| {
            let needs = self.needs(policy);
            needs.prefix && !needs.placements
        };
        // A route may name any policy.
        let routed = self.config.route_metadata && grows(PolicyRef::tuned(PolicyName::CacheAware));
        routed || grows(PolicyRef::tuned(self.config.policy)) || self.fleet.policies().any(grows)
    }

    /// Notes that this configuration's workers are in use and gives up slots that nobody names any more.
    fn sweep(&mut self, context: &mut Context<'_>) -> Result<(), StoreError> {
        let now_secs = context.now_secs();
        let state = self.roster.refresh(&self.config, context.store, now_secs)?;
        let forgotten = state.forgotten(now_secs);
        // A clock that leaps makes other configurations' workers look forgotten until their own sweep: a slot goes only
        // when two sweeps in a row have found it so.
        let before = std::mem::replace(&mut self.forgotten, forgotten.clone());
        for id in forgotten.into_iter().filter(|id| before.contains(id)) {
            self.release(context, id)?;
        }
        Ok(())
    }

    /// Gives up a slot whose owner nobody names any more, once nothing is in flight there.
    fn release(&mut self, context: &mut Context<'_>, id: SlotId) -> Result<(), StoreError> {
        // The load table goes first: a slot of a later generation there was released already, up to the second step.
        let mut released = true;
        let done = self.load.change(context.store, id, |slot| {
            released = slot.in_flight == 0;
            *slot = Slot { generation: id.generation.wrapping_add(1), ..Slot::default() };
            released
        })?;
        if done == Changed::Done && released {
            self.roster.fleet.free(context.store, id)?;
        }
        Ok(())
    }

    /// Takes the reports of `snapshot`: cold table first, then the hot one (zero the tally, name the new version).
    /// A report that failed to come leaves the tally alone and the last load in place, and so does one that repeats the
    /// answer to a poll that is known. What a delta does not name is as if
    /// it had been reported again, unless the delta builds on what has not been taken.
    ///
    /// # Errors
    /// When the store cannot answer.
    pub fn apply(&mut self, context: &mut Context<'_>, snapshot: &Snapshot) -> Result<Applied, StoreError> {
        let (now_secs, now_ms) = (context.now_secs(), context.now_ms);
        let reporter = reporter_hash(&snapshot.reporter);
        let before = self.roster.fleet.read(context.store)?;
        let verdict = self.reporters.of(context.store, reporter)?.judge(snapshot, before.owners(), now_ms);
        if verdict == Verdict::Old {
            return Ok(Applied { verdict, old: snapshot.workers.len() as u64, ..Applied::default() });
        }
        let (fleet, dropped) = self.roster.note(context.store, snapshot, now_secs)?;
        let kept = dropped.is_some();
        let dropped = dropped.unwrap_or(0);
        self.warn_dropped(context, dropped);
        let slots = fleet.slots();
        let interval_ms = snapshot.interval_ms.min(MAX_INTERVAL_MS);
        let mut applied = Applied { verdict, dropped, ..Applied::default() };
        let mut reports: Vec<Told> = Vec::with_capacity(snapshot.workers.len());
        // Who has been taken away is not there any more, even where a configuration keeps its slot.
        let mine = self.roster.named_by(reporter);
        let mut unnamed: HashMap<u64, SlotId> = mine.filter_map(|hash| Some((hash, *slots.get(&hash)?))).collect();
        // Of who has got a slot by this snapshot without being named in it, it says nothing.
        let mut gained = slots.clone();
        if before.owners() == fleet.owners() {
            gained.clear();
        } else {
            let before = before.slots();
            gained.retain(|hash, _| !before.contains_key(hash));
        }
        for worker in &snapshot.workers {
            let hash = url_hash(&worker.url);
            let Some(&id) = slots.get(&hash) else {
                applied.foreign += 1;
                continue;
            };
            unnamed.remove(&hash);
            gained.remove(&hash);
            let entry = Entry {
                load: worker.load,
                poll: worker.poll,
                loaded_ms: now_ms,
                silent: worker.load.is_none(),
                received_ms: now_ms,
                interval_ms,
                epoch: snapshot.epoch,
                sequence: snapshot.sequence,
                reporter,
                generation: id.generation,
            };
            reports.push(Told { id, entry: Some(entry), status: Some(status(worker.health)), polled: false });
        }
        if verdict == Verdict::News && matches!(snapshot.scope, Scope::Since(_)) {
            reports.extend(unnamed.into_values().map(|id| Told { id, entry: None, status: None, polled: false }));
        }
        let mut untold = 0;
        for block in 0..self.load.blocks() {
            let of_block: Vec<_> = reports.iter().filter(|told| told.id.block() == block).collect();
            if of_block.is_empty() {
                continue;
            }
            match self.write_reports(context, block, (reporter, snapshot), &of_block)? {
                None => applied.lost += of_block.len() as u64,
                Some(Written { taken, old, expired }) => {
                    applied.old += old;
                    untold += expired;
                    if self.name_reports(context, block, &taken)? {
                        applied.taken += taken.len() as u64;
                    } else {
                        applied.lost += taken.len() as u64;
                    }
                }
            }
        }
        // Where anything was lost, or is known from another reporter, the next delta would refresh what is not there.
        let complete = verdict == Verdict::News && kept && gained.is_empty() && applied.lost == 0 && applied.old == 0;
        let whole = (complete && snapshot.scope != Scope::Some).then_some(snapshot.sequence);
        let Snapshot { epoch, sequence, .. } = *snapshot;
        let (fleet, received_ms) = (fleet.owners(), now_ms);
        let news = Known { reporter, epoch, sequence, whole, fleet, received_ms, interval_ms, cluster: 0 };
        self.reporters.note(context.store, &news)?;
        if untold > 0 {
            self.reporters.forget_base(context.store, reporter)?;
        }
        Ok(applied)
    }

    /// Writes one block of the cold table: reports, or none for what a delta of the reporter leaves as it was. Returns
    /// nothing if every try lost its race.
    fn write_reports(
        &self,
        context: &mut Context<'_>,
        block: u16,
        (reporter, snapshot): (u64, &Snapshot),
        reports: &[&Told],
    ) -> Result<Option<Written>, StoreError> {
        let key = self.load.report_key(block);
        let interval_ms = snapshot.interval_ms.min(MAX_INTERVAL_MS);
        for _ in 0..TRIES {
            let stored = context.store.get(&key)?;
            let version = version_of(stored.as_ref());
            let mut cold = ReportBlock::new(stored.map(|stored| stored.value).unwrap_or_default());
            let mut taken = Vec::with_capacity(reports.len());
            let (mut old, mut expired) = (0, 0);
            for Told { id, entry, status, .. } in reports.iter().copied() {
                let known = cold.entry(id.position());
                let owned = known.generation == id.generation;
                let superseded = known.is_superseded_by(snapshot.epoch, snapshot.sequence, context.now_ms);
                let mut polled = false;
                let news = match entry {
                    Some(_) if owned && !superseded => {
                        old += 1;
                        continue;
                    }
                    Some(entry) => {
                        let mut news = *entry;
                        polled = news.load.is_some();
                        if owned {
                            polled = news.tells_news_after(&known);
                            news.follow(&known);
                        }
                        news
                    }
                    // What this reporter has not told in this life of its own is none of its business.
                    None if !owned || (known.reporter, known.epoch) != (reporter, snapshot.epoch) => continue,
                    // What nobody has spoken of for too long counts no more, and must be told again.
                    None if known.is_expired(context.now_ms) => {
                        expired += 1;
                        continue;
                    }
                    None if !superseded => continue,
                    None => {
                        let mut news = known;
                        news.refresh(snapshot.sequence, interval_ms, context.now_ms);
                        news
                    }
                };
                cold.set_entry(id.position(), &news);
                taken.push(Told { id: *id, entry: Some(news), status: *status, polled });
            }
            if taken.is_empty() || context.store.set(&key, cold.as_bytes(), version)? == Write::Done {
                return Ok(Some(Written { taken, old, expired }));
            }
        }
        Ok(None)
    }

    /// Makes new reports of one block count: sets the statuses, zeroes the tallies that new polls cover and names the new version.
    fn name_reports(&self, context: &mut Context<'_>, block: u16, taken: &[Told]) -> Result<bool, StoreError> {
        if taken.is_empty() {
            return Ok(true);
        }
        for _ in 0..TRIES {
            let mut read = self.load.read(context.store, block)?;
            for Told { id, status, polled, .. } in taken {
                let mut slot = read.block.slot(id.position());
                if slot.generation != id.generation {
                    continue;
                }
                slot.status = status.unwrap_or(slot.status);
                if *polled {
                    (slot.tally_tokens, slot.tally_requests) = (0, 0);
                }
                read.block.set_slot(id.position(), slot);
            }
            read.block.bump_report_version();
            if self.load.write(context.store, &read)? == Write::Done {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The status of a worker that is said to be in this health.
fn status(health: Option<Health>) -> Status {
    match health {
        None => Status::Unset,
        Some(Health::Pending) => Status::Pending,
        Some(Health::Ready) => Status::Ready,
        Some(Health::NotReady) => Status::NotReady,
        Some(Health::Failed) => Status::Failed,
        Some(Health::Draining) => Status::Draining,
    }
}
