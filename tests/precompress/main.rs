//! Compressing whole sites with the real binary: that every variant is right whatever happens meanwhile,
//! and that a server keeps them so.
//!
//! `HTTPD_DOCUMENTATION=DIR` has a real tree compressed too; without it, a part of python3.11-doc is taken
//! where that is installed.

mod kit;
mod server;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use httpd::files::entry::Coding;
use kit::{Site, noise, page, said, until};

/// A tree with something of everything.
fn put_everything(site: &Site) {
    site.put("index.html", page(1, 3000));
    site.put("style.css", "a { color: red }\n".repeat(200));
    site.put("data/points.json", format!("[{}]", "[1.25,2.5],".repeat(900)));
    site.put("deep/er/and/deeper/page.html", page(2, 500));
    site.put("icon.svg", format!("<svg>{}</svg>", "<path d='M0 0h1'/>".repeat(100)));
    site.put("code.wasm", [b"\0asm\x01\0\0\0".as_slice(), &[0x41, 0, 0x0b].repeat(700)].concat());
    site.put("noise.txt", noise(3, 5000));
    site.put("small.txt", "x".repeat(511));
    site.put("empty.html", "");
    site.put("picture.png", "y".repeat(5000));
    site.put(".well-known/security.txt", page(4, 200));
    site.put(".git/config.txt", page(5, 200));
    site.put("copy/index.html", page(1, 3000));
    site.put("na\u{ef}ve name.html", page(6, 200));
    symlink("index.html", site.root().join("link.html")).unwrap();
}

#[test]
fn every_file_in_every_coding_decodes_to_its_source() {
    let site = Site::new();
    put_everything(&site);
    let answer = site.compress(&[]);
    assert_eq!(answer["files"], 10, "{answer}");
    let is_served = |name: &str| {
        !name.starts_with(".git") && !["noise.txt", "small.txt", "empty.html", "picture.png"].contains(&name)
    };
    assert_eq!(site.check(is_served), 3 * 10, "nine files and a link, three codings");
    assert_eq!(site.variants().len(), 27, "and nothing else");
    let of = |name: &str, key: &str| {
        let mut all = answer["encodings"].as_array().unwrap().iter();
        all.find(|one| one["name"] == name).unwrap()[key].as_u64().unwrap()
    };
    for coding in ["br", "zstd", "gzip"] {
        assert_eq!((of(coding, "files"), of(coding, "larger")), (9, 1));
    }
    let again = site.compress(&[]);
    assert_eq!((&again["files"], &again["missing"]), (&10.into(), &0.into()), "{again}");
    assert_eq!(site.compress(&["--force"])["missing"], 10);
}

#[test]
fn a_real_tree_decodes() {
    let (tree, size_max) = match std::env::var_os("HTTPD_DOCUMENTATION") {
        Some(tree) => (tree, u64::MAX),
        // Encoders that were built to be debugged take minutes for the large ones.
        None => ("/usr/share/doc/python3.11/html".into(), 12 << 10),
    };
    let tree = Path::new(&tree);
    let files = kit::files_below(tree);
    if files.is_empty() {
        eprintln!("skipped: {} holds no files", tree.display());
        return;
    }
    let site = Site::new();
    for file in files.iter().filter(|file| file.metadata().is_ok_and(|facts| facts.len() <= size_max)) {
        let contents = fs::read(file).expect("it is readable");
        site.put(file.strip_prefix(tree).unwrap().to_str().expect("a name that is text"), contents);
    }
    let answer = site.compress(&[]);
    assert!(answer["files"].as_u64() >= Some(10) && answer["skipped"] == 0, "{answer}");
    assert_eq!(site.compress(&[])["missing"], 0);
    let checked = site.check(|_| false);
    let made: u64 =
        answer["encodings"].as_array().unwrap().iter().map(|one| one["files"].as_u64().unwrap()).sum();
    assert!(checked as u64 >= made, "{checked} of {made}: files that are equal by inode share variants");
}

#[test]
fn large_files_stream() {
    let site = Site::new();
    let large = page(9, 4_000_000);
    assert!(large.len() > 17 << 20, "{}", large.len());
    site.put("large.txt", &large);
    site.configure("encodings = [\"br\", \"gzip\"]");
    site.compress(&[]);
    assert_eq!(site.check(|_| false), 2);
    site.configure("encodings = [\"br\", \"gzip\"]\nmax_size = \"1MiB\"");
    assert_eq!(site.compress(&[])["files"], 0);
}

