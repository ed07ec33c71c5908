//! Compressed forms of files: from the cache directory, from sidecars, made for listings.

use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use httpd::files::entry::Coding;
use httpd::files::variants::{Fingerprint, Footer, root_name};
use httpd::sys::file::Stamp;
use xxhash_rust::xxh3::xxh3_128;

use crate::kit::{Client, PATIENCE, Response, Server, Site};
use crate::processes::until;

const CACHE: &str = "[cache]\nrevalidate = \"50ms\"\ndir = \"FOLDER/cache\"\nmin_size = 100\n";
/// What curl says with `--compressed`.
const ALL: &str = "Accept-Encoding: deflate, gzip, br, zstd\r\n";

/// A site with a cache directory, which the supervisor of a real one makes.
fn site() -> Site {
    let site = Site::new().with(CACHE);
    std::fs::create_dir(site.root().with_file_name("cache")).expect("a cache directory");
    site
}

fn encode(coding: Coding, plain: &[u8]) -> Vec<u8> {
    match coding {
        Coding::Brotli => {
            let mut coded = Vec::new();
            brotli::CompressorWriter::new(&mut coded, 4096, 2, 20).write_all(plain).expect("memory");
            coded
        }
        Coding::Zstd => zstd::bulk::compress(plain, 3).expect("memory"),
        Coding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(plain).expect("memory");
            encoder.finish().expect("memory")
        }
    }
}

fn decode(response: &Response) -> Vec<u8> {
    let (mut plain, coded) = (Vec::new(), &response.body[..]);
    let read = match response.field("content-encoding") {
        None => return response.body.clone(),
        Some("br") => brotli::Decompressor::new(coded, 4096).read_to_end(&mut plain),
        Some("zstd") => zstd::stream::read::Decoder::new(coded).and_then(|mut it| it.read_to_end(&mut plain)),
        Some("gzip") => flate2::read::GzDecoder::new(coded).read_to_end(&mut plain),
        Some(other) => panic!("a coding {other}"),
    };
    read.expect("what was sent can be decoded");
    plain
}

/// Where the variant of a file belongs.
fn variant_path(server: &Server, name: &str, coding: Coding) -> PathBuf {
    let facts = std::fs::metadata(server.root().join(name)).expect("the source");
    let stamp = |seconds, nanoseconds: i64| Stamp { seconds, nanoseconds: nanoseconds as u32 };
    let print = Fingerprint {
        inode: facts.ino(),
        size: facts.size(),
        modified: stamp(facts.mtime(), facts.mtime_nsec()),
        changed: stamp(facts.ctime(), facts.ctime_nsec()),
    };
    let root = root_name(server.root().as_os_str().as_encoded_bytes());
    server.folder().join("cache").join(root).join(print.path(coding))
}

/// Makes a variant as the precompressor does.
fn make(server: &Server, name: &str, coding: Coding) -> PathBuf {
    let path = variant_path(server, name, coding);
    let source = std::fs::read(server.root().join(name)).expect("the source");
    let coded = encode(coding, &source);
    let footer = Footer {
        coded_length: coded.len() as u64,
        source_hash: xxh3_128(&source),
        coded_hash: xxh3_128(&coded),
    };
    let name = path.file_name().expect("a name").as_encoded_bytes();
    let (print, _) = Fingerprint::from_name(name).expect("a variant's name");
    publish(&path, &[&coded[..], &footer.encode(&print, coding)].concat());
    path
}

fn publish(path: &Path, bytes: &[u8]) {
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("directories");
    let temporary = path.with_extension("tmp");
    std::fs::write(&temporary, bytes).expect("a file");
    std::fs::rename(temporary, path).expect("published");
}

