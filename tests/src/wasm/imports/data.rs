//! Shared data and shared queues.

use filter_core::store::{StoreError, Write};
use wasmtime::Linker;

use super::{Fault, GuestMemory, host_calls};
use crate::wasm::abi::Status;
use crate::wasm::state::HostState;

/// The `vm_id` that all VMs of a process have.
pub(super) const VM_ID: &[u8] = b"smg";

impl From<StoreError> for Fault {
    fn from(error: StoreError) -> Self {
        Self::Status(error.0)
    }
}

pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    host_calls! { linker, "env",
        fn proxy_get_shared_data(guest, key: u32, key_size: u32, value_to: u32, size_to: u32, version_to: u32) {
            let key = text(guest.bytes(key, key_size)?)?;
            let found = guest.data().process.clone().get(&key)?.ok_or(Status::NotFound)?;
            guest.give(&found.value, value_to, size_to)?;
            guest.put_u32(version_to, found.version)
        }
        fn proxy_set_shared_data(guest, key: u32, key_size: u32, value: u32, value_size: u32, version: u32) {
            let key = text(guest.bytes(key, key_size)?)?;
            let value = guest.bytes(value, value_size)?;
            let version = (version != 0).then_some(version);
            match guest.data().process.clone().set(&key, &value, version)? {
                Write::Done => Ok(()),
                Write::Conflict => Err(Status::CasMismatch.into()),
            }
        }
        fn proxy_register_shared_queue(guest, name: u32, name_size: u32, id_to: u32) {
            let name = guest.bytes(name, name_size)?;
            let (vm, root) = (guest.data().vm, guest.data().root_id());
            let id = guest.data().process.queues(|queues| queues.register(&name, vm, root));
            guest.put_u32(id_to, id)
        }
        fn proxy_resolve_shared_queue(guest, vm_id: u32, vm_id_size: u32, name: u32, name_size: u32, id_to: u32) {
            let vm_id = guest.bytes(vm_id, vm_id_size)?;
            let name = guest.bytes(name, name_size)?;
            if !vm_id.is_empty() && vm_id != VM_ID {
                return Err(Status::NotFound.into());
            }
            let id = guest.data().process.queues(|queues| queues.resolve(&name)).ok_or(Status::NotFound)?;
            guest.put_u32(id_to, id)
        }
        fn proxy_enqueue_shared_queue(guest, id: u32, message: u32, message_size: u32) {
            let message = guest.bytes(message, message_size)?;
            Ok(guest.data().process.queues(|queues| queues.enqueue(id, message))?)
        }
        fn proxy_dequeue_shared_queue(guest, id: u32, message_to: u32, size_to: u32) {
            let message = guest.data().process.queues(|queues| queues.dequeue(id))?;
            guest.give(&message, message_to, size_to)
        }
    }
    Ok(())
}

/// Envoy takes any bytes as a key, the store's model only text; the filter's keys are text.
fn text(key: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(key).map_err(|_| Status::BadArgument.into())
}
