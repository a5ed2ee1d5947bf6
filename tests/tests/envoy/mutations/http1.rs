//! Mutated HTTP/1 requests: bytes as they go over the line.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::dice::Dice;
use super::pool;
use crate::gate::HOLD;
use crate::wire::Raw;

/// How long a client waits for an answer to something that is perhaps no whole request. Whatever it gets by then will do.
const PATIENCE: Duration = Duration::from_millis(100);

pub struct Mutated {
    bytes: Vec<u8>,
    /// Nothing is wrong with how it is framed: it must be answered.
    whole: bool,
    /// Where the client stops for the proxy to read.
    pauses: Vec<usize>,
    resets: bool,
}

pub fn mutated(dice: &mut Dice, evil: &str) -> Mutated {
    let mut bytes = Vec::new();
    let mut whole = true;
    for _ in 0..=if dice.once_in(8) { dice.below(3) } else { 0 } {
        let (request, framed) = request(dice, evil);
        whole &= framed;
        bytes.extend(request);
    }
    if dice.once_in(4) {
        dice.damage(&mut bytes);
        whole = false;
    }
    if dice.once_in(16) {
        bytes.truncate(dice.below(bytes.len().max(1)));
        whole = false;
    }
    let mut pauses: Vec<_> = (0..dice.below(4)).map(|_| dice.below(bytes.len().max(1))).collect();
    pauses.sort_unstable();
    Mutated { bytes, whole, pauses, resets: dice.once_in(3) }
}

/// The bytes of one request, and whether they are framed as HTTP wants it.
fn request(dice: &mut Dice, evil: &str) -> (Vec<u8>, bool) {
    let (method, body) = (pool::method(dice), pool::body(dice));
    let mut whole = method.bytes().all(|byte| byte.is_ascii_uppercase()) && !["CONNECT", "PRI"].contains(&method);
    let version = if dice.once_in(30) {
        whole = false;
        *dice.pick(&["HTTP/1.0", "HTTP/0.9", "HTTP/2.0", "HTTP/1.1 ", "http/1.1", "", "SIP/2.0"])
    } else {
        "HTTP/1.1"
    };
    let mut head = format!("{method} {} {version}\r\n", pool::path(dice)).into_bytes();
    if !dice.once_in(40) {
        head.extend(b"host: test\r\n");
    }
    for _ in 0..if dice.once_in(30) { 120 } else { dice.below(5) } {
        let (name, value) = pool::header(dice, evil);
        whole &= !["te", "expect", HOLD].contains(&&*name);
        let name = if dice.once_in(6) { name.to_uppercase() } else { name };
        let colon = *dice.pick(&[": ", ": ", ": ", ": ", ":", " :", ":\t", ":\r\n "]);
        head.extend([name.as_bytes(), colon.as_bytes(), &value, b"\r\n"].concat());
    }
    let chunked = |dice: &mut Dice| {
        let mut all = Vec::new();
        let mut rest = body.as_slice();
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((1 + dice.below(rest.len())).min(rest.len()));
            let extension = *dice.pick(&["", "", "", ";a=b", ";a=\"b\""]);
            all.extend([format!("{:x}{extension}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
            rest = after;
        }
        let (name, value) = pool::header(dice, evil);
        let trailer = if dice.once_in(4) { [name.as_bytes(), b": ", &value, b"\r\n"].concat() } else { Vec::new() };
        [all.as_slice(), b"0\r\n", &trailer, b"\r\n"].concat()
    };
    let (framing, payload, framed) = match dice.below(16) {
        0..=6 => (format!("content-length: {}\r\n", body.len()), body, true),
        7..=9 => ("transfer-encoding: chunked\r\n".to_owned(), chunked(dice), true),
        10 => {
            let wrong = body.len() + dice.below(20);
            (format!("content-length: {}\r\n", wrong.saturating_sub(10)), body, false)
        }
        11 => {
            let length = *dice.pick(&["-1", "+5", "0x10", "", "1,1", "99999999999999999999", "1e3", " 5 ", "٣"]);
            (format!("content-length: {length}\r\n"), body, false)
        }
        12 => (format!("content-length: {0}\r\ncontent-length: {0}\r\n", body.len()), body, false),
        13 => (format!("content-length: {}\r\ntransfer-encoding: chunked\r\n", body.len()), chunked(dice), false),
        14 => {
            let encoding = *dice.pick(&[
                "gzip, chunked",
                "identity",
                "chunked, chunked",
                " chunked",
                "chunked\t",
                "xchunked",
                "Chunked",
            ]);
            (format!("transfer-encoding: {encoding}\r\n"), chunked(dice), false)
        }
        _ => {
            let line = *dice.pick(&[
                "connection: close\r\n",
                "connection: upgrade\r\nupgrade: websocket\r\n",
                "connection: x-hold, host\r\n",
                "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAAP__\r\n",
                "connection: x-gateway-destination-endpoint\r\n",
                "keep-alive: timeout=0\r\nproxy-connection: keep-alive\r\n",
            ]);
            (format!("content-length: {}\r\n{line}", body.len()), body, false)
        }
    };
    head.extend(framing.as_bytes());
    head.extend(b"\r\n");
    head.extend(payload);
    (head, whole && framed)
}

/// Sends it and waits for what comes; the status of the first answer, if there is one.
///
/// # Errors
/// When a whole request gets no answer; says which.
pub async fn play(mutated: &Mutated, proxy: SocketAddr) -> Result<Option<u16>, String> {
    let mut raw = Raw::open(proxy).await;
    let mut sent = 0;
    let send = async {
        for pause in mutated.pauses.iter().copied().chain([mutated.bytes.len()]) {
            raw.send(&mutated.bytes[sent..pause]).await;
            sent = pause;
            tokio::task::yield_now().await;
        }
        raw.status().await
    };
    let status = match mutated.whole {
        true => send.await,
        // Whoever gets no answer hangs up: that too must be borne.
        false => timeout(PATIENCE, send).await.unwrap_or_default(),
    };
    if mutated.resets {
        raw.reset();
    }
    match status {
        None if mutated.whole => Err(format!("no answer to {}", mutated.bytes.escape_ascii())),
        status => Ok(status),
    }
}
