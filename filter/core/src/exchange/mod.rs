//! One HTTP exchange, from the request's head to the end of its stream.
//!
//! The caller hands in events and carries the returned steps out; nothing here touches a host.
//! A request is counted in flight when it is placed and once less when its stream ends, whatever ended it.

mod account;
mod bodies;
mod keys;
mod responses;
mod verdict;

use std::rc::Rc;

use crate::answer::{self, Answer};
use crate::balancer::{Answered, Balancer, Context, Ledger, Prompt, Ticket};
use crate::breaker::Outcome;
use crate::config::PolicyName;
use crate::policy::{Keys, Needs};
use crate::request::{Endpoint, Facts, Parsed, Target, endpoint, response_id};

use self::account::Account;
use self::keys::HeaderKeys;
use self::responses::{Answer as Reading, Look};
use self::verdict::{attempts, judge};

pub use bodies::{Bodies, PATIENCE_MS};
pub use keys::{KEY_HEADER, TARGET_HEADER};

/// Names the host (or hosts, in order) that Envoy shall use.
pub const DESTINATION_HEADER: &str = "x-gateway-destination-endpoint";

/// Tells the client which worker answered.
pub const WORKER_ID_HEADER: &str = "x-smg-routed-worker-id";

/// Tells the client why the worker was chosen, where that is wanted.
pub const DECISION_HEADER: &str = "x-smg-decision";

/// The same for Envoy's access log: `%FILTER_STATE(wasm.smg_decision:PLAIN)%`.
pub const DECISION_PROPERTY: &str = "smg_decision";

/// Carries the code of a gateway's own error.
pub const ERROR_CODE_HEADER: &str = "x-smg-error-code";

/// A client's own token ids of the prompt.
pub const TOKENS_HEADER: &str = "x-smg-routing-tokens";

/// What an exchange may ask of its host. Everything is bytes: clients send what they like.
pub trait Http {
    /// A header of the request, while it is held or in its first callback. An empty one is there.
    fn request_header(&mut self, name: &str) -> Option<Vec<u8>>;

    /// A header of the response.
    fn response_header(&mut self, name: &str) -> Option<Vec<u8>>;

    /// A property by its path.
    fn property(&mut self, path: &[&str]) -> Option<Vec<u8>>;

    /// The first `size` bytes of the body held so far.
    fn body(&mut self, size: usize) -> Vec<u8>;

    /// The wall clock as it is now, in nanoseconds: for what the clock of the last tick is too coarse for.
    fn now_nanos(&mut self) -> u64;
}

/// What one event is handled with.
pub struct Scene<'a, 'b> {
    /// Store, clock, randomness, metrics, log.
    pub context: &'a mut Context<'b>,
    /// The host.
    pub http: &'a mut dyn Http,
    /// The configuration the exchange runs under.
    pub balancer: &'a mut Balancer,
    /// Room for the request's facts.
    pub facts: &'a mut Facts,
    /// What this VM has in flight in the balancer's tables.
    pub ledger: &'a mut Ledger,
}

/// What to do with a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Let it go on as it is.
    Continue,
    /// Let it go on, without any destination of its own: the cluster's fallback policy chooses.
    Pass,
    /// Hold it.
    Pause,
    /// Let it go on, to these hosts.
    Route(Route),
    /// Answer it.
    Reply(Answer),
}

/// Where a request goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The value of [`DESTINATION_HEADER`].
    pub destination: String,
    /// Whether [`TOKENS_HEADER`] was read and must be removed.
    pub consumes_tokens: bool,
    /// Whether [`TARGET_HEADER`] was read and must be removed.
    pub consumes_target: bool,
    /// Why these hosts, for the access log; none unless it is wanted.
    pub decision: Option<Box<str>>,
}

/// What to do with a response's head.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResponseStep {
    /// Remove [`ERROR_CODE_HEADER`]: only the gateway may speak with it.
    pub strip_error_code: bool,
    /// Remove [`DECISION_HEADER`], for the same reason.
    pub strip_decision: bool,
    /// What to do with [`WORKER_ID_HEADER`].
    pub worker_id: WorkerId,
    /// The value of [`DECISION_HEADER`], if it is wanted.
    pub decision: Option<Box<str>>,
}

