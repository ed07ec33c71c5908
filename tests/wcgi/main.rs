//! The module host, driven over its socket as a worker drives it: modules that answer, and modules that
//! loop, trap, eat memory, flood, are broken, replaced, or forged in the cache;
//! and modules through the whole server.
//!
//! Modules are built from C, in examples/wcgi and beside this file.

#[path = "../e2e/kit.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod e2e_kit;
mod kit;
mod server;

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use httpd::gateway::messages::Refusal;
use httpd::sys::process::Ended;

use kit::{Case, Run, Said, build, module};

/// A mount of a directory whose modules end soon.
const SHORT: &str = "timeout = \"300ms\"\nwall = \"20s\"\nmemory = \"16MiB\"";

const KILLED: Ended = Ended::Killed(9);
const ABORTED: Ended = Ended::Killed(6);

#[test]
fn an_echo_answers() {
    let case = Case::new("");
    case.place("echo.wasm", &module("echo"));
    let mut run =
        case.start("/wasm/echo.wasm/more", &["REQUEST_METHOD=POST", "HTTP_A=1", "A=1"], Some(b"the body"));
    let text = run.text();
    assert_eq!(run.exited(), (Ended::Exited(0), false));
    assert!(text.starts_with("Content-Type: text/plain; charset=utf-8\r\n\r\nmethod: POST\n"), "{text}");
    let root = case.root();
    for line in [
        "HTTP_A=1".to_owned(),
        "FROM_MOUNT=yes".to_owned(),
        format!("DOCUMENT_ROOT={root}/data"),
        "SCRIPT_NAME=/wasm/echo.wasm".to_owned(),
        "PATH_INFO=/more".to_owned(),
        format!("SCRIPT_FILENAME={root}/modules/echo.wasm"),
        format!("PATH_TRANSLATED={root}/data/more"),
        format!("UNIQUE_ID={}11-1", kit::prefix()),
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in\n{text}");
    }
    assert!(text.ends_with("\nthe body"), "{text}");
}

#[test]
fn what_is_no_module_is_refused() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    case.place("data.txt", b"data");
    case.place("text.wasm", b"no module");
    case.place("empty.wasm", b"");
    case.place("half.wasm", &module("probe")[..1000]);
    // Magic number and version: a module, and no command.
    case.place("library.wasm", b"\0asm\x01\0\0\0");
    // It imports a function `f` of a module `m`, and starts with it.
    case.place(
        "foreign.wasm",
        &[
            b"\0asm\x01\0\0\0".as_slice(),
            b"\x01\x04\x01\x60\0\0",
            b"\x02\x07\x01\x01m\x01f\0\0",
            b"\x07\x0a\x01\x06_start\0\0",
        ]
        .concat(),
    );
    for (path, why) in [
        ("/wasm/missing.wasm", Refusal::NotFound),
        ("/wasm/", Refusal::NotFound),
        ("/wasm/../secret.wasm", Refusal::NotFound),
        ("/wasm/data.txt", Refusal::Forbidden),
        ("/wasm/text.wasm", Refusal::Broken),
        ("/wasm/empty.wasm", Refusal::Broken),
        ("/wasm/half.wasm", Refusal::Broken),
        ("/wasm/library.wasm", Refusal::Broken),
        ("/wasm/foreign.wasm", Refusal::Broken),
    ] {
        // Twice: what is broken stays broken.
        for _ in 0..2 {
            assert_eq!(case.start(path, &[], None).said(), Said::Refused(why), "{path}");
        }
    }
    assert_eq!(case.ask("version"), "version 1\n", "and others still answer");
}

#[test]
fn programs_are_told_of_time_chance_and_arguments() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    assert_eq!(case.ask("nap"), "rested 1\n");
    assert_eq!(case.ask("random"), "random 1\n");
    assert_eq!(case.ask("arguments"), "0: /wasm/probe.wasm\n");
    for _ in 0..3 {
        assert_eq!(case.ask("count"), "run 1\n", "every run begins anew");
    }
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=exit"], None);
    assert_eq!(run.text(), "Content-Type: text/plain\n\n");
    assert_eq!(run.exited(), (Ended::Exited(3), false));
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=stderr"], None);
    assert_eq!(run.text(), "Content-Type: text/plain\n\n", "complaints are no answer");
    assert_eq!(run.exited(), (Ended::Exited(0), false));
}

