//! Root contexts: one per plugin configuration.

use std::cell::RefCell;
use std::rc::Rc;

use filter_core::balancer::{Balancer, Context, Level};
use filter_core::config::{Config, OnInvalidConfig, Role, TOKEN_VARIABLE};
use filter_core::ingest::QUEUE;
use filter_core::store::StoreError;

use crate::host::{self, PLUGIN_CONFIGURATION};
use crate::vm::{HostLog, Root, TICK_MS, Vm};

/// Takes a configuration; false refuses it, and Envoy keeps the old one.
pub(crate) fn configure(vm: &mut Vm, root: u32, size: usize) -> bool {
    let bytes = if size == 0 { Vec::new() } else { host::buffer(PLUGIN_CONFIGURATION, size).unwrap_or_default() };
    // What is no text is no token either, and must not be taken for none.
    let variable = std::env::var_os(TOKEN_VARIABLE).map(|value| value.to_string_lossy().into_owned());
    let parsed =
        Config::parse(&bytes).and_then(|mut config| config.reports.take_variable(variable.as_deref()).map(|()| config));
    let config = match parsed {
        Ok(config) => config,
        Err(error) => return refuse(vm, root, &error.to_string(), OnInvalidConfig::of_invalid(&bytes)),
    };
    let log = HostLog::of(&config);
    if !config.without_effect.is_empty() {
        let line = format!("configuration keys without effect in this version: {}", config.without_effect.join(" "));
        host::log(3, &line);
    }
    if !config.replaced.is_empty() {
        host::log(3, &format!("values that make no sense stand for the default: {}", config.replaced.join(" ")));
    }
    if config.role == Role::Route && config.workers.is_empty() && !config.discovers() {
        host::log(3, "every request will be answered 503: workers is empty and discovered_workers is false");
    }
    let on_invalid = config.on_invalid_config;
    // Every root context registers the queue each time: after a VM reload the host may remember a context of the VM
    // that died, and announce messages to it.
    match host::register_queue(QUEUE) {
        Ok(queue) => vm.queue = Some(queue),
        Err(host::Refused(status)) => host::log(4, &format!("registering queue {QUEUE} failed with status {status}")),
    }
    start_ticks();
    let role = match config.role {
        Role::Ingest => Root::Ingest(Rc::new(config)),
        Role::Route => {
            let (identity, ledger) = (vm.identity, vm.ledger(&config));
            match vm.with_context(log, |context| balancer(config, identity, context)) {
                Ok(balancer) => {
                    vm.pulls.join(root, &balancer);
                    Root::Route(Rc::new(RefCell::new(balancer)), ledger)
                }
                Err(error) => return refuse(vm, root, &error.to_string(), on_invalid),
            }
        }
    };
    if matches!(role, Root::Route(..)) {
        show_validity(0);
    }
    vm.roots.insert(root, role);
    true
}

/// A balancer at work.
fn balancer(config: Config, identity: u64, context: &mut Context<'_>) -> Result<Balancer, StoreError> {
    let remembers = cfg!(feature = "responses");
    if !remembers && config.max_response_ids.is_some() {
        let line = "max_response_ids has no effect: this module reads no answers. The one that remembers which worker \
                    holds which response is filter_responses.wasm";
        context.log.line(Level::Warn, line);
    }
    let mut balancer = Balancer::new(config, identity, context)?;
    if remembers {
        balancer.remember_responses();
    }
    Ok(balancer)
}

/// Refuses a configuration, or stands in for it without doing anything.
fn refuse(vm: &mut Vm, root: u32, error: &str, then: OnInvalidConfig) -> bool {
    show_validity(1);
    if then == OnInvalidConfig::Refuse {
        host::log(4, &format!("plugin configuration refused: {error}"));
        return false;
    }
    let line =
        format!("plugin configuration invalid: {error}; requests pass unrouted (on_invalid_config: passthrough)");
    host::log(4, &line);
    start_ticks();
    vm.roots.insert(root, Root::Passthrough);
    true
}

fn start_ticks() {
    if let Err(host::Refused(status)) = host::set_tick_period(TICK_MS) {
        host::log(4, &format!("setting the tick period failed with status {status}"));
    }
}

/// Sets the gauge `smg_config_invalid`, at once: a VM that only tries a configuration never ticks.
fn show_validity(invalid: u64) {
    const GAUGE: u32 = 1;
    if let Ok(metric) = host::define_metric(GAUGE, "smg_config_invalid") {
        let _ = host::record_metric(metric, invalid);
    }
}
