//! Who may be in a fleet: the workers of the configuration, and those that reporters name.
//!
//! A configuration goes before what reporters say, member by member; what it leaves out comes from them.

use std::collections::HashMap;

use crate::breaker::Statuses;
use crate::config::{Breaker, Config, Leg, WorkerConfig, spelled_address};
use crate::report::{Info, Overload, Resilience};
use crate::state::fleet::url_hash;
use crate::state::named::{Named, Record};

/// The label that names the policy of a worker's models.
const POLICY_LABEL: &str = "policy";

/// One worker that takes whole requests, whether it can be reached or not.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) url: String,
    pub(super) hash: u64,
    /// Where the configuration says that it is.
    pub(super) configured: Option<String>,
    /// Where a reporter has found it.
    pub(super) found: Option<String>,
    pub(super) models: Vec<String>,
    pub(super) breaker: Breaker,
    pub(super) statuses: Option<Box<Statuses>>,
    pub(super) limits: Overload,
    /// The policy that its label names.
    pub(super) policy_label: Option<String>,
    /// The place in the configuration's list of the cluster it was found in.
    pub(super) cluster: Option<usize>,
}

/// What all reporters together say of one worker: of each thing what was said last, since who has fallen silent may
/// have been wrong for long.
#[derive(Debug, Clone, Copy)]
struct Told<'a> {
    url: &'a str,
    hash: u64,
    address: Option<&'a str>,
    info: Option<&'a Info>,
    since: (u64, u64),
}

impl<'a> Told<'a> {
    fn of(record: &'a Record) -> Self {
        let (url, hash, since) = (&record.url, record.hash, record.since);
        Self { url, hash, address: record.address.as_deref(), info: record.info.as_deref(), since: (since, since) }
    }

    fn join(&mut self, other: &Self) {
        if other.address.is_some() && (self.address.is_none() || other.since.0 > self.since.0) {
            (self.address, self.since.0) = (other.address, other.since.0);
        }
        if other.info.is_some() && (self.info.is_none() || other.since.1 > self.since.1) {
            (self.info, self.since.1) = (other.info, other.since.1);
        }
    }
}

/// The workers of `config`, and behind them those of `named` that it wants.
pub(super) fn members(config: &Config, named: &Named) -> Vec<Member> {
    let mut told: Vec<Told<'_>> = Vec::with_capacity(named.records().len());
    let mut at: HashMap<u64, usize> = HashMap::with_capacity(named.records().len());
    for record in named.records() {
        match at.get(&record.hash).and_then(|&at| told.get_mut(at)) {
            Some(known) => known.join(&Told::of(record)),
            None => {
                at.insert(record.hash, told.len());
                told.push(Told::of(record));
            }
        }
    }
    let mut members = Vec::with_capacity(config.workers.len() + told.len());
    for worker in &config.workers {
        let hash = url_hash(&worker.url);
        let told = at.remove(&hash).and_then(|at| told.get(at));
        members.extend(member(config, worker, hash, told));
    }
    if config.discovers() {
        for told in told.iter().filter(|told| at.contains_key(&told.hash)) {
            let Some(cluster) = cluster(config, told) else { continue };
            let worker = WorkerConfig { url: told.url.to_owned(), ..WorkerConfig::default() };
            let member = member(config, &worker, told.hash, Some(told));
            members.extend(member.map(|member| Member { cluster, ..member }));
        }
    }
    members
}

/// The place of the worker's cluster among those of `config`, if both are known; None if requests to those of `config`
/// cannot reach it.
fn cluster(config: &Config, told: &Told<'_>) -> Option<Option<usize>> {
    match (&config.clusters, told.info.and_then(|info| info.cluster.as_ref())) {
        (Some(clusters), Some(cluster)) => clusters.iter().position(|name| name == cluster).map(Some),
        _ => Some(None),
    }
}

/// The member that `worker` is, unless it does a part of a request only.
fn member(config: &Config, worker: &WorkerConfig, hash: u64, told: Option<&Told<'_>>) -> Option<Member> {
    let info = told.and_then(|told| told.info);
    let regular = match worker.leg {
        Some(leg) => leg == Leg::Regular,
        None => info.is_none_or(|info| info.leg.is_empty() || info.leg == Leg::Regular.as_str()),
    };
    if !regular {
        return None;
    }
    let mut models = worker.models.clone();
    if models.is_empty() {
        for model in info.into_iter().flat_map(|info| &info.models) {
            if !model.is_empty() && !models.contains(model) {
                models.push(model.clone());
            }
        }
    }
    let resilience = merged(&worker.resilience, info.map(|info| &info.resilience));
    let (own, said, usual) =
        (worker.overload, info.map(|info| info.overload).map(sanitized).unwrap_or_default(), config.limits());
    // The address of a configured worker may stand in its URL; one that only a reporter names is where that says.
    let found = told.and_then(|told| told.address).map(str::to_owned);
    let found = found.or_else(|| told.and_then(|told| spelled_address(told.url)));
    Some(Member {
        url: worker.url.clone(),
        hash,
        configured: worker.address.clone(),
        found,
        models,
        breaker: breaker(&config.breaker, &resilience),
        statuses: Statuses::of(&resilience).map(Box::new),
        limits: Overload {
            waiting_requests: own.waiting_requests.or(said.waiting_requests).or(usual.waiting_requests),
            token_usage: own.token_usage.or(said.token_usage).or(usual.token_usage),
        },
        policy_label: worker.labels.get(POLICY_LABEL).or_else(|| info?.labels.get(POLICY_LABEL)).cloned(),
        cluster: None,
    })
}

/// The breaker of a worker that has `own` settings. SMG's switch that turns breakers off leaves a worker's own
/// threshold alone.
fn breaker(usual: &Breaker, own: &Resilience) -> Breaker {
    let enabled = own.disable_circuit_breaker.map(|disabled| !disabled);
    Breaker {
        failure_threshold: own.cb_failure_threshold.unwrap_or(usual.failure_threshold),
        success_threshold: own.cb_success_threshold.unwrap_or(usual.success_threshold),
        timeout_secs: own.cb_timeout_secs.unwrap_or(usual.timeout_secs),
        enabled: enabled.unwrap_or(usual.enabled || own.cb_failure_threshold.is_some()),
    }
}

fn merged(configured: &Resilience, told: Option<&Resilience>) -> Resilience {
    let Some(told) = told else { return configured.clone() };
    let valid = |number: Option<u32>| number.filter(|&number| number > 0);
    Resilience {
        cb_failure_threshold: configured.cb_failure_threshold.or(valid(told.cb_failure_threshold)),
        cb_success_threshold: configured.cb_success_threshold.or(valid(told.cb_success_threshold)),
        cb_timeout_secs: configured.cb_timeout_secs.or(valid(told.cb_timeout_secs)),
        disable_circuit_breaker: configured.disable_circuit_breaker.or(told.disable_circuit_breaker),
        capacity_status_codes: configured.capacity_status_codes.clone().or(told.capacity_status_codes.clone()),
        retryable_status_codes: configured.retryable_status_codes.clone().or(told.retryable_status_codes.clone()),
    }
}

/// A reported limit that means nothing is none.
fn sanitized(told: Overload) -> Overload {
    Overload {
        waiting_requests: told.waiting_requests.filter(|&waiting| waiting > 0),
        token_usage: told.token_usage.filter(|&usage| usage > 0.0 && usage <= 1.0),
    }
}