#[test]
fn what_goes_wrong_ends_its_own_run_only() {
    let case = Case::new(SHORT);
    case.place("probe.wasm", &module("probe"));
    // Half a TiB of nothing, that one call may ask for.
    File::create(case.path("data/large")).and_then(|file| file.set_len(1 << 40)).expect("made");
    for (query, text, how, overran) in [
        ("loop", "", KILLED, true),
        ("pieces", "", KILLED, true),
        ("sleep", "", KILLED, true),
        ("half", "Content-Type: text/plain\n\nbegun", KILLED, true),
        ("trap", "Content-Type: text/plain\n\n", ABORTED, false),
        ("wild", "", ABORTED, false),
        ("stack", "", ABORTED, false),
    ] {
        let mut run = case.start("/wasm/probe.wasm", &[&format!("QUERY_STRING={query}")], None);
        assert_eq!(run.text(), text, "{query}");
        assert_eq!(run.exited(), (how, overran), "{query}");
    }
    assert_eq!(case.ask("version"), "version 1\n");
}

#[test]
fn memory_ends_at_its_limit() {
    let case = Case::new(SHORT);
    case.place("probe.wasm", &module("probe"));
    let text = case.ask("memory");
    let count: u32 =
        text.strip_suffix(" MiB\n").unwrap_or(&text).parse().unwrap_or_else(|_| panic!("{text}"));
    assert!((8..16).contains(&count), "{text}");
    let small = Case::new("memory = \"64KiB\"");
    small.place("probe.wasm", &module("probe"));
    let said = small.start("/wasm/probe.wasm", &["QUERY_STRING=version"], None).said();
    assert_eq!(said, Said::Refused(Refusal::Broken), "it does not even begin");
}

#[test]
fn a_flood_waits_for_its_reader_and_ends_with_it() {
    let case = Case::new(SHORT);
    case.place("probe.wasm", &module("probe"));
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=flood"], None);
    let mut some = vec![0; 1 << 20];
    run.output.as_mut().expect("a pipe").read_exact(&mut some).expect("plenty");
    // Longer than its own time: waiting does not count.
    std::thread::sleep(Duration::from_millis(600));
    run.output.as_mut().expect("a pipe").read_exact(&mut some).expect("plenty");
    run.output = None;
    assert_eq!(run.exited(), (Ended::Killed(15), false), "nobody reads any more");
    // With a reader that takes it all, its own time ends it.
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=flood"], None);
    assert!(run.text().len() > 1 << 20);
    assert_eq!(run.exited(), (KILLED, true));
    // And it ends when it is told to.
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=flood"], None);
    run.output.as_mut().expect("a pipe").read_exact(&mut some).expect("plenty");
    run.end();
    assert_eq!(run.exited(), (Ended::Killed(15), false));
    assert_eq!(case.ask("version"), "version 1\n");
}

#[test]
fn input_that_comes_slowly_is_waited_for() {
    let case = Case::new(SHORT);
    case.place("echo.wasm", &module("echo"));
    let (mut run, mut input) = case.start_open("/wasm/echo.wasm", &["REQUEST_METHOD=PUT"]);
    input.write_all(b"first ").expect("written");
    std::thread::sleep(Duration::from_millis(600));
    input.write_all(b"second").expect("written");
    drop(input);
    let text = run.text();
    assert!(text.ends_with("\nfirst second"), "{text}");
    assert_eq!(run.exited(), (Ended::Exited(0), false));
}

#[test]
fn a_replaced_module_is_seen() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    assert_eq!(case.ask("version"), "version 1\n");
    case.place("probe.wasm", &build("tests/wcgi/probe.c", &["-DVERSION=\"2\""]));
    assert_eq!(case.ask("version"), "version 2\n", "by rename");
    fs::write(case.path("modules/probe.wasm"), module("probe")).expect("written");
    assert_eq!(case.ask("version"), "version 1\n", "in place");
    fs::write(case.path("modules/probe.wasm"), "").expect("written");
    assert_eq!(case.start("/wasm/probe.wasm", &[], None).said(), Said::Refused(Refusal::Broken));
    fs::remove_file(case.path("modules/probe.wasm")).expect("removed");
    assert_eq!(case.start("/wasm/probe.wasm", &[], None).said(), Said::Refused(Refusal::NotFound));
}

