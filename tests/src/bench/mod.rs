//! What the filter costs: CPU time of the proxy per request, side by side with Envoy alone and with others.
//!
//! Proxy, clients and engines share the machine's cores, and the machine is not the same from minute to minute. So what
//! counts is the CPU time that the kernel has charged to the proxy, setups take turns within each round, and ratios are
//! taken within a round.

mod cells;
mod clients;
pub(crate) mod cpu;
mod engines;
mod goals;
mod outcome;
mod prompts;
mod saturation;
mod settings;
mod setups;

use anyhow::{Context, Result};

use cells::{Group, plan};
use engines::Engines;
pub use outcome::Outcome;
use outcome::Row;
use prompts::Prompts;
pub use settings::{BenchSettings, Peer};
use setups::Setup;

pub use cells::Mix;

/// Requests before each measurement, per engine: Envoy has closed its idle connections in the meantime, and each of its
/// threads needs one to each engine.
const WARM_PER_WORKER: usize = 8;

/// Policies that go by a key of the client's: their requests have one.
const BY_KEY: [&str; 2] = ["consistent_hashing", "manual"];

/// Measures everything that the settings ask for; `said` is handed a line now and then.
///
/// # Errors
/// When a setup does not start or ends early. Requests that fail are no error, they are in the outcome.
pub async fn run(settings: &BenchSettings, mut said: impl FnMut(&str)) -> Result<Outcome> {
    let mut prompts = Prompts::new();
    let mut rows = Vec::new();
    for group in plan(settings) {
        rows.append(&mut measure_group(&group, settings, &mut prompts, &mut said).await?);
    }
    said("counting lost races under saturation");
    let saturation = saturation::saturate(settings, &mut prompts).await?;
    Ok(Outcome { rows, saturation })
}

async fn measure_group(
    group: &Group,
    settings: &BenchSettings,
    prompts: &mut Prompts,
    said: &mut impl FnMut(&str),
) -> Result<Vec<Row>> {
    let engines = Engines::start(group.workers)?;
    let mut setups = Vec::new();
    for name in &group.setups {
        setups.push(Setup::start(name, group, engines.addresses(), settings).await?);
    }
    let mut rows: Vec<Row> = Vec::new();
    for cell in &group.cells {
        rows.extend(group.setups_of(cell).into_iter().map(|setup| Row::new(setup, group, *cell)));
    }
    // The first round is not counted: compilers and caches of all kinds get warm in it.
    for round in 0..=settings.rounds {
        said(&format!(
            "{} workers, {} threads: round {round} of {}",
            group.workers, group.concurrency, settings.rounds
        ));
        for cell in &group.cells {
            engines.answer_in_chunks(0);
            let requests = cell.requests(settings.requests);
            let warm = (group.workers * WARM_PER_WORKER).max(cell.clients()).min(4 * settings.requests);
            let mut bodies = prompts.bodies(cell, requests, warm);
            if cell.stream_chunks > 0 {
                // Nothing of the streams themselves is to be warmed up, and each takes a second.
                bodies.before.truncate(cell.clients());
            }
            engines.answer_in_chunks(cell.stream_chunks);
            // Another one begins each time, so that none always comes after the same.
            for turn in 0..setups.len() {
                let setup = &setups[(round + turn) % setups.len()];
                let mut own = rows.iter_mut().filter(|row| row.setup == setup.name);
                let Some(row) = own.find(|row| row.cell == *cell) else { continue };
                let keyed = BY_KEY.contains(&setup.name.as_str());
                let measured = clients::measure(setup.address, &setup.leaders, cell.clients(), &bodies, keyed).await;
                row.note(measured.with_context(|| format!("{} at {cell}", setup.name))?, round > 0);
            }
        }
    }
    Ok(rows)
}
