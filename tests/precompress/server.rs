//! The precompressor beside a running server.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use httpd::files::entry::Coding;

use crate::kit::{Server, Site, page, until};

/// Starts a server whose messages go to a file.
fn serve(site: &Site) -> (Server, PathBuf) {
    let log = site.directory.path().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
    command.arg("-c").arg(site.config()).current_dir(site.directory.path());
    let stderr = fs::File::create(&log).expect("a log");
    command.stderr(Stdio::from(stderr)).env_remove("JOURNAL_STREAM");
    (Server::start(command), log)
}

fn has_all(site: &Site, name: &str) -> bool {
    let path = site.root().join(name);
    Coding::ALL.into_iter().all(|coding| site.variant(&path, coding).exists())
}

#[test]
fn what_changes_is_compressed_while_serving() {
    let site = Site::new();
    site.put("a.html", page(1, 300));
    let (_server, log) = serve(&site);
    until("the first pass", || has_all(&site, "a.html"));
    site.put("b.html", page(2, 300));
    site.put("new/directory/c.html", page(3, 300));
    until("new files", || has_all(&site, "b.html") && has_all(&site, "new/directory/c.html"));
    site.put("new/directory/d.html", page(4, 300));
    until("a file in a directory that was new", || has_all(&site, "new/directory/d.html"));
    fs::rename(site.root().join("new"), site.root().join("moved")).unwrap();
    site.put("moved/directory/e.html", page(5, 300));
    until("a file in a directory that was moved", || has_all(&site, "moved/directory/e.html"));
    site.put("a.html", page(6, 300));
    until("a file that was written anew", || has_all(&site, "a.html"));
    site.check(|_| true);
    let log = fs::read_to_string(log).unwrap();
    assert!(!log.contains("warn") && !log.contains("error"), "{log}");
}

#[test]
fn a_root_that_is_flipped_is_compressed_again() {
    let site = Site::new();
    let (one, two) = (site.directory.path().join("one"), site.directory.path().join("two"));
    for (release, seed) in [(&one, 1), (&two, 2)] {
        fs::create_dir(release).unwrap();
        fs::write(release.join("index.html"), page(seed, 300)).unwrap();
    }
    fs::remove_dir(site.root()).unwrap();
    symlink(&one, site.root()).unwrap();
    let (_server, _) = serve(&site);
    until("the first release", || has_all(&site, "index.html"));
    let next = site.directory.path().join("next");
    symlink(&two, &next).unwrap();
    fs::rename(&next, site.root()).unwrap();
    until("the second release", || has_all(&site, "index.html"));
    site.check(|_| true);
}

/// What is left behind counts against its source, which is given up after three times.
#[test]
fn reloads_leave_nothing_behind() {
    let site = Site::with("encodings = [\"br\"]");
    site.put("large.txt", page(1, 2_000_000));
    let (server, _) = serve(&site);
    let mut before = Vec::new();
    for _ in 0..4 {
        until("it is begun again, and by nobody else", || {
            let drafts = site.drafts();
            drafts.len() == 1 && drafts != before
        });
        before = site.drafts();
        server.signal("HUP");
    }
    drop(server);
    assert_eq!(site.drafts(), Vec::<PathBuf>::new());
}

#[test]
fn without_a_cache_directory_nothing_is_made() {
    let site = Site::with("precompress = \"off\"");
    site.put("a.html", page(1, 300));
    let (_server, _) = serve(&site);
    until("it serves", || site.directory.path().join("http.sock").exists());
    assert!(!site.cache().exists());
}

#[test]
fn startup_compresses_before_it_serves() {
    let site = Site::with("precompress = \"startup\"");
    for number in 0..10 {
        site.put(&format!("{number}.html"), page(number, 200));
    }
    let (_server, log) = serve(&site);
    until("it serves", || fs::read_to_string(&log).unwrap_or_default().contains("(pid "));
    assert_eq!(site.check(|_| true), 30);
}
