//! The functions that the module imports.
//!
//! Each body is written as if host calls could fail like Rust functions: a [`Fault`] becomes the status that the
//! module sees, or a trap.

mod data;
mod headers;
mod metrics;
mod stream;
mod wasi;

use wasmtime::{Caller, Linker};

use super::abi::Status;
use super::state::HostState;

/// The module during a host call.
pub(super) type Guest<'a> = Caller<'a, HostState>;

/// Why a host call does not answer `Ok`.
pub(super) enum Fault {
    /// The module gets this number.
    Status(u32),
    /// The VM dies.
    Trap(wasmtime::Error),
}

impl From<Status> for Fault {
    fn from(status: Status) -> Self {
        Self::Status(status as u32)
    }
}

impl From<wasmtime::Error> for Fault {
    fn from(error: wasmtime::Error) -> Self {
        Self::Trap(error)
    }
}

/// Defines host functions that answer a status: counted by name, arguments as the ABI has them.
macro_rules! host_calls {
    ($linker:ident, $module:literal, $(fn $name:ident($guest:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {
        $($linker.func_wrap(
            $module,
            stringify!($name),
            |mut guest: $crate::wasm::imports::Guest<'_> $(, $arg: $type)*| -> wasmtime::Result<u32> {
                #[allow(clippy::too_many_arguments, reason = "the ABI decides how many")]
                fn $name($guest: &mut $crate::wasm::imports::Guest<'_> $(, $arg: $type)*)
                    -> Result<(), $crate::wasm::imports::Fault> $body
                guest.data_mut().count(stringify!($name))?;
                match $name(&mut guest $(, $arg)*) {
                    Ok(()) => Ok(0),
                    Err($crate::wasm::imports::Fault::Status(status)) => Ok(status),
                    Err($crate::wasm::imports::Fault::Trap(error)) => Err(error),
                }
            },
        )?;)*
    };
}
use host_calls;

/// Everything that the host offers.
pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    stream::define(linker)?;
    headers::define(linker)?;
    data::define(linker)?;
    metrics::define(linker)?;
    wasi::define(linker)
}

/// The guest's memory, with every access checked.
trait GuestMemory {
    fn bytes(&self, pointer: u32, size: u32) -> Result<Vec<u8>, Fault>;
    fn put(&mut self, pointer: u32, bytes: &[u8]) -> Result<(), Fault>;
    fn put_u32(&mut self, pointer: u32, value: u32) -> Result<(), Fault>;
    /// Returns bytes of any length: the guest allocates, the host writes, pointer and size go where told.
    fn give(&mut self, bytes: &[u8], pointer_to: u32, size_to: u32) -> Result<(), Fault>;
}

impl GuestMemory for Guest<'_> {
    fn bytes(&self, pointer: u32, size: u32) -> Result<Vec<u8>, Fault> {
        let memory = self.data().memory.ok_or(Status::InvalidMemoryAccess)?;
        let range = pointer as usize..(pointer as usize).saturating_add(size as usize);
        Ok(memory.data(self).get(range).ok_or(Status::InvalidMemoryAccess)?.to_vec())
    }

    fn put(&mut self, pointer: u32, bytes: &[u8]) -> Result<(), Fault> {
        let memory = self.data().memory.ok_or(Status::InvalidMemoryAccess)?;
        memory.write(self, pointer as usize, bytes).map_err(|_| Status::InvalidMemoryAccess.into())
    }

    fn put_u32(&mut self, pointer: u32, value: u32) -> Result<(), Fault> {
        self.put(pointer, &value.to_le_bytes())
    }

    fn give(&mut self, bytes: &[u8], pointer_to: u32, size_to: u32) -> Result<(), Fault> {
        let mut pointer = 0;
        if !bytes.is_empty() {
            let allocate = self.data().allocate.clone().ok_or(Status::InvalidMemoryAccess)?;
            pointer = allocate.call(&mut *self, bytes.len() as u32)?;
            if pointer == 0 {
                return Err(Status::InvalidMemoryAccess.into());
            }
            self.put(pointer, bytes)?;
        }
        self.put_u32(pointer_to, pointer)?;
        self.put_u32(size_to, bytes.len() as u32)
    }
}

/// Header pairs as the ABI writes them: count, sizes, then every name and value with a zero byte behind it.
fn encode_pairs<'a>(pairs: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Vec<u8> {
    let (mut sizes, mut text, mut count) = (Vec::new(), Vec::new(), 0_u32);
    for (name, value) in pairs {
        count += 1;
        for part in [name, value] {
            sizes.extend((part.len() as u32).to_le_bytes());
            text.extend(part);
            text.push(0);
        }
    }
    if count == 0 {
        return Vec::new();
    }
    [count.to_le_bytes().as_slice(), &sizes, &text].concat()
}

/// The reverse; `None` when sizes and bytes do not fit together.
fn decode_pairs(bytes: &[u8]) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    if bytes.is_empty() {
        return Some(Vec::new());
    }
    let number = |index: usize| -> Option<usize> {
        let word = bytes.get(index * 4..index * 4 + 4)?;
        Some(u32::from_le_bytes(word.try_into().ok()?) as usize)
    };
    let count = number(0)?;
    let mut at = count.checked_mul(8)?.checked_add(4)?;
    let mut part = |index: usize| -> Option<Vec<u8>> {
        let size = number(index)?;
        let part = bytes.get(at..at.checked_add(size)?)?.to_vec();
        at = at + size + 1;
        Some(part)
    };
    (0..count).map(|pair| Some((part(1 + pair * 2)?, part(2 + pair * 2)?))).collect()
}
