//! Named runs in which scripts answer.

use std::time::Duration;

use httpd::gateway::messages::{Refusal, ToWorker};
use httpd::gateway::start::Runner;
use httpd::observe::names::Counter;
use httpd::sys::process::Ended;

use crate::clients::Client;
use crate::requests::{Request, Want, get};
use crate::scenarios::{calm, client, passes};
use crate::scripts::{self, VERY_MUCH};
use crate::site::SILENT;

/// A request that a script answers, with this document if it is the same for all.
fn ask(method: &str, name: &str, document: Option<Vec<u8>>) -> Request {
    ask_below("/cgi", method, name, document)
}

/// The same, of the scripts of a mount.
fn ask_below(mount: &str, method: &str, name: &str, document: Option<Vec<u8>>) -> Request {
    let bytes = format!("{method} {mount}/{name} HTTP/1.1\r\nHost: example.org\r\n\r\n").into_bytes();
    let want = Want::Printed { statuses: &[200], document, cut: false };
    Request { bytes, is_head: method == "HEAD", want, accepts: "", ends: false }
}

#[test]
fn an_answer_ends_with_its_script_whatever_that_left_running() {
    let requests = vec![ask("GET", "floods", None), ask("GET", "much", Some(scripts::much()))];
    let mut plan = calm(vec![Client::honest(requests)]);
    plan.steps_max = 2000;
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200, 200]);
    assert!(report.world.borrow().now < SILENT);
    assert_eq!(report.counters.get(Counter::ProgramsFailed), 0);
}

#[test]
fn who_prints_no_document_for_head_has_said_nothing_of_its_length() {
    let requests = [("HEAD", "mute"), ("GET", "mute"), ("HEAD", "much")];
    let requests = requests.map(|(method, name)| ask(method, name, Some(scripts::much())));
    let report = passes(calm(vec![Client::honest(requests.into())]));
    assert_eq!(client(&report, 0).statuses, [200; 3]);
}

#[test]
fn what_is_printed_before_a_script_is_said_to_run_waits() {
    let document = vec![b'l'; VERY_MUCH];
    let report = passes(calm(vec![Client::honest(vec![ask("GET", "late", Some(document))])]));
    assert_eq!(client(&report, 0).statuses, [200]);
}

#[test]
fn a_runner_that_dies_takes_only_its_own_along() {
    for (dies, expected) in [(Runner::ModuleHost, [200, 502]), (Runner::Spawner, [502, 200])] {
        let document = || Some(vec![b'l'; VERY_MUCH]);
        let asks = ["/cgi", "/wasm"].map(|mount| vec![ask_below(mount, "GET", "late", document())]);
        let mut plan = calm(asks.map(Client::honest).into());
        plan.world.later(Duration::from_millis(500), move |world| world.runner_dies(dies));
        let report = passes(plan);
        assert_eq!([0, 1].map(|index| client(&report, index).statuses[0]), expected);
    }
}

#[test]
fn who_has_the_whole_answer_loses_nothing_with_the_program() {
    let requests = vec![ask("HEAD", "pauses", None), get("/a.txt")];
    let slow = Client::honest(requests)
        .with(|style| (style.write_max, style.write_pause) = (1, Duration::from_millis(10)));
    let mut plan = calm(vec![slow]);
    // The script is in its pause, and the client in the midst of the next request.
    plan.world.later(Duration::from_millis(800), |world| {
        assert_eq!(world.scripts.len(), 1);
        let (how, cpu, overran) = (Ended::Killed(9), Duration::ZERO, true);
        world.runner_says(Runner::Spawner, ToWorker::Exited { id: 1, how, cpu, overran });
    });
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200, 200]);
    assert_eq!(report.counters.get(Counter::Accepted), 1);
    assert_eq!(report.counters.get(Counter::ProgramsFailed), 1);
}

#[test]
fn an_empty_packet_is_not_the_end() {
    let document = || Some(vec![b'l'; VERY_MUCH]);
    let requests = vec![ask("GET", "late", document()), ask("GET", "much", Some(scripts::much()))];
    let mut plan = calm(vec![Client::honest(requests)]);
    plan.world.later(Duration::from_millis(500), |world| world.runner_says_nothing(Runner::Spawner));
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200, 200]);
}

