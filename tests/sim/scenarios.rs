//! Named runs, each as small as what it shows allows.

use std::cell::Ref;
use std::time::Duration;

use httpd::observe::names::Counter;
use httpd::worker::start::{BARRED, Order};

use crate::clients::{Client, Temper};
use crate::faults::{Odds, Rng};
use crate::requests::{self, Request, Want, get, get_in};
use crate::run::{Plan, Report, run};
use crate::site::{self, DRAIN, REVALIDATE, TIMEOUTS, name_of};
use crate::variants::{self, SHIPPED};
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

/// A run of these clients, one after another, under these odds.
pub fn plan(odds: Odds, clients: Vec<Client>) -> Plan {
    let mut rng = Rng::new(7);
    let mut config = site::config(&mut rng);
    config.server.max_connections = 1000;
    config.limits.requests_per_connection = 0;
    config.cache.memory = 1 << 20;
    config.cache.max_file = site::FILE_MAX as u64;
    let tree = site::tree(&mut rng, &odds);
    let mut world = World::new(rng, odds, tree);
    world.decodes = true;
    for (index, client) in clients.into_iter().enumerate() {
        world.add_client(Duration::from_millis(index as u64), client);
    }
    Plan { config, world, descriptors: 100, steps_max: 100_000 }
}

pub fn calm(clients: Vec<Client>) -> Plan {
    plan(Odds::none(), clients)
}

/// Runs it; nothing may fail.
pub fn passes(plan: Plan) -> Report {
    let report = run(plan);
    if let Some(failure) = &report.failure {
        panic!("{}{failure}", report.tail());
    }
    report
}

pub fn client(report: &Report, index: usize) -> Ref<'_, Client> {
    Ref::map(report.world.borrow(), |world| {
        world.clients[index].as_ref().expect("a client that does not act")
    })
}

/// A file larger than a socket holds, and than one piece of a transfer.
fn large(plan: &mut Plan) {
    plan.world.tree.replace(&name_of("/big.bin"), vec![b'x'; 3 << 20]);
}

#[test]
fn requests_follow_each_other_on_one_connection() {
    let report =
        passes(calm(vec![Client::honest(vec![get("/a.txt"), get("/big.bin"), get("/sub/"), get("/")])]));
    assert_eq!(client(&report, 0).statuses, [200; 4]);
    assert_eq!(report.counters.get(Counter::Accepted), 1);
}

#[test]
fn pipelined_requests_are_answered_in_order_however_they_are_cut() {
    for write_max in 1..60 {
        let script = vec![get("/a.txt"), get("/empty.txt"), get("/steady.bin"), get("/small.css")];
        let pipelining = Client::honest(script).with(|style| {
            style.depth = 4;
            style.write_max = write_max;
        });
        let report = passes(calm(vec![pipelining]));
        assert_eq!(client(&report, 0).statuses, [200; 4], "in pieces of {write_max}");
    }
}

#[test]
fn a_large_body_in_memory_is_sent_whole_by_short_sends() {
    let odds = Odds { short_send: 1000, reorder: 500, late: 300, ..Odds::none() };
    let mut plan = plan(odds, vec![Client::honest(vec![get("/page.txt"), get("/page.txt")])]);
    plan.config.cache.max_file = 1 << 20;
    plan.world.tree.replace(&name_of("/page.txt"), (0..300_000_u32).map(|n| (n % 251) as u8).collect());
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200; 2]);
}

#[test]
fn tls_carries_the_same_whatever_the_records_are_cut_into() {
    for (lease_bytes, socket_bytes, short_send) in [(4096, 64 << 10, 0), (5, 1500, 700), (64, 50, 0)] {
        let odds = Odds { lease_bytes, socket_bytes, short_send, ..Odds::none() };
        let script = vec![get("/a.txt"), get("/steady.bin"), get("/empty.txt"), get("/sub/")];
        let secure = |depth| {
            Client::honest(script.clone()).with(|style| {
                style.tls = true;
                style.depth = depth;
            })
        };
        let report = passes(plan(odds, vec![secure(1), secure(4)]));
        assert_eq!(client(&report, 0).statuses, [200; 4]);
        assert_eq!(client(&report, 1).statuses, [200; 4]);
        let handshakes = [Counter::HandshakesFull, Counter::HandshakesResumed];
        assert_eq!(handshakes.map(|counter| report.counters.get(counter)).iter().sum::<u64>(), 2);
    }
}

