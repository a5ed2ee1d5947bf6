//! What tells the sidecar who the workers are: a file, Envoy's admin page, a DNS name.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sidecar_loadmonitor::hostile::discovery(data));