#[test]
fn compiled_modules_are_kept_and_not_trusted_blindly() {
    let mut case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    assert_eq!(case.ask("version"), "version 1\n");
    let kept = case.kept();
    let [file] = &kept[..] else { panic!("one file: {kept:?}") };
    let sound = fs::read(file).expect("read");
    let facts = |file| fs::metadata(file).expect("seen").modified().expect("a time");
    let first = facts(file);

    // A later host uses it: it is not written anew, but marked as used.
    case.restart();
    assert_eq!(case.ask("version"), "version 1\n");
    assert_eq!((fs::read(file).expect("read"), case.kept().len()), (sound.clone(), 1));
    assert!(facts(file) >= first);

    for (label, bytes) in [
        ("cut", sound[..sound.len() / 2].to_vec()),
        ("rotten", sound.iter().enumerate().map(|(at, byte)| byte ^ u8::from(at == 5000)).collect()),
        ("empty", Vec::new()),
        ("garbage", vec![0x5a; 100_000]),
    ] {
        fs::write(file, &bytes).expect("written");
        case.restart();
        assert_eq!(case.ask("version"), "version 1\n", "{label}");
        assert_eq!(fs::read(file).expect("read"), sound, "{label}: it is whole again");
    }

    // What others could have written is replaced too, by a file of our own.
    fs::set_permissions(file, fs::Permissions::from_mode(0o666)).expect("set");
    case.restart();
    assert_eq!(case.ask("version"), "version 1\n");
    assert_eq!(fs::metadata(file).expect("seen").permissions().mode() & 0o777, 0o600);
    if httpd::sys::user::is_root() {
        std::os::unix::fs::chown(file, Some(65534), Some(65534)).expect("given away");
        case.restart();
        assert_eq!(case.ask("version"), "version 1\n");
        assert_eq!(std::os::unix::fs::MetadataExt::uid(&fs::metadata(file).expect("seen")), 0);
    }

    // A directory that others may write to is not used, and everything works.
    let cache = case.path("cache/wcgi");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("set");
    fs::write(file, b"forged").expect("written");
    case.restart();
    assert_eq!(case.ask("version"), "version 1\n");
    assert_eq!(fs::read(file).expect("read"), b"forged");
}

#[test]
fn files_are_those_of_the_mount() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    let data = case.path("data");
    fs::write(data.join("text"), "read me").expect("written");
    fs::create_dir_all(data.join("deep")).expect("made");
    fs::write(data.join("deep/text"), "deeper").expect("written");
    symlink("../secret", data.join("link")).expect("made");
    fs::write(case.path("secret"), "secret").expect("written");
    fs::create_dir(data.join("many")).expect("made");
    for number in 0..300 {
        fs::write(data.join(format!("many/a name that is long enough {number}")), "").expect("written");
    }
    let text = case.ask("files");
    let expected = "\
/data/text: read me
/data/text: Read-only file system
/data/new: Read-only file system
/data/deep/text: deeper
/data/../secret: Capabilities insufficient
/data/link: Capabilities insufficient
/etc/passwd: Capabilities insufficient
/data/many: 300 names
stat: 0 7
mkdir: Read-only file system
unlink: Read-only file system
rename: Read-only file system
/scratch/new: wrote 3
/scratch/new: new
/scratch/new: wrote 3
/scratch/new: newnew
mkdir: done
rename: done
/scratch/made/other: newnew
unlink: done
rmdir: done
";
    assert_eq!(text, expected);
    assert_eq!(fs::read_to_string(data.join("text")).expect("read"), "read me");
    assert_eq!(fs::read_dir(case.path("scratch")).expect("read").count(), 0);
}