#[test]
fn the_kernel_takes_over_tls_for_large_bodies() {
    for (no_kernel_tls, counter) in [(0, Counter::KernelTlsOn), (1000, Counter::KernelTlsRefused)] {
        let odds = Odds { no_kernel_tls, short_send: 300, ..Odds::none() };
        let script = vec![get("/a.txt"), get("/big.bin"), get("/a.txt"), get("/big.bin")];
        let secure = Client::honest(script).with(|style| {
            style.tls = true;
            style.leaves = false;
        });
        let mut plan = plan(odds, vec![secure]);
        large(&mut plan);
        let report = passes(plan);
        assert_eq!(client(&report, 0).statuses, [200; 4]);
        assert_eq!(report.counters.get(counter), 1);
    }
}

#[test]
fn a_client_that_ends_its_side_gets_its_answers() {
    let script = vec![get("/steady.bin"), get("/a.txt")];
    let report = passes(calm(vec![Client::honest(script).with(|style| {
        style.half_closes = true;
        style.depth = 2;
    })]));
    let client = client(&report, 0);
    assert_eq!(client.statuses, [200; 2]);
    assert!(client.end.is_some_and(|end| !end.reset && !end.cut));
}

#[test]
fn a_file_that_is_replaced_while_it_is_sent_is_sent_as_it_was() {
    let mut plan = calm(vec![Client::honest(vec![get("/big.bin")]).with(slow_reader)]);
    large(&mut plan);
    plan.world.later(SECOND / 10, |world| world.tree.replace(&name_of("/big.bin"), b"short".to_vec()));
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200]);
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_cuts_the_answer() {
    let mut plan = calm(vec![Client::honest(vec![get("/big.bin"), get("/a.txt")]).with(slow_reader)]);
    large(&mut plan);
    plan.world.later(SECOND / 10, |world| world.tree.rewrite(&name_of("/big.bin"), b"short".to_vec()));
    let report = passes(plan);
    assert!(client(&report, 0).statuses.is_empty());
    assert!(client(&report, 0).end.is_some_and(|end| end.cut));
    assert_eq!(report.counters.get(Counter::Cut), 1);
}

#[test]
fn a_file_rewritten_to_the_same_length_while_it_is_sent_cuts_the_answer() {
    let mut plan = calm(vec![Client::honest(vec![get("/big.bin")]).with(slow_reader)]);
    large(&mut plan);
    plan.world.later(SECOND / 10, |world| {
        world.tree.rewrite(&name_of("/big.bin"), vec![b'y'; 3 << 20]);
    });
    let report = passes(plan);
    assert!(client(&report, 0).end.is_some_and(|end| end.cut));
}

/// Reads a piece each ten milliseconds.
fn slow_reader(style: &mut crate::clients::Style) {
    style.read_max = 64 << 10;
    style.read_pause = Duration::from_millis(10);
}

#[test]
fn a_slow_reader_that_goes_on_is_not_cut() {
    // More than a send time for all of it, but never so long without a byte.
    let mut plan = calm(vec![Client::honest(vec![get("/big.bin")]).with(|style| {
        style.read_max = 64 << 10;
        style.read_pause = TIMEOUTS.send / 10;
    })]);
    large(&mut plan);
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200]);
    assert!(report.world.borrow().now > TIMEOUTS.send);
    assert_eq!(report.counters.get(Counter::TimedOut), 0);
}

#[test]
fn a_reader_that_stops_is_cut() {
    let mut plan = calm(vec![Client::honest(Vec::new()).with(|style| style.temper = Temper::ReadsNothing)]);
    plan.world.tree.replace(&name_of("/steady.bin"), vec![b'x'; 3 << 20]);
    let report = passes(plan);
    assert_eq!(report.counters.get(Counter::TimedOut), 1);
    assert_eq!(report.counters.get(Counter::Cut), 1);
}

#[test]
fn who_is_silent_or_dawdles_is_let_go() {
    let silent = Client::honest(Vec::new()).with(|style| style.temper = Temper::Silent);
    let dawdling = Client::honest(Vec::new()).with(|style| style.temper = Temper::Dawdles);
    let report = passes(calm(vec![silent, dawdling]));
    assert_eq!(report.counters.get(Counter::Responses4xx), 1, "a 408");
    assert!(report.world.borrow().now >= TIMEOUTS.idle);
}

