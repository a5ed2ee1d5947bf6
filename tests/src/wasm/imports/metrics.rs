//! Metrics: ids belong to a VM, values to the process.

use wasmtime::Linker;

use super::{Fault, Guest, GuestMemory, host_calls};
use crate::wasm::abi::{Status, metric};
use crate::wasm::shared::Metric;
use crate::wasm::state::HostState;

pub(super) fn define(linker: &mut Linker<HostState>) -> wasmtime::Result<()> {
    host_calls! { linker, "env",
        fn proxy_define_metric(guest, kind: u32, name: u32, name_size: u32, id_to: u32) {
            let name = String::from_utf8_lossy(&guest.bytes(name, name_size)?).into_owned();
            let new = Metric::new(kind).ok_or(Status::BadArgument)?;
            let state = guest.data_mut();
            state.process.records(|records| {
                // One name with two kinds is two metrics in Envoy; here it would mix them up, so it is refused.
                let known = records.metrics.entry(name.clone()).or_insert_with(|| new.clone());
                (std::mem::discriminant(known) == std::mem::discriminant(&new)).then_some(())
            }).ok_or(Status::BadArgument)?;
            let id = (state.metrics.len() as u32 + 1) << metric::KIND_BITS | kind;
            state.metrics.insert(id, name);
            guest.put_u32(id_to, id)
        }
        fn proxy_increment_metric(guest, id: u32, offset: i64) {
            with(guest, id, |metric| metric.increment(offset))
        }
        fn proxy_record_metric(guest, id: u32, value: u64) {
            with(guest, id, |metric| { metric.record(value); Ok(()) })
        }
        fn proxy_get_metric(guest, id: u32, value_to: u32) {
            let value = with(guest, id, |metric| metric.value())?;
            guest.put(value_to, &value.to_le_bytes())
        }
    }
    Ok(())
}

fn with<T>(guest: &Guest<'_>, id: u32, work: impl FnOnce(&mut Metric) -> Result<T, Status>) -> Result<T, Fault> {
    let state = guest.data();
    let name = state.metrics.get(&id).ok_or(Status::NotFound)?;
    let result = state.process.records(|records| records.metrics.get_mut(name).ok_or(Status::NotFound).and_then(work));
    result.map_err(Fault::from)
}
