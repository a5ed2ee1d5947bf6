//! The body of an inference request.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::body(data));
