//! Tests of the lookup: which facts it asks for, and what it makes of them.

use std::time::{Duration, Instant, SystemTime};

use super::*;
use crate::config;
use crate::files::cache::Budget;
use crate::files::entry::{Body, File, Origin, Representation};
use crate::files::route::Sites;
use crate::files::testing::{Node, Tree, facts, site};
use crate::sys::file::Stamp;

struct Bench {
    tree: Tree,
    site: Rc<Site>,
    memory: Memory,
    clock: Clock,
    /// Whether the site's directory of variants is there.
    has_cache: bool,
    /// Whether what is shipped compressed is to be decoded.
    plain: bool,
}

impl Bench {
    fn new(site: config::Site, files: &[(&str, &str)]) -> Self {
        let memory = Memory { budget: Budget::new(1 << 20), file_max: 1000 };
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(2_000_000);
        let clock = Clock { now: Instant::now(), wall };
        let site = Rc::clone(Sites::new(&[site]).site(0));
        Self { tree: Tree::of(files), site, memory, clock, has_cache: false, plain: false }
    }

    fn look(&mut self, path: &str) -> Rc<Entry> {
        self.again(path, None)
    }

    fn again(&mut self, path: &str, previous: Option<&Rc<Entry>>) -> Rc<Entry> {
        self.tree.asked.clear();
        let given = Given {
            site: Rc::clone(&self.site),
            memory: self.memory.clone(),
            clock: self.clock,
            previous: previous.cloned(),
            variants: self.has_cache.then(|| Variants { codings: Rc::new(Coding::ALL), size_min: 20 }),
            plain: self.plain,
        };
        self.tree.run(Lookup::new(given, path.as_bytes().to_vec()))
    }

    fn target(&mut self, path: &str) -> String {
        let entry = self.look(path);
        match &entry.target {
            Target::File(file) => {
                let own = file.path.as_deref().map(|path| String::from_utf8_lossy(path).into_owned());
                format!("file {}", own.unwrap_or_else(|| "itself".into()))
            }
            Target::Listing(listing) => {
                let names = listing.names.iter().map(|name| String::from_utf8_lossy(&name.name));
                format!("names {}", names.collect::<Vec<_>>().join(" "))
            }
            Target::Directory => "directory".into(),
            Target::Refused(status) => format!("{status}{}", if entry.lasting { "" } else { " for now" }),
        }
    }
}

fn file(entry: &Entry) -> &File {
    match &entry.target {
        Target::File(file) => file,
        other => panic!("a file, not {other:?}"),
    }
}

fn bytes(form: &Representation) -> Option<&[u8]> {
    match &form.body {
        Body::Memory(bytes) => Some(bytes),
        Body::File(_) => None,
    }
}

#[test]
fn paths_lead_to_files_and_directories() {
    let tree = [
        ("index.html", "root"),
        ("a.html", "a"),
        ("d/index.html", "d"),
        ("e/b.txt", "b"),
        ("e/.x", "x"),
        ("both/x", ""),
        ("both.html", ""),
        ("empty", ""),
    ];
    let plain = site();
    let clean = config::Site { clean_urls: true, ..site() };
    let listing = config::Site { listing: true, ..site() };
    let check = |site: &config::Site, path: &str, expected: &str| {
        assert_eq!(Bench::new(site.clone(), &tree).target(path), expected, "{path}");
    };
    check(&plain, "/", "file /index.html");
    check(&plain, "/a.html", "file itself");
    check(&plain, "/a", "404");
    check(&plain, "/d", "directory");
    check(&plain, "/d/", "file /d/index.html");
    check(&plain, "/e/", "404");
    check(&plain, "/e", "directory");
    check(&plain, "/a.html/", "404");
    check(&plain, "/a.html/x", "404");
    check(&plain, "/empty", "file itself");
    check(&clean, "/a", "file /a.html");
    check(&clean, "/both", "file /both.html");
    check(&clean, "/d", "directory");
    check(&clean, "/none", "404");
    check(&listing, "/e/", "names b.txt");
    check(&listing, "/d/", "file /d/index.html");
    check(&listing, "/a.html/", "404");
    check(&listing, "/none/", "404");
    check(&config::Site { hidden: true, ..listing.clone() }, "/e/", "names .x b.txt");
}

