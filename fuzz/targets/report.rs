//! A load snapshot, posted or off the queue.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::report(data));
