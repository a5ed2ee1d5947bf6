//! Random bytes, and such as look like what is asked for.

use proptest::collection::vec;
use proptest::prelude::*;

use super::TABLES;

/// Random bytes with pieces of what the parsers look for among them.
fn bytes(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => prop::sample::select(pieces).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..8),
    ];
    vec(piece, 0..most).prop_map(|pieces| pieces.concat())
}

const CONFIG: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"workers\":",
    "\"http://10.0.0.1:1\"",
    "{\"url\":",
    "\"models\":",
    "\"m\"",
    "\"policy\":",
    "\"cache_aware\"",
    "\"role\":",
    "\"ingest\"",
    "\"max_workers\":",
    "\"cache_threshold\":",
    "1",
    "0.5",
    "-1",
    "1e99",
    "null",
    "true",
];
const REPORT: &[&str] = &[
    "{\"version\":2,\"epoch\":1,\"interval_ms\":1000,\"sequence\":",
    "\"reporter\":\"r\",",
    "\"scope\":\"full\",",
    "\"scope\":{\"since\":",
    "\"removed\":[",
    "\"workers\":[",
    "{\"url\":\"http://10.0.0.1:1\"",
    "{\"url\":\"http://10.0.0.9:1\"",
    "]}",
    "]",
    "}",
    ",\"address\":\"10.0.0.9:1\"",
    ",\"health\":\"draining\"",
    ",\"info\":{\"models\":[\"m\"],\"leg\":",
    ",\"poll\":",
    ",\"load\":[",
    "0.5",
    ",",
    "1",
    "-1e300",
    "1e309",
    "null",
];
const HEADERS: &[&str] = &[
    "1",
    "0",
    "4294967295",
    ",",
    " ",
    "POST ",
    "/v1/",
    "chat/completions",
    "generate",
    "GET /v1/responses/",
    "cancel",
    "?",
    "é",
    "key",
    "_t",
    "_r",
    "+",
    "-",
    "\t",
    "\u{7f}",
];
const EXCHANGE: &[&str] = &[
    "\n",
    "\n\n",
    "~",
    "POST",
    "GET",
    "/v1/models",
    "/generate",
    "engines",
    "\u{1}",
    "round_robin",
    "m",
    "z",
    "nobody's",
    "200",
    "503",
    "10.0.0.1:1",
    "via_upstream",
    "upstream_reset_before_response_started{x}",
    "{\"model\":\"m\",",
    "\"messages\":[{\"role\":\"user\",\"content\":\"",
    "\"}]}",
];

proptest! {
    #[test]
    fn a_configuration_is_refused_or_works(bytes in bytes(CONFIG, 30)) {
        super::config(&bytes);
    }

    #[test]
    fn a_body_is_read_as_far_as_it_goes(bytes in vec(any::<u8>(), 0..300)) {
        super::body(&bytes);
    }

    #[test]
    fn headers_are_ignored_or_mean_what_they_say(bytes in bytes(HEADERS, 20)) {
        super::headers(&bytes);
    }

    #[test]
    fn a_report_is_refused_or_can_be_reckoned_with(bytes in bytes(REPORT, 20)) {
        super::report(&bytes);
    }

    #[test]
    fn a_sidecar_may_answer_anything(
        answers in vec((prop::sample::select(b"n0145a".as_slice()), bytes(REPORT, 20)), 0..6)
    ) {
        let parts: Vec<_> = answers.into_iter().map(|(how, body)| [&[how][..], &body].concat()).collect();
        super::pull(&parts.join(&0));
    }

    #[test]
    fn an_exchange_ends_uncounted_whatever_the_host_says(how in any::<u8>(), bytes in bytes(EXCHANGE, 40)) {
        super::exchange(&[&[how][..], &bytes].concat());
    }

    #[test]
    fn spoiled_tables_stop_nobody(table in 0..TABLES.len() as u8, mode in any::<u8>(), sparse in any::<bool>(), mut bytes in vec(any::<u8>(), 0..6000)) {
        if sparse {
            bytes.iter_mut().enumerate().filter(|(at, _)| at % 61 != 0).for_each(|(_, byte)| *byte = 0);
        }
        super::tables(&[&[table, mode][..], &bytes].concat());
    }
}