#[test]
fn a_deploy_by_symlink_is_seen_as_soon_as_any_change() {
    let asks = |want| Client::honest(vec![Request { want, ..get("/small.css") }]);
    let mut plan = calm(vec![Client::honest(vec![get("/a.txt")])]);
    plan.world.tree.replace("srv/next/a.txt", b"new".to_vec());
    plan.world.later(SECOND / 2, |world| world.tree.symlink("srv/current", "next"));
    // Looked up when the root is due to be looked at soon, but is not yet.
    plan.world.add_client(REVALIDATE * 9 / 10, asks(Want::Status(&[200, 404])));
    plan.world.add_client(SECOND / 2 + REVALIDATE * 11 / 10, asks(Want::Status(&[404])));
    let report = passes(plan);
    assert_eq!(client(&report, 2).statuses, [404]);
}

#[test]
fn a_deploy_to_where_the_worker_may_not_read_leaves_the_last_root_and_asks_once() {
    let asks = || Client::honest(vec![get("/small.css")]);
    let mut plan = calm(vec![asks()]);
    plan.world.tree.replace("srv/next/a.txt", b"new".to_vec());
    let next = plan.world.tree.resolve_root("srv/next").expect("a directory");
    plan.world.barred.push(next);
    plan.world.later(SECOND / 2, |world| world.tree.symlink("srv/current", "next"));
    for times in [11, 22, 33] {
        plan.world.add_client(SECOND / 2 + REVALIDATE * times / 10, asks());
    }
    // Somewhere else again, and back to where all is well.
    let asks_for = |want| Client::honest(vec![Request { want, ..get("/small.css") }]);
    plan.world.later(SECOND / 2 + REVALIDATE * 4, |world| {
        world.barred.clear();
        world.tree.symlink("srv/current", "next");
    });
    plan.world.add_client(SECOND / 2 + REVALIDATE * 6, asks_for(Want::Status(&[404])));
    let report = passes(plan);
    assert!((0..4).all(|index| client(&report, index).statuses == [200]));
    assert_eq!(client(&report, 4).statuses, [404]);
    assert_eq!(report.world.borrow().reports, [BARRED]);
}

#[test]
fn a_root_that_stays_out_of_reach_is_asked_for_again_after_a_while() {
    let mut plan = calm(Vec::new());
    plan.world.tree.replace("srv/next/small.css", b"new".to_vec());
    let next = plan.world.tree.resolve_root("srv/next").expect("a directory");
    plan.world.barred.push(next);
    plan.world.tree.symlink("srv/current", "next");
    // From birth on there is nothing that could be served instead.
    for second in [0, 10, 20, 29, 40, 50] {
        let unavailable = Request { want: Want::Status(&[503]), ..get("/small.css") };
        plan.world.add_client(SECOND * second, Client::honest(vec![unavailable]));
    }
    let report = passes(plan);
    assert!((0..6).all(|index| client(&report, index).statuses == [503]));
    assert_eq!(report.world.borrow().reports, [BARRED; 2]);
}

#[test]
fn connections_share_a_single_buffer() {
    let odds = Odds { leases: 1, late: 700, ..Odds::none() };
    let clients = (0..20).map(|_| Client::honest(vec![get("/a.txt"), get("/steady.bin"), get("/sub/")]));
    let report = passes(plan(odds, clients.collect()));
    assert!((0..20).all(|index| client(&report, index).statuses == [200; 3]));
    assert!(report.counters.get(Counter::LeasesStarved) > 0);
}

#[test]
fn accepting_goes_on_after_descriptors_ran_out() {
    let odds = Odds { accept_fails: 700, ..Odds::none() };
    let report = passes(plan(odds, (0..10).map(|_| Client::honest(vec![get("/a.txt")])).collect()));
    assert_eq!(report.counters.get(Counter::Accepted), 10);
    assert!(report.counters.get(Counter::AcceptPaused) > 0);
}

#[test]
fn accepting_pauses_at_the_limit() {
    let patient = |_| Client::honest(vec![get("/steady.bin")]).with(slow_reader);
    let mut plan = calm((0..8).map(patient).collect());
    plan.config.server.max_connections = 1;
    let report = passes(plan);
    assert_eq!(report.counters.get(Counter::Accepted), 8);
    assert!(report.counters.get(Counter::AcceptPaused) > 0);
}

