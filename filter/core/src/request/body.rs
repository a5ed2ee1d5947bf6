//! The reading of one body, whole, cut or broken.

use serde::de::DeserializeSeed;
use serde_json::Deserializer;

use super::reader::Reader;
use super::seed::{At, Place};
use super::{Endpoint, Facts, Parsed};

/// Reads what `body` says into `facts`, which are empty but for the header's token ids.
pub(super) fn read(facts: &mut Facts, endpoint: Endpoint, body: &[u8], complete: bool) -> Parsed {
    let mut reader = Reader::new(facts, endpoint, body.len());
    let mut json = Deserializer::from_slice(body);
    let outcome = At { place: Place::Document, reader: &mut reader }.deserialize(&mut json).and_then(|()| json.end());
    if outcome.as_ref().is_err_and(serde_json::Error::is_eof) {
        reader.ends_early(body);
    }
    reader.finish(outcome.is_ok());
    match outcome {
        Ok(()) => Parsed::Whole,
        Err(error) if !complete && (error.is_eof() || is_at_the_end(&error, body)) => Parsed::Cut,
        Err(_) => Parsed::Malformed,
    }
}

/// Whether the error is at the last byte, where it can be the cut's doing: the beginning of a number need not be one.
fn is_at_the_end(error: &serde_json::Error, body: &[u8]) -> bool {
    let last_line = memchr::memrchr(b'\n', body).map_or(0, |newline| newline + 1);
    let lines = 1 + memchr::memchr_iter(b'\n', body).count();
    error.line() == lines && last_line + error.column() >= body.len()
}