#[test]
fn fifty_at_a_time() {
    let case = Case::new("concurrency = 50");
    case.place("echo.wasm", &module("echo"));
    // Each waits for its input, so that all are there at once.
    let mut runs: Vec<_> = (0..50).map(|_| case.start_open("/wasm/echo.wasm", &[])).collect();
    for (run, _) in &mut runs {
        assert_eq!(run.said(), Said::Started);
    }
    for (index, (_, input)) in runs.iter_mut().enumerate() {
        write!(input, "number {index}").expect("written");
    }
    for (index, (mut run, input)) in runs.into_iter().enumerate() {
        drop(input);
        let text = run.text();
        assert!(text.ends_with(&format!("\nnumber {index}")), "{text}");
        assert_eq!(run.exited(), (Ended::Exited(0), false));
    }
}

#[test]
fn who_is_told_to_end_ends_though_no_thread_is_left() {
    let case = Case::new("concurrency = 1");
    case.place("probe.wasm", &module("probe"));
    for query in ["loop", "sleep"] {
        let mut run = case.start("/wasm/probe.wasm", &[&format!("QUERY_STRING={query}")], None);
        assert_eq!(run.said(), Said::Started, "{query}");
        run.end();
        assert_eq!(run.exited(), (Ended::Killed(15), false), "{query}");
    }
    assert_eq!(case.ask("version"), "version 1\n");
}

#[test]
fn what_finds_no_thread_waits_with_its_body_and_may_be_ended_meanwhile() {
    for is_ended in [false, true] {
        let case = Case::new("concurrency = 1");
        case.place("probe.wasm", &module("probe"));
        case.place("echo.wasm", &module("echo"));
        // It waits for its reader, and looks once a second whether it is to end: its worker is another then.
        let mut slow = case.start("/wasm/probe.wasm", &["QUERY_STRING=flood"], None);
        assert_eq!(slow.said(), Said::Started);
        std::thread::sleep(Duration::from_millis(200));
        case.begin_another_life();
        let mut run = case.start("/wasm/echo.wasm", &["REQUEST_METHOD=POST"], Some(b"the body"));
        if is_ended {
            run.end();
            assert_eq!((run.text().as_str(), run.exited()), ("", (Ended::Killed(15), false)));
        } else {
            let text = run.text();
            assert!(text.ends_with("\nthe body"), "{text}");
            assert_eq!(run.exited(), (Ended::Exited(0), false));
        }
    }
}

#[test]
fn what_is_told_to_end_before_it_begins_is_not_even_compiled() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    case.end_next();
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=version"], None);
    assert_eq!((run.text().as_str(), run.exited()), ("", (Ended::Killed(15), false)));
    assert!(case.kept().is_empty());
    assert_eq!(case.ask("version"), "version 1\n");
    assert_eq!(case.kept().len(), 1);
}

#[test]
fn a_closed_output_is_the_end_of_the_answer() {
    let case = Case::new("");
    case.place("probe.wasm", &module("probe"));
    fs::write(case.path("data/text"), "read me").expect("written");
    let mut run = case.start("/wasm/probe.wasm", &["QUERY_STRING=shut"], None);
    assert_eq!(run.text(), "Content-Type: text/plain\n\nwhole\n");
    assert_eq!(run.said(), Said::Started);
    run.end();
    assert_eq!(run.exited(), (Ended::Killed(15), false), "it went on");
    assert_eq!(case.ask("renumber"), "0, 7 bytes\n", "a descriptor in its own place stays open");
}

#[test]
fn a_worker_has_its_share_and_is_heard_while_that_runs() {
    let case = Case::new("concurrency = 2");
    case.place("probe.wasm", &module("probe"));
    let start = || case.start("/wasm/probe.wasm", &["QUERY_STRING=loop"], None);
    let mut runs = [start(), start()];
    assert_eq!(runs.each_mut().map(Run::said), [Said::Started; 2]);
    assert_eq!(start().said(), Said::Refused(Refusal::Busy));
    for mut run in runs {
        run.end();
        assert_eq!(run.exited(), (Ended::Killed(15), false));
    }
    assert_eq!(case.ask("version"), "version 1\n");
}