#[test]
fn who_waits_at_a_retiring_worker_is_taken_as_there_is_room() {
    let odds = Odds { accept_fails: 1000, accept_aborts: 500, ..Odds::none() };
    let patient = |_| Client::honest(vec![get("/steady.bin")]).with(slow_reader);
    let mut plan = plan(odds, (0..8).map(patient).collect());
    plan.config.server.max_connections = 3;
    // Accepting pauses for want of descriptors, and all wait until the order comes.
    plan.world.later(SECOND / 20, |world| {
        world.odds.accept_fails = 0;
        world.order(Duration::ZERO, Order::Drain);
    });
    let report = passes(plan);
    assert!((0..8).all(|index| client(&report, index).statuses == [200]));
    assert_eq!(report.world.borrow().connections_most, 3);
}

#[test]
fn beside_programs_methods_come_before_paths() {
    let cases = [
        ("OPTIONS *", 204),
        ("OPTIONS /a.txt", 204),
        ("POST /a.txt", 405),
        ("BREW /a.txt", 501),
        ("POST /a%00", 405),
        ("GET /a%00", 400),
        ("GET /cgi/%2f", 400),
        ("GET /../cgi/x", 400),
        ("TRACE /cgi/x", 405),
        ("TRACE /sub/../cgi/x", 405),
        ("GET /cgi/../a.txt", 200),
    ];
    let clients = cases.map(|(line, _)| {
        let bytes = format!("{line} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes();
        let want = Want::Status(&[200, 204, 400, 405, 501]);
        Client::honest(vec![Request { bytes, is_head: false, want, accepts: "", ends: false }])
    });
    let report = passes(calm(clients.into()));
    for (index, (line, expected)) in cases.into_iter().enumerate() {
        assert_eq!(client(&report, index).statuses, [expected], "{line}");
    }
}

#[test]
fn everything_cold_is_answered_all_the_same() {
    let odds = Odds { cold_open: 1000, cold_read: 1000, cold_pages: 1000, short_read: 500, ..Odds::none() };
    let script = || vec![get("/a.txt"), get("/big.bin"), get("/steady.bin"), get("/none")];
    let mut script_two = script();
    script_two[3].want = Want::Status(&[404]);
    let report = passes(plan(odds, vec![Client::honest(script_two)]));
    assert_eq!(client(&report, 0).statuses, [200, 200, 200, 404]);
    assert!(report.counters.get(Counter::LookupsAsync) > 0);
}

#[test]
fn a_client_that_goes_during_a_look_up_harms_nobody() {
    let odds = Odds { cold_open: 1000, cold_read: 1000, late: 500, ..Odds::none() };
    let leaves = |_| {
        Client::honest(vec![get("/a.txt"), get("/big.bin")])
            .with(|style| style.temper = Temper::Aborts { after: 0 })
    };
    let mut clients: Vec<Client> = (0..20).map(leaves).collect();
    clients.push(Client::honest(vec![get("/a.txt"), get("/big.bin")]));
    let report = passes(plan(odds, clients));
    assert_eq!(client(&report, 20).statuses, [200, 200]);
}

#[test]
fn a_draining_worker_answers_one_more_request_and_says_so() {
    // Idle when the order comes, and asks within the grace that an idle connection has.
    let mut plan =
        calm(vec![Client::honest(vec![get("/a.txt"), get("/a.txt"), get("/a.txt")]).with(|style| {
            style.read_pause = SECOND;
        })]);
    plan.world.order(SECOND / 2, Order::Drain);
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200, 200]);
    assert!(client(&report, 0).end.is_some_and(|end| !end.reset));
}

#[test]
fn a_stopping_worker_finishes_what_is_being_sent() {
    let mut plan = calm(vec![
        Client::honest(vec![get("/big.bin")]).with(slow_reader),
        Client::honest(vec![get("/a.txt")]).with(|style| style.leaves = false),
    ]);
    large(&mut plan);
    plan.world.order(SECOND / 10, Order::Stop);
    let report = passes(plan);
    assert_eq!(client(&report, 0).statuses, [200]);
    assert_eq!(client(&report, 1).statuses, [200]);
    assert!(report.world.borrow().now < DRAIN, "nothing was waited for in vain");
}

#[test]
fn a_worker_whose_supervisor_is_gone_stops() {
    let mut plan = calm(vec![Client::honest(vec![get("/a.txt")]).with(|style| style.leaves = false)]);
    plan.world.schedule(SECOND, crate::world::Event::Note(Vec::new()));
    let report = passes(plan);
    assert!(report.world.borrow().now < SECOND * 2);
}

