//! Requests of different cache partitions never share a prefix, whether they bring text or token ids.

use super::{Bench, Script, routed};
use crate::balancer::tests::config;

const ENDPOINTS: [(&str, &str); 5] = [
    ("/v1/chat/completions", r#""messages":[{"role":"user","content":"TEXT"}]"#),
    ("/v1/completions", r#""prompt":"TEXT""#),
    ("/v1/messages", r#""messages":[{"role":"user","content":"TEXT"}]"#),
    ("/generate", r#""text":"TEXT""#),
    ("/generate", r#""input_ids":[IDS]"#),
];

/// How many of these requests, sent one after another, matched what an earlier one has left.
fn matches(path: &str, prompt: &str, partitions: &[&str]) -> u64 {
    let ids = (0..64).map(|id: u32| id.to_string()).collect::<Vec<_>>().join(",");
    let prompt = prompt.replace("TEXT", &"all the same ".repeat(20)).replace("IDS", &ids);
    let mut bench = Bench::new(config("cache_aware", 4, ""));
    for partition in partitions {
        let body = format!("{{{partition}{prompt}}}");
        let mut http = Script { body: body.into(), ..Script::of("POST", path) };
        routed(&bench.send(&mut http).1);
    }
    bench.vm.metric("smg_cache_aware_policy_branch_total;branch=tree_match")
}

#[test]
fn partitions_never_share_a_prefix() {
    let apart = [
        "",
        r#""cache_salt":"ab","extra_key":"c","#,
        r#""cache_salt":"a","extra_key":"bc","#,
        r#""cache_salt":"abc","#,
        r#""extra_key":"abc","#,
        r#""lora_path":"abc","#,
    ];
    for (path, prompt) in ENDPOINTS {
        let twice: Vec<_> = apart.iter().chain(&apart).copied().collect();
        assert_eq!((matches(path, prompt, &apart), matches(path, prompt, &twice)), (0, 6), "{path} {prompt}");
    }
    let adapters = [r#""lora_id":"a","#, r#""lora_id":"b","#, r#""lora_path":"a","#, ""];
    for (_, prompt) in ENDPOINTS.iter().filter(|(path, _)| *path == "/generate") {
        assert_eq!(matches("/generate", prompt, &adapters), 0, "{prompt}");
    }
}

#[test]
fn what_is_not_partitioned_shares_its_prefixes() {
    for (path, prompt) in [
        ("/v1/responses", r#""input":"TEXT""#),
        ("/v1/embeddings", r#""input":"TEXT""#),
        ("/v1/rerank", r#""query":"TEXT""#),
        ("/v1/interactions", r#""input":"TEXT""#),
        ("/v1/classify", r#""input":"TEXT""#),
    ] {
        assert_eq!(matches(path, prompt, &["", r#""cache_salt":"a","#, r#""lora_path":"b","#]), 2, "{path}");
    }
    assert_eq!(matches("/v1/completions", r#""prompt":"TEXT""#, &["", r#""lora_id":"a","#, r#""cache_salt":"","#]), 2);
}