/// Asks until the answer is in this coding, as it has to be soon.
fn soon(client: &mut Client, path: &str, fields: &str, coding: Option<&str>) -> Response {
    let begun = Instant::now();
    loop {
        let response = client.request("GET", path, fields);
        if response.field("content-encoding") == coding {
            return response;
        }
        assert!(begun.elapsed() < PATIENCE, "{path} does not come in {coding:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn text(length: usize) -> Vec<u8> {
    (0..)
        .flat_map(|n: u32| format!("{n} {:x}\n", n.wrapping_mul(2_654_435_761)).into_bytes())
        .take(length)
        .collect()
}

#[test]
fn every_file_in_every_accepted_coding_decodes_to_the_source() {
    let mut site = site();
    let mut names = Vec::new();
    // Around the bounds of what is read into memory (1 MiB), and of one piece of a transfer.
    for (index, length) in [0, 1, 99, 1000, 1001, 5000, 65_535, 400_000, 1 << 20, (1 << 20) + 1, 3_000_000]
        .into_iter()
        .enumerate()
    {
        for extension in ["html", "png", "css", "svg", "wasm", "txt"] {
            // Large ones take long to compress without optimisation.
            if length > 100_000 && !matches!(extension, "html" | "png") {
                continue;
            }
            let name = format!("{index}/a file.{extension}");
            site = site.file(&name, &text(length));
            names.push(name);
        }
    }
    let server = site.start();
    for name in names.iter().filter(|name| !name.ends_with("png")) {
        for coding in Coding::ALL {
            make(&server, name, coding);
        }
    }
    let mut client = server.connect();
    // A source that is not in RAM has to be two seconds old: until then it may change without its times showing it.
    until("the large ones are old enough", || {
        let coded = |name: &str| {
            let target = format!("/{}", name.replace(' ', "%20"));
            let response = client.request("GET", &target, "Accept-Encoding: br\r\n");
            response.field("content-encoding") == Some("br")
        };
        ["9/a file.html", "10/a file.html"].into_iter().all(coded)
    });
    for name in &names {
        let source = std::fs::read(server.root().join(name)).expect("the source");
        let target = format!("/{}", name.replace(' ', "%20"));
        let mut tags = Vec::new();
        for (accepted, coding) in
            [("identity", None), ("br", Some("br")), ("zstd", Some("zstd")), ("gzip", Some("gzip"))]
        {
            let fields = format!("Accept-Encoding: {accepted}\r\n");
            let response = client.request("GET", &target, &fields);
            assert_eq!(response.status, 200, "{target}");
            assert!(decode(&response) == source, "{target} in {accepted}");
            let expected = coding.filter(|_| source.len() >= 100 && !name.ends_with("png"));
            assert_eq!(response.field("content-encoding"), expected, "{target}");
            let varies = !name.ends_with("png");
            assert_eq!(response.field("vary").is_some(), varies, "{target}");
            let head = client.request("HEAD", &target, &fields);
            assert_eq!(head.field("content-length"), response.field("content-length"), "{target}");
            tags.push(response.field("etag").expect("a tag").to_owned());
        }
        tags.sort();
        tags.dedup();
        let coded = source.len() >= 100 && !name.ends_with("png");
        assert_eq!(tags.len(), if coded { 4 } else { 1 }, "{target}: a tag for each form");
        assert!(tags.iter().all(|tag| tag.starts_with('"') || source.len() > 1 << 20), "strong: {tags:?}");
    }
}

#[test]
fn conditions_and_ranges_are_about_the_form_that_was_chosen() {
    for length in [5000, 2_000_000] {
        let server = site().file("a.txt", &text(length)).start();
        make(&server, "a.txt", Coding::Gzip);
        let mut client = server.connect();
        // What is not read into memory has to be older than two seconds.
        let coded = soon(&mut client, "/a.txt", ALL, Some("gzip"));
        let plain = client.get("/a.txt");
        assert_eq!(coded.field("content-encoding"), Some("gzip"));
        assert_eq!(coded.field("content-type"), plain.field("content-type"));
        let tag = coded.field("etag").expect("a tag");
        assert_ne!(Some(tag), plain.field("etag"));
        let again = client.request("GET", "/a.txt", &format!("{ALL}If-None-Match: {tag}\r\n"));
        assert_eq!((again.status, again.field("vary")), (304, Some("Accept-Encoding")));
        let other = client.request("GET", "/a.txt", &format!("If-None-Match: {tag}\r\n"));
        assert_eq!(other.status, 200, "another form's tag");

        let range = format!("{ALL}Range: bytes=10-19\r\n");
        for condition in [String::new(), format!("If-Range: {tag}\r\n")] {
            let part = client.request("GET", "/a.txt", &format!("{range}{condition}"));
            assert_eq!((part.status, part.field("content-encoding")), (206, Some("gzip")));
            assert_eq!(part.field("vary"), Some("Accept-Encoding"));
            let place = format!("bytes 10-19/{}", coded.body.len());
            assert_eq!(part.field("content-range"), Some(place.as_str()));
            assert!(part.body == coded.body[10..20]);
        }
        let whole = client.request("GET", "/a.txt", &format!("Range: bytes=10-19\r\nIf-Range: {tag}\r\n"));
        assert_eq!((whole.status, whole.body.len()), (200, length), "a part of another form is of no use");
        let beyond = format!("{ALL}Range: bytes={}-\r\n", coded.body.len());
        assert_eq!(client.request("GET", "/a.txt", &beyond).status, 416, "the footer is not there");
    }
}

#[test]
fn the_cache_may_come_go_and_be_damaged() {
    let mut server = site().file("a.txt", &text(5000)).file("b.txt", &text(2_000_000)).start();
    let mut client = server.connect();
    for name in ["a.txt", "b.txt"] {
        let (path, source) = (format!("/{name}"), std::fs::read(server.root().join(name)).expect("it"));
        assert_eq!(client.request("GET", &path, ALL).field("content-encoding"), None);
        let gzip = make(&server, name, Coding::Gzip);
        assert!(decode(&soon(&mut client, &path, ALL, Some("gzip"))) == source);
        make(&server, name, Coding::Brotli);
        assert!(decode(&soon(&mut client, &path, ALL, Some("br"))) == source);
        // Cut, foreign, and of something else, each under a name that is not in memory yet.
        let zstd = variant_path(&server, name, Coding::Zstd);
        let good = std::fs::read(&gzip).expect("a variant");
        for bad in [&good[..good.len() - 1], &good[..100], b"", b"foreign", &good[..]] {
            publish(&zstd, bad);
            std::thread::sleep(Duration::from_millis(120));
            let response = client.request("GET", &path, "Accept-Encoding: zstd\r\n");
            assert_eq!((response.status, response.field("content-encoding")), (200, None));
            assert!(response.body == source);
        }
    }
    // A new file has no variant yet.
    std::fs::write(server.root().join("new"), text(6000)).expect("a file");
    std::fs::rename(server.root().join("new"), server.root().join("a.txt")).expect("deployed");
    assert!(soon(&mut client, "/a.txt", ALL, None).body == text(6000));
    make(&server, "a.txt", Coding::Gzip);
    soon(&mut client, "/a.txt", ALL, Some("gzip"));

    let (cache, aside) = (server.folder().join("cache"), server.folder().join("aside"));
    std::fs::rename(&cache, &aside).expect("moved away");
    assert!(soon(&mut client, "/a.txt", ALL, None).body == text(6000));
    server.wait_for("files are served as they are");
    std::fs::rename(&aside, &cache).expect("moved back");
    soon(&mut client, "/a.txt", ALL, Some("gzip"));
    server.wait_for("there again");
    let told = server.said.iter().filter(|line| line.contains("served as they are")).count();
    assert!(told <= 2, "once by each worker:\n{}", server.said.join("\n"));
}

#[test]
fn a_site_may_ship_compressed_files() {
    let source = text(5000);
    let mut site = site().file("both.js", &source);
    for coding in Coding::ALL {
        let coded = encode(coding, &source);
        site = site.file(&format!("both.js{}", coding.suffix()), &coded);
        site = site.file(&format!("only-{}.js{}", coding.name(), coding.suffix()), &coded);
    }
    let bomb = encode(Coding::Gzip, &vec![0; 200 << 20]);
    let server = site.file("bomb.js.gz", &bomb).file("broken.js.gz", b"no gzip").start();
    let mut client = server.connect();
    for coding in Coding::ALL {
        let fields = format!("Accept-Encoding: {}\r\n", coding.name());
        let response = client.request("GET", "/both.js", &fields);
        assert_eq!(response.field("content-encoding"), Some(coding.name()));
        assert!(decode(&response) == source);
        let only = format!("/only-{}.js", coding.name());
        let response = client.request("GET", &only, &fields);
        assert_eq!(response.field("content-encoding"), Some(coding.name()));
        assert!(decode(&response) == source);
        let plain = client.get(&only);
        assert_eq!((plain.status, plain.field("content-encoding")), (200, None), "{only}");
        assert!(plain.body == source, "decoded for who takes no coding");
        assert_eq!(plain.field("content-type"), Some("text/javascript; charset=utf-8"));
        let part = client.request("GET", &only, "Range: bytes=100-199\r\n");
        assert!(part.status == 206 && part.body == source[100..200]);
    }
    for (path, body) in [("/bomb.js", bomb.as_slice()), ("/broken.js", b"no gzip")] {
        let response = client.get(path);
        assert_eq!((response.status, response.field("content-encoding")), (200, Some("gzip")), "{path}");
        assert!(response.body == body);
    }
    assert_eq!(client.get("/none.js").status, 404);
    assert_eq!(client.get("/both.js.gz").field("content-type"), Some("application/gzip"), "a download");
}

#[test]
fn listings_and_error_pages_are_compressed() {
    let mut site = site().keys("listing = true\n[site.error_pages]\n404 = \"/404.html\"\n");
    for number in 0..200 {
        site = site.file(&format!("list/{number}.txt"), b"x");
    }
    let server = site.file("404.html", &text(5000)).start();
    make(&server, "404.html", Coding::Brotli);
    let mut client = server.connect();
    let plain = client.get("/list/");
    for (accepted, coding) in [("gzip", "gzip"), ("br, gzip", "gzip"), ("br, gzip, zstd", "zstd")] {
        let fields = format!("Accept-Encoding: {accepted}\r\n");
        for _ in 0..2 {
            let coded = client.request("GET", "/list/", &fields);
            assert_eq!(coded.field("content-encoding"), Some(coding));
            assert!(coded.body.len() * 4 < plain.body.len());
            assert!(decode(&coded) == plain.body);
        }
    }
    assert_eq!(client.request("GET", "/list/", "Accept-Encoding: br\r\n").field("content-encoding"), None);
    assert_eq!(plain.field("vary"), Some("Accept, Accept-Encoding"));
    let missing = client.request("GET", "/none", ALL);
    assert_eq!((missing.status, missing.field("content-encoding")), (404, Some("br")));
    assert_eq!(missing.field("vary"), Some("Accept-Encoding"));
    assert!(decode(&missing) == text(5000));
}

#[test]
fn curl_decodes_what_it_asked_for() {
    let source = text(100_000);
    let server = site().file("a.html", &source).start();
    make(&server, "a.html", Coding::Gzip);
    make(&server, "a.html", Coding::Brotli);
    let url = format!("http://{}/a.html", server.address());
    for arguments in [&["--compressed"][..], &[]] {
        let output = Command::new("curl").args(["-sS", "--fail"]).args(arguments).arg(&url).output();
        let Ok(output) = output else { return eprintln!("curl is not installed") };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout == source, "{arguments:?}");
    }
}

#[test]
fn a_cache_that_is_made_after_the_start_is_read_by_new_workers() {
    let server = Site::new().with(CACHE).file("a.html", &text(5000)).start();
    assert_eq!(server.connect().request("GET", "/a.html", ALL).field("content-encoding"), None);
    make(&server, "a.html", Coding::Gzip);
    let begun = Instant::now();
    loop {
        // A connection each: those of retiring workers end.
        let mut client = server.connect();
        client.send(format!("GET /a.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{ALL}\r\n").as_bytes());
        let answer = client.rest();
        if answer.windows(22).any(|part| part == b"Content-Encoding: gzip") {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody reads the new cache");
        std::thread::sleep(Duration::from_millis(50));
    }
}
