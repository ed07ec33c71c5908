//! The shape of the source, checked: which room may know which, where unsafe stands and how much of it,
//! what pure rooms may not call, how long files and functions grow, and that nothing is left over.
//!
//! Works on text, not on a syntax tree: comments and literals are blanked first, the rest is simple
//! enough that tokens do. Each rule is a function from text to findings and is itself tested at the
//! bottom, on input that breaks it.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Which rooms a room may name by `crate::`; its own is always allowed. Rows of `src/lib.rs`.
const ARROWS: &[(&str, &[&str])] = &[
    ("main", &["cli"]),
    ("cli", &["config", "supervisor", "tls", "precompress", "gateway", "observe", "sys"]),
    ("supervisor", &["config", "tls", "observe", "sys", "worker", "precompress", "gateway", "metrics"]),
    ("worker", &["ring", "conn", "files", "gateway", "http", "tls", "config", "observe", "sys"]),
    ("precompress", &["files", "http", "config", "observe", "sys"]),
    ("metrics", &["http1", "http", "observe", "sys"]),
    ("conn", &["http1", "files", "gateway", "tls", "http", "config", "observe", "ring", "sys"]),
    ("gateway", &["http", "config", "observe", "sys"]),
    ("files", &["http", "config", "sys", "ring"]),
    ("http1", &["http"]),
    ("http", &[]),
    ("observe", &["sys", "ring"]),
    ("tls", &["config", "sys"]),
    ("ring", &["sys"]),
    ("config", &["sys"]),
    ("sys", &[]),
];

/// Narrow doors: of the second room, the first may name only these items.
const DOORS: &[(&str, &str, &[&str])] = &[
    ("supervisor", "worker", &["Start", "run", "start"]),
    ("supervisor", "gateway", &["spawner", "start", "wcgi"]),
    ("supervisor", "precompress", &["is_wanted", "run", "start"]),
    ("supervisor", "metrics", &["run", "start"]),
    // Time is a value that the ring hands out.
    ("conn", "ring", &["Clock"]),
    ("files", "ring", &["Clock"]),
    // Of the system, pure rooms see values: bytes, numbers of descriptors, facts, error numbers.
    ("conn", "sys", &["bytes", "fds", "file", "Errno"]),
    ("files", "sys", &["bytes", "fds", "file", "Errno"]),
    // Names of features, in a test.
    ("observe", "ring", &["probe"]),
];

/// How many times `unsafe` is written, by room; absent: never. Raising a number is a decision to show.
const UNSAFE: &[(&str, usize)] = &[("ring", 24), ("sys", 46)];

/// Files and directories that are pure: values in, values out.
const PURE: &[&str] = &[
    "src/http/",
    "src/http1/",
    "src/conn/",
    "src/files/",
    "src/gateway/cgi/",
    "src/gateway/admission.rs",
    "src/gateway/environment.rs",
    "src/gateway/lines.rs",
    "src/config/file.rs",
    "src/cli/reference.rs",
    "src/config/report.rs",
    "src/supervisor/companions.rs",
    "src/supervisor/lives.rs",
    "src/supervisor/machine.rs",
    "src/worker/timers.rs",
    "src/tls/control.rs",
    "src/tls/kernel.rs",
    "src/gateway/wcgi/wasi/abi.rs",
    "src/observe/access_log.rs",
    "src/gateway/messages.rs",
    "src/gateway/script.rs",
    "src/observe/latency.rs",
    "src/metrics/answer.rs",
    "src/metrics/text.rs",
];

/// What pure code may not call: I/O, clocks, environment, randomness, logging.
const IMPURE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::process",
    "std::thread",
    "std::os",
    "TcpStream",
    "TcpListener",
    "UdpSocket",
    "UnixStream",
    "Instant::now",
    "SystemTime::now",
    "tracing::",
    "println!",
    "eprintln!",
    "rustix::",
    "libc::",
    "getrandom",
    "SystemRandom",
];