#[test]
fn refusals_have_their_status() {
    let special = Facts { kind: Kind::Special, ..facts() };
    for (node, expected) in [
        (Node::Refuses(Errno::ACCESS), "403"),
        (Node::Refuses(Errno::PERM), "403"),
        (Node::Refuses(Errno::NOENT), "404"),
        (Node::Refuses(Errno::LOOP), "404"),
        (Node::Refuses(Errno::XDEV), "404"),
        (Node::Refuses(Errno::NXIO), "404"),
        (Node::Refuses(Errno::NAMETOOLONG), "404"),
        (Node::Refuses(Errno::MFILE), "503 for now"),
        (Node::Refuses(Errno::AGAIN), "503 for now"),
        (Node::Refuses(Errno::IO), "500 for now"),
        (Node::Other(special), "404"),
    ] {
        let mut bench = Bench::new(site(), &[]);
        bench.tree.put_node("x", node);
        assert_eq!(bench.target("/x"), expected, "{expected}");
    }
}

#[test]
fn small_files_are_read_once() {
    let mut bench = Bench::new(site(), &[("a.png", "picture"), ("empty", "")]);
    let entry = bench.look("/a.png");
    assert_eq!(bench.tree.asked, ["open a.png", "read a.png"]);
    let form = &file(&entry).representations[0];
    assert_eq!((bytes(form), form.length), (Some(b"picture".as_slice()), 7));
    assert_eq!(
        String::from_utf8_lossy(&form.fields[..form.length_end]),
        "Content-Type: image/png\r\nContent-Length: 7\r\n"
    );
    bench.clock.now += Duration::from_secs(5);
    let again = bench.again("/a.png", Some(&entry));
    assert_eq!(bench.tree.asked, ["open a.png"]);
    assert!(Rc::ptr_eq(&entry, &again) && entry.checked.get() == bench.clock.now);

    bench.tree.put("a.png", "another");
    let changed = bench.again("/a.png", Some(&entry));
    assert_eq!(bytes(&file(&changed).representations[0]), Some(b"another".as_slice()));
    bench.tree.remove("a.png");
    assert!(matches!(bench.again("/a.png", Some(&changed)).target, Target::Refused(404)));
    let entry = bench.look("/empty");
    assert_eq!(bytes(&file(&entry).representations[0]), Some(b"".as_slice()));
    assert_eq!(bench.tree.asked, ["open empty"]);
}

#[test]
fn a_young_file_is_read_again() {
    let mut bench = Bench::new(site(), &[("a.png", "one")]);
    bench.tree.facts_mut("a.png").changed = Stamp { seconds: 1_999_999, nanoseconds: 0 };
    let entry = bench.look("/a.png");
    assert!(!file(&entry).representations[0].settled);
    let again = bench.again("/a.png", Some(&entry));
    assert_eq!(bench.tree.asked, ["open a.png", "read a.png"]);
    bench.clock.wall += Duration::from_secs(3);
    let settled = bench.again("/a.png", Some(&again));
    assert!(file(&settled).representations[0].settled);
    assert_eq!(
        file(&settled).representations[0].etag,
        file(&entry).representations[0].etag,
        "the same contents"
    );
}

#[test]
fn large_files_stay_files_and_small_ones_when_memory_is_short() {
    let large = "x".repeat(1001);
    let mut bench = Bench::new(site(), &[("l.iso", &large), ("s.png", "small")]);
    let entry = bench.look("/l.iso");
    assert_eq!(bench.tree.asked, ["open l.iso"]);
    let form = &file(&entry).representations[0];
    assert_eq!((bytes(form), form.length), (None, 1001));
    assert!(Rc::ptr_eq(&bench.again("/l.iso", Some(&entry)), &entry));
    let huge = Facts { size: 5 << 32, ..facts() };
    bench.tree.put_node("huge", Node::File(Vec::new(), huge));
    assert_eq!(file(&bench.look("/huge")).representations[0].length, 5 << 32);

    bench.tree.facts_mut("l.iso").changed = Stamp { seconds: 1_999_999, nanoseconds: 0 };
    let entry = bench.look("/l.iso");
    assert!(file(&entry).representations[0].etag.starts_with("W/"), "it may change without a trace");

    let all = bench.memory.budget.reserve(1 << 20).expect("all memory");
    let entry = bench.look("/s.png");
    assert_eq!(bytes(&file(&entry).representations[0]), None);
    assert!(Rc::ptr_eq(&bench.again("/s.png", Some(&entry)), &entry));
    drop(all);
    let entry = bench.again("/s.png", Some(&entry));
    assert_eq!(bytes(&file(&entry).representations[0]), Some(b"small".as_slice()), "there is memory again");
}