#[test]
fn only_what_is_asked_for_is_made() {
    let site = Site::with("encodings = [\"gzip\"]\nmin_size = 2000\ntypes = [\"application/pdf\"]");
    site.put("a.html", page(1, 100));
    site.put("b.html", page(1, 1000));
    site.put("c.pdf", page(2, 1000));
    let plan = site.compress(&["--dry-run"]);
    assert_eq!((&plan["files"], &plan["missing"]), (&2.into(), &2.into()));
    assert!(!site.cache().exists(), "a rehearsal writes nothing");
    site.compress(&["--jobs", "1"]);
    assert_eq!(site.variants().len(), 2);
    site.configure("encodings = [\"gzip\", \"zstd\"]\nmin_size = 2000");
    let more = site.compress(&[]);
    assert_eq!((&more["files"], &more["missing"]), (&1.into(), &1.into()), "zstd of the page alone: {more}");
}

/// The time of a change of the inode is in the name: contents that changed behind an unchanged time of
/// modification have no variant.
#[test]
fn the_same_time_with_other_contents_is_another_file() {
    let site = Site::new();
    let path = site.put("a.html", page(1, 500));
    let time = SystemTime::now() - Duration::from_secs(86_400);
    let set = || fs::File::open(&path).unwrap().set_modified(time).unwrap();
    set();
    site.compress(&[]);
    let before = site.variant(&path, Coding::Brotli);
    let length = fs::metadata(&path).unwrap().len() as usize;
    fs::write(&path, &page(2, 900).as_bytes()[..length]).unwrap();
    set();
    assert_ne!(site.variant(&path, Coding::Brotli), before);
    assert!(!site.variant(&path, Coding::Brotli).exists());
    assert_eq!(site.compress(&[])["missing"], 1);
    assert_eq!(site.check(|_| true), 3);

    // Times to come, as before a clock was set back.
    fs::File::open(&path).unwrap().set_modified(SystemTime::now() + Duration::from_secs(999_999)).unwrap();
    assert_eq!(site.compress(&[])["missing"], 1);
    assert_eq!(site.compress(&[])["missing"], 0);
    assert_eq!(site.check(|_| true), 3);
}

#[test]
fn equal_contents_are_compressed_once() {
    let site = Site::new();
    for number in 0..5 {
        site.put(&format!("{number}.html"), page(number, 300));
    }
    site.compress(&[]);
    let release = site.directory.path().join("next");
    fs::rename(site.root(), &release).unwrap();
    for number in 0..5 {
        site.put(&format!("{number}.html"), page(number, 300));
    }
    let answer = site.compress(&[]);
    for one in answer["encodings"].as_array().unwrap() {
        assert_eq!((&one["files"], &one["reused"]), (&5.into(), &5.into()), "{answer}");
    }
    assert_eq!(site.check(|_| true), 15);
}

#[test]
fn what_is_broken_is_made_anew_and_what_is_foreign_stays() {
    let site = Site::new();
    let path = site.put("a.html", page(1, 500));
    site.compress(&[]);
    let variant = site.variant(&path, Coding::Zstd);
    let bytes = fs::read(&variant).unwrap();
    fs::write(&variant, &bytes[..bytes.len() / 2]).unwrap();
    fs::write(site.variant(&path, Coding::Gzip), "foreign").unwrap();
    let foreign = variant.with_file_name("README");
    fs::write(&foreign, "not ours").unwrap();
    assert_eq!(site.compress(&[])["missing"], 1);
    assert_eq!(site.check(|_| true), 3);
    assert!(foreign.exists());
}

#[test]
fn what_no_source_needs_is_taken_away_after_a_while() {
    let site = Site::with("keep = \"1h\"");
    let (stays, goes) = (site.put("stays.html", page(1, 500)), site.put("goes.html", page(2, 500)));
    site.compress(&[]);
    let (kept, orphan) = (site.variant(&stays, Coding::Brotli), site.variant(&goes, Coding::Brotli));
    fs::remove_file(&goes).unwrap();
    assert_eq!(site.compress(&[])["collected_files"], 0, "a deploy may be taken back");
    let long_ago = SystemTime::now() - Duration::from_secs(7200);
    for variant in kit::files_below(&site.cache()) {
        fs::File::open(variant).unwrap().set_modified(long_ago).unwrap();
    }
    assert_eq!(site.compress(&[])["collected_files"], 3);
    assert!(kept.exists() && !orphan.exists());
    assert!(fs::metadata(kept).unwrap().modified().unwrap() > long_ago, "it was needed just now");
}