/// Crates that only some rooms may name.
const CRATES: &[(&str, &[&str])] = &[
    ("io_uring::", &["ring"]),
    ("libc::", &["ring", "sys"]),
    ("rustix::", &["ring", "sys"]),
    ("landlock::", &["sys"]),
    ("seccompiler::", &["sys"]),
    ("compu_brotli_sys::", &["sys"]),
    ("libdeflater::", &["precompress"]),
    ("rustls::", &["tls"]),
    ("rcgen::", &["tls"]),
    ("clap::", &["cli", "main"]),
    ("anyhow::", &["cli", "main"]),
    ("wasmtime::", &["gateway", "sys"]),
];

/// Aim: 600 and 70. What is refused leaves some room for a file that does one thing.
const FILE_LINES_MAX: usize = 700;
const FUNCTION_LINES_MAX: usize = 100;
const MAIN_LINES_MAX: usize = 40;

/// An `.expect` gives the reason why it cannot fail; fewer words are no reason.
const REASON_WORDS_MIN: usize = 2;

#[test]
fn rooms_name_only_what_the_arrows_allow() {
    report(sources("src").iter().flat_map(|s| arrows(&s.path, &s.code)));
}

#[test]
fn unsafe_stands_where_it_was_counted() {
    let sources = sources("src");
    let count = |room: &str| -> usize {
        sources.iter().filter(|s| room_of(&s.path) == room).map(|s| unsafe_count(&s.all_code)).sum()
    };
    let rooms: std::collections::BTreeSet<&str> = sources.iter().map(|s| room_of(&s.path)).collect();
    report(rooms.into_iter().filter_map(|room| {
        let golden = UNSAFE.iter().find(|(name, _)| *name == room).map_or(0, |(_, count)| *count);
        let found = count(room);
        // `unsafe_code` in an attribute is another word, so rooms that only deny or allow it count zero.
        (found != golden)
            .then(|| format!("src/{room}: `unsafe` is written {found} times, tests/tidy.rs says {golden}"))
    }));
}

#[test]
fn pure_rooms_do_nothing() {
    report(sources("src").iter().filter(|s| is_pure(&s.path)).flat_map(|s| {
        found_words(&s.code, IMPURE).into_iter().map(|(line, word)| {
            format!("{}:{line}: `{word}` in a pure file: take the value as an argument", s.path)
        })
    }));
}

#[test]
fn crates_stay_in_their_rooms() {
    report(sources("src").iter().flat_map(|s| foreign_crates(&s.path, &s.code)));
}

#[test]
fn nothing_is_unwrapped() {
    report(
        sources("src")
            .iter()
            .flat_map(|s| unwraps(&s.code, &s.text).into_iter().map(|what| format!("{}:{what}", s.path))),
    );
}

#[test]
fn files_are_of_readable_size_and_introduce_themselves() {
    let mut all = sources("src");
    all.extend(sources("tests"));
    all.extend(sources("benches"));
    report(all.iter().flat_map(|s| {
        let limit = if s.path == "src/main.rs" { MAIN_LINES_MAX } else { FILE_LINES_MAX };
        shape(&s.text, &s.all_code, limit).into_iter().map(|what| format!("{}:{what}", s.path))
    }));
}

#[test]
fn nothing_is_left_over() {
    let mut all = sources("src");
    all.extend(sources("tests"));
    all.extend(sources("benches"));
    report(all.iter().flat_map(|s| {
        found_words(&s.text, &left_over_words())
            .into_iter()
            .map(|(line, word)| format!("{}:{line}: `{word}`: do it or say why not", s.path))
    }));
}

#[test]
fn every_file_is_part_of_the_crate() {
    let sources = sources("src");
    report(sources.iter().filter_map(|s| {
        let (parents, name) = parents_of(&s.path)?;
        let declared = sources
            .iter()
            .filter(|p| parents.contains(&p.path))
            .any(|p| found_words(&p.all_code, &[&format!("mod {name};")]).len() == 1)
            || sources.iter().any(|p| is_tests(&s.path) && p.text.contains(&path_attribute(&s.path)));
        (!declared).then(|| format!("{}: no `mod {name};` in {}", s.path, parents.join(" or ")))
    }));
}

// The rules.