#[test]
fn a_file_that_changes_while_it_is_read_is_read_again_and_never_mixed() {
    let mut bench = Bench::new(site(), &[("a.png", "before")]);
    bench.tree.after_read = Some(|tree, path| {
        tree.after_read = None;
        tree.put(path, "after!");
    });
    let entry = bench.look("/a.png");
    assert_eq!(bytes(&file(&entry).representations[0]), Some(b"after!".as_slice()));
    assert!(entry.lasting);

    bench.tree.after_read = Some(|tree, path| tree.facts_mut(path).size += 1);
    let entry = bench.look("/a.png");
    assert_eq!(bytes(&file(&entry).representations[0]), None, "sent from the file as it grows");
    assert!(!entry.lasting);
    assert_eq!(bench.tree.asked.len(), 2 * usize::from(TRIES));
}

#[test]
fn sidecars_are_taken_when_they_help() {
    let source = "let x = 1;".repeat(9);
    let mut bench = Bench::new(
        site(),
        &[("a.js", &source), ("a.js.br", "br"), ("a.js.gz", "gzip"), ("a.js.zst", &source), ("b.zip", "z")],
    );
    let entry = bench.look("/a.js");
    let codings: Vec<_> = file(&entry).representations.iter().map(|form| form.coding).collect();
    assert_eq!(codings, [None, Some(Coding::Brotli), Some(Coding::Gzip)], "zstd is not smaller");
    for form in &file(&entry).representations {
        assert!(String::from_utf8_lossy(&form.fields).contains("Vary: Accept-Encoding\r\n"));
        assert!(String::from_utf8_lossy(&form.fields_not_modified).contains("Vary: Accept-Encoding\r\n"));
    }
    assert_ne!(file(&entry).representations[0].etag, file(&entry).representations[1].etag);
    assert!(Rc::ptr_eq(&bench.again("/a.js", Some(&entry)), &entry), "nothing changed");
    assert!(!bench.tree.asked.iter().any(|asked| asked.starts_with("read")));

    bench.tree.facts_mut("a.js.br").modified.seconds -= 1;
    let entry = bench.again("/a.js", Some(&entry));
    let codings: Vec<_> = file(&entry).representations.iter().map(|form| form.coding).collect();
    assert_eq!(codings, [None, Some(Coding::Gzip)], "older than its source");
    bench.tree.remove("a.js.gz");
    let entry = bench.again("/a.js", Some(&entry));
    assert_eq!(file(&entry).representations.len(), 1);
    let fields = String::from_utf8_lossy(&file(&entry).representations[0].fields);
    assert!(fields.contains("Vary: Accept-Encoding\r\n"), "there may be others again");
    bench.look("/b.zip");
    assert_eq!(bench.tree.asked, ["open b.zip", "read b.zip"], "what is compressed has no sidecars");
}

#[test]
fn an_index_that_comes_later_is_seen() {
    let two = config::Site { index: vec!["index.html".into(), "index.htm".into()], ..site() };
    let mut bench = Bench::new(two, &[("d/index.htm", "old")]);
    let entry = bench.look("/d/");
    assert_eq!(file(&entry).path.as_deref(), Some(b"/d/index.htm".as_slice()));
    bench.tree.put("d/index.html", "new");
    let entry = bench.again("/d/", Some(&entry));
    assert_eq!(file(&entry).path.as_deref(), Some(b"/d/index.html".as_slice()));
}

fn codings(entry: &Entry) -> Vec<(Option<Coding>, Origin)> {
    file(entry).representations.iter().map(|form| (form.coding, form.origin)).collect()
}

/// What a site with a cache directory has of one source, with a variant in each coding named.
fn cached(source: &str, made: &[Coding]) -> (Bench, Vec<String>) {
    let mut bench = Bench::new(site(), &[("a.js", source)]);
    bench.has_cache = true;
    let names = made.iter().map(|coding| bench.tree.put_variant("a.js", *coding, coding.name().as_bytes()));
    let names = names.collect();
    (bench, names)
}

