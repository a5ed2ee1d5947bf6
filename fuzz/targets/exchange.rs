//! What a host answers during one exchange: headers, route metadata, bodies.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| filter_core::hostile::exchange(data));
