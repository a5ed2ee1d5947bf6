//! Small guests in WebAssembly text, to test the host without the filter.

use filter_core::store::Store as _;
use testbed::wasm::Process;

/// Where the strings of a guest begin; below is scratch space, above (from `HEAP`) what the host allocates.
const STRINGS: usize = 0x400;

const PRELUDE: &str = r#"
(import "env" "proxy_log" (func $log (param i32 i32 i32) (result i32)))
(import "env" "proxy_get_current_time_nanoseconds" (func $now (param i32) (result i32)))
(import "env" "proxy_get_property" (func $property (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_buffer_bytes" (func $buffer (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_get_header_map_value" (func $get_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_replace_header_map_value" (func $set_header (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_send_local_response" (func $reply (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_continue_stream" (func $continue (param i32) (result i32)))
(import "env" "proxy_set_effective_context" (func $effective (param i32) (result i32)))
(import "env" "proxy_get_shared_data" (func $get (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_set_shared_data" (func $set (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_register_shared_queue" (func $register (param i32 i32 i32) (result i32)))
(import "env" "proxy_resolve_shared_queue" (func $resolve (param i32 i32 i32 i32 i32) (result i32)))
(import "env" "proxy_enqueue_shared_queue" (func $enqueue (param i32 i32 i32) (result i32)))
(import "env" "proxy_dequeue_shared_queue" (func $dequeue (param i32 i32 i32) (result i32)))
(import "env" "proxy_define_metric" (func $define_metric (param i32 i32 i32 i32) (result i32)))
(import "env" "proxy_increment_metric" (func $increment (param i32 i64) (result i32)))
(import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
(import "env" "proxy_done" (func $done (result i32)))
(memory (export "memory") 2)
(global $heap (mut i32) (i32.const 0x8000))
(func (export "proxy_on_memory_allocate") (param $size i32) (result i32)
  (local $at i32)
  (local.set $at (global.get $heap))
  (global.set $heap (i32.add (local.get $at) (local.get $size)))
  (block $fits
    (br_if $fits (i32.le_u (global.get $heap) (i32.mul (memory.size) (i32.const 65536))))
    (drop (memory.grow (i32.add (i32.div_u (local.get $size) (i32.const 65536)) (i32.const 1)))))
  (local.get $at))
;; Keeps a number under a key in shared data, where the test reads it.
(func $note (param $key i32) (param $size i32) (param $value i32)
  (i32.store (i32.const 0x100) (local.get $value))
  (drop (call $set (local.get $key) (local.get $size) (i32.const 0x100) (i32.const 4) (i32.const 0))))
;; The status of reading a header; the value's pointer and size go to 0 and 4.
(func $header (param $map i32) (param $name i32) (param $size i32) (result i32)
  (call $get_header (local.get $map) (local.get $name) (local.get $size) (i32.const 0) (i32.const 4)))
;; The status of reading a property; the value's pointer and size go to 0 and 4.
(func $prop (param $path i32) (param $size i32) (result i32)
  (call $property (local.get $path) (local.get $size) (i32.const 0) (i32.const 4)))
"#;

/// A process whose module has `body` behind the common prelude.
/// `«text»` stands for two constants, the address and the size of the text; a dot in `«.a.b»` is a NUL between
/// the segments of a property's path.
pub(crate) fn process(body: &str) -> Process {
    let mut strings = String::new();
    let mut at = STRINGS;
    let mut code = String::new();
    let mut rest = body;
    while let Some((before, after)) = rest.split_once('«') {
        let (text, after) = after.split_once('»').expect("every « has its »");
        let text = text.strip_prefix('.').map_or_else(|| text.to_owned(), |path| path.replace('.', "\\00"));
        // An escape of two hexadecimal digits is one byte.
        let size = text.len() - 2 * text.matches('\\').count();
        strings += &format!("(data (i32.const {at}) \"{text}\")\n");
        code += &format!("{before}(i32.const {at}) (i32.const {size})");
        at += size;
        rest = after;
    }
    Process::from_code(format!("(module {PRELUDE} {code}{rest} {strings})")).unwrap()
}

/// The number that the guest noted under `key`.
#[track_caller]
pub(crate) fn noted(process: &Process, key: &str) -> u32 {
    let value = process.store().get(key).unwrap().unwrap_or_else(|| panic!("the guest never noted {key:?}")).value;
    u32::from_le_bytes(value.try_into().unwrap())
}
