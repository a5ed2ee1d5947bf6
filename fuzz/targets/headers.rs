//! Method and path, token ids, routing key.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::headers(data));
