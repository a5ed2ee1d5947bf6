//! Requests that no client would send, by the thousand: nothing breaks, nobody is sent astray, nothing stays in flight.

mod dice;
mod frames;
mod http1;
mod http2;
mod pool;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use testbed::envoy::{Envoy, EnvoyOptions, Worker, eventually};
use tokio::task::JoinSet;

use self::dice::Dice;
use crate::evil::{Evil, last_has_low_priority};
use crate::gate::Gate;
use crate::support::{SOON, no_vm_was_lost, settles};

const REQUESTS: u64 = 20_000;
const AT_ONCE: usize = 64;

/// Begins each line of the access log, which Envoy writes among its own.
const LINE: &str = "ACCESS ";

/// Clients under way, and the number of the next request.
struct Run {
    seed: u64,
    requests: u64,
    next: AtomicU64,
    proxy: SocketAddr,
    evil: String,
}

impl Run {
    /// One client, which sends one request after the other; the statuses that it has seen, 0 for none.
    async fn client(self: Arc<Self>) -> BTreeMap<u16, usize> {
        let mut seen = BTreeMap::new();
        let mut kept = http2::Client::default();
        loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.requests {
                return seen;
            }
            let dice = &mut Dice::new(self.seed, number);
            let status = match number % 10 {
                0..=4 => {
                    let answer = http1::play(&http1::mutated(dice, &self.evil), self.proxy).await;
                    answer.unwrap_or_else(|error| panic!("SEED={}, request {number}: {error}", self.seed))
                }
                5..=7 => kept.play(dice, self.proxy, &self.evil).await,
                _ => {
                    let bytes = frames::mutated(dice, &self.evil);
                    frames::play(&bytes, dice.once_in(3), self.proxy).await;
                    None
                }
            };
            *seen.entry(status.unwrap_or(0)).or_default() += 1;
        }
    }
}

/// Lets Envoy write a line for each stream: status, the filter's error code, protocol, who has answered, why.
fn with_access_log(resources: &mut Value) {
    last_has_low_priority(resources);
    let manager = resources["listeners"][0].pointer_mut("/filter_chains/0/filters/0/typed_config").unwrap();
    let line = format!(
        "{LINE}%RESPONSE_CODE% %RESP(X-SMG-ERROR-CODE)% %PROTOCOL% %UPSTREAM_HOST% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS%\n"
    );
    manager["access_log"] = json!([{
        "name": "envoy.access_loggers.stdout",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog",
            "log_format": { "text_format_source": { "inline_string": line } },
        },
    }]);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutated_requests_break_nothing() {
    let (seed, requests) = (number("SEED", 1), number("MUTATIONS", REQUESTS));
    eprintln!("SEED={seed} MUTATIONS={requests}");
    let gates = [Gate::start().await, Gate::start().await];
    let evil = Evil::start().await;
    let workers: Vec<_> = gates.iter().map(|gate| Worker::at(gate.address())).collect();
    let [m, n] = gates.each_ref().map(|gate| format!("http://{}", gate.address()));
    // Nobody has told where the third is: what asks for its model is answered 503.
    let plugin = json!({
        "workers": [
            { "url": m, "models": ["m"] }, { "url": n, "models": ["m", "n"] }, { "url": "http://engine-3:8000", "models": ["z"] },
        ],
        "model_header": "x-model",
    });
    let options = EnvoyOptions { plugin, edit: Some(with_access_log), ..evil.beside(workers) };
    let envoy = Envoy::start(options).await.unwrap();
    let run = Run { seed, requests, next: AtomicU64::new(0), proxy: envoy.address(), evil: evil.address.to_string() };
    let run = Arc::new(run);
    let clients: JoinSet<_> = (0..AT_ONCE).map(|_| Arc::clone(&run).client()).collect();
    let mut seen = BTreeMap::<u16, usize>::new();
    for (status, times) in clients.join_all().await.into_iter().flatten() {
        *seen.entry(status).or_default() += times;
    }

    // Envoy does not read on while a request is under way whose client has sent the next one already: that this client has
    // left it notices when it writes to it.
    eventually(SOON, "those who were answered no more are gone", async || {
        gates.iter().for_each(Gate::pulse);
        envoy.upstream_rq_active("engines").await == 0
    })
    .await;
    settles(&envoy, 0, "m", "after all that").await;
    no_vm_was_lost(&envoy).await;
    assert_eq!(evil.visits(), 0, "a client has chosen its destination");
    let known = gates.each_ref().map(|gate| gate.address().to_string());
    for arrival in gates.iter().flat_map(Gate::arrivals) {
        let mut named = arrival.destination().split(',');
        assert!(named.all(|host| known.iter().any(|known| known == host)), "{arrival:?}");
    }
    let total = envoy.stat("http.routing.downstream_rq_total").await as usize;
    let lines = |log: &str| log.lines().filter(|line| line.starts_with(LINE)).count();
    eventually(SOON, "all streams are logged", async || lines(&envoy.log()) >= total).await;
    let log = envoy.log();
    let mut kinds = BTreeMap::<(&str, &str, &str), usize>::new();
    for line in log.lines().filter_map(|line| line.strip_prefix(LINE)) {
        let words: Vec<_> = line.splitn(6, ' ').collect();
        let [status, code, protocol, host, _, details] = words[..] else { panic!("{line}") };
        assert!(host == "-" || known.iter().any(|known| known == host), "{line}");
        *kinds.entry((status, code, protocol)).or_default() += 1;
        let ours = (status, code) == ("503", "no_available_workers");
        // HTTP wants this answer to an encoding that nobody knows; it is given before any filter is asked.
        let codecs = (status, details) == ("501", "http1.invalid_transfer_encoding");
        assert!(!status.starts_with('5') || ours || codecs, "{line}");
    }
    println!("{seen:?}\n{kinds:#?}");
    // That the mutations are neither all refused at the door nor all harmless.
    for expected in [("200", "-"), ("503", "no_available_workers"), ("400", "-"), ("431", "-")] {
        assert!(kinds.keys().any(|(status, code, _)| (*status, *code) == expected), "no {expected:?} in {kinds:#?}");
    }
}
