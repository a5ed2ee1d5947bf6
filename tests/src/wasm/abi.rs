//! Numbers of the proxy-wasm ABI 0.2.1 and of WASI preview 1.

/// What a host call answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Done.
    Ok = 0,
    /// No such header, property, key, queue or metric.
    NotFound = 1,
    /// Not possible with this argument, or not any more (headers that have left).
    BadArgument = 2,
    /// A value cannot be written as bytes.
    SerializationFailure = 3,
    /// A pointer leaves the guest's memory.
    InvalidMemoryAccess = 6,
    /// The queue holds nothing.
    Empty = 7,
    /// Somebody else wrote the key since its version was read.
    CasMismatch = 8,
    /// The host failed.
    InternalFailure = 10,
    /// The host does not know the call.
    Unimplemented = 12,
}

/// Header maps by their number in the ABI.
pub(super) mod map {
    pub(crate) const REQUEST_HEADERS: u32 = 0;
    pub(crate) const REQUEST_TRAILERS: u32 = 1;
    pub(crate) const RESPONSE_HEADERS: u32 = 2;
    pub(crate) const RESPONSE_TRAILERS: u32 = 3;
    pub(crate) const CALL_HEADERS: u32 = 6;
}

/// Buffers by their number in the ABI.
pub(super) mod buffer {
    pub(crate) const REQUEST_BODY: u32 = 0;
    pub(crate) const RESPONSE_BODY: u32 = 1;
    pub(crate) const CALL_BODY: u32 = 4;
    pub(crate) const VM_CONFIGURATION: u32 = 6;
    pub(crate) const PLUGIN_CONFIGURATION: u32 = 7;
    pub(crate) const LAST: u32 = 8;
}

/// Metric kinds; a metric's id carries its kind in the two lowest bits.
pub(super) mod metric {
    pub(crate) const COUNTER: u32 = 0;
    pub(crate) const GAUGE: u32 = 1;
    pub(crate) const HISTOGRAM: u32 = 2;
    pub(crate) const KIND_BITS: u32 = 2;
}

/// WASI error numbers.
pub(super) mod errno {
    pub(crate) const BADF: u32 = 8;
    pub(crate) const FAULT: u32 = 21;
    pub(crate) const NOSYS: u32 = 52;
    pub(crate) const NOTSUP: u32 = 58;
}
