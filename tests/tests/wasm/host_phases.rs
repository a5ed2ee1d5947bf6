//! The phases of one exchange in the emulated host.

use testbed::wasm::{Decision, Headers, Plugin, Request, Response, Status};

use crate::guest::{noted, process};

/// Holds a request until its body has ended, or until 10 bytes of it are held.
const HOLDS_BODY: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (i32.eqz (local.get 2)))
(func (export "proxy_on_request_body") (param $id i32) (param $size i32) (param $end i32) (result i32)
  (call $note «read» (call $header (i32.const 0) «:path»))
  (call $note «written» (call $set_header (i32.const 0) «x-a» «b»))
  (call $note «size» (local.get $size))
  (call $note «end» (local.get $end))
  (i32.eqz (i32.or (local.get $end) (i32.ge_u (local.get $size) (i32.const 10)))))
(func (export "proxy_on_request_trailers") (param i32 i32) (result i32)
  (call $note «read in trailers» (call $header (i32.const 0) «:path»))
  (call $note «trailer» (call $header (i32.const 1) «x-t»))
  (i32.const 0))
"#;

#[test]
fn sizes_add_up_while_a_body_is_held() {
    let process = process(HOLDS_BODY);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let mut exchange = vm.send(root, Request::new("POST", "/").chunk("abc").chunk("defg").unfinished()).unwrap();
    assert_eq!(exchange.decision(), Decision::Paused);
    assert_eq!((noted(&process, "size"), exchange.forwarded().len()), (7, 0));
    exchange.push("h", true).unwrap();
    assert_eq!(noted(&process, "size"), 8);
    assert_eq!(exchange.decision(), Decision::Continued);
    assert_eq!(exchange.forwarded(), b"abcdefgh");
}

#[test]
fn the_end_may_come_in_a_callback_of_its_own() {
    let process = process(HOLDS_BODY);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let exchange = vm.send(root, Request::new("POST", "/").chunk("abc").end_apart()).unwrap();
    assert_eq!((noted(&process, "size"), noted(&process, "end")), (3, 1));
    assert_eq!(exchange.counters().callbacks["proxy_on_request_body"], 2);
    let empty = vm.send(root, Request::new("POST", "/").end_apart()).unwrap();
    assert_eq!((noted(&process, "size"), empty.decision()), (0, Decision::Continued));
}

#[test]
fn request_headers_are_out_of_reach_once_let_go() {
    let process = process(HOLDS_BODY);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let mut exchange = vm.send(root, Request::new("POST", "/").chunk("0123456789").unfinished()).unwrap();
    assert_eq!((noted(&process, "read"), noted(&process, "written")), (Status::Ok as u32, Status::Ok as u32));
    exchange.push("ab", false).unwrap();
    let bad = Status::BadArgument as u32;
    assert_eq!((noted(&process, "read"), noted(&process, "written")), (bad, bad));
    assert_eq!(noted(&process, "size"), 2, "only the new chunk, since the rest has left");
}

#[test]
fn trailers_end_a_request_without_an_end_of_body() {
    let process = process(HOLDS_BODY);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let exchange = vm.send(root, Request::new("POST", "/").chunk("abc").trailer("x-t", "1")).unwrap();
    assert_eq!(noted(&process, "end"), 0);
    assert_eq!((noted(&process, "read in trailers"), noted(&process, "trailer")), (0, 0));
    assert_eq!((exchange.decision(), exchange.forwarded()), (Decision::Continued, b"abc".to_vec()));
}

/// Pauses on headers; the tick lets the first exchange (context 2) go.
const RESUMED_BY_TICK: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32) (i32.const 1))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32)
  (call $note «size» (local.get 1))
  (call $note «read» (call $header (i32.const 0) «:path»))
  (i32.const 0))