/// See [`ResponseStep::worker_id`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WorkerId {
    /// Leave the header alone.
    #[default]
    Keep,
    /// Name this worker.
    Set(String),
    /// Remove what an engine may have put there: nobody we know has answered.
    Remove,
}

/// The state of one exchange.
#[derive(Debug, Default)]
pub struct Exchange {
    phase: Phase,
    endpoint: Endpoint,
    /// The place in the configuration's list of the cluster it is routed to.
    cluster: Option<usize>,
    /// The token hint, kept aside until the request is placed.
    tokens: Option<Vec<u8>>,
    /// The model that the configured header names; it wins over the body's.
    model: Option<String>,
    /// The policy that the route names.
    policy: Option<PolicyName>,
    account: Account,
    keys: HeaderKeys,
    /// The id in the path of a request for a response.
    response: Option<Box<[u8]>>,
    /// The answer whose id is looked for.
    reading: Option<Reading>,
    ticket: Option<Ticket>,
    /// It is ours but nobody could be chosen for it, so that Envoy chooses.
    unplaced: bool,
    /// The body is looked at again when so many bytes are held.
    look_at: usize,
    /// When it was held, or let go, by the VM's clock.
    since_ms: u64,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    /// Nothing to do, or nothing more.
    #[default]
    Done,
    /// Held until its body tells enough.
    Holding,
    /// Let go after it had waited for its body in vain.
    LetGo,
}

impl Exchange {
    /// The request's head. `ends` says that no body follows.
    pub fn on_request_headers(&mut self, scene: &mut Scene<'_, '_>, ends: bool) -> Step {
        let Some(cluster) = cluster(scene) else { return Step::Pass };
        self.cluster = cluster;
        self.policy = route_policy(scene);
        let method = scene.http.request_header(":method").unwrap_or_default();
        let path = scene.http.request_header(":path").unwrap_or_default();
        self.endpoint = endpoint(&method, &path);
        if self.endpoint == Endpoint::Models && !scene.balancer.fleet().models().is_empty() {
            return Step::Reply(answer::models(&scene.balancer.fleet().models()));
        }
        // An upgrade delivers no body: held, it would hang.
        if !self.endpoint.is_inference() || says(scene.http.request_header("upgrade")) {
            if self.endpoint == Endpoint::ResponseById && scene.balancer.remembers_responses() {
                self.response = response_id(&path).map(Into::into);
            }
            self.endpoint = Endpoint::Other;
            let config = Rc::clone(scene.balancer.config());
            self.keys = HeaderKeys::read(scene.http, &config, Keys::default());
            return self.place(scene);
        }
        self.account.open(self.endpoint);
        let needs = scene.balancer.needs_before_model(self.policy);
        let config = Rc::clone(scene.balancer.config());
        self.keys = HeaderKeys::read(scene.http, &config, needs.keys);
        // Their number is the request's size where expected waits are compared.
        if self.keys.trusted && (needs.prefix || needs.score || needs.head) {
            self.tokens = scene.http.request_header(TOKENS_HEADER);
        }
        if let Some(name) = &config.model_header {
            let named = scene.http.request_header(name).and_then(|raw| String::from_utf8(raw).ok());
            self.model = named.filter(|model| !model.is_empty());
        }
        scene.facts.clear();
        let hinted = self.tokens.as_ref().is_some_and(|header| scene.facts.hint(header));
        let waits_for = self.waits_for(scene, needs, hinted);
        // An upload is never held.
        let Some(reason) = waits_for.filter(|_| !ends && self.endpoint.has_prompt()) else { return self.place(scene) };
        if scene.balancer.bodies == Bodies::Missing {
            return self.place_unread(scene);
        }
        self.account.hold(reason);
        self.phase = Phase::Holding;
        self.since_ms = scene.context.now_ms;
        self.look_at = usize::try_from(scene.balancer.config().max_buffered_request_bytes).unwrap_or(usize::MAX).max(1);
        Step::Pause
    }