fn arrows(path: &str, code: &str) -> Vec<String> {
    let room = room_of(path);
    let mut findings = Vec::new();
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == room) else {
        if room != "lib" {
            findings.push(format!("{path}: room `{room}` has no row in the arrows"));
        }
        return findings;
    };
    // The library is another crate to main.rs and goes by its name there.
    let root = if room == "main" { "httpd" } else { "crate" };
    for (line, segments) in paths_below(code, root) {
        let Some(target) = segments.first() else { continue };
        if target == room || !ARROWS.iter().any(|(name, _)| name == target) {
            continue;
        }
        if !allowed.contains(&target.as_str()) {
            findings.push(format!("{path}:{line}: `{room}` may not know `{target}`"));
        } else if let Some((_, _, items)) = DOORS.iter().find(|(from, to, _)| *from == room && to == target)
            && !segments.get(1).is_some_and(|item| items.contains(&item.as_str()))
        {
            findings
                .push(format!("{path}:{line}: of `{target}`, `{room}` may name only {}", items.join(", ")));
        }
    }
    findings
}

fn unsafe_count(code: &str) -> usize {
    code.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|word| *word == "unsafe").count()
}

fn foreign_crates(path: &str, code: &str) -> Vec<String> {
    let room = room_of(path);
    CRATES
        .iter()
        .filter(|(_, rooms)| !rooms.contains(&room))
        .flat_map(|(name, rooms)| {
            found_words(code, &[name])
                .into_iter()
                .map(move |(line, _)| format!("{path}:{line}: `{name}` belongs to {}", rooms.join(" and ")))
        })
        .collect()
}

fn unwraps(code: &str, text: &str) -> Vec<String> {
    let unwraps = code.match_indices(".unwrap()").map(|(at, _)| {
        format!("{}: `.unwrap()`: handle it, or `.expect` the reason why it cannot fail", line_of(code, at))
    });
    // Blanking keeps offsets, so the literal stands in the text where the code has spaces.
    let expects = code.match_indices(".expect(").filter_map(|(at, call)| {
        let literal = text[at + call.len()..].trim_start().strip_prefix('"').unwrap_or("");
        let reason = literal.split('"').next().unwrap_or("");
        (reason.split_whitespace().count() < REASON_WORDS_MIN)
            .then(|| format!("{}: `.expect(` without the reason why it cannot fail", line_of(code, at)))
    });
    unwraps.chain(expects).collect()
}

fn shape(text: &str, code: &str, lines_max: usize) -> Vec<String> {
    let mut findings = Vec::new();
    if !text.starts_with("//! ") {
        findings.push("1: does not open with `//!`: say what lives here".to_owned());
    }
    let lines = text.lines().count();
    if lines > lines_max {
        findings.push(format!("{lines_max}: {lines} lines, at most {lines_max}"));
    }
    for (line, length) in function_lengths(code) {
        if length > FUNCTION_LINES_MAX {
            findings.push(format!("{line}: a function of {length} lines, at most {FUNCTION_LINES_MAX}"));
        }
    }
    findings
}

/// Split, so that this file does not find itself.
fn left_over_words() -> Vec<&'static str> {
    vec![
        concat!("TO", "DO"),
        concat!("FIX", "ME"),
        concat!("X", "XX"),
        concat!("todo", "!("),
        concat!("unimple", "mented!("),
        concat!("dbg", "!("),
        // With a reason it is a test for another machine.
        concat!("#[", "ignore]"),
    ]
}

// Reading the source.

/// One file, in three forms.
struct Source {
    /// Relative to the project, with `/`.
    path: String,
    /// As written.
    text: String,
    /// Comments and literals blanked; line numbers kept.
    all_code: String,
    /// The same without tests.
    code: String,
}

