//! From a request to the response that waits to be sent: asking the files, writing the head, noting
//! the exchange.

use std::net::IpAddr;
use std::time::Duration;

use super::action::Action;
use super::exchange::{Logged, Pending};
use super::outcome::Outcome;
use super::request_body::{Discard, TooLong};
use super::{Connection, Ending, Scope, outgoing};
use crate::files::entry::Coding;
use crate::files::{Answer, Plan, PlanBody, errors};
use crate::http::authorization::{self, Credentials};
use crate::http::expect::{self, Expectation};
use crate::http::fields::Known;
use crate::http::forwarded;
use crate::http::request::{Method, Request, Version};
use crate::http1::framing::Framing;
use crate::http1::persistence::Persistence;
use crate::http1::write::{self, ConnectionField};
use crate::observe::access_log::Record;
use crate::observe::names::Counter;

/// Responses of at most this many bytes are noted in the access log when they are decided: almost
/// always they leave with the next system call. Larger ones are noted when they have gone.
const LOGGED_AT_ONCE_MAX: u64 = 64 * 1024;

/// What the access log says of a response.
pub(super) enum Noted<'a> {
    /// What its request says; nothing where there was none.
    Request(Option<&'a Request<'a>>),
    /// What was kept of it.
    Kept(Option<Box<Logged>>),
}

impl Connection {
    /// Answers a request. False when something has to be looked up first: then the request is to be
    /// parsed again once that is there.
    pub(super) fn exchange(
        &mut self,
        request: &Request,
        framing: Framing,
        persistence: Persistence,
        scope: &mut Scope,
    ) -> bool {
        if let Framing::Length(length) = framing
            && length > scope.settings.limits.body
        {
            self.refuse_request(request, 413, "The request body is larger than this server takes.", scope);
            return true;
        }
        let expectation = expect::of(request);
        if expectation == Expectation::Other {
            self.refuse_request(request, 417, "The expectation cannot be met.", scope);
            return true;
        }
        let plan = match scope.files.answer(request, &self.peer, scope.clock, &scope.found) {
            Answer::Ready(plan) => plan,
            Answer::Lookup(question) => {
                self.wait(Action::Lookup(question), scope);
                return false;
            }
            Answer::Verify(credential) => {
                self.wait(Action::Verify(credential), scope);
                return false;
            }
            Answer::Program(mounted) => {
                self.begin_program(request, (framing, persistence, expectation), *mounted, scope);
                return true;
            }
        };
        // No body is wanted here: a client that waits for "100 Continue" gets its answer instead,
        // and since it may send the body all the same, the connection ends (RFC 9110 section 10.1.1).
        let body = match expectation {
            Expectation::Continue if framing != Framing::None => Err(TooLong),
            _ => Discard::begin(framing),
        };
        let ending = match body {
            Ok(body) => {
                self.body = body;
                self.ending_after(persistence, scope)
            }
            Err(TooLong) => Ending::After { outcome: Outcome::Complete, linger: true },
        };
        self.respond(Some(request), plan, ending, scope);
        true
    }

    fn wait(&mut self, action: Action, scope: &mut Scope) {
        self.timing.asked(scope.clock.now);
        self.pending = Some(Pending { found: std::mem::take(&mut scope.found) });
        scope.actions.push(action);
    }

    /// Whether the connection goes on after this exchange.
    pub(super) fn ending_after(&self, persistence: Persistence, scope: &Scope) -> Ending {
        let limit = scope.settings.limits.requests_per_connection;
        if self.detour.as_ref().is_some_and(|detour| detour.ends) {
            Ending::After { outcome: Outcome::Complete, linger: true }
        } else if persistence == Persistence::Close {
            // The client's closing alert may be under way: unread, it would have the close reset the
            // connection, and with it what the client has not read yet.
            let linger = self.body.is_some() || self.transport.version().is_some();
            Ending::After { outcome: Outcome::Complete, linger }
        } else if self.draining || (limit > 0 && self.requests + 1 >= limit) {
            Ending::After { outcome: Outcome::Complete, linger: true }
        } else {
            Ending::No
        }
    }

    /// Refuses a well-formed request, and the connection with it.
    pub(super) fn refuse_request(
        &mut self,
        request: &Request,
        status: u16,
        explanation: &str,
        scope: &mut Scope,
    ) {
        let mut plan = errors::refuse(status, explanation);
        if request.method == Method::Head {
            plan.body = PlanBody::Empty;
        }
        let ending = Ending::After { outcome: Outcome::Refused, linger: true };
        self.respond(Some(request), plan, ending, scope);
    }

    /// Refuses what is not a request, and the connection with it.
    pub(super) fn refuse(&mut self, status: u16, explanation: &str, scope: &mut Scope) {
        let ending = Ending::After { outcome: Outcome::Refused, linger: true };
        let plan = errors::refuse(status, explanation);
        self.respond(None, plan, ending, scope);
    }

    fn respond(&mut self, request: Option<&Request>, plan: Plan, ending: Ending, scope: &mut Scope) {
        let version = request.map_or(Version::Http11, |request| request.version);
        // What a local redirect led to is logged as what the client asked for.
        let noted = match self.detour.take() {
            Some(detour) => Noted::Kept(detour.logged),
            None => Noted::Request(request),
        };
        self.respond_as(version, noted, plan, ending, scope);
    }