    /// What of the body must be known before the request can be placed, as the label `reason` calls it.
    fn waits_for(&self, scene: &Scene<'_, '_>, needs: Needs, hinted: bool) -> Option<&'static str> {
        let needs_text = !hinted && (needs.prefix || (needs.head && self.keys.configured.is_none()));
        let needs_model = self.model.is_none() && scene.balancer.fleet().needs_model();
        // A worker that is named by its position is found without any key, among those of the model all the same.
        let aimed = self.keys.target != Target::Absent && !needs.prefix && !needs.head;
        let needs_rid = !aimed && scene.balancer.config().sticky.routing_key_override && self.endpoint.has_rid();
        let refers = !aimed && self.endpoint == Endpoint::Responses && scene.balancer.remembers_responses();
        [
            (needs_rid, "routing_key_override"),
            (needs_text, "policy_needs_text"),
            (needs_model, "model_ambiguous"),
            (refers, "previous_response_id"),
        ]
        .into_iter()
        .find_map(|(needed, reason)| needed.then_some(reason))
    }

    /// A part of the request's body; `held` bytes of it are at hand. `ends` says that it is the last one.
    pub fn on_request_body(&mut self, scene: &mut Scene<'_, '_>, held: usize, ends: bool) -> Step {
        if self.phase == Phase::LetGo {
            self.phase = Phase::Done;
            let after = scene.context.now_ms.saturating_sub(self.since_ms);
            scene.balancer.bodies.late(scene.context, after);
        }
        if self.phase != Phase::Holding {
            return Step::Continue;
        }
        scene.balancer.bodies.come(scene.context);
        if !ends && held < self.look_at {
            return Step::Pause;
        }
        self.read(scene, held, ends);
        let unknown_model = scene.facts.end == Parsed::Cut && scene.facts.model.is_empty();
        if !ends && unknown_model && self.model.is_none() && scene.balancer.fleet().needs_model() {
            // The model may stand behind the messages. Looking again at twice the size bounds the work.
            self.look_at = held.saturating_mul(2);
            return Step::Pause;
        }
        self.place(scene)
    }

    /// The request's trailers: with HTTP/2 they, not the body, may be its end.
    pub fn on_request_trailers(&mut self, scene: &mut Scene<'_, '_>) -> Step {
        if self.phase != Phase::Holding {
            return Step::Continue;
        }
        scene.balancer.bodies.come(scene.context);
        self.read(scene, usize::MAX, true);
        self.place(scene)
    }

    /// Time has passed while the request is held and no held request has ever seen its body: after [`PATIENCE_MS`] it is
    /// routed on what its headers tell.
    pub fn on_tick(&mut self, scene: &mut Scene<'_, '_>) -> Step {
        let waited = scene.context.now_ms.saturating_sub(self.since_ms);
        if self.phase != Phase::Holding || scene.balancer.bodies == Bodies::Seen || waited < PATIENCE_MS {
            return Step::Pause;
        }
        scene.facts.clear();
        if let Some(header) = &self.tokens {
            scene.facts.hint(header);
        }
        let step = self.place_unread(scene);
        (self.phase, self.since_ms) = (Phase::LetGo, scene.context.now_ms);
        step
    }

    /// Places a request whose body will not be read.
    fn place_unread(&mut self, scene: &mut Scene<'_, '_>) -> Step {
        if scene.facts.token_count == 0 && scene.balancer.needs_before_model(self.policy).prefix {
            self.policy = Some(PolicyName::LeastLoad);
        }
        self.place(scene)
    }

    /// The response's head, from an engine or from Envoy itself.
    pub fn on_response_headers(&mut self, scene: &mut Scene<'_, '_>) -> ResponseStep {
        self.phase = Phase::Done;
        let Some(ticket) = &mut self.ticket else {
            // Whoever answers, nobody but the gateway may speak with its headers.
            let worker_id = if self.unplaced { WorkerId::Remove } else { WorkerId::Keep };
            return ResponseStep {
                strip_error_code: self.unplaced,
                strip_decision: self.unplaced,
                worker_id,
                decision: None,
            };
        };
        let address = scene.http.property(&["upstream", "address"]).and_then(|raw| String::from_utf8(raw).ok());
        let status = scene.http.response_header(":status").and_then(|raw| parse_status(&raw)).unwrap_or(0);
        // A property costs about three times what a header does, so this one is read where it decides something. When the
        // pick itself answers well, Envoy can only have asked others if it went round the whole list, and each of those
        // is found out by the requests that are sent to it first.
        let pick_answered = address.is_some() && address.as_deref() == ticket.worker().map(|worker| &*worker.address);
        let tried =
            if pick_answered { ticket.worker() } else { address.as_deref().and_then(|at| ticket.worker_at(at)) };
        let verdict = judge(scene.http, status, address.is_some(), tried);
        let (outcome, from_upstream) = (verdict.outcome, verdict.is_from_worker());
        let attempts = if pick_answered && outcome == Some(Outcome::Success) { Some(1) } else { attempts(scene.http) };
        self.account.answer(scene.balancer, scene.http, status, verdict, attempts);
        let answered = Answered { attempts, address: address.as_deref(), status, outcome };
        let worker = scene.balancer.answered(scene.context, ticket, answered, scene.ledger);
        let worker = worker.filter(|_| from_upstream).and_then(|worker| ticket.fleet().worker(worker));
        let makes = self.endpoint == Endpoint::Responses && (200..300).contains(&status);
        if makes && scene.balancer.remembers_responses() {
            self.reading = worker.map(|worker| Reading::of(worker.hash));
        }
        let decision = ticket.decision().filter(|_| from_upstream).map(Into::into);
        let mut says = |name| from_upstream && scene.http.response_header(name).is_some();
        ResponseStep {
            strip_error_code: says(ERROR_CODE_HEADER),
            strip_decision: decision.is_none() && says(DECISION_HEADER),
            worker_id: worker
                .and_then(|worker| scene.balancer.worker_id(worker))
                .map_or(WorkerId::Remove, WorkerId::Set),
            decision,
        }
    }

    /// A part of the response's body, of which [`Self::wants_answer`] is the first bytes. `ends` says that it is the last.
    pub fn on_response_body(&mut self, scene: &mut Scene<'_, '_>, part: &[u8], ends: bool) {
        let Some(reading) = &mut self.reading else { return };
        match reading.take(part, ends) {
            Look::Open => return,
            Look::Id(id) => scene.balancer.remember_response(scene.context, &id, reading.worker()),
            Look::Nothing => {}
        }
        self.reading = None;
    }

    /// How many bytes more of the response's body are looked at.
    #[must_use]
    pub fn wants_answer(&self) -> usize {
        self.reading.as_ref().map_or(0, Reading::room)
    }

    /// The stream is over, for whatever reason.
    pub fn on_done(&mut self, scene: &mut Scene<'_, '_>) {
        self.phase = Phase::Done;
        if let Some(ticket) = &mut self.ticket {
            scene.balancer.ended(scene.context, ticket, scene.ledger);
        }
    }

    /// Whether the request is held until its body tells enough.
    #[must_use]
    pub fn is_holding(&self) -> bool {
        self.phase == Phase::Holding
    }

    /// Whether parts of the request's body have anything to do.
    #[must_use]
    pub fn wants_body(&self) -> bool {
        self.phase != Phase::Done
    }

    /// Whether the end of the stream has anything to do.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        self.ticket.as_ref().is_some_and(|ticket| ticket.counted().is_some())
    }

    /// Whether the response's head has anything to do.
    #[must_use]
    pub fn wants_response(&self) -> bool {
        self.ticket.is_some() || self.unplaced
    }

    fn read(&self, scene: &mut Scene<'_, '_>, held: usize, complete: bool) {
        scene.facts.clear();
        if let Some(header) = &self.tokens {
            scene.facts.hint(header);
        }
        scene.facts.wants_rid = scene.balancer.config().sticky.routing_key_override;
        let body = scene.http.body(held);
        scene.facts.read_body(self.endpoint, &body, complete);
    }

    fn place(&mut self, scene: &mut Scene<'_, '_>) -> Step {
        self.phase = Phase::Done;
        let any_worker = !self.endpoint.is_inference();
        let facts = &*scene.facts;
        let is_override = scene.balancer.config().sticky.routing_key_override;
        let rid = Some(&*facts.rid).filter(|_| is_override && !any_worker);
        let key = self.keys.key(rid, is_override);
        let counted = key.map(|key| scene.balancer.key_hash(key.key));
        let named = || Some(facts.previous_response_id.as_bytes()).filter(|id| !id.is_empty() && !any_worker);
        let response =
            if scene.balancer.remembers_responses() { self.response.as_deref().or_else(named) } else { None };
        let prompt = if any_worker {
            Prompt { any_worker, cluster: self.cluster, key: counted, response, ..Prompt::default() }
        } else {
            Prompt {
                cluster: self.cluster,
                target: self.keys.target,
                routing_key: self.keys.configured.as_deref(),
                hash_key: self.keys.hash_key(rid),
                manual_key: self.keys.manual_key(rid),
                sticky_key: key,
                model: self.model.as_deref().unwrap_or(&facts.model),
                text: &facts.text,
                text_bytes: facts.text_bytes,
                tokens: &facts.tokens,
                token_count: facts.token_count,
                namespace: facts.namespace,
                any_worker,
                policy: self.policy,
                key: counted,
                response,
            }
        };
        self.account.decide(scene.balancer, prompt.model, facts);
        match scene.balancer.place(scene.context, prompt, scene.ledger) {
            Ok(ticket) => {
                self.account.let_go(scene.balancer, scene.http, ticket.worker().map(|worker| worker.mode));
                let destination = ticket.destination();
                let decision = ticket.decision().map(Into::into);
                self.ticket = Some(ticket);
                let consumes_target = self.keys.target != Target::Absent;
                let consumes_tokens = self.tokens.take().is_some();
                Step::Route(Route { destination, consumes_tokens, consumes_target, decision })
            }
            // What is no inference request is none of our business to refuse.
            Err(_) if any_worker => {
                self.unplaced = true;
                Step::Pass
            }
            Err(refusal) => {
                self.account.refuse(scene.balancer);
                Step::Reply(refusal.answer())
            }
        }
    }
}