#[test]
fn files_that_change_meanwhile_are_never_published_wrong() {
    let site = Site::with("encodings = [\"zstd\", \"gzip\"]");
    for number in 0..20 {
        site.put(&format!("{number}.html"), page(number, 200));
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 100;
            while !over.load(Ordering::Relaxed) {
                for number in 0..10 {
                    seed += 1;
                    let path = site.root().join(format!("{number}.html"));
                    match number % 2 {
                        0 => fs::write(&path, page(seed, 200)).unwrap(),
                        _ => {
                            let new = path.with_extension("new");
                            fs::write(&new, page(seed, 200)).unwrap();
                            fs::rename(&new, &path).unwrap();
                        }
                    }
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for _ in 0..3 {
            let output = site.command(&["--jobs", "4"]).output().expect("the binary runs");
            assert!(output.status.success(), "{}", said(&output));
            // Each is what its footer says, and what its source was.
            site.variants();
        }
        over.store(true, Ordering::Relaxed);
    });
    site.check(|_| false);
    site.compress(&[]);
    assert_eq!(site.check(|_| false), 40);
}

#[test]
fn killed_at_any_moment_it_leaves_nothing_broken() {
    let site = Site::with("encodings = [\"br\", \"gzip\"]");
    for number in 0..40 {
        site.put(&format!("{number}.html"), page(number, 150));
    }
    let mut delay = 17;
    for _ in 0..12 {
        let mut running = site.command(&["--json"]).spawn().expect("the binary runs");
        delay = (delay * 73) % 401;
        std::thread::sleep(Duration::from_millis(delay));
        running.kill().expect("it is ours");
        running.wait().expect("it ends");
        site.variants();
        site.check(|_| false);
    }
    site.compress(&[]);
    assert_eq!(site.check(|_| false), 80);
    assert_eq!(site.compress(&[])["missing"], 0);
}

#[test]
fn an_interruption_leaves_nothing_behind() {
    let site = Site::with("encodings = [\"br\"]");
    site.put("large.txt", page(1, 2_000_000));
    let mut running = site.command(&["--json"]).spawn().expect("the binary runs");
    until("it has begun", || !site.drafts().is_empty());
    kit::signal(running.id(), "INT");
    assert_eq!(running.wait().expect("it ends").code(), Some(1));
    assert_eq!(site.drafts(), Vec::<PathBuf>::new());
}

/// Mounts need a namespace of their own, and rights to make one.
fn in_own_mounts(script: &str) -> Option<std::process::Output> {
    let output = Command::new("unshare").args(["-m", "sh", "-c", script]).output().ok()?;
    let could = !String::from_utf8_lossy(&output.stderr).contains("cannot mount");
    if !could || output.status.code() == Some(99) {
        eprintln!("skipped: no file system can be mounted here: {}", said(&output));
        return None;
    }
    Some(output)
}

#[test]
fn a_full_disk_is_said_once_and_what_was_written_is_right() {
    let site = Site::new();
    for number in 0..30 {
        site.put(&format!("{number}.html"), page(number, 2000));
    }
    fs::create_dir(site.cache()).unwrap();
    let (cache, binary) = (site.cache(), env!("CARGO_BIN_EXE_httpd"));
    let script = format!(
        "mount -t tmpfs -o size=48k tmpfs {cache} || exit 99\n{binary} compress -c {config}; code=$?\n\
         mkdir {cache}.copy && cp -r {cache}/. {cache}.copy; exit $code",
        cache = cache.display(),
        config = site.config().display()
    );
    let Some(output) = in_own_mounts(&script) else { return };
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("No space left on device").count(), 1, "{said}");
    fs::remove_dir(&cache).unwrap();
    fs::rename(cache.with_extension("copy"), &cache).unwrap();
    let variants = site.variants().len();
    assert!(variants < 90, "{variants} fit");
    site.compress(&[]);
    assert_eq!(site.check(|_| true), 90);
}

#[test]
fn a_read_only_cache_is_said_once() {
    let site = Site::new();
    site.put("a.html", page(1, 500));
    site.put("b.html", page(2, 500));
    fs::create_dir(site.cache()).unwrap();
    let (cache, binary, config) = (site.cache(), env!("CARGO_BIN_EXE_httpd"), site.config());
    let (cache, config) = (cache.display(), config.display());
    let script = format!("mount -t tmpfs -o ro tmpfs {cache} || exit 99\nexec {binary} compress -c {config}");
    let Some(output) = in_own_mounts(&script) else { return };
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert_eq!(said.matches("Read-only file system").count(), 1, "{said}");
}

#[test]
fn a_cache_that_is_no_directory_is_refused() {
    let site = Site::new();
    site.put("a.html", page(1, 500));
    fs::write(site.cache(), "").unwrap();
    let output = site.command(&[]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("cannot make the cache directory"), "{}", said(&output));
    let output = site.command(&["--dry-run"]).output().expect("the binary runs");
    assert_eq!(output.status.code(), Some(1));
    let said = said(&output);
    assert!(said.contains("cannot read the cache") && !said.contains("all variants are there"), "{said}");
}

#[test]
fn the_table_is_for_people() {
    let site = Site::new();
    put_everything(&site);
    let output = site.command(&[]).output().expect("the binary runs");
    let said = said(&output);
    for part in
        ["10 of them lacked variants", "encoding", "br ", "zstd", "gzip", "largest savings", "index.html"]
    {
        assert!(said.contains(part), "{part} in {said}");
    }
    let output = site.command(&[]).output().expect("the binary runs");
    assert!(kit::said(&output).contains("all variants are there"));
}