#[test]
fn variants_are_taken_from_the_cache_and_looked_at_once() {
    let source = "let x = 1;".repeat(9);
    let (mut bench, names) = cached(&source, &[Coding::Brotli]);
    bench.tree.put("a.js.gz", "sidecar");
    bench.tree.put("a.js.br", "sidecar");
    let entry = bench.look("/a.js");
    let expected = [
        (None, Origin::Itself),
        (Some(Coding::Brotli), Origin::Cache),
        (Some(Coding::Gzip), Origin::Sidecar),
    ];
    assert_eq!(codings(&entry), expected);
    let form = &file(&entry).representations[1];
    assert_eq!((bytes(form), form.length), (Some(b"br".as_slice()), 2), "without its footer");
    assert_eq!(*form.etag, format!("\"{:032x}\"", xxhash_rust::xxh3::xxh3_128(b"br")));
    let fields = String::from_utf8_lossy(&form.fields);
    assert!(fields.contains("Content-Length: 2\r\nContent-Encoding: br\r\n"), "{fields}");
    assert!(fields.starts_with("Content-Type: text/javascript"), "the source's: {fields}");

    assert!(Rc::ptr_eq(&bench.again("/a.js", Some(&entry)), &entry));
    assert!(!bench.tree.asked.iter().any(|asked| asked.starts_with("read") || asked.ends_with(".br")));
    bench.tree.remove(&names[0]);
    bench.has_cache = false;
    bench.tree.remove("a.js.br");
    let identity = bench.again("/a.js", Some(&entry));
    assert_eq!(codings(&identity), [expected[0], expected[2]], "no directory, no variants");
    bench.has_cache = true;
    bench.tree.put_variant("a.js", Coding::Zstd, b"zstd");
    assert_eq!(codings(&bench.again("/a.js", Some(&identity))).len(), 3, "a new one is seen");
    bench.tree.put("a.js", "let x = 2;".repeat(9));
    assert_eq!(codings(&bench.again("/a.js", Some(&identity)))[0], (None, Origin::Itself));
    assert_eq!(codings(&bench.again("/a.js", Some(&identity))).len(), 2, "none of the new source");
}

#[test]
fn a_variant_in_ram_outlasts_a_second_look_at_its_source() {
    let source = "let x = 1;".repeat(9);
    let (mut bench, _) = cached(&source, &[]);
    bench.tree.facts_mut("a.js").changed = Stamp { seconds: 1_999_999, nanoseconds: 0 };
    let name = bench.tree.put_variant("a.js", Coding::Brotli, b"br");
    let young = bench.look("/a.js");
    assert!(!file(&young).representations[0].settled);
    let again = bench.again("/a.js", Some(&young));
    assert!(
        bench.tree.asked.contains(&"read a.js".into()) && bench.tree.asked.contains(&format!("read {name}"))
    );
    assert_eq!(bytes(&file(&again).representations[1]), Some(b"br".as_slice()));
    // Other contents with the same facts have no variant yet.
    bench.tree.falsify("a.js", |bytes| bytes[8] = b'2');
    assert_eq!(codings(&bench.again("/a.js", Some(&young))), [(None, Origin::Itself)]);
    // Nor is the one in RAM taken where another has its place.
    bench.tree.falsify("a.js", |bytes| bytes[8] = b'1');
    let facts = *bench.tree.facts_mut(&name);
    bench.tree.put_variant("a.js", Coding::Brotli, b"rb");
    *bench.tree.facts_mut(&name) = facts;
    let other = bench.again("/a.js", Some(&young));
    assert_eq!(file(&other).representations[1].hash, Some(xxhash_rust::xxh3::xxh3_128(b"rb")));
    assert_eq!(bytes(&file(&other).representations[1]), None);
}

