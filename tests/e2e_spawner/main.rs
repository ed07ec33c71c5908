//! The real spawner with real programs, which behave as badly as programs can.
//!
//! This program is its own test harness: each test starts this very program again as a spawner (`spawn FOLDER
//! GENERATION EPOCH`) or a module host (`host` ...), is its supervisor and its worker, and ends it by its own process
//! number.

mod kit;
#[cfg(feature = "wcgi")]
mod modules;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use httpd::gateway::messages::{Refusal, ToRunner, ToWorker, Why};
use httpd::gateway::start::STOP;
use httpd::gateway::{spawner, wcgi};
use httpd::sys::process::Ended;
use httpd::sys::{pass, user};

use kit::{PATIENCE, Spawner, lives, until, until_gone};

const TESTS: &[(&str, fn())] = &[
    ("a_program_is_started_and_its_end_told", a_program_is_started_and_its_end_told),
    ("the_environment_is_exact", the_environment_is_exact),
    ("arguments_are_for_the_mount_to_allow", arguments_are_for_the_mount_to_allow),
    ("a_program_begins_in_a_clean_state", a_program_begins_in_a_clean_state),
    ("what_cannot_be_started_is_refused", what_cannot_be_started_is_refused),
    ("input_is_what_was_handed_over", input_is_what_was_handed_over),
    ("who_ignores_term_is_killed", who_ignores_term_is_killed),
    ("the_whole_group_is_ended", the_whole_group_is_ended),
    ("daemons_are_ended_with_their_request", daemons_are_ended_with_their_request),
    ("who_forks_and_leaves_is_caught_up_with", who_forks_and_leaves_is_caught_up_with),
    ("what_was_left_on_purpose_goes_on", what_was_left_on_purpose_goes_on),
    ("nothing_is_left_where_the_mount_says_so", nothing_is_left_where_the_mount_says_so),
    ("who_runs_too_long_is_ended", who_runs_too_long_is_ended),
    ("two_hundred_at_a_time", two_hundred_at_a_time),
    ("messages_are_logged_by_line", messages_are_logged_by_line),
    ("a_flood_of_messages_is_dammed", a_flood_of_messages_is_dammed),
    ("who_goes_on_complaining_stops_nobody", who_goes_on_complaining_stops_nobody),
    ("a_worker_has_its_share_and_no_more", a_worker_has_its_share_and_no_more),
    ("an_empty_packet_is_not_the_end", an_empty_packet_is_not_the_end),
    ("a_new_worker_ends_what_the_old_one_began", a_new_worker_ends_what_the_old_one_began),
    ("what_was_meant_for_another_is_dropped", what_was_meant_for_another_is_dropped),
    ("a_spawner_that_dies_takes_its_programs_along", a_spawner_that_dies_takes_its_programs_along),
    ("stopping_ends_everything", stopping_ends_everything),
    ("a_supervisor_that_is_gone_stops_it", a_supervisor_that_is_gone_stops_it),
    ("limits_hold", limits_hold),
    ("programs_run_as_their_user", programs_run_as_their_user),
    ("many_programs_leak_nothing", many_programs_leak_nothing),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let [name @ ("spawn" | "host"), folder, generation, epoch] = words.as_slice() {
        let number = |text: &str| text.parse().expect("a number");
        let run = if *name == "host" { wcgi::run } else { spawner::run };
        return kit::live(run, Path::new(folder), number(generation), number(epoch));
    }
    if words.contains(&"--list") {
        all().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let filters: Vec<_> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = all().filter(|(name, _)| filters.is_empty() || filters.iter().any(|f| name.contains(**f)));
    let mut failed: Vec<&str> = Vec::new();
    for (name, test) in wanted {
        let ended = std::panic::catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
        failed.extend(ended.err().map(|_| name));
    }
    println!("\ntest result: {}. {} failed", if failed.is_empty() { "ok" } else { "FAILED" }, failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn all() -> impl Iterator<Item = &'static (&'static str, fn())> {
    #[cfg(feature = "wcgi")]
    return TESTS.iter().chain(modules::TESTS);
    #[cfg(not(feature = "wcgi"))]
    return TESTS.iter();
}

fn a_program_is_started_and_its_end_told() {
    let mut spawner = Spawner::start("");
    spawner.shell("hello", "echo hello; exit 3");
    let request = spawner.ask("/cgi-bin/hello");
    let pid = spawner.started(&request);
    assert_eq!(spawner.output(&request), "hello\n");
    assert_eq!(spawner.exited(&request), Ended::Exited(3));
    assert!(!lives(pid));
    spawner.until_logged(&format!("hello (pid {pid}, request "));
    spawner.until_logged("ended: exit code 3; it took ");

    spawner.shell("kill", "kill -SEGV $$");
    let request = spawner.ask("/cgi-bin/kill");
    spawner.started(&request);
    assert_eq!(spawner.exited(&request), Ended::Killed(11));
    spawner.until_logged("ended: signal 11 (SIGSEGV)");

    spawner.shell("nph-raw", "");
    let request = spawner.ask("/cgi-bin/nph-raw");
    assert!(matches!(spawner.hear(), ToWorker::Started { nph: true, .. }));
    spawner.exited(&request);

    spawner.shell("busy", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done");
    let request = spawner.ask("/cgi-bin/busy");
    spawner.started(&request);
    let ToWorker::Exited { cpu, overran: false, .. } = spawner.hear() else { panic!("it ended") };
    assert!(cpu > Duration::from_millis(1), "{cpu:?}");
    drop(request);
}

fn the_environment_is_exact() {
    let mut spawner =
        Spawner::start("arguments = true\nenv = { GIVEN = \"by the mount\", REMOTE_USER = \"fixed\" }");
    symlink("/usr/bin/env", spawner.folder.join("cgi/env")).expect("a link");
    let variables = [
        ("REQUEST_METHOD", "GET"),
        ("QUERY_STRING", "a=1&b=\n"),
        ("REMOTE_USER", "claimed"),
        ("SCRIPT_NAME", "forged"),
        ("PATH", "/forged"),
        ("DOCUMENT_ROOT", "/forged"),
        ("UNIQUE_ID", "forged"),
        ("HTTP_ACCEPT", ""),
        ("HTTP_PROXY", "http://example.org/"),
        ("HTTP_x", "no name of a field"),
        ("LD_PRELOAD", "/forged"),
        ("BASH_ENV", "/forged"),
        ("GIT_CONFIG_COUNT", "1"),
    ];
    // env(1) would take another argument for a command.
    let request = spawner.ask_with("/cgi-bin/env/more/of it", None, &["-0"], &variables);
    spawner.started(&request);
    let text = spawner.output(&request);
    let mut found: Vec<&str> = text.split_terminator('\0').collect();
    let unique = found.iter().position(|one| one.starts_with("UNIQUE_ID=")).expect("UNIQUE_ID");
    let unique = found.remove(unique);
    assert!(unique.starts_with(&format!("UNIQUE_ID={}-", std::process::id())) && unique.ends_with("-77-1"));
    found.sort_unstable();
    let cgi = spawner.folder.join("cgi/env").display().to_string();
    let translated = spawner.folder.join("root/more/of it").display().to_string();
    let expected = [
        &format!("DOCUMENT_ROOT={}", spawner.folder.join("root").display()),
        "GIVEN=by the mount",
        "HTTP_ACCEPT=",
        "PATH=/usr/local/bin:/usr/bin:/bin",
        "PATH_INFO=/more/of it",
        &format!("PATH_TRANSLATED={translated}"),
        "QUERY_STRING=a=1&b=\n",
        "REMOTE_USER=fixed",
        "REQUEST_METHOD=GET",
        &format!("SCRIPT_FILENAME={cgi}"),
        "SCRIPT_NAME=/cgi-bin/env",
    ];
    assert_eq!(found, expected);
    spawner.exited(&request);
}

fn arguments_are_for_the_mount_to_allow() {
    let mut spawner = Spawner::start("");
    spawner.shell("count", "echo $#");
    let request = spawner.ask_with("/cgi-bin/count", None, &["--option"], &[]);
    spawner.started(&request);
    assert_eq!(spawner.output(&request), "0\n");
    spawner.exited(&request);
}

fn a_program_begins_in_a_clean_state() {
    let mut spawner = Spawner::start("umask = \"0027\"");
    spawner.shell(
        "state",
        "cat <&0; echo input; pwd; umask; ulimit -c; ulimit -Sn; \
         grep -E '^(SigBlk|SigIgn|NoNewPrivs|CapEff|CapAmb)' /proc/self/status | cut -f2; \
         ls /proc/self/fd | wc -l; cut -d' ' -f5,6 /proc/$$/stat; echo $$",
    );
    let text = spawner.run("/cgi-bin/state");
    let lines: Vec<&str> = text.lines().collect();
    let cgi = spawner.folder.join("cgi").display().to_string();
    let [input, directory, umask, core, files, rest @ ..] = &lines[..] else { panic!("{text}") };
    assert_eq!((*input, *directory, *umask, *core), ("input", &cgi[..], "0027", "0"));
    assert_eq!(*files, "1024");
    let zero = "0000000000000000";
    let [blocked, ignored, effective, ambient, new, descriptors, session, own] = rest else {
        panic!("{text}")
    };
    assert_eq!((*blocked, *ignored, *ambient, *new), (zero, zero, zero, "1"), "{text}");
    if user::is_root() {
        assert_eq!(*effective, zero, "{text}");
    }
    // The three, and the directory that ls reads.
    assert_eq!(*descriptors, "4");
    assert_eq!(*session, format!("{own} {own}"));
}

fn what_cannot_be_started_is_refused() {
    let mut spawner = Spawner::start("");
    let folder = spawner.folder.join("cgi");
    fs::write(folder.join("readme"), "not a program").expect("written");
    fs::create_dir(folder.join("sub")).expect("a folder");
    spawner.script("orphan", "#!/no/such/interpreter\n");
    spawner.script("noise", "\u{1}\u{2}\u{3}");
    spawner.script(".hidden", "#!/bin/sh\n");
    for (path, expected) in [
        ("/cgi-bin/none", Refusal::NotFound),
        ("/cgi-bin/sub/", Refusal::NotFound),
        ("/cgi-bin/.hidden", Refusal::NotFound),
        ("/cgi-bin/../cgi/orphan", Refusal::NotFound),
        ("/elsewhere", Refusal::NotFound),
        ("/cgi-bin/readme", Refusal::Forbidden),
        ("/cgi-bin/orphan", Refusal::Broken),
        ("/cgi-bin/noise", Refusal::Broken),
    ] {
        let request = spawner.ask(path);
        let ToWorker::Refused { id, why } = spawner.hear() else { panic!("{path} was not refused") };
        assert_eq!((id, why), (request.id, expected), "{path}");
        assert_eq!(spawner.output(&request), "", "the pipe is closed");
    }
    spawner.until_logged("is the interpreter of its first line there?");
    spawner.until_logged("a script begins with #!");
}

fn input_is_what_was_handed_over() {
    let mut spawner = Spawner::start("");
    spawner.shell("cat", "exec cat");
    let (read, mut write) = std::io::pipe().expect("a pipe");
    let request = spawner.ask_with("/cgi-bin/cat", Some(OwnedFd::from(read)), &[], &[]);
    spawner.started(&request);
    write.write_all(b"from the client").expect("written");
    drop(write);
    assert_eq!(spawner.output(&request), "from the client");
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    assert_eq!(spawner.run("/cgi-bin/cat"), "", "no input is an empty one");

    spawner.shell("deaf", "exec <&-; echo deaf");
    let (read, write) = std::io::pipe().expect("a pipe");
    let request = spawner.ask_with("/cgi-bin/deaf", Some(OwnedFd::from(read)), &[], &[]);
    spawner.started(&request);
    assert_eq!(spawner.output(&request), "deaf\n");
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    let written = (&write).write_all(b"x");
    assert_eq!(written.expect_err("nobody reads").kind(), std::io::ErrorKind::BrokenPipe);
}

fn who_ignores_term_is_killed() {
    let mut spawner = Spawner::start("grace = \"50ms\"");
    spawner.shell("stubborn", "trap '' TERM; echo $$ > $DIR/pid; while :; do sleep 0.01; done");
    let request = spawner.ask("/cgi-bin/stubborn");
    let pid = spawner.started(&request);
    assert_eq!(spawner.written("pid"), pid.to_string());
    spawner.end(&request, Why::Gone);
    assert_eq!(spawner.exited(&request), Ended::Killed(9));

    // One that tidies up when it is told to.
    spawner.shell(
        "tidy",
        "trap 'echo tidy > $DIR/tidied; exit 7' TERM; echo x > $DIR/ready; while :; do sleep 0.01; done",
    );
    let request = spawner.ask("/cgi-bin/tidy");
    spawner.started(&request);
    spawner.written("ready");
    spawner.end(&request, Why::Idle);
    // It may be slow to do so on a busy machine.
    assert!(matches!(spawner.exited(&request), Ended::Exited(7) | Ended::Killed(9)));
}

fn the_whole_group_is_ended() {
    let mut spawner = Spawner::start("grace = \"50ms\"");
    spawner.shell(
        "family",
        "sh -c \"trap '' TERM; echo \\$\\$ > $DIR/child; while :; do sleep 0.01; done\" & yes",
    );
    let mut request = spawner.ask("/cgi-bin/family");
    spawner.started(&request);
    let child = spawner.written("child");
    let mut some = [0; 4096];
    request.output.read_exact(&mut some).expect("it prints forever");
    spawner.end(&request, Why::Gone);
    assert_eq!(spawner.exited(&request), Ended::Killed(15));
    until_gone(child);
}

/// Two forks, a session of its own, and nothing left of the terminal: as daemons are made.
const DAEMON: &str = "setsid sh -c '(trap \"\" TERM HUP; echo $$ > /dev/null; sh -c \"echo \\$\\$ > $DIR/daemon; exec sleep 100\" < /dev/null > /dev/null 2>&1 &)'";

fn daemons_are_ended_with_their_request() {
    let mut spawner = Spawner::start("grace = \"20ms\"");
    spawner.shell("daemon", &format!("{DAEMON}; sleep 100"));
    spawner.shell("other", "setsid sleep 100 & echo $! > $DIR/other; sleep 100");
    let other = spawner.ask("/cgi-bin/other");
    spawner.started(&other);
    let bystander = spawner.written("other");
    let request = spawner.ask("/cgi-bin/daemon");
    spawner.started(&request);
    let daemon = spawner.written("daemon");
    assert!(lives(&daemon));
    spawner.end(&request, Why::Gone);
    assert_eq!(spawner.exited(&request), Ended::Killed(15));
    until_gone(&daemon);
    assert!(lives(&bystander), "what another request started goes on");
    spawner.end(&other, Why::Gone);
    spawner.exited(&other);
    until_gone(bystander);
}

/// Whoever is looked for is gone by the time he is found, and his child is there.
fn who_forks_and_leaves_is_caught_up_with() {
    let mut spawner = Spawner::start("background = false\ngrace = \"20ms\"");
    // Should nobody catch up with it, it ends by itself one day.
    spawner.shell(
        "relay",
        "perl -e '$SIG{TERM} = \"IGNORE\"; my $end = time + 90; while (time < $end) { exit if fork }' >&- 2>&- &",
    );
    let request = spawner.ask("/cgi-bin/relay");
    let group = spawner.started(&request);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    let group = format!("-{group}");
    until("the group is gone", || {
        let mut kill = std::process::Command::new("kill");
        let killed = kill.args(["-0", "--", &group]).stderr(std::process::Stdio::null()).status();
        (!killed.expect("kill(1)").success()).then_some(())
    });
}

fn what_was_left_on_purpose_goes_on() {
    let mut spawner = Spawner::start("");
    // It keeps the pipe of the answer, too.
    spawner.shell("housekeeping", "sleep 100 & echo $! > $DIR/job; echo answer");
    let mut request = spawner.ask("/cgi-bin/housekeeping");
    spawner.started(&request);
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    let mut answer = [0; 7];
    request.output.read_exact(&mut answer).expect("the answer is in the pipe");
    let job = spawner.written("job");
    spawner.end(&request, Why::Gone);
    spawner.shell("hello", "echo hello");
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n");
    assert!(lives(&job));
    std::process::Command::new("kill").arg(job).status().expect("kill(1)");
}

fn nothing_is_left_where_the_mount_says_so() {
    let mut spawner = Spawner::start("background = false\ngrace = \"20ms\"");
    spawner.shell("leaver", &format!("{DAEMON}; while [ ! -s $DIR/daemon ]; do sleep 0.01; done"));
    let request = spawner.ask("/cgi-bin/leaver");
    spawner.started(&request);
    let daemon = spawner.written("daemon");
    assert_eq!(spawner.exited(&request), Ended::Exited(0));
    until_gone(daemon);
}

fn who_runs_too_long_is_ended() {
    let mut spawner = Spawner::start("timeout = \"50ms\"\nwall = \"50ms\"\ngrace = \"0\"");
    spawner.shell("endless", "trap '' TERM; while :; do sleep 0.01; done");
    let request = spawner.ask("/cgi-bin/endless");
    spawner.started(&request);
    let ToWorker::Exited { how, overran, .. } = spawner.hear() else { panic!("it ended") };
    assert_eq!((how, overran), (Ended::Killed(9), true));
    spawner.until_logged("ran for too long");
    drop(request);
}

fn two_hundred_at_a_time() {
    let mut spawner = Spawner::start("concurrency = 200");
    spawner.shell("wait", "read line; echo $line");
    let mut waiting = Vec::new();
    for _ in 0..200 {
        let (read, write) = std::io::pipe().expect("a pipe");
        let request = spawner.ask_with("/cgi-bin/wait", Some(OwnedFd::from(read)), &[], &[]);
        waiting.push((spawner.started(&request), request, write));
    }
    let mut pids: Vec<u32> = waiting.iter().map(|(pid, ..)| *pid).collect();
    assert!(pids.iter().all(lives), "all of them at once");
    for (_, request, write) in &mut waiting {
        writeln!(write, "{}", request.id).expect("written");
    }
    for (_, request, _) in &waiting {
        assert_eq!(spawner.output(request), format!("{}\n", request.id));
    }
    let exits = (0..200).filter(|_| matches!(spawner.hear(), ToWorker::Exited { how: Ended::Exited(0), .. }));
    assert_eq!(exits.count(), 200);
    pids.retain(|pid| lives(pid));
    assert!(pids.is_empty(), "{pids:?}");
}

fn messages_are_logged_by_line() {
    let mut spawner = Spawner::start("");
    spawner.shell("talker", "printf 'one\\ntwo \\033[2J\\nlast' >&2");
    let request = spawner.ask("/cgi-bin/talker");
    let pid = spawner.started(&request);
    spawner.exited(&request);
    let unique = format!("-77-{}", request.id);
    let log = spawner.until_logged("last");
    for text in ["one", "two \\u{1b}[2J", "last"] {
        let line =
            log.lines().find(|line| line.ends_with(&format!(": {text}"))).unwrap_or_else(|| panic!("{log}"));
        assert!(line.contains(&format!("talker (pid {pid}, request ")) && line.contains(&unique), "{line}");
    }
}

fn a_flood_of_messages_is_dammed() {
    let mut spawner = Spawner::start("");
    spawner.shell("flood", "yes complaint | head -n 200000 >&2; echo done");
    let text = spawner.run("/cgi-bin/flood");
    assert_eq!(text, "done\n", "nobody waits for the log");
    let log = spawner.until_logged("were dropped");
    assert!(log.lines().count() < 2000, "{} lines", log.lines().count());
}

fn who_goes_on_complaining_stops_nobody() {
    let mut spawner = Spawner::start("");
    spawner.shell("grumbler", "yes >&2 & echo $! > $DIR/job; exit 0");
    assert_eq!(spawner.run("/cgi-bin/grumbler"), "");
    spawner.shell("hello", "echo hello");
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n");
    let job = spawner.written("job");
    assert!(lives(&job));
    spawner.channel = None;
    assert!(until("it ends", || spawner.child.try_wait().expect("a child")).success());
    // Nobody reads what it writes.
    until_gone(job);
}

fn a_worker_has_its_share_and_no_more() {
    let mut spawner = Spawner::start("concurrency = 2\ngrace = \"1h\"");
    spawner.shell("stubborn", "trap '' TERM; echo on; while :; do sleep 0.01; done");
    let mut turned_away = 0;
    // What earlier lives of the worker began is being ended and counts as well, but not against a new one.
    for _ in 0..3 {
        for _ in 0..3 {
            let mut request = spawner.ask("/cgi-bin/stubborn");
            match spawner.hear() {
                ToWorker::Refused { why: Refusal::Busy, .. } => turned_away += 1,
                ToWorker::Started { .. } => request.output.read_exact(&mut [0; 3]).expect("it traps"),
                other => panic!("{other:?}"),
            }
        }
        spawner.worker += 1;
        spawner.say(ToRunner::Hello);
        assert_eq!(spawner.hear(), ToWorker::Hello);
    }
    assert_eq!(turned_away, 1 + 1 + 3);
}

fn an_empty_packet_is_not_the_end() {
    let mut spawner = Spawner::start("");
    spawner.shell("hello", "echo hello");
    pass::send(&spawner.mailbox, b"", None).expect("sent");
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n");
}

fn a_new_worker_ends_what_the_old_one_began() {
    let mut spawner = Spawner::start("");
    spawner.shell("sleeper", "exec sleep 100");
    let request = spawner.ask("/cgi-bin/sleeper");
    let pid = spawner.started(&request);
    spawner.worker += 1;
    spawner.say(ToRunner::Hello);
    assert_eq!(spawner.hear(), ToWorker::Hello);
    until_gone(pid);
    spawner.shell("hello", "echo hello");
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n", "the old one's answers are not for the new one");
}

fn what_was_meant_for_another_is_dropped() {
    let mut spawner = Spawner::start("");
    spawner.shell("hello", "echo hello");
    let right = std::mem::replace(&mut spawner.epoch, 99);
    let request = spawner.ask("/cgi-bin/hello");
    assert_eq!(spawner.output(&request), "", "its pipe was closed, and nothing written");
    spawner.epoch = right;
    assert!(spawner.is_silent());
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n");
}

fn a_spawner_that_dies_takes_its_programs_along() {
    let mut spawner = Spawner::start("");
    spawner
        .shell("family", "sh -c 'echo $$ > $DIR/child; exec sleep 100' & echo $$ > $DIR/own; exec sleep 100");
    let request = spawner.ask("/cgi-bin/family");
    let own = spawner.started(&request);
    let child = spawner.written("child");
    spawner.child.kill().expect("killed");
    spawner.child.wait().expect("reaped");
    until_gone(own);
    assert!(lives(&child), "the kernel ends the program only");
    spawner.again();
    assert_eq!(spawner.hear(), ToWorker::Hello);
    until_gone(child);
    spawner.shell("hello", "echo hello");
    assert_eq!(spawner.run("/cgi-bin/hello"), "hello\n");
}

fn stopping_ends_everything() {
    let mut spawner = Spawner::start("grace = \"1h\"");
    spawner.shell(
        "stubborn",
        &format!("{DAEMON}; trap '' TERM; echo x > $DIR/ready; while :; do sleep 0.01; done"),
    );
    let request = spawner.ask("/cgi-bin/stubborn");
    let pid = spawner.started(&request);
    let daemon = spawner.written("daemon");
    spawner.written("ready");
    let channel = spawner.channel.take().expect("a channel");
    pass::send(&channel, STOP, None).expect("sent");
    // No more are started meanwhile.
    let late = spawner.ask("/cgi-bin/stubborn");
    let ToWorker::Refused { id, why: Refusal::Busy } = spawner.hear() else { panic!("it stops") };
    assert_eq!(id, late.id);
    assert_eq!(spawner.exited(&request), Ended::Killed(9));
    let began = Instant::now();
    let ended = until("it ends", || spawner.child.try_wait().expect("a child"));
    assert!(ended.success() && began.elapsed() < PATIENCE);
    assert!(!lives(pid) && !lives(daemon));
}

fn a_supervisor_that_is_gone_stops_it() {
    let mut spawner = Spawner::start("");
    spawner.shell("sleeper", "exec sleep 100");
    let request = spawner.ask("/cgi-bin/sleeper");
    let pid = spawner.started(&request);
    spawner.channel = None;
    assert!(until("it ends", || spawner.child.try_wait().expect("a child")).success());
    assert!(!lives(pid));
}

fn limits_hold() {
    let mut spawner = Spawner::start("cpu = \"1s\"\nmemory = \"64MiB\"\nfiles = 32");
    spawner.shell("limits", "ulimit -t; ulimit -v; ulimit -n; ulimit -Hn");
    assert_eq!(spawner.run("/cgi-bin/limits"), "1\n65536\n32\n32\n");
    spawner.shell("loop", "while :; do :; done");
    let request = spawner.ask("/cgi-bin/loop");
    spawner.started(&request);
    assert_eq!(spawner.exited(&request), Ended::Killed(24), "SIGXCPU");
    spawner.shell("eater", "x=xxxxxxxxxxxxxxxx; while :; do x=$x$x; done");
    let request = spawner.ask("/cgi-bin/eater");
    spawner.started(&request);
    assert!(spawner.exited(&request) != Ended::Exited(0));
}

fn programs_run_as_their_user() {
    if !user::is_root() {
        println!("  only root can become another: not tried");
        return;
    }
    let mut spawner = Spawner::start("");
    spawner.shell("who", "id -un; id -Gn; cat /etc/shadow 2> /dev/null || echo no shadow");
    assert_eq!(spawner.run("/cgi-bin/who"), "nobody\nnogroup\nno shadow\n", "as the workers");
    let mut spawner = Spawner::start("user = \"daemon\"\nprocesses = 1000");
    spawner.shell("who", "id -un; id -Gn; ulimit -p 2> /dev/null || true");
    assert!(spawner.run("/cgi-bin/who").starts_with("daemon\ndaemon\n"));
    // Its own pipe can be opened by name.
    spawner.shell("grumbler", "echo complaint > /dev/stderr");
    spawner.run("/cgi-bin/grumbler");
    spawner.until_logged(": complaint");
    // A child of another user can be told to end, its descendants too.
    spawner.shell("daemon", &format!("{DAEMON}; sleep 100"));
    let request = spawner.ask("/cgi-bin/daemon");
    spawner.started(&request);
    let daemon = spawner.written("daemon");
    spawner.end(&request, Why::Gone);
    spawner.exited(&request);
    until_gone(daemon);
    // Nobody but its user may run it.
    fs::set_permissions(spawner.folder.join("cgi/who"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .expect("a mode");
    drop(spawner.ask("/cgi-bin/who"));
    assert!(matches!(spawner.hear(), ToWorker::Refused { why: Refusal::Forbidden, .. }));
    spawner.until_logged("may its user read it");
}

fn many_programs_leak_nothing() {
    let mut spawner = Spawner::start("");
    spawner.shell("hello", "echo hello; echo hello >&2");
    spawner.run("/cgi-bin/hello");
    let descriptors = until("the first is forgotten", || Some(spawner.descriptors()));
    for _ in 0..100 {
        spawner.run("/cgi-bin/hello");
        drop(spawner.ask("/cgi-bin/none"));
        assert!(matches!(spawner.hear(), ToWorker::Refused { .. }));
    }
    until("all is closed", || (spawner.descriptors() <= descriptors).then_some(()));
    let children = format!("/proc/{0}/task/{0}/children", spawner.child.id());
    assert_eq!(fs::read_to_string(children).unwrap_or_default(), "");
}
