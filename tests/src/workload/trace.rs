//! Traces in Mooncake's format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` (tokens)
//! and `hash_ids`, one id for each 512 prompt tokens; equal ids are equal text.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Deserialize;

use super::{PromptText, Prose, Request, Workload};

/// Prompt tokens that one id stands for.
const BLOCK_TOKENS: usize = 512;

/// Bytes of text in one token.
const TOKEN_BYTES: usize = 4;

/// Bytes of text that one id stands for.
pub const BLOCK_BYTES: usize = BLOCK_TOKENS * TOKEN_BYTES;

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct TraceOptions {
    /// Trace seconds in one second of the replay.
    pub speed: f64,
    /// Completion tokens of a request at most; each is an event of its stream.
    pub max_tokens: usize,
    /// Requests to replay at most, from the start of the trace.
    pub limit: usize,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self { speed: 1.0, max_tokens: 4, limit: usize::MAX }
    }
}

#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    hash_ids: Vec<u64>,
}

/// Reads a trace. Requests are independent: a trace does not say which of them are turns of one session.
///
/// # Errors
/// A line that cannot be read, with its number.
pub fn read_trace(source: impl BufRead, options: &TraceOptions) -> anyhow::Result<Workload> {
    let prose = Arc::new(Prose::new());
    let mut requests = Vec::new();
    for (number, line) in source.lines().enumerate() {
        let line = line.with_context(|| format!("cannot read line {}", number + 1))?;
        if line.trim().is_empty() {
            continue;
        }
        if requests.len() >= options.limit {
            break;
        }
        let line: Line = serde_json::from_str(&line).with_context(|| format!("line {} is no request", number + 1))?;
        let before_last = line.hash_ids.len().saturating_sub(1) * BLOCK_TOKENS;
        let last_tokens = line.input_length.saturating_sub(before_last).clamp(1, BLOCK_TOKENS);
        requests.push(Request {
            arrival: Duration::from_secs_f64((line.timestamp / 1000.0 / options.speed).max(0.0)),
            session: requests.len(),
            turn: 0,
            prompt: PromptText::Blocks {
                prose: Arc::clone(&prose),
                ids: line.hash_ids,
                last_bytes: last_tokens * TOKEN_BYTES,
            },
            max_tokens: line.output_length.clamp(1, options.max_tokens.max(1)),
        });
    }
    requests.sort_by_key(|request| request.arrival);
    spread_ties(&mut requests);
    Ok(Workload { requests })
}

/// The text of a prompt's blocks.
pub(super) fn blocks_text(prose: &Prose, ids: &[u64], last_bytes: usize) -> String {
    let mut text = String::with_capacity(ids.len() * BLOCK_BYTES);
    for (position, &id) in ids.iter().enumerate() {
        let bytes = if position + 1 == ids.len() { last_bytes } else { BLOCK_BYTES };
        text.push_str(&prose.ascii(&mut SmallRng::seed_from_u64(id), bytes));
    }
    text
}

/// Traces round their timestamps to seconds; requests of one instant are spread evenly up to the next.
fn spread_ties(requests: &mut [Request]) {
    let mut groups: HashMap<Duration, usize> = HashMap::new();
    for request in requests.iter() {
        *groups.entry(request.arrival).or_default() += 1;
    }
    let mut instants: Vec<Duration> = groups.keys().copied().collect();
    instants.sort_unstable();
    let mut start = 0;
    for (at, instant) in instants.iter().enumerate() {
        let count = groups[instant];
        let next = instants.get(at + 1).copied().unwrap_or(*instant);
        for (position, request) in requests[start..start + count].iter_mut().enumerate() {
            request.arrival = *instant + (next - *instant).mul_f64(position as f64 / count as f64);
        }
        start += count;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_ids_are_equal_text_and_lengths_are_kept() {
        let trace = r#"{"timestamp": 0, "input_length": 1000, "output_length": 500, "hash_ids": [7, 8]}
{"timestamp": 0, "input_length": 1030, "output_length": 2, "hash_ids": [7, 8, 9]}

{"timestamp": 3000, "input_length": 512, "output_length": 2, "hash_ids": [9]}"#;
        let options = TraceOptions { speed: 10.0, ..TraceOptions::default() };
        let workload = read_trace(trace.as_bytes(), &options).unwrap();
        let texts: Vec<Vec<u8>> = workload.requests.iter().map(Request::engine_text).collect();
        let around = "<|user|>".len() + 1;
        assert_eq!(texts.iter().map(|text| text.len() - around).collect::<Vec<_>>(), [4000, 4120, 2048]);
        assert_eq!(texts[0][..4000], texts[1][..4000]);
        assert_ne!(texts[2][8..1000], texts[0][8..1000]);
        let arrivals: Vec<u128> = workload.requests.iter().map(|request| request.arrival.as_millis()).collect();
        assert_eq!(arrivals, [0, 150, 300]);
        assert_eq!(workload.requests[0].max_tokens, 4);
        let broken = read_trace("{\"timestamp\": 0}".as_bytes(), &options).unwrap_err();
        assert!(format!("{broken:#}").contains("line 1"), "{broken:#}");
    }
}