#[test]
fn nobody_waits_for_a_runner_that_is_gone() {
    let late = || ask("GET", "late", Some(vec![b'l'; VERY_MUCH]));
    let mut clients: Vec<_> = (0..2).map(|_| Client::honest(vec![late(), late()])).collect();
    clients.push(Client::honest(vec![ask_below("/wasm", "GET", "late", Some(vec![b'l'; VERY_MUCH]))]));
    let mut plan = calm(clients);
    for mount in &mut plan.config.sites[0].mounts {
        (mount.concurrency, mount.queue) = (1, 1);
    }
    // One runs, another waits for its turn. Nobody forks a runner again whose mailbox has no other end.
    plan.world.later(Duration::from_millis(500), |world| world.runner_leaves(Runner::Spawner));
    let report = passes(plan);
    let mut statuses = [0, 1].map(|index| client(&report, index).statuses.clone());
    statuses.sort();
    assert_eq!(statuses, [[502, 503], [503, 503]]);
    assert_eq!(client(&report, 2).statuses, [200], "the other runner lives");
    assert!(report.world.borrow().now < SILENT);
}

#[test]
fn what_a_runner_was_not_asked_for_is_not_its_to_tell() {
    let document = || Some(scripts::much().repeat(2));
    let asks = |_| Client::honest(vec![ask_below("/wasm", "GET", "pauses", document())]);
    let mut plan = calm((0..2).map(asks).collect());
    for mount in &mut plan.config.sites[0].mounts {
        (mount.concurrency, mount.queue) = (1, 1);
    }
    // The first runs, the second waits for its turn.
    plan.world.later(Duration::from_millis(500), |world| {
        assert_eq!(world.scripts.len(), 1);
        let (how, cpu, overran, pid) = (Ended::Exited(0), Duration::ZERO, false, 9);
        for what in [
            ToWorker::Started { id: 1, pid, nph: true },
            ToWorker::Refused { id: 1, why: Refusal::Busy },
            ToWorker::Ran { id: 1, pid, how, cpu, overran },
            ToWorker::Started { id: 2, pid, nph: true },
            ToWorker::Refused { id: 2, why: Refusal::Busy },
            ToWorker::Exited { id: 2, how, cpu, overran },
            ToWorker::Exited { id: 3, how, cpu, overran },
        ] {
            world.runner_says(Runner::ModuleHost, what);
        }
        world.runner_says(Runner::Spawner, ToWorker::Exited { id: 1, how, cpu, overran });
    });
    let report = passes(plan);
    assert!((0..2).all(|index| client(&report, index).statuses == [200]));
}

#[test]
fn all_who_wait_are_refused_when_no_pipes_can_be_had() {
    const CLIENTS: usize = 1000;
    let asks = |_| Client::honest(vec![ask("GET", "pauses", None)]);
    let mut plan = calm((0..CLIENTS).map(asks).collect());
    plan.config.server.max_connections = CLIENTS as u32;
    for mount in &mut plan.config.sites[0].mounts {
        (mount.concurrency, mount.queue) = (1, CLIENTS as u32);
    }
    // The first script has begun, and everybody else waits.
    plan.world.later(Duration::from_micros(500), |world| world.odds.open_fails = 1000);
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200]);
    assert!((1..CLIENTS).all(|index| client(&report, index).statuses == [503]));
}

#[test]
fn an_answer_that_comes_in_pieces_is_timed_to_its_last() {
    let document = scripts::much().repeat(2);
    let report = passes(calm(vec![Client::honest(vec![ask("GET", "pauses", Some(document))])]));
    assert_eq!(client(&report, 0).statuses, [200]);
    let timed = report.counters.latency(0);
    assert_eq!(timed.count, 1);
    assert!(Duration::from_micros(timed.sum) >= Duration::from_secs(1), "{} us", timed.sum);
}
