//! The ingest role: a posted snapshot goes onto the shared queue, and the queue is drained.

use filter_core::config::Config;
use filter_core::ingest::{Head, MAX_DRAINED, accepted, check, refuse_head, refuse_size, take};

use crate::host;
use crate::http::{PAUSE, answer};
use crate::vm::{HostLog, Vm};

/// The head of a request to the ingest listener.
pub(crate) fn on_request_headers(vm: &mut Vm, config: &Config, ends: bool) -> u32 {
    let header = |name| host::header(host::REQUEST_HEADERS, name).unwrap_or_default();
    let (method, path, authorization) = (header(":method"), header(":path"), header("authorization"));
    let head = Head { method: &method, path: &path, authorization: &authorization, ends };
    let token = config.reports.token.as_ref();
    if let Some(refusal) = vm.with_context(HostLog::of(config), |context| refuse_head(context, token, head)) {
        answer(&refusal);
    }
    PAUSE
}

/// A part of its body.
pub(crate) fn on_request_body(vm: &mut Vm, log: HostLog, held: usize, ends: bool) -> u32 {
    if let Some(refusal) = vm.with_context(log, |context| refuse_size(context, held)) {
        answer(&refusal);
    } else if ends {
        receive(vm, log, held);
    }
    PAUSE
}

/// Its trailers.
pub(crate) fn on_request_trailers(vm: &mut Vm, log: HostLog) -> u32 {
    receive(vm, log, usize::MAX);
    PAUSE
}

fn receive(vm: &mut Vm, log: HostLog, held: usize) {
    let body = host::buffer(host::REQUEST_BODY, held).unwrap_or_default();
    let checked = vm.with_context(log, |context| check(context, &body));
    match (checked, vm.queue) {
        (Err(refusal), _) => answer(&refusal),
        (Ok(()), None) => {
            answer(&filter_core::answer::error(503, "no_queue", "the shared queue is not registered yet"))
        }
        (Ok(()), Some(queue)) => {
            drop_unclaimed(vm, log, queue);
            match host::enqueue(queue, &body) {
                Ok(()) => {
                    drain(vm);
                    answer(&accepted());
                }
                Err(host::Refused(status)) => {
                    let message = format!("the shared queue refused the snapshot with status {status}");
                    answer(&filter_core::answer::error(503, "queue_refused", &message));
                }
            }
        }
    }
}

/// Takes away a snapshot that nobody has taken since the last one came, if this VM does not balance. The queue has no
/// bound of its own, and where no routing listener shares the ingest listener's VMs it would grow for ever.
fn drop_unclaimed(vm: &mut Vm, log: HostLog, queue: u32) {
    let mut unclaimed = std::mem::take(&mut vm.unclaimed);
    if vm.balancers().is_empty() && matches!(host::dequeue(queue), Ok(Some(_))) {
        vm.with_context(log, |context| unclaimed.dropped(context));
    } else {
        unclaimed.claimed();
    }
    vm.unclaimed = unclaimed;
}

/// Takes what waits on the queue, a bounded number of snapshots at a time. `on_queue_ready` is only a hint (it can go
/// silent), so ticks call this too.
pub(crate) fn drain(vm: &mut Vm) {
    let Some(queue) = vm.queue else { return };
    let balancers = vm.balancers();
    if balancers.is_empty() {
        // Only a VM that balances can take a snapshot; leave it to one.
        return;
    }
    for _ in 0..MAX_DRAINED {
        let Ok(Some(message)) = host::dequeue(queue) else { return };
        for balancer in &balancers {
            let log = balancer.try_borrow().map_or(HostLog::INFO, |balancer| HostLog::of(balancer.config()));
            vm.with_context(log, |context| {
                if let Ok(mut balancer) = balancer.try_borrow_mut() {
                    take(context, &mut balancer, &message);
                }
            });
        }
    }
}