(func (export "proxy_on_tick") (param i32)
  (call $note «effective» (call $effective (i32.const 2)))
  (call $note «set» (call $set_header (i32.const 0) «x-gateway-destination-endpoint» «10.0.0.1:80»))
  (call $note «continue» (call $continue (i32.const 0)))
  (call $note «set too late» (call $set_header (i32.const 0) «x-a» «b»))
  (call $note «unknown context» (call $effective (i32.const 99))))
"#;

#[test]
fn without_the_flag_a_paused_request_sees_no_body_until_it_is_resumed() {
    let process = process(RESUMED_BY_TICK);
    let vm = process.vm();
    let root = vm.configure(Plugin::new("").without_stop_iteration()).unwrap();
    let mut exchange = vm.send(root, Request::new("POST", "/").chunk("abc").chunk("de").unfinished()).unwrap();
    exchange.push("f", true).unwrap();
    assert_eq!(exchange.decision(), Decision::Paused);
    assert_eq!(exchange.counters().callbacks.get("proxy_on_request_body"), None);

    vm.tick(root).unwrap();
    assert_eq!([noted(&process, "effective"), noted(&process, "set"), noted(&process, "continue")], [0, 0, 0]);
    assert_eq!(noted(&process, "set too late"), Status::BadArgument as u32);
    assert_eq!(noted(&process, "unknown context"), Status::BadArgument as u32);
    assert_eq!(exchange.decision(), Decision::Continued);
    assert_eq!(exchange.destination().as_deref(), Some("10.0.0.1:80"));
    assert_eq!(noted(&process, "size"), 6, "what piled up comes in one callback");
    assert_eq!(noted(&process, "read"), Status::BadArgument as u32);
    assert_eq!(exchange.forwarded(), b"abcdef");
}

/// Answers every request itself, and marks every response.
const REPLIES: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $note «sent» (call $reply
    (i32.const 503) «no_worker» «no» «\01\00\00\00\03\00\00\00\02\00\00\00x-y\00zz\00» (i32.const -1)))
  (i32.const 0))
(func (export "proxy_on_request_body") (param i32 i32 i32) (result i32) (unreachable))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (drop (call $set_header (i32.const 2) «x-seen» «1»))
  (call $note «upstream» (call $prop «.upstream.address»))
  (call $note «details» (call $prop «.response.code_details»))
  (i32.const 0))
"#;

#[test]
fn a_reply_of_the_filter_passes_its_own_response_phase() {
    let process = process(REPLIES);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let exchange = vm.send(root, Request::post("/", "body")).unwrap();
    let Decision::LocalReply(reply) = exchange.decision() else { panic!("{:?}", exchange.decision()) };
    assert_eq!((reply.status, reply.body.as_slice(), reply.details.as_str()), (503, b"no".as_slice(), "no_worker"));
    assert_eq!(reply.headers.text("x-seen").as_deref(), Some("1"));
    assert_eq!(reply.headers.text("x-y").as_deref(), Some("zz"));
    assert_eq!(reply.headers.text("content-length").as_deref(), Some("2"));
    assert_eq!(noted(&process, "upstream"), Status::NotFound as u32);
    assert_eq!(noted(&process, "details"), 0);
    let counters = exchange.finish().unwrap();
    assert_eq!(counters.callbacks.get("proxy_on_request_body"), None);
}

/// Notes what can be known in the response phase and at the end.
const NOTES_RESPONSE: &str = r#"
(func (export "proxy_on_request_headers") (param i32 i32 i32) (result i32)
  (call $note «address in request» (call $prop «.upstream.address»))
  (i32.const 0))
(func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32)
  (call $note «request header» (call $header (i32.const 0) «:path»))
  (call $note «status header» (call $header (i32.const 2) «:status»))
  (drop (call $prop «.upstream.request_attempt_count»))
  (call $note «attempts» (i32.load (i32.load (i32.const 0))))
  (call $note «attempts size» (i32.load (i32.const 4)))
  (i32.const 0))
