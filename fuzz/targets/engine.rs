//! An engine's answer to the sidecar.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecar_loadmonitor::hostile::engine(data));
