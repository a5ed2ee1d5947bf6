//! The little of WASI preview 1 that Rust's standard library asks for, as Envoy offers it.

use rand::RngCore as _;
use wasmtime::Linker;

use super::{Fault, Guest, GuestMemory, host_calls};
use crate::wasm::abi::errno;
use crate::wasm::state::HostState;

const STDOUT: u32 = 1;
const STDERR: u32 = 2;
const LEVEL_INFO: u32 = 2;
const LEVEL_ERROR: u32 = 4;
const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;

pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    host_calls! { linker, "wasi_snapshot_preview1",
        fn fd_write(guest, fd: u32, vectors: u32, count: u32, written_to: u32) {
            let level = match fd {
                STDOUT => LEVEL_INFO,
                STDERR => LEVEL_ERROR,
                _ => return Err(Fault::Status(errno::BADF)),
            };
            let mut text = Vec::new();
            for index in 0..count {
                let at = vectors.saturating_add(index.saturating_mul(8));
                let (pointer, size) = (word(guest, at)?, word(guest, at.saturating_add(4))?);
                text.extend(guest.bytes(pointer, size).map_err(efault)?);
            }
            if !text.is_empty() {
                guest.data().process.log(guest.data().vm, level, text.strip_suffix(b"\n").unwrap_or(&text));
            }
            guest.put_u32(written_to, text.len() as u32).map_err(efault)
        }
        fn fd_read(_guest, _fd: u32, _vectors: u32, _count: u32, _read_to: u32) {
            Err(Fault::Status(errno::NOSYS))
        }
        fn fd_seek(_guest, _fd: u32, _offset: i64, _whence: u32, _position_to: u32) {
            Err(Fault::Status(errno::NOSYS))
        }
        fn fd_close(_guest, _fd: u32) {
            Err(Fault::Status(errno::NOSYS))
        }
        fn fd_fdstat_get(guest, fd: u32, status_to: u32) {
            if fd != STDOUT && fd != STDERR {
                return Err(Fault::Status(errno::BADF));
            }
            // 24 bytes, all zero but the right to write.
            let mut status = [0_u8; 24];
            status[8] = 64;
            guest.put(status_to, &status).map_err(efault)
        }
        fn environ_sizes_get(guest, count_to: u32, size_to: u32) {
            guest.put_u32(count_to, 0).and_then(|()| guest.put_u32(size_to, 0)).map_err(efault)
        }
        fn environ_get(_guest, _environ: u32, _buffer: u32) {
            Ok(())
        }
        fn args_sizes_get(guest, count_to: u32, size_to: u32) {
            guest.put_u32(count_to, 0).and_then(|()| guest.put_u32(size_to, 0)).map_err(efault)
        }
        fn args_get(_guest, _argv: u32, _buffer: u32) {
            Ok(())
        }
        fn clock_time_get(guest, clock: u32, _precision: u64, time_to: u32) {
            if clock != REALTIME && clock != MONOTONIC {
                return Err(Fault::Status(errno::NOTSUP));
            }
            let now = guest.data().process.now().as_nanos() as u64;
            guest.put(time_to, &now.to_le_bytes()).map_err(efault)
        }
        fn random_get(guest, buffer: u32, size: u32) {
            // Checked before the buffer is made: the size is the guest's word only.
            guest.bytes(buffer, size).map_err(efault)?;
            let mut bytes = vec![0; size as usize];
            guest.data_mut().random.fill_bytes(&mut bytes);
            guest.put(buffer, &bytes).map_err(efault)
        }
        fn sched_yield(_guest) {
            Ok(())
        }
    }
    linker.func_wrap(
        "wasi_snapshot_preview1",
        "proc_exit",
        |mut guest: Guest<'_>, code: u32| -> wasmtime::Result<()> {
            guest.data_mut().count("proc_exit")?;
            wasmtime::bail!("the module called proc_exit({code})")
        },
    )?;
    Ok(())
}

fn word(guest: &Guest<'_>, pointer: u32) -> Result<u32, Fault> {
    let bytes = guest.bytes(pointer, 4).map_err(efault)?;
    let bytes: [u8; 4] = bytes.try_into().map_err(|_| Fault::Status(errno::FAULT))?;
    Ok(u32::from_le_bytes(bytes))
}

/// A bad pointer, in WASI's numbers; a trap stays a trap.
fn efault(fault: Fault) -> Fault {
    match fault {
        Fault::Status(_) => Fault::Status(errno::FAULT),
        trap @ Fault::Trap(_) => trap,
    }
}
