//! Answers of a sidecar to who fetches snapshots from it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::pull(data));
