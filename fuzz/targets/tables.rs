//! Shared data, of which one table is spoiled.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::tables(data));