    pub(super) fn respond_as(
        &mut self,
        version: Version,
        noted: Noted,
        plan: Plan,
        ending: Ending,
        scope: &mut Scope,
    ) {
        let prepared = plan.prepared.as_deref().unwrap_or_default();
        let site = plan.site.as_deref().unwrap_or_default();
        self.write_head(version, plan.status, [prepared, &plan.extra, site], ending, scope);
        if plan.coding.is_some() {
            scope.counters.add(Counter::Coded, 1);
        }
        let bytes = outgoing::length(&plan.body);
        match noted {
            Noted::Kept(logged) => {
                self.logged = logged.map(|mut logged| {
                    logged.answered(plan.status, plan.coding.map(Coding::name));
                    logged.add_bytes(bytes);
                    logged
                });
            }
            Noted::Request(request) if scope.settings.access_log => self.note(request, &plan, bytes, scope),
            Noted::Request(_) => {}
        }
        self.outgoing.body(plan.body);
    }

    /// Writes the head of a response, and decides whether the connection goes on.
    pub(super) fn write_head(
        &mut self,
        version: Version,
        status: u16,
        fields: [&[u8]; 3],
        ending: Ending,
        scope: &mut Scope,
    ) {
        self.ending = ending;
        let persistence = match ending {
            Ending::After { .. } => Persistence::Close,
            Ending::No => Persistence::Persist,
        };
        let connection = ConnectionField::telling(version, persistence);
        let head = self.outgoing.head(scope.buffers);
        let [first, second, third] = fields;
        write::head(head, status, [scope.common, first, second, third], connection);
        self.count_response(status, scope);
    }

    pub(super) fn count_response(&mut self, status: u16, scope: &Scope) {
        self.requests += 1;
        scope.counters.add(Counter::Requests, 1);
        scope.counters.add(class(status), 1);
        self.timing.decided(status, scope.clock.now);
    }

    /// Notes the exchange in the access log, now or when its response has gone.
    fn note(&mut self, request: Option<&Request>, plan: &Plan, bytes: u64, scope: &mut Scope) {
        let (status, number) = (plan.status, scope.log.number());
        let logged = self.with_record(request, status, number, scope, |record, scope| {
            let record = Record { bytes, coding: plan.coding.map(Coding::name), ..record };
            if bytes > LOGGED_AT_ONCE_MAX {
                return Some(Box::new(Logged::keep(&record, scope.clock.now)));
            }
            scope.log.write(&record);
            None
        });
        self.logged = logged;
    }

    /// What the access log will say of a request whose answer takes a while to come.
    pub(super) fn keep_record(
        &self,
        request: &Request,
        number: u64,
        scope: &mut Scope,
    ) -> Option<Box<Logged>> {
        if !scope.settings.access_log {
            return None;
        }
        self.with_record(Some(request), 0, number, scope, |record, scope| {
            Some(Box::new(Logged::keep(&record, scope.clock.now)))
        })
    }

    /// Who asks, as far as trusted proxies tell it.
    pub(super) fn client(&self, request: Option<&Request>) -> Option<IpAddr> {
        match (self.peer.address, request) {
            (Some(peer), Some(request)) if crate::config::contains(&self.trusted, peer) => {
                let trusted = |address| crate::config::contains(&self.trusted, address);
                Some(forwarded::client(&request.fields, peer, trusted))
            }
            (address, _) => address,
        }
    }

    fn with_record<T>(
        &self,
        request: Option<&Request>,
        status: u16,
        request_id: u64,
        scope: &mut Scope,
        then: impl FnOnce(Record<'_>, &mut Scope) -> T,
    ) -> T {
        let credentials = request
            .and_then(|request| request.fields.first(Known::Authorization))
            .filter(|_| status != 401)
            .and_then(authorization::basic);
        let record = Record {
            time: scope.clock.wall,
            client: self.client(request),
            user: credentials.as_ref().map(Credentials::user),
            method: request.map_or(b"", |request| request.method_name),
            target: request.map_or(b"", |request| request.target_text),
            protocol: request.map_or("", |request| request.version.name()),
            host: request.map_or(b"", |request| request.host),
            referer: request.and_then(|request| request.fields.first(Known::Referer)),
            user_agent: request.and_then(|request| request.fields.first(Known::UserAgent)),
            status,
            bytes: 0,
            duration: Duration::ZERO,
            coding: None,
            tls: self.transport.version(),
            request_id,
        };
        then(record, scope)
    }

    /// Notes the responses that have gone; of a large one all but `unsent` bytes.
    pub(super) fn finish_exchange(&mut self, unsent: u64, scope: &mut Scope) {
        self.timing.end(scope.clock.now, scope.counters);
        if let Some(logged) = self.logged.take() {
            scope.log.write(&logged.record(scope.clock.now, unsent));
        }
    }
}

/// The counter of a status.
fn class(status: u16) -> Counter {
    match status {
        ..200 => Counter::Responses1xx,
        200..300 => Counter::Responses2xx,
        300..400 => Counter::Responses3xx,
        400..500 => Counter::Responses4xx,
        500.. => Counter::Responses5xx,
    }
}