/// The place of the route's cluster among those that this configuration balances, if it names them; None if the request is
/// none of its own.
fn cluster(scene: &mut Scene<'_, '_>) -> Option<Option<usize>> {
    let config = scene.balancer.config();
    let Some(clusters) = &config.clusters else { return Some(None) };
    let cluster = scene.http.property(&["xds", "cluster_name"]).unwrap_or_default();
    let place = clusters.iter().position(|name| name.as_bytes() == cluster);
    let enabled = ["xds", "route_metadata", "filter_metadata", "smg", "enabled"];
    let mut is_enabled =
        || config.route_metadata && scene.http.property(&enabled).is_some_and(|raw| raw.first() == Some(&1));
    (place.is_some() || is_enabled()).then_some(place)
}

/// Whether a header says anything.
fn says(header: Option<Vec<u8>>) -> bool {
    header.is_some_and(|value| !value.is_empty())
}

/// The policy that the route's metadata names, where metadata is looked at.
fn route_policy(scene: &mut Scene<'_, '_>) -> Option<PolicyName> {
    if !scene.balancer.config().route_metadata {
        return None;
    }
    let name = scene.http.property(&["xds", "route_metadata", "filter_metadata", "smg", "policy"])?;
    scene.balancer.policy_of_route(&name)
}

fn parse_status(raw: &[u8]) -> Option<u16> {
    std::str::from_utf8(raw).ok()?.parse().ok()
}

#[cfg(test)]
mod tests;
