//! What a test says to a filter: requests, responses and their headers, as bytes.

use std::fmt;

/// A header map as the proxy keeps it: names in lower case, values any bytes, order kept, repeats allowed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(Vec<u8>, Vec<u8>)>);

impl Headers {
    /// The first value of `name`, which is the one that the ABI shows.
    pub fn get(&self, name: impl AsRef<[u8]>) -> Option<&[u8]> {
        let name = lower(name.as_ref());
        self.0.iter().find(|(key, _)| *key == name).map(|(_, value)| value.as_slice())
    }

    /// The first value of `name` as text, with bytes that are not UTF-8 replaced.
    pub fn text(&self, name: impl AsRef<[u8]>) -> Option<String> {
        self.get(name).map(|value| String::from_utf8_lossy(value).into_owned())
    }

    /// Appends a value.
    pub fn add(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.0.push((lower(name.as_ref()), value.as_ref().to_vec()));
    }

    /// Puts one value in the place of all that `name` had.
    pub fn set(&mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        self.remove(&name);
        self.add(name, value);
    }

    /// Removes every value of `name`.
    pub fn remove(&mut self, name: impl AsRef<[u8]>) {
        let name = lower(name.as_ref());
        self.0.retain(|(key, _)| *key != name);
    }

    /// Names and values in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.0.iter().map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True without any value.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.iter().map(|(n, v)| (n.escape_ascii().to_string(), v.escape_ascii().to_string())))
            .finish()
    }
}

fn lower(name: &[u8]) -> Vec<u8> {
    name.to_ascii_lowercase()
}

/// How the end of a body is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// With the last chunk, or with the headers when there is no chunk.
    Last,
    /// In a callback of its own that brings no bytes.
    Apart,
    /// Not yet: the test sends the rest with [`Exchange::push`](super::Exchange::push).
    Open,
}

/// One request; what is not said is the request of an ordinary client without a body.
#[derive(Debug, Clone)]
pub struct Request {
    pub(super) headers: Headers,
    pub(super) chunks: Vec<Vec<u8>>,
    pub(super) trailers: Option<Headers>,
    pub(super) end: End,
    pub(super) properties: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Request {
    /// A request of `method` on `path` (bytes, since a path need not be UTF-8).
    pub fn new(method: &str, path: impl AsRef<[u8]>) -> Self {
        let mut headers = Headers::default();
        headers.add(":authority", "gateway.test");
        headers.add(":path", path);
        headers.add(":method", method);
        headers.add(":scheme", "http");
        let request = Self { headers, chunks: Vec::new(), trailers: None, end: End::Last, properties: Vec::new() };
        request.property(&["request", "protocol"], "HTTP/1.1").property(&["xds", "cluster_name"], "engines")
    }

    /// A POST with one chunk of JSON and its length.
    pub fn post(path: &str, body: impl AsRef<[u8]>) -> Self {
        let length = body.as_ref().len().to_string();
        Self::new("POST", path).header("content-type", "application/json").header("content-length", length).chunk(body)
    }

    /// A GET without a body.
    pub fn get(path: &str) -> Self {
        Self::new("GET", path)
    }

    /// Appends a header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.headers.add(name, value);
        self
    }

    /// Removes a header, one of the defaults for instance.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.headers.remove(name);
        self
    }

    /// Appends a piece of the body; each piece is one body callback.
    #[must_use]
    pub fn chunk(mut self, bytes: impl AsRef<[u8]>) -> Self {
        self.chunks.push(bytes.as_ref().to_vec());
        self
    }

    /// Cuts the body given so far into pieces of `size` bytes.
    #[must_use]
    pub fn cut(mut self, size: usize) -> Self {
        self.chunks = self.chunks.concat().chunks(size.max(1)).map(<[u8]>::to_vec).collect();
        self
    }

    /// HTTP/2 instead of HTTP/1.1.
    #[must_use]
    pub fn http2(self) -> Self {
        self.property(&["request", "protocol"], "HTTP/2")
    }

    /// Ends the request (HTTP/2) with trailers: no body callback then carries the end of the stream.
    #[must_use]
    pub fn trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.get_or_insert_default().add(name, value);
        self.http2()
    }

    /// Tells the end of the body in a callback of its own, as HTTP/2 and chunked HTTP/1.1 clients often cause.
    #[must_use]
    pub fn end_apart(mut self) -> Self {
        self.end = End::Apart;
        self
    }

    /// Leaves the request unfinished: the rest comes later, or never.
    #[must_use]
    pub fn unfinished(mut self) -> Self {
        self.end = End::Open;
        self
    }

    /// What `proxy_get_property` answers for this path; see [`int`] for numbers.
    #[must_use]
    pub fn property(mut self, path: &[&str], value: impl AsRef<[u8]>) -> Self {
        let path = property_path(path);
        self.properties.retain(|(key, _)| *key != path);
        self.properties.push((path, value.as_ref().to_vec()));
        self
    }
}

/// One answer: an engine's, or the proxy's own when no engine gave one.
#[derive(Debug, Clone)]
pub struct Response {
    pub(super) headers: Headers,
    pub(super) end: bool,
    pub(super) upstream: Option<String>,
    pub(super) attempts: Option<u64>,
    pub(super) details: String,
}

impl Response {
    /// The answer of the engine at `upstream` (`ip:port`) to the first attempt; its body follows.
    pub fn from_engine(status: u16, upstream: &str) -> Self {
        let mut response = Self::from_proxy(status, "via_upstream").attempts(1);
        response.upstream = Some(upstream.to_owned());
        response.end = false;
        response
    }

    /// The proxy's own answer (timeout, 413, no healthy upstream), with Envoy's name for the reason and no body.
    pub fn from_proxy(status: u16, details: &str) -> Self {
        let mut headers = Headers::default();
        headers.add(":status", status.to_string());
        Self { headers, end: true, upstream: None, attempts: None, details: details.to_owned() }
    }

    /// Appends a header.
    #[must_use]
    pub fn header(mut self, name: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Self {
        self.headers.add(name, value);
        self
    }

    /// How often Envoy tried, the last attempt included (`upstream.request_attempt_count`).
    #[must_use]
    pub fn attempts(mut self, attempts: u64) -> Self {
        self.attempts = Some(attempts);
        self
    }

    /// The response has no body: its headers end it.
    #[must_use]
    pub fn empty(mut self) -> Self {
        self.end = true;
        self
    }
}

/// A number as a property: 8 bytes, little-endian.
pub fn int(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

pub(super) fn property_path(path: &[&str]) -> Vec<u8> {
    path.join("\0").into_bytes()
}
