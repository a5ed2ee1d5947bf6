//! What reading a body costs: the first thing that every routed request pays.

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use filter_core::request::{Endpoint, Facts};
use serde_json::json;

/// A chat of about `bytes` bytes in messages of 2 KB; `line` is repeated in them.
fn chat(bytes: usize, line: &str) -> Vec<u8> {
    let content = line.repeat(2048 / line.len());
    let messages: Vec<_> = (0..bytes.div_ceil(2048).max(1))
        .map(|turn| json!({"role": if turn % 2 == 0 { "user" } else { "assistant" }, "content": content}))
        .collect();
    let body = json!({"model": "meta-llama/Llama-3.1-8B-Instruct", "stream": true, "messages": messages});
    body.to_string().into_bytes()
}

fn read(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("read_body");
    for (kind, line) in [
        ("plain", "The quick brown fox jumps over the lazy dog. "),
        ("lines", "The quick brown fox jumps over the lazy dog,\n\t\"so they say\". "),
        ("scripts", "Съешь же ещё этих мягких французских булок. 色は匂へど散りぬるを 🐄 "),
    ] {
        for kilobytes in [4, 48, 68, 400] {
            let body = chat(kilobytes << 10, line);
            let mut facts = Facts::default();
            group.throughput(Throughput::Bytes(body.len() as u64));
            group.bench_function(BenchmarkId::new(kind, format!("{kilobytes}KB")), |bencher| {
                bencher.iter(|| {
                    facts.clear();
                    facts.read_body(Endpoint::Chat, black_box(&body), true);
                    facts.text_bytes
                });
            });
        }
    }
    let body = chat(1 << 20, "The quick brown fox jumps over the lazy dog. ");
    let cut = body.get(..body.len() - 1000).unwrap_or_default();
    let mut facts = Facts::default();
    group.throughput(Throughput::Bytes(cut.len() as u64));
    group.bench_function("cut/1MB", |bencher| {
        bencher.iter(|| {
            facts.read_body(Endpoint::Chat, black_box(cut), false);
            facts.text_bytes
        });
    });
    group.finish();
}

criterion_group!(benches, read);
criterion_main!(benches);