(func (export "proxy_on_log") (param i32)
  (call $note «request header in log» (call $header (i32.const 0) «:path»)))
(func (export "proxy_on_done") (param i32) (result i32)
  (call $note «address at the end» (call $prop «.upstream.address»))
  (drop (call $prop «.response.code_details»))
  (call $note «details size» (i32.load (i32.const 4)))
  (i32.const 1))
(func (export "proxy_on_delete") (param i32))
"#;

#[test]
fn the_response_phase_knows_upstream_and_attempts() {
    let process = process(NOTES_RESPONSE);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let mut exchange = vm.send(root, Request::get("/")).unwrap();
    assert_eq!(noted(&process, "address in request"), Status::NotFound as u32);
    let answer = exchange.respond(Response::from_engine(200, "10.0.0.1:80").attempts(3)).unwrap();
    assert_eq!((answer.status, answer.paused), (200, false));
    assert_eq!((noted(&process, "attempts"), noted(&process, "attempts size")), (3, 8));
    assert_eq!(noted(&process, "request header"), Status::BadArgument as u32);
    assert_eq!(noted(&process, "status header"), 0);
    exchange.response_body("data", true).unwrap();
    assert_eq!(exchange.delivered(), b"data");
    let before = vm.open_exchanges();
    let counters = exchange.finish().unwrap();
    assert_eq!(counters.callbacks.get("proxy_on_response_body"), None, "a streamed chunk costs no call");
    assert_eq!(noted(&process, "request header in log"), 0);
    assert_eq!(noted(&process, "address at the end"), 0);
    assert_eq!((before, vm.open_exchanges()), (1, 0));
}

#[test]
fn an_aborted_exchange_ends_like_any_other() {
    let process = process(NOTES_RESPONSE);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let exchange = vm.send(root, Request::post("/", "").unfinished()).unwrap();
    exchange.abort().unwrap();
    assert_eq!(noted(&process, "address at the end"), Status::NotFound as u32);
    assert_eq!(noted(&process, "details size"), "downstream_remote_disconnect".len() as u32);
    assert_eq!(vm.open_exchanges(), 0);
}

#[test]
fn the_proxy_itself_can_answer_a_held_request() {
    let process = process(HOLDS_BODY);
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let mut exchange = vm.send(root, Request::new("POST", "/").chunk("abc").unfinished()).unwrap();
    let answer = exchange.respond(Response::from_proxy(413, "request_payload_too_large")).unwrap();
    assert_eq!(answer.status, 413);
    exchange.push("never seen", true).unwrap();
    assert_eq!(noted(&process, "size"), 3);
    exchange.finish().unwrap();
}

#[test]
fn a_response_can_be_held_with_its_body() {
    let process = process(
        r#"
        (func (export "proxy_on_response_headers") (param i32 i32 i32) (result i32) (i32.const 1))
        (func (export "proxy_on_response_body") (param i32 i32 i32) (result i32) (i32.const 1))
        (func (export "proxy_on_tick") (param i32)
          (drop (call $effective (i32.const 2)))
          (drop (call $continue (i32.const 1))))
        "#,
    );
    let vm = process.vm();
    let root = vm.configure("").unwrap();
    let mut exchange = vm.send(root, Request::get("/")).unwrap();
    assert!(exchange.respond(Response::from_engine(200, "10.0.0.1:80")).unwrap().paused);
    exchange.response_body("ab", false).unwrap();
    exchange.response_body("cd", true).unwrap();
    assert_eq!(exchange.delivered(), b"");
    vm.tick(root).unwrap();
    assert!(!exchange.answer().paused);
    assert_eq!(exchange.delivered(), b"abcd");
}

#[test]
fn headers_keep_bytes_that_are_not_text() {
    let mut headers = Headers::default();
    headers.add("X-Bytes", b"\xff\x00");
    assert_eq!(headers.get("x-bytes"), Some(b"\xff\x00".as_slice()));
}
