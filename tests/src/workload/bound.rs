//! What a workload's prompts have in common: the hit rate of one engine with unlimited memory, and of any assignment to
//! engines with limited memory, both without time.

use crate::fake_engine::EngineOptions;
use crate::fake_engine::block_cache::BlockCache;
use crate::fake_engine::body::text_prompt;
use crate::fake_engine::rank::{Prompt, reusable_blocks};

use super::{Request, Workload};

/// What one engine that never forgets would reuse of a workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Of these, tokens that it has in its cache.
    pub cached_tokens: u64,
    /// Memory in tokens that it fills: the workload's distinct volume.
    pub distinct_tokens: u64,
}

impl Bound {
    /// Cached over all prompt tokens, 0 to 1.
    pub fn hit_rate(&self) -> f64 {
        self.cached_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// What engines of limited memory reuse when requests come one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// Cached over all prompt tokens, 0 to 1.
    pub hit_rate: f64,
    /// Requests that each engine got.
    pub requests_per_engine: Vec<u64>,
}

/// The bound of a workload on engines with the block rules of `options` (`block_tokens`, `bytes_per_token`).
pub fn bound(workload: &Workload, options: &EngineOptions) -> Bound {
    let mut cache = BlockCache::new(usize::MAX);
    let (mut prompt_tokens, mut cached_tokens) = (0, 0);
    for request in &workload.requests {
        let prompt = prompt(request, options);
        prompt_tokens += prompt.tokens as u64;
        cached_tokens += serve(&mut cache, &prompt, options);
    }
    Bound { prompt_tokens, cached_tokens, distinct_tokens: (cache.len() * options.block_tokens) as u64 }
}

/// Sends each request to the engine that `choose` names; every engine has `cache_tokens` of memory.
pub fn replay(
    workload: &Workload,
    options: &EngineOptions,
    engines: usize,
    mut choose: impl FnMut(&Request) -> usize,
) -> Replayed {
    let capacity = options.cache_tokens / options.block_tokens.max(1);
    let mut caches: Vec<BlockCache> = (0..engines).map(|_| BlockCache::new(capacity)).collect();
    let mut requests_per_engine = vec![0; engines];
    let (mut prompt_tokens, mut cached_tokens) = (0, 0);
    for request in &workload.requests {
        let prompt = prompt(request, options);
        let engine = choose(request);
        requests_per_engine[engine] += 1;
        prompt_tokens += prompt.tokens as u64;
        cached_tokens += serve(&mut caches[engine], &prompt, options);
    }
    Replayed { hit_rate: cached_tokens as f64 / prompt_tokens.max(1) as f64, requests_per_engine }
}

fn prompt(request: &Request, options: &EngineOptions) -> Prompt {
    text_prompt(&request.engine_text(), options)
}

fn serve(cache: &mut BlockCache, prompt: &Prompt, options: &EngineOptions) -> u64 {
    let reusable = reusable_blocks(prompt.tokens, options.block_tokens);
    (cache.serve(&prompt.blocks, reusable) * options.block_tokens) as u64
}

#[cfg(test)]
mod tests {
    use super::super::SessionOptions;
    use super::*;

    /// The demo's verdicts mean something only if placement decides about the hit rate.
    #[test]
    fn the_demo_workload_tells_round_robin_from_affinity() {
        for seed in 1..=3 {
            let workload = SessionOptions { seed, ..SessionOptions::default() }.generate();
            let mut options = EngineOptions::default();
            let bound = bound(&workload, &options);
            for (fraction, least) in [(4, 0.98), (16, 0.97)] {
                options.cache_tokens = bound.distinct_tokens as usize / fraction;
                let mut turn = 0;
                let round_robin = replay(&workload, &options, 4, |_| {
                    turn += 1;
                    turn % 4
                });
                let sticky = replay(&workload, &options, 4, |request| request.session % 4);
                let [blind, seeing] = [&round_robin, &sticky].map(|run| run.hit_rate / bound.hit_rate());
                println!(
                    "seed {seed} 1/{fraction}: bound {:.3}, round robin {blind:.3}, sticky {seeing:.3}",
                    bound.hit_rate()
                );
                assert!(blind < 0.49, "round robin reaches {blind} of the bound");
                assert!(seeing > least, "affinity reaches {seeing} of the bound with 1/{fraction} of the memory");
            }
        }
    }
}
