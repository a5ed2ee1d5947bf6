//! Fetching load snapshots: makes the calls that pullers ask for and hands them the answers.

use std::cell::RefCell;
use std::rc::Rc;

use filter_core::balancer::{Balancer, Context};
use filter_core::pull::{Call, Puller};

use crate::host;
use crate::ingest;
use crate::vm::{HostLog, Root, Vm};

/// The pullers of a VM.
#[derive(Debug, Default)]
pub(crate) struct Pulls {
    all: Vec<Shared>,
}

/// A puller and the root contexts whose configurations share it.
#[derive(Debug)]
struct Shared {
    name: String,
    puller: Rc<RefCell<Puller>>,
    /// The newest one drives it: older ones are replaced and only wait for their last streams.
    roots: Vec<u32>,
    /// Who has made the last call: it is told of the end.
    caller: u32,
}

impl Pulls {
    /// Root context `root` is configured as `balancer` says.
    pub(crate) fn join(&mut self, root: u32, balancer: &Balancer) {
        self.leave(root);
        let Some(name) = Puller::name(balancer) else { return };
        match self.all.iter_mut().find(|shared| shared.name == name) {
            Some(shared) => shared.roots.push(root),
            None => self.all.push(Shared { name, puller: Rc::default(), roots: vec![root], caller: root }),
        }
    }

    /// Root context `root` goes, and with it the call that it has made.
    pub(crate) fn leave(&mut self, root: u32) {
        for shared in &mut self.all {
            shared.roots.retain(|other| *other != root);
            if shared.caller == root
                && let Ok(mut puller) = shared.puller.try_borrow_mut()
            {
                puller.on_abandoned();
            }
        }
        self.all.retain(|shared| !shared.roots.is_empty());
    }

    fn of(&mut self, root: u32) -> Option<&mut Shared> {
        self.all.iter_mut().find(|shared| shared.roots.contains(&root))
    }
}

/// Time has passed for root context `root`.
pub(crate) fn on_tick(vm: &mut Vm, root: u32) {
    if vm.pulls.of(root).is_some_and(|shared| shared.roots.last() == Some(&root)) {
        let call = with_puller(vm, root, Puller::on_tick).flatten();
        make(vm, root, call);
    }
}

/// A call of root context `root` has ended, with so many headers (none: without an answer) and bytes.
pub(crate) fn on_response(vm: &mut Vm, root: u32, number: u32, headers: u32, size: usize) {
    let status = if headers == 0 { None } else { host::header(host::CALL_HEADERS, ":status") };
    let wanted = with_puller(vm, root, |puller, context, balancer| {
        puller.on_head(context, balancer, number, status.as_deref(), size)
    });
    if wanted != Some(true) {
        return;
    }
    let body = host::buffer(host::CALL_BODY, size).unwrap_or_default();
    let fetched = with_puller(vm, root, |puller, context, balancer| puller.on_body(context, balancer, &body));
    let (Some(Some(fetched)), Some(queue)) = (fetched, vm.queue) else { return };
    if let Err(host::Refused(status)) = host::enqueue(queue, &body) {
        with_puller(vm, root, |puller, context, balancer| puller.on_refused(context, balancer, status));
        return;
    }
    ingest::drain(vm);
    let next = with_puller(vm, root, |puller, context, balancer| puller.on_taken(context, balancer, fetched)).flatten();
    make(vm, root, next);
}

fn make(vm: &mut Vm, root: u32, call: Option<Call>) {
    let Some(call) = call else { return };
    let headers: Vec<(&str, &str)> = call.headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let sent = host::http_call(&call.cluster, &headers, call.timeout_ms).map_err(|host::Refused(status)| status);
    if let Some(shared) = vm.pulls.of(root) {
        shared.caller = root;
    }
    with_puller(vm, root, |puller, context, balancer| puller.on_sent(context, balancer, sent));
}

fn with_puller<T>(
    vm: &mut Vm,
    root: u32,
    work: impl FnOnce(&mut Puller, &mut Context<'_>, &Balancer) -> T,
) -> Option<T> {
    let puller = Rc::clone(&vm.pulls.of(root)?.puller);
    let Some(Root::Route(balancer, _)) = vm.roots.get(&root) else { return None };
    let balancer = Rc::clone(balancer);
    let (mut puller, balancer) = (puller.try_borrow_mut().ok()?, balancer.try_borrow().ok()?);
    let log = HostLog::of(balancer.config());
    Some(vm.with_context(log, |context| work(&mut puller, context, &balancer)))
}
