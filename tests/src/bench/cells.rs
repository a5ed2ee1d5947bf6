//! What is measured: kinds of requests, and in front of how many engines by how many threads.

use std::fmt;

use super::settings::BenchSettings;

/// How prompts resemble each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mix {
    /// Every prompt is new.
    Cold,
    /// Each prompt extends one that was sent before by a twentieth.
    Turn,
    /// One prompt again and again.
    Repeat,
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cold => "cold",
            Self::Turn => "turn",
            Self::Repeat => "repeat",
        })
    }
}

/// One kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    /// Size of the request body in KiB.
    pub(super) prompt_kb: usize,
    pub(super) mix: Mix,
    /// Chunks of the streamed answer; 0: the answer is one piece of JSON.
    pub(super) stream_chunks: usize,
}

impl Cell {
    /// How many requests a measurement of it takes, where one of 4 KB takes `requests`: about the same time for each.
    pub(super) fn requests(&self, requests: usize) -> usize {
        let share = match (self.stream_chunks, self.prompt_kb) {
            (1.., _) => 40,
            (0, ..16) => 1,
            (0, 16..128) => 2,
            (0, _) => 8,
        };
        requests.div_ceil(share)
    }

    /// Connections with a request under way on each.
    pub(super) fn clients(&self) -> usize {
        // Streams wait most of the time, so it takes many of them to keep a proxy busy.
        if self.stream_chunks > 0 { 32 } else { 8 }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KB {}", self.prompt_kb, self.mix)?;
        match self.stream_chunks {
            0 => Ok(()),
            chunks => write!(f, ", {chunks} chunks"),
        }
    }
}

/// Setups that are measured in turns, with the same requests.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Group {
    /// Engines behind the proxy.
    pub(super) workers: usize,
    /// Threads of Envoy.
    pub(super) concurrency: usize,
    /// Names of the setups: `envoy`, policies, peers.
    pub(super) setups: Vec<String>,
    pub(super) cells: Vec<Cell>,
    /// Setups that are measured with a few cells only, and these cells.
    pub(super) sparse: (Vec<String>, Vec<Cell>),
}

impl Group {
    /// The setups that are measured with this cell.
    pub(super) fn setups_of(&self, cell: &Cell) -> Vec<&str> {
        let (sparse, cells) = &self.sparse;
        let left_out = |setup: &String| sparse.contains(setup) && !cells.contains(cell);
        self.setups.iter().filter(|setup| !left_out(setup)).map(String::as_str).collect()
    }
}

/// The groups of a run: all setups and cells for the first number of workers and two threads (or whatever is asked
/// for), then other numbers of workers and of threads, each with the smallest prompts, Envoy alone and the first policy.
pub(super) fn plan(settings: &BenchSettings) -> Vec<Group> {
    const USUAL_CONCURRENCY: usize = 2;
    let concurrency = match settings.concurrency.contains(&USUAL_CONCURRENCY) {
        true => USUAL_CONCURRENCY,
        false => settings.concurrency.first().copied().unwrap_or(USUAL_CONCURRENCY),
    };
    let workers = settings.workers.first().copied().unwrap_or(2);
    let cells = |kb: usize| settings.mix.iter().map(move |&mix| Cell { prompt_kb: kb, mix, stream_chunks: 0 });
    let smallest = settings.prompt_kb.iter().copied().min().unwrap_or(4);
    let bare = || std::iter::once("envoy".to_owned());

    let mut all: Vec<Cell> = settings.prompt_kb.iter().flat_map(|&kb| cells(kb)).collect();
    if settings.stream_chunks > 0 {
        all.push(Cell { prompt_kb: smallest, mix: Mix::Turn, stream_chunks: settings.stream_chunks });
    }
    let peers = settings.peer.iter().map(ToString::to_string);
    let policies = settings.measured();
    let setups = bare().chain(policies.iter().cloned()).chain(peers).collect();
    let mix = if settings.mix.contains(&Mix::Turn) { Some(Mix::Turn) } else { settings.mix.first().copied() };
    let largest = settings.prompt_kb.iter().copied().max().unwrap_or(smallest);
    let few = all.iter().filter(|cell| {
        cell.stream_chunks == 0 && Some(cell.mix) == mix && [smallest, largest].contains(&cell.prompt_kb)
    });
    let sparse = (settings.sparse(), few.copied().collect());
    let mut groups = vec![Group { workers, concurrency, setups, cells: all, sparse }];

    let others = settings.workers.iter().map(|&workers| (workers, concurrency));
    for (other_workers, other_concurrency) in others.chain(settings.concurrency.iter().map(|&other| (workers, other))) {
        if (other_workers, other_concurrency) != (workers, concurrency) {
            groups.push(Group {
                workers: other_workers,
                concurrency: other_concurrency,
                setups: bare().chain(policies.first().cloned()).collect(),
                cells: cells(smallest).collect(),
                sparse: Default::default(),
            });
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_measured_once_and_the_rest_at_its_smallest() {
        let groups = plan(&BenchSettings::default());
        let shape: Vec<_> =
            groups.iter().map(|all| (all.workers, all.concurrency, all.setups.len(), all.cells.len())).collect();
        assert_eq!(shape, [(2, 2, 11, 10), (256, 2, 2, 3), (2, 1, 2, 3), (2, 4, 2, 3)]);
        let measured = groups[0].cells.iter().map(|cell| groups[0].setups_of(cell).len());
        assert_eq!(measured.collect::<Vec<_>>(), [3, 11, 3, 3, 3, 3, 3, 11, 3, 3]);
    }

    #[test]
    fn a_short_run_has_one_group() {
        let settings = BenchSettings {
            workers: vec![8],
            concurrency: vec![1],
            prompt_kb: vec![48],
            mix: vec![Mix::Cold],
            stream_chunks: 0,
            policies: vec!["random".to_owned()],
            ..BenchSettings::default()
        };
        let cell = Cell { prompt_kb: 48, mix: Mix::Cold, stream_chunks: 0 };
        let setups = vec!["envoy".to_owned(), "random".to_owned()];
        assert_eq!(
            plan(&settings),
            [Group { workers: 8, concurrency: 1, setups, cells: vec![cell], sparse: (Vec::new(), vec![cell]) }]
        );
    }
}