#[test]
fn what_is_not_the_variant_is_not_served() {
    let source = "let x = 1;".repeat(9);
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, Change); 5] = [
        ("cut", |bytes| bytes.truncate(bytes.len() - 1)),
        ("cut in front", |bytes| *bytes = bytes[1..].to_vec()),
        ("a bit of the body", |bytes| bytes[0] ^= 1),
        ("a bit of the footer", |bytes| bytes[3] ^= 1),
        ("foreign", |bytes| bytes.fill(b'x')),
    ];
    for large in [false, true] {
        for (what, change) in changes {
            // Of a large one only the footer is read.
            let (mut bench, names) = cached(&source, &[Coding::Brotli, Coding::Gzip]);
            bench.memory.file_max = if large { 0 } else { 1000 };
            bench.tree.falsify(&names[0], change);
            bench.tree.put("a.js.br", "sidecar");
            let entry = bench.look("/a.js");
            let expected = if large && what == "a bit of the body" { Origin::Cache } else { Origin::Sidecar };
            assert_eq!(codings(&entry)[1], (Some(Coding::Brotli), expected), "{what}");
            assert_eq!(codings(&entry)[2], (Some(Coding::Gzip), Origin::Cache), "{what}");
            let gzip = &file(&entry).representations[2];
            assert_eq!((gzip.length, bytes(gzip).is_none()), (4, large));
            assert_eq!(gzip.hash, Some(xxhash_rust::xxh3::xxh3_128(b"gzip")));
        }
    }
    // Other contents with the same facts, as after a change within the tick of the file system's clock.
    let (mut bench, _) = cached(&source, &Coding::ALL);
    bench.tree.falsify("a.js", |bytes| bytes[8] = b'2');
    assert_eq!(codings(&bench.look("/a.js")), [(None, Origin::Itself)]);
    let (mut bench, _) = cached(&source, &Coding::ALL);
    bench.memory.file_max = 0;
    bench.clock.wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_001);
    assert_eq!(codings(&bench.look("/a.js")), [(None, Origin::Itself)], "too young to be told apart");
}

#[test]
fn a_site_may_ship_the_compressed_file_alone() {
    let source = "let x = 1;".repeat(200);
    let coded = |coding| crate::files::compress::cheaply(source.as_bytes(), coding).expect("it compresses");
    let mut bench = Bench::new(site(), &[]);
    bench.tree.put("a.js.gz", coded(Coding::Gzip));
    let entry = bench.look("/a.js");
    assert_eq!(codings(&entry), [(Some(Coding::Gzip), Origin::Sidecar)]);
    assert!(!bench.tree.asked.iter().any(|asked| asked.starts_with("decode")), "not before it is needed");
    bench.plain = true;
    let plain = bench.again("/a.js", Some(&entry));
    assert_eq!(codings(&plain), [(None, Origin::Decoded), (Some(Coding::Gzip), Origin::Sidecar)]);
    assert_eq!(bytes(&file(&plain).representations[0]), Some(source.as_bytes()));
    bench.plain = false;
    assert!(Rc::ptr_eq(&bench.again("/a.js", Some(&plain)), &plain), "and is kept");
    bench.tree.put("a.js.gz", coded(Coding::Gzip));
    assert_eq!(codings(&bench.again("/a.js", Some(&plain))), codings(&entry), "while it is the same");

    bench.plain = true;
    bench.tree.put("a.js.gz", "no gzip");
    let broken = bench.look("/a.js");
    assert!(file(&broken).undecodable && codings(&broken) == codings(&entry));
    assert!(Rc::ptr_eq(&bench.again("/a.js", Some(&broken)), &broken), "not tried again");
    // 1 MiB of memory allows an eighth of it for decoding.
    let bomb = crate::files::compress::cheaply(&[b'x'; 200 << 10], Coding::Zstd).expect("it compresses");
    bench.tree.put("b.js.zst", &bomb);
    assert!(file(&bench.look("/b.js")).undecodable);
    bench
        .tree
        .put("c.js.zst", crate::files::compress::cheaply(&[b'x'; 100 << 10], Coding::Zstd).expect("it"));
    assert_eq!(file(&bench.look("/c.js")).representations[0].length, 100 << 10, "at the second try");
    let rest = (1 << 20) - bench.memory.budget.gauge.held();
    let all = bench.memory.budget.reserve(rest).expect("all memory");
    assert!(matches!(bench.look("/c.js").target, Target::Refused(503)));
    drop(all);
    assert!(matches!(bench.look("/none.js").target, Target::Refused(404)));
    assert_eq!(bench.tree.asked.len(), 4, "{:?}", bench.tree.asked);
}