#[test]
fn what_follows_a_refusal_does_not_destroy_it() {
    let odds = Odds { reset_destroys: 1000, ..Odds::none() };
    let mut rng = Rng::new(3);
    for _ in 0..40 {
        let mut bad = requests::draw_bad(&mut rng);
        // The client goes on sending what it had in mind.
        bad.bytes.extend(vec![b'z'; 50_000]);
        let report =
            passes(plan(odds.clone(), vec![Client::honest(vec![bad]).with(|style| style.write_max = 1000)]));
        assert_eq!(client(&report, 0).statuses.len(), 1);
    }
}

#[test]
fn an_idle_connection_costs_no_buffer_and_is_closed_in_time() {
    let mut plan = calm(vec![Client::honest(vec![get("/a.txt")]).with(|style| style.leaves = false)]);
    plan.world.later(TIMEOUTS.idle - SECOND, |world| assert_eq!(world.sockets_open(), 1));
    plan.world.later(TIMEOUTS.idle + SECOND, |world| assert_eq!(world.sockets_open(), 0));
    let report = passes(plan);
    assert!(client(&report, 0).end.is_some_and(|end| !end.reset && !end.cut));
}

#[test]
fn bodies_are_read_past() {
    let post = |length: usize| Request {
        bytes: [
            format!("POST /a.txt HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n").into_bytes(),
            vec![b'G'; length],
        ]
        .concat(),
        is_head: false,
        want: Want::Status(&[405]),
        accepts: "",
        ends: false,
    };
    let report = passes(calm(vec![Client::honest(vec![post(0), post(1), post(9000), get("/a.txt")])]));
    assert_eq!(client(&report, 0).statuses, [405, 405, 405, 200]);
}

/// Asks for the same again and again, at these times.
fn asks_at(plan: &mut Plan, times: &[Duration], request: &Request) {
    for at in times {
        plan.world.add_client(*at, Client::honest(vec![request.clone()]));
    }
}

fn codings(report: &Report) -> Vec<Option<String>> {
    let world = report.world.borrow();
    world.clients.iter().flatten().flat_map(|client| client.codings.clone()).collect()
}

#[test]
fn variants_appear_and_vanish_while_clients_ask() {
    let mut plan = calm(Vec::new());
    plan.world.tree.replace(&name_of("/a.txt"), b"all work and no play ".repeat(100));
    let make = |world: &mut World| variants::make(&mut world.tree, &mut world.forms, "/a.txt");
    plan.world.later(SECOND * 4, make);
    plan.world.later(SECOND * 6, |world| world.tree.remove("var/cache"));
    plan.world.later(SECOND * 8, make);
    let times = [SECOND * 3, SECOND * 11 / 2, SECOND * 15 / 2, SECOND * 19 / 2];
    asks_at(&mut plan, &times, &get_in("/a.txt", "gzip"));
    let gzip = || Some("gzip".to_owned());
    assert_eq!(codings(&passes(plan)), [None, gzip(), None, gzip()]);
}

#[test]
fn a_variant_of_other_contents_is_not_served() {
    let mut plan = calm(Vec::new());
    plan.world.tree.replace(&name_of("/a.txt"), b"all work and no play ".repeat(100));
    plan.world.later(SECOND * 3, |world| {
        variants::deceive(&mut world.tree, "/a.txt", httpd::files::entry::Coding::Gzip);
    });
    asks_at(&mut plan, &[SECOND * 4], &get_in("/a.txt", "gzip"));
    assert_eq!(codings(&passes(plan)), [None]);
}

#[test]
fn what_is_shipped_coded_is_decoded_for_who_needs_it() {
    let mut plan = calm(Vec::new());
    variants::furnish(&mut plan.world, &mut Rng::new(1));
    asks_at(&mut plan, &[SECOND, SECOND * 5], &get(SHIPPED));
    asks_at(&mut plan, &[SECOND * 2], &get_in(SHIPPED, "gzip"));
    asks_at(&mut plan, &[SECOND * 3], &get_in(SHIPPED, "br"));
    let report = passes(plan);
    assert_eq!(codings(&report), [None, None, Some("gzip".into()), None]);
}

#[test]
fn a_large_variant_is_sent_without_its_footer() {
    let mut plan = calm(Vec::new());
    plan.world.later(SECOND * 4, |world| {
        variants::make(&mut world.tree, &mut world.forms, "/steady.txt");
    });
    asks_at(&mut plan, &[SECOND * 5], &get_in("/steady.txt", "br, gzip, zstd"));
    let report = passes(plan);
    assert!(codings(&report).iter().all(Option::is_some));
}
