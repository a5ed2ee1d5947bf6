//! What all VMs of a process share besides shared data: queues, metrics, the log.

use std::collections::{BTreeMap, VecDeque};

use super::abi::{Status, metric};

/// One line that a module wrote, with `proxy_log` or to its standard streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogLine {
    /// The VM, counted from 0 in the order of [`Process::vm`](super::Process::vm).
    pub vm: usize,
    /// 0 trace, 1 debug, 2 info, 3 warning, 4 error, 5 critical.
    pub level: u32,
    /// The text.
    pub message: String,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Metric {
    /// Only grows.
    Counter(u64),
    /// Goes up and down; below zero it wraps, as Envoy's does.
    Gauge(u64),
    /// Every sample, in order.
    Histogram(Vec<u64>),
}

impl Metric {
    pub(super) fn new(kind: u32) -> Option<Self> {
        match kind {
            metric::COUNTER => Some(Self::Counter(0)),
            metric::GAUGE => Some(Self::Gauge(0)),
            metric::HISTOGRAM => Some(Self::Histogram(Vec::new())),
            _ => None,
        }
    }

    pub(super) fn increment(&mut self, offset: i64) -> Result<(), Status> {
        match self {
            Self::Counter(value) if offset > 0 => *value += offset.unsigned_abs(),
            Self::Gauge(value) => *value = value.wrapping_add_signed(offset),
            Self::Counter(_) | Self::Histogram(_) => return Err(Status::BadArgument),
        }
        Ok(())
    }

    pub(super) fn record(&mut self, sample: u64) {
        match self {
            Self::Counter(value) => *value += sample,
            Self::Gauge(value) => *value = sample,
            Self::Histogram(samples) => samples.push(sample),
        }
    }

    pub(super) fn value(&self) -> Result<u64, Status> {
        match self {
            Self::Counter(value) | Self::Gauge(value) => Ok(*value),
            Self::Histogram(_) => Err(Status::BadArgument),
        }
    }
}

/// The call of `proxy_on_queue_ready` that a message causes: posted to the consumer's thread, never made at once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Notice {
    pub(super) vm: usize,
    pub(super) context: u32,
    pub(super) queue: u32,
}

#[derive(Debug)]
struct Queue {
    name: Vec<u8>,
    messages: VecDeque<Vec<u8>>,
    /// The last root context that registered it.
    consumer: (usize, u32),
}

/// The queues of the one `vm_id`; a queue's id is its place in the list, from 1.
#[derive(Debug, Default)]
pub(super) struct Queues {
    queues: Vec<Queue>,
    notices: VecDeque<Notice>,
}

impl Queues {
    pub(super) fn register(&mut self, name: &[u8], vm: usize, context: u32) -> u32 {
        if let Some(id) = self.resolve(name) {
            self.queues[id as usize - 1].consumer = (vm, context);
            return id;
        }
        self.queues.push(Queue { name: name.to_vec(), messages: VecDeque::new(), consumer: (vm, context) });
        self.queues.len() as u32
    }

    pub(super) fn resolve(&self, name: &[u8]) -> Option<u32> {
        self.queues.iter().position(|queue| queue.name == name).map(|index| index as u32 + 1)
    }

    pub(super) fn enqueue(&mut self, id: u32, message: Vec<u8>) -> Result<(), Status> {
        let queue = self.get(id)?;
        queue.messages.push_back(message);
        let (vm, context) = queue.consumer;
        self.notices.push_back(Notice { vm, context, queue: id });
        Ok(())
    }

    pub(super) fn dequeue(&mut self, id: u32) -> Result<Vec<u8>, Status> {
        self.get(id)?.messages.pop_front().ok_or(Status::Empty)
    }

    pub(super) fn waiting(&self, name: &[u8]) -> usize {
        self.queues.iter().find(|queue| queue.name == name).map_or(0, |queue| queue.messages.len())
    }

    pub(super) fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    fn get(&mut self, id: u32) -> Result<&mut Queue, Status> {
        let index = (id as usize).checked_sub(1).ok_or(Status::NotFound)?;
        self.queues.get_mut(index).ok_or(Status::NotFound)
    }
}

/// Metrics by name, and the log.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) metrics: BTreeMap<String, Metric>,
    pub(super) lines: Vec<LogLine>,
}