fn sources(under: &str) -> Vec<Source> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    let mut pending = vec![root.join(under)];
    while let Some(directory) = pending.pop() {
        let Ok(names) = fs::read_dir(&directory) else { continue };
        for path in names.map(|name| name.unwrap().path()) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let all_code = blank(&text);
                let path = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                let code = if is_tests(&path) { String::new() } else { without_tests(&all_code) };
                found.push(Source { path, text, all_code, code });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn report(findings: impl Iterator<Item = String>) {
    let text = findings.fold(String::new(), |mut text, finding| {
        let _ = write!(text, "\n  {finding}");
        text
    });
    assert!(text.is_empty(), "{text}\n");
}

fn room_of(path: &str) -> &str {
    let rest = path.strip_prefix("src/").unwrap_or(path);
    rest.split('/').next().unwrap_or(rest).trim_end_matches(".rs")
}

fn is_pure(path: &str) -> bool {
    PURE.iter().any(|p| if p.ends_with('/') { path.starts_with(p) } else { path == *p })
}

/// Tests too long for the bottom of their file stand beside it and are named by its `#[path]`;
/// what several of them use is a room's `testing`.
fn is_tests(path: &str) -> bool {
    ["_tests.rs", "/tests.rs", "/testing.rs"].iter().any(|end| path.ends_with(end))
}

fn path_attribute(path: &str) -> String {
    format!("#[path = \"{}\"]", path.rsplit('/').next().unwrap_or(path))
}

/// Where a file's `mod` line may stand, and the module's name.
fn parents_of(path: &str) -> Option<(Vec<String>, String)> {
    let stem = path.strip_suffix(".rs")?;
    let (directory, name) = match stem.strip_suffix("/mod") {
        Some(module) => module.rsplit_once('/')?,
        None => stem.rsplit_once('/')?,
    };
    if directory == "src" {
        return (name != "main" && name != "lib").then(|| (vec!["src/lib.rs".to_owned()], name.to_owned()));
    }
    Some((vec![format!("{directory}/mod.rs"), format!("{directory}.rs")], name.to_owned()))
}

/// Each occurrence of a word with its line. A word that begins like an identifier must not continue one.
fn found_words<'w>(text: &str, words: &[&'w str]) -> Vec<(usize, &'w str)> {
    let mut found = Vec::new();
    for word in words {
        for (at, _) in text.match_indices(word) {
            let joined = text[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
            if !(joined && word.starts_with(|c: char| c.is_alphanumeric())) {
                found.push((line_of(text, at), *word));
            }
        }
    }
    found.sort_unstable();
    found
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|b| **b == b'\n').count()
}

/// Every path that begins with `root::`, `use` trees expanded, as segments after the root.
fn paths_below(code: &str, root: &str) -> Vec<(usize, Vec<String>)> {
    let start = format!("{root}::");
    let mut found = Vec::new();
    for (at, _) in code.match_indices(&start) {
        let joined =
            code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
        if !joined {
            let mut rest = &code[at + start.len()..];
            let mut paths = Vec::new();
            tree(&mut rest, &mut Vec::new(), &mut paths);
            found.extend(paths.into_iter().map(|path| (line_of(code, at), path)));
        }
    }
    found
}

/// One branch of a `use` tree: `a::b`, or `a::{b, c::d}`.
fn tree(rest: &mut &str, prefix: &mut Vec<String>, paths: &mut Vec<Vec<String>>) {
    let depth = prefix.len();
    loop {
        *rest = rest.trim_start();
        if let Some(inside) = rest.strip_prefix('{') {
            *rest = inside;
            while !rest.is_empty() && !rest.trim_start().starts_with('}') {
                tree(rest, prefix, paths);
                *rest = rest.trim_start_matches([' ', '\n', ',']);
            }
            *rest = rest.trim_start().strip_prefix('}').unwrap_or("");
            prefix.truncate(depth);
            return;
        }
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        if end == 0 {
            // A glob or something that is no path: skip to the end of this branch.
            *rest = &rest[rest.find([',', '}', ';', '\n']).unwrap_or(rest.len())..];
            break;
        }
        prefix.push(rest[..end].to_owned());
        *rest = &rest[end..];
        match rest.strip_prefix("::") {
            Some(more) => *rest = more,
            None => {
                *rest = rest.strip_prefix(" as ").map_or(*rest, |alias| {
                    alias.trim_start_matches(|c: char| c.is_alphanumeric() || c == '_')
                });
                break;
            }
        }
    }
    paths.push(prefix.clone());
    prefix.truncate(depth);
}

