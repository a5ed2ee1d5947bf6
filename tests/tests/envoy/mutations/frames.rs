//! Mutated HTTP/2 that the protocol forbids: single frames as they go over the line.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::time::timeout;

use super::dice::Dice;
use super::pool;
use crate::support::CHAT;
use crate::wire::Raw;

/// How long a client reads before it leaves.
const PATIENCE: Duration = Duration::from_millis(50);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

#[derive(Clone)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Frame {
    fn new(kind: u8, flags: u8, stream: u32, payload: Vec<u8>) -> Self {
        Self { kind, flags, stream, payload }
    }

    /// As it goes over the line; once in a while its length is a lie.
    fn write(&self, dice: &mut Dice, to: &mut Vec<u8>) {
        let size = self.payload.len() + if dice.once_in(40) { dice.below(20) } else { 0 };
        to.extend(&u32::try_from(size).unwrap().to_be_bytes()[1..]);
        to.extend([self.kind, self.flags]);
        to.extend(self.stream.to_be_bytes());
        to.extend(&self.payload);
    }
}

/// The bytes of a connection: the preface, one or more requests, and what a bad client makes of their frames.
pub fn mutated(dice: &mut Dice, evil: &str) -> Vec<u8> {
    let mut frames = vec![Frame::new(SETTINGS, 0, 0, Vec::new())];
    for number in 0..=u32::try_from(dice.below(3)).unwrap() {
        request(dice, evil, 1 + 2 * number, &mut frames);
    }
    for _ in 0..=dice.below(3) {
        spoil(dice, &mut frames);
    }
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    for frame in &frames {
        frame.write(dice, &mut bytes);
    }
    if dice.once_in(6) {
        dice.damage(&mut bytes);
    }
    bytes
}

fn request(dice: &mut Dice, evil: &str, stream: u32, frames: &mut Vec<Frame>) {
    let mut fields: Vec<(String, Vec<u8>)> = vec![
        (":method".to_owned(), pool::method(dice).into()),
        (":scheme".to_owned(), dice.pick(&["http", "http", "http", "https", "", "gopher"]).as_bytes().to_vec()),
        (":path".to_owned(), if dice.once_in(2) { CHAT.into() } else { pool::path(dice).into() }),
        (":authority".to_owned(), b"test".to_vec()),
    ];
    for _ in 0..dice.below(5) {
        fields.push(pool::header(dice, evil));
    }
    match dice.below(8) {
        0 => drop(fields.remove(dice.below(4))),
        1 => fields.push(fields[dice.below(4)].clone()),
        2 => fields.reverse(),
        3 => fields.push((":evil".to_owned(), evil.into())),
        4 => {
            let (name, value) = *dice.pick(&[
                ("connection", "close"),
                ("transfer-encoding", "chunked"),
                ("upgrade", "h2c"),
                ("te", "gzip"),
                ("Upper", "case"),
                ("", "no name"),
                ("white space", ""),
                ("content-length", "5"),
                ("content-length", "x"),
                ("x", "a\r\nb: c"),
                ("x", "a\0b"),
                (":protocol", "websocket"),
                ("host", "other"),
                ("x:y", "z"),
            ]);
            fields.push((name.to_owned(), value.into()));
        }
        _ => {}
    }
    let mut block: Vec<u8> = fields.iter().flat_map(|(name, value)| literal(name.as_bytes(), value)).collect();
    if dice.once_in(10) {
        dice.damage(&mut block);
    }
    let body = pool::body(dice);
    let cut = dice.below(block.len().max(1));
    let end = if body.is_empty() { END_STREAM } else { 0 };
    match dice.below(4) {
        0 => {
            frames.push(Frame::new(HEADERS, end, stream, block[..cut].to_vec()));
            frames.push(Frame::new(CONTINUATION, END_HEADERS, stream, block[cut..].to_vec()));
        }
        // A lie, if the block does not begin like this.
        1 => frames.push(Frame::new(HEADERS, end | END_HEADERS | *dice.pick(&[PADDED, PRIORITY, 0x40]), stream, block)),
        _ => frames.push(Frame::new(HEADERS, end | END_HEADERS, stream, block)),
    }
    let pieces: Vec<_> = body.chunks(1 + dice.below(16_000)).collect();
    let trailers = dice.once_in(5);
    for (number, piece) in pieces.iter().enumerate().take(40) {
        let last = number + 1 == pieces.len() && !trailers;
        frames.push(Frame::new(DATA, if last { END_STREAM } else { 0 }, stream, piece.to_vec()));
    }
    if trailers {
        let (name, value) = pool::header(dice, evil);
        frames.push(Frame::new(HEADERS, END_STREAM | END_HEADERS, stream, literal(name.as_bytes(), &value)));
    }
}

/// Changes, repeats, moves or removes frames, or puts in one that does not belong there.
fn spoil(dice: &mut Dice, frames: &mut Vec<Frame>) {
    let at = dice.below(frames.len());
    match dice.below(9) {
        0 => frames[at].kind = dice.bytes(1)[0],
        1 => frames[at].flags = dice.bytes(1)[0],
        2 => frames[at].stream = *dice.pick(&[0, 1, 2, 3, 5, 0x7fff_ffff, 0xffff_ffff]),
        3 => dice.damage(&mut frames[at].payload),
        4 => frames.insert(at, frames[at].clone()),
        5 if frames.len() > 1 => drop(frames.remove(at)),
        6 => {
            let other = dice.below(frames.len());
            frames.swap(at, other);
        }
        _ => {
            let stream = *dice.pick(&[0, 1, 3, 9]);
            let (kind, size) = *dice.pick(&[
                (DATA, 10),
                (2, 5),
                (RST_STREAM, 4),
                (SETTINGS, 6),
                (SETTINGS, 5),
                (5, 8),
                (6, 8),
                (6, 7),
                (7, 8),
                (WINDOW_UPDATE, 4),
                (CONTINUATION, 3),
                (11, 20),
                (255, 4),
                (DATA, 20_000),
            ]);
            let flags = *dice.pick(&[0, 0, END_STREAM, END_HEADERS, PADDED]);
            let payload = if dice.once_in(3) { vec![0; size] } else { dice.bytes(size) };
            frames.insert(at, Frame::new(kind, flags, stream, payload));
        }
    }
}

/// A header field as HPACK writes it without any table.
fn literal(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        let mut rest = text.len();
        if rest < 127 {
            bytes.push(rest as u8);
        } else {
            bytes.push(127);
            rest -= 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
        bytes.extend(text);
    }
    bytes
}

/// Sends it, reads for a while, and leaves.
pub async fn play(bytes: &[u8], resets: bool, proxy: SocketAddr) {
    let mut raw = Raw::open(proxy).await;
    // A proxy that reads on and never answers is left; one that has hung up need not be.
    let _ = timeout(PATIENCE, async {
        raw.send(bytes).await;
        raw.rest().await
    })
    .await;
    if resets {
        raw.reset();
    }
}
