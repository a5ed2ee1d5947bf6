//! Fixed-width little-endian fields in byte buffers, without a way to panic: out of range reads 0 and writes nothing.

/// The field at `at`, or 0 where the buffer ends before it does.
pub(crate) fn read_u16(bytes: &[u8], at: usize) -> u16 {
    field(bytes, at).map_or(0, u16::from_le_bytes)
}

/// See [`read_u16`].
pub(crate) fn read_u32(bytes: &[u8], at: usize) -> u32 {
    field(bytes, at).map_or(0, u32::from_le_bytes)
}

/// See [`read_u16`].
pub(crate) fn read_i32(bytes: &[u8], at: usize) -> i32 {
    field(bytes, at).map_or(0, i32::from_le_bytes)
}

/// See [`read_u16`].
pub(crate) fn read_u64(bytes: &[u8], at: usize) -> u64 {
    field(bytes, at).map_or(0, u64::from_le_bytes)
}

/// See [`read_u16`].
pub(crate) fn read_f64(bytes: &[u8], at: usize) -> f64 {
    field(bytes, at).map_or(0.0, f64::from_le_bytes)
}

/// Overwrites the bytes at `at` with `value` where they exist.
pub(crate) fn write<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(target) = at.checked_add(N).and_then(|end| bytes.get_mut(at..end)) {
        target.copy_from_slice(&value);
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}