/// Replaces the contents of comments, strings and character literals by spaces.
fn blank(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = match bytes[at] {
            b'/' if bytes[at..].starts_with(b"//") => find(bytes, at, b"\n"),
            b'/' if bytes[at..].starts_with(b"/*") => comment_end(bytes, at),
            b'"' => string_end(bytes, at + 1),
            b'r' if !follows_word(bytes, at) => match raw_string_end(bytes, at) {
                Some(end) => end,
                None => at,
            },
            b'\'' => char_end(bytes, at),
            _ => at,
        };
        for byte in &mut out[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(out).unwrap()
}

fn follows_word(bytes: &[u8], at: usize) -> bool {
    // `br"…"` is a raw string too.
    let before = if at > 0 && bytes[at - 1] == b'b' { at - 1 } else { at };
    before > 0 && (bytes[before - 1].is_ascii_alphanumeric() || bytes[before - 1] == b'_')
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> usize {
    bytes[from..].windows(what.len()).position(|w| w == what).map_or(bytes.len(), |n| from + n)
}

fn comment_end(bytes: &[u8], mut at: usize) -> usize {
    let mut depth = 0;
    while at < bytes.len() {
        if bytes[at..].starts_with(b"/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if bytes[at..].starts_with(b"*/") {
            (depth, at) = (depth - 1, at + 2);
            if depth == 0 {
                break;
            }
        } else {
            at += 1;
        }
    }
    at
}

fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

fn raw_string_end(bytes: &[u8], at: usize) -> Option<usize> {
    let hashes = bytes[at + 1..].iter().take_while(|b| **b == b'#').count();
    let open = at + 1 + hashes;
    if bytes.get(open) != Some(&b'"') {
        return None;
    }
    let close = [b"\"".as_slice(), &b"#".repeat(hashes)].concat();
    Some((find(bytes, open + 1, &close) + close.len()).min(bytes.len()))
}

/// A character literal's end; a lifetime's own start.
fn char_end(bytes: &[u8], at: usize) -> usize {
    match bytes.get(at + 1) {
        Some(b'\\') => (find(bytes, at + 3, b"'") + 1).min(bytes.len()),
        Some(first) => {
            let width = match first {
                0x00..=0x7f => 1,
                0x80..=0xdf => 2,
                0xe0..=0xef => 3,
                _ => 4,
            };
            if bytes.get(at + 1 + width) == Some(&b'\'') { at + 2 + width } else { at }
        }
        None => at,
    }
}

/// Blanks every `#[cfg(test)]` item with a body.
fn without_tests(code: &str) -> String {
    let mut out = code.to_owned();
    while let Some(at) = out.find("#[cfg(test)]") {
        let body = out[at..].find(['{', ';']).map_or(out.len(), |n| at + n);
        let end = if out[body..].starts_with('{') { block_end(&out, body) } else { body };
        let blanked: String = out[at..end].chars().map(|c| if c == '\n' { '\n' } else { ' ' }).collect();
        out.replace_range(at..end, &blanked);
    }
    out
}

/// The end of the block that opens at `at`, in blanked code.
fn block_end(code: &str, at: usize) -> usize {
    let mut depth = 0_i32;
    for (offset, byte) in code.as_bytes()[at..].iter().enumerate() {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at + offset + 1;
        }
    }
    code.len()
}

/// Each function with a body: its line and how many lines it takes.
fn function_lengths(code: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let joined = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
        let named = code[at + 3..].starts_with(|c: char| c.is_alphabetic() || c == '_');
        if joined || !named {
            continue;
        }
        if let Some(open) = body_of(&code[at..]).map(|n| at + n) {
            found.push((line_of(code, at), code[at..block_end(code, open)].lines().count()));
        }
    }
    found
}

