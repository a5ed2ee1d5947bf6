//! A plugin configuration.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::config(data));
