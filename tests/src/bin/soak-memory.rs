//! `make soak TREE=8MiB`, `make soak KEYS=1000000` and `make soak PINS=1000000`: that Envoy's memory stops growing.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser};
use testbed::soak::{Soak, run};

#[derive(Parser)]
#[command(
    about = "Sends requests that are all different through Envoy and measures its memory; without a choice all soaks"
)]
struct Arguments {
    /// Different prompts, with a prefix tree of so many bytes: a number, also with KiB, MiB or GiB.
    #[arg(long, env = "TREE", value_parser = parse_size, conflicts_with = "keys")]
    tree: Option<u64>,

    /// So many different routing keys.
    #[arg(long, env = "KEYS", value_parser = clap::value_parser!(u32).range(4..))]
    keys: Option<u32>,

    /// So many different routing keys under the policy `manual`, which remembers them.
    #[arg(long, env = "PINS", conflicts_with_all = ["tree", "keys"], value_parser = clap::value_parser!(u32).range(4..))]
    pins: Option<u32>,

    /// How many keys `manual` shall remember.
    #[arg(long, env = "MAX_STICKY_KEYS", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1000..))]
    max_sticky_keys: u32,

    /// How many prompts.
    #[arg(long, env = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u32).range(4..))]
    n: u32,
}

impl Arguments {
    fn soaks(&self) -> Vec<Soak> {
        let tree = |bytes| Soak::Tree { bytes, requests: self.n as usize };
        let keys = |requests: u32| Soak::Keys { requests: requests as usize };
        let pins = |requests: u32| Soak::Pins { most: self.max_sticky_keys, requests: requests as usize };
        match (self.tree, self.keys, self.pins) {
            (None, None, None) => vec![tree(8 << 20), keys(1_000_000), pins(1_000_000)],
            (bytes, counted, pinned) => {
                bytes.map(tree).into_iter().chain(counted.map(keys)).chain(pinned.map(pins)).collect()
            }
        }
    }
}

// One thread for the clients: the engines have their own, and Envoy needs the rest of the machine.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    // `make soak TREE=` means that none is given, as in any Makefile.
    let command = Arguments::command().mut_args(|arg| match arg.get_env().and_then(std::env::var_os) {
        Some(value) if value.is_empty() => arg.env(None),
        _ => arg,
    });
    let arguments = Arguments::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let mut end = ExitCode::SUCCESS;
    for soak in arguments.soaks() {
        // Dropped half-way, a run ends its processes and removes its files.
        let outcome = tokio::select! {
            outcome = run(soak) => outcome,
            stopped = tokio::signal::ctrl_c() => Err(stopped.err().map_or(anyhow::anyhow!("stopped"), Into::into)),
        };
        match outcome {
            Ok(report) => {
                print!("{report}");
                for promise in report.broken() {
                    eprintln!("broken: {promise}");
                    end = ExitCode::FAILURE;
                }
            }
            Err(error) => {
                eprintln!("error: {error:#}");
                return ExitCode::FAILURE;
            }
        }
    }
    end
}

fn parse_size(text: &str) -> Result<u64, String> {
    let split = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let shift = match unit {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(format!("`{unit}` is no unit; write KiB, MiB, GiB or nothing")),
    };
    let number: u64 = number.parse().map_err(|_| format!("`{text}` is not a number of bytes"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(parse_size("8MiB"), Ok(8 << 20));
        assert_eq!(parse_size("1024"), Ok(1024));
        assert_eq!(parse_size("16KiB"), Ok(16 << 10));
        for wrong in ["", "8MB", "MiB", "-1"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