/// Where the body opens; `None` for a declaration. A `;` inside an array type ends nothing.
fn body_of(code: &str) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code.bytes().enumerate() {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(offset),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

// The rules can fail.

#[test]
fn arrows_see_every_spelling() {
    let check = |path: &str, code: &str, findings: usize| {
        assert_eq!(arrows(path, code).len(), findings, "{path}: {code}");
    };
    check("src/http/date.rs", "use crate::http::fields::Name;", 0);
    check("src/http/date.rs", "use crate::sys::Errno;", 1);
    check("src/http/date.rs", "fn f() { crate::ring::probe() }", 1);
    check("src/http1/head.rs", "use crate::{http::status::Status, files::Plan};", 1);
    check(
        "src/http1/head.rs",
        "use crate::{\n    conn::{Event, Action as A},\n    files,\n    http::*,\n};",
        3,
    );
    check("src/http1/head.rs", "use crate::http::{self, Method};", 0);
    check("src/http1/head.rs", "let x = mycrate::sys::f();", 0);
    check("src/supervisor/launch.rs", "use crate::worker::{Start, run};", 0);
    check("src/supervisor/launch.rs", "use crate::worker::timers::Wheel;", 1);
    check("src/main.rs", "httpd::cli::main()", 0);
    check("src/main.rs", "httpd::sys::exit()", 1);
    check("src/cellar/mod.rs", "", 1);
}

#[test]
fn unsafe_is_counted_as_a_word() {
    assert_eq!(unsafe_count("unsafe { f() } unsafe fn g() {} #[allow(unsafe_code)]"), 2);
    assert_eq!(unsafe_count(&blank("// unsafe\nlet a = \"unsafe\"; r#\"unsafe\"#; unsafe{}")), 1);
}

#[test]
fn unwrap_and_expect_need_a_reason() {
    let check =
        |code: &str, findings: usize| assert_eq!(unwraps(&blank(code), code).len(), findings, "{code}");
    check("x.unwrap();", 1);
    check("x.unwrap_or(1); // é .unwrap()", 0);
    check("x.expect(\"\");", 1);
    check("x.expect(\"index\");", 1);
    check("x.expect(why);", 1);
    check("/* é */ x\n.expect(\n    \"pushed just above\",\n);", 0);
}

#[test]
fn purity_crates_and_left_overs_are_seen() {
    assert!(is_pure("src/http/date.rs") && is_pure("src/worker/timers.rs") && !is_pure("src/worker/mod.rs"));
    assert_eq!(found_words("let now = Instant::now();\nuse std::fs;", IMPURE).len(), 2);
    assert_eq!(found_words("MyInstant::now(); use mystd::fs;", IMPURE).len(), 0);
    assert_eq!(foreign_crates("src/conn/mod.rs", "use rustls::Error; use io_uring::opcode;").len(), 2);
    assert_eq!(foreign_crates("src/tls/session.rs", "use rustls::Error;").len(), 0);
    for word in left_over_words() {
        assert_eq!(found_words(&format!("// {word} x"), &left_over_words()).len(), 1, "{word}");
    }
}

#[test]
fn shape_is_measured() {
    let long = format!("//! A.\nfn f() {{\n{}}}\n", "x;\n".repeat(FUNCTION_LINES_MAX));
    assert_eq!(shape(&long, &long, 700).len(), 1);
    assert_eq!(shape(&long, &long, 50).len(), 2);
    assert_eq!(shape("fn f(a: [u8; 2]) {}", "fn f(a: [u8; 2]) {}", 700).len(), 1);
    assert_eq!(function_lengths("fn f(a: [u8; 2])\n{\n}\nfn g();"), [(1, 3)]);
}

#[test]
fn code_is_told_from_what_is_not() {
    let check =
        |text: &str, expected: &str| assert_eq!(blank(text).split_whitespace().collect::<String>(), expected);
    check("a /* b /* c */ d */ e", "ae");
    check(r#"f("x\"y", 'z', '\'', '"', b'\\')"#, "f(,,,,b)");
    check("fn f<'a>(x: &'a str) {}", "fnf<'a>(x:&'astr){}");
    check("r#\"a \" b\"# c; br\"d\" e; bar\"f\"", "c;be;bar");
    let tests = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { {} }\n}\nfn c() {}";
    assert_eq!(without_tests(tests).split_whitespace().collect::<String>(), "fna(){}fnc(){}");
    assert_eq!(without_tests(tests).lines().count(), tests.lines().count());
}

#[test]
fn modules_are_traced_to_their_parents() {
    let check = |path: &str, expected: Option<(&str, &str)>| {
        let found = parents_of(path);
        assert_eq!(found.as_ref().map(|(p, n)| (p[0].as_str(), n.as_str())), expected, "{path}");
    };
    check("src/main.rs", None);
    check("src/cli.rs", Some(("src/lib.rs", "cli")));
    check("src/ring/mod.rs", Some(("src/lib.rs", "ring")));
    check("src/ring/uring.rs", Some(("src/ring/mod.rs", "uring")));
    check("src/ring/uring/mod.rs", Some(("src/ring/mod.rs", "uring")));
}
