//! What is served, and what is not.

use std::io::Write;

use crate::kit::{Client, Server, Site};

#[test]
fn a_page_is_served_with_its_fields() {
    let server = Site::new().start();
    let response = server.get("/");
    assert_eq!(response.status, 200);
    assert_eq!(response.body, b"<h1>index</h1>\n");
    assert_eq!(response.field("content-type"), Some("text/html; charset=utf-8"));
    assert_eq!(response.field("accept-ranges"), Some("bytes"));
    for name in ["date", "etag", "last-modified", "server"] {
        assert!(response.field(name).is_some(), "{name} is missing");
    }
}

#[test]
fn head_is_get_without_the_body() {
    let server = Site::new().file("a.txt", b"some text").start();
    let mut client = server.connect();
    let (get, head) = (client.get("/a.txt"), client.request("HEAD", "/a.txt", ""));
    let without_date = |response: &crate::kit::Response| {
        response.fields.iter().filter(|(name, _)| name != "date").cloned().collect::<Vec<_>>()
    };
    assert_eq!((get.status, without_date(&get)), (head.status, without_date(&head)));
    assert_eq!(client.get("/a.txt").body, b"some text");
}

#[test]
fn conditions_save_the_body() {
    let server = Site::new().start();
    let mut client = server.connect();
    let first = client.get("/");
    let etag = first.field("etag").expect("an entity tag");
    let modified = first.field("last-modified").expect("a date");
    for condition in [format!("If-None-Match: {etag}\r\n"), format!("If-Modified-Since: {modified}\r\n")] {
        let again = client.request("GET", "/", &condition);
        assert_eq!(again.status, 304, "{condition}");
        assert_eq!(again.field("etag"), Some(etag));
    }
    assert_eq!(client.request("GET", "/", "If-Match: \"other\"\r\n").status, 412);
}

#[test]
fn a_range_is_a_part() {
    let body: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    let server = Site::new().file("small.bin", &body[..1000]).file("large.bin", &body).start();
    let mut client = server.connect();
    for (path, range, expected) in [
        ("/small.bin", "bytes=10-19", 10..20),
        ("/small.bin", "bytes=-5", 995..1000),
        ("/large.bin", "bytes=2999990-", 2_999_990..3_000_000),
        ("/large.bin", "bytes=100000-1999999", 100_000..2_000_000),
    ] {
        let part = client.request("GET", path, &format!("Range: {range}\r\n"));
        assert_eq!(part.status, 206, "{path} {range}");
        assert!(part.body == body[expected], "{path} {range}");
    }
    let beyond = client.request("GET", "/small.bin", "Range: bytes=1000-\r\n");
    assert_eq!((beyond.status, beyond.field("content-range")), (416, Some("bytes */1000")));
}

#[test]
fn several_ranges_come_as_parts() {
    let body: Vec<u8> = (0..2_000_000u32).map(|index| (index % 241) as u8).collect();
    let server = Site::new().file("large.bin", &body).start();
    let parts = server.connect().request("GET", "/large.bin", "Range: bytes=0-9,1000000-1000009\r\n");
    assert_eq!(parts.status, 206);
    let kind = parts.field("content-type").expect("a type");
    let boundary = kind.strip_prefix("multipart/byteranges; boundary=").expect("a boundary");
    let text = |bytes: &[u8]| bytes.iter().map(|&byte| char::from(byte)).collect::<String>();
    let whole = text(&parts.body);
    assert_eq!(whole.matches(&format!("--{}", boundary.trim_matches('"'))).count(), 3);
    assert!(whole.contains(&text(&body[..10])) && whole.contains(&text(&body[1_000_000..1_000_010])));
}

#[test]
fn a_directory_gets_its_slash_and_keeps_the_query() {
    let server = Site::new().file("docs/index.html", b"docs").start();
    let response = server.get("/docs?x=1");
    assert!([301, 308].contains(&response.status));
    assert!(response.field("location").expect("a location").ends_with("/docs/?x=1"));
    assert_eq!(server.get("/docs/").body, b"docs");
}

#[test]
fn nothing_outside_the_root_can_be_reached() {
    let site = Site::new().file("a/b.txt", b"inside");
    let root = site.root();
    std::fs::write(root.parent().expect("a folder").join("secret.txt"), b"outside").expect("a file");
    std::os::unix::fs::symlink("../secret.txt", root.join("out.txt")).expect("a symlink");
    std::os::unix::fs::symlink("/etc/passwd", root.join("passwd")).expect("a symlink");
    std::os::unix::fs::symlink("..", root.join("up")).expect("a symlink");
    std::os::unix::fs::symlink("a/b.txt", root.join("in.txt")).expect("a symlink");
    let server = site.start();
    for path in [
        "/../secret.txt",
        "/a/../../secret.txt",
        "/%2e%2e/secret.txt",
        "/a/..%2f..%2fsecret.txt",
        "/%2e%2e%2fsecret.txt",
        "/..%5csecret.txt",
        "/out.txt",
        "/passwd",
        "/up/secret.txt",
        "/up/root/index.html",
        "//secret.txt",
        "/.%00/secret.txt",
    ] {
        let status = server.get(path).status;
        assert!((400..500).contains(&status), "{path} gave {status}");
    }
    assert_eq!(server.get("/in.txt").body, b"inside");
    assert_eq!(server.get("/a/./b.txt").body, b"inside");
    assert_eq!(server.get("/x/../a//b.txt").body, b"inside");
}

#[test]
fn names_of_any_bytes_are_served() {
    use std::os::unix::ffi::OsStrExt;
    let site = Site::new().file("with space & 100%.txt", b"one");
    let name = std::ffi::OsStr::from_bytes(b"latin-\xe9.txt");
    std::fs::write(site.root().join(name), b"two").expect("a file");
    let server = site.start();
    assert_eq!(server.get("/with%20space%20&%20100%25.txt").body, b"one");
    assert_eq!(server.get("/latin-%E9.txt").body, b"two");
}

#[test]
fn what_is_not_a_file_is_not_opened() {
    let site = Site::new().file(".hidden", b"x").file(".well-known/a", b"known");
    let fifo = site.root().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.is_ok_and(|status| status.success()));
    let _socket = std::os::unix::net::UnixListener::bind(site.root().join("socket")).expect("a socket");
    let server = site.start();
    for path in ["/fifo", "/socket", "/.hidden", "/index.html/", "/none"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    assert_eq!(server.get("/.well-known/a").body, b"known");
}

#[test]
fn empty_files_and_exact_sizes() {
    let sizes = [0, 1, 4095, 4096, 16 * 1024 - 1, 16 * 1024 + 1, 65536, 1 << 20, (1 << 20) + 1, 5_700_000];
    let body = |size: usize| (0..size).map(|index| (index % 253) as u8).collect::<Vec<_>>();
    let mut site = Site::new();
    for size in sizes {
        site = site.file(&format!("{size}.bin"), &body(size));
    }
    let server = site.start();
    let mut client = server.connect();
    for _ in 0..2 {
        for size in sizes {
            let response = client.get(&format!("/{size}.bin"));
            assert_eq!(response.status, 200);
            assert!(response.body == body(size), "{size} bytes");
        }
    }
}

#[test]
fn virtual_hosts_are_told_apart() {
    let site = Site::new().file("a/index.html", b"a").file("b/index.html", b"b").keys(
        "[[site]]\nhost = \"a.test\"\nroot = \"root/a\"\n[[site]]\nhost = [\"*.b.test\"]\nroot = \"root/b\"\n",
    );
    let server = site.start();
    for (host, body) in
        [("a.test", "a"), ("A.Test:8080", "a"), ("x.b.test", "b"), ("other", "<h1>index</h1>\n")]
    {
        let mut client = server.connect();
        client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
        assert_eq!(client.response(true).body, body.as_bytes(), "{host}");
    }
}

#[test]
fn changes_of_files_are_seen() {
    let server = Site::new().file("page.txt", b"one").start();
    let mut client = server.connect();
    assert_eq!(client.get("/page.txt").body, b"one");
    assert_eq!(client.get("/new.txt").status, 404);
    let root = server.root();
    std::fs::write(root.join("page.txt"), b"two, longer").expect("rewritten");
    std::fs::write(root.join("new.txt"), b"new").expect("created");
    see(&mut client, "/page.txt", |response| response.body == b"two, longer");
    see(&mut client, "/new.txt", |response| response.body == b"new");
    std::fs::write(root.join("other"), b"three").expect("written");
    std::fs::rename(root.join("other"), root.join("page.txt")).expect("replaced");
    see(&mut client, "/page.txt", |response| response.body == b"three");
    std::fs::remove_file(root.join("page.txt")).expect("deleted");
    see(&mut client, "/page.txt", |response| response.status == 404);
}

/// Asks again until the answer is as wanted; a change is to be seen soon after `revalidate`.
fn see(client: &mut Client, path: &str, wanted: impl Fn(&crate::kit::Response) -> bool) {
    let begun = std::time::Instant::now();
    while !wanted(&client.get(path)) {
        assert!(begun.elapsed() < crate::kit::PATIENCE, "{path} did not change");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn a_flipped_root_is_followed() {
    let site = Site::new().file("v1/index.html", b"first").file("v2/index.html", b"second");
    let link = site.root().join("current");
    std::os::unix::fs::symlink("v1", &link).expect("a symlink");
    let server = site.keys("[[site]]\nhost = \"flip.test\"\nroot = \"root/current\"\n").start();
    let mut client = server.connect();
    let mut get = || {
        client.send(b"GET / HTTP/1.1\r\nHost: flip.test\r\n\r\n");
        client.response(true).body
    };
    assert_eq!(get(), b"first");
    std::os::unix::fs::symlink("v2", server.root().join("next")).expect("a symlink");
    std::fs::rename(server.root().join("next"), server.root().join("current")).expect("flipped");
    let begun = std::time::Instant::now();
    while get() != b"second" {
        assert!(begun.elapsed() < crate::kit::PATIENCE);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Downloads `/large.bin` but stops after the first bytes; `change` then happens to the file.
fn interrupted(change: impl Fn(&Server)) -> (usize, Vec<u8>, Vec<u8>) {
    let body: Vec<u8> = (0..30_000_000u32).map(|index| (index % 247) as u8).collect();
    let server = Site::new().file("large.bin", &body).start();
    let mut client = server.connect();
    client.send(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    let (status, fields) = client.head();
    assert_eq!(status, 200);
    let length = fields.iter().find(|(name, _)| name == "content-length").expect("a length");
    let mut received = client.read(1000);
    change(&server);
    received.extend(client.rest_of(length.1.parse::<usize>().expect("a number") - received.len()));
    (length.1.parse().expect("a number"), received, body)
}

#[test]
fn a_file_replaced_while_sent_is_sent_as_it_was() {
    let (_, received, body) = interrupted(|server| {
        std::fs::write(server.root().join("x"), b"new").expect("written");
        std::fs::rename(server.root().join("x"), server.root().join("large.bin")).expect("replaced");
    });
    assert!(received == body);
}

#[test]
fn a_file_deleted_while_sent_is_sent_as_it_was() {
    let (_, received, body) =
        interrupted(|server| std::fs::remove_file(server.root().join("large.bin")).expect("deleted"));
    assert!(received == body);
}

#[test]
fn a_file_cut_while_sent_does_not_look_complete() {
    let (length, received, body) = interrupted(|server| {
        let file = std::fs::OpenOptions::new().write(true).open(server.root().join("large.bin"));
        file.expect("the file").set_len(20_000_000).expect("cut");
    });
    assert!(received.len() < length && body.starts_with(&received));
}

#[test]
fn a_file_rewritten_while_sent_does_not_look_complete() {
    let (length, received, _) = interrupted(|server| {
        let path = server.root().join("large.bin");
        let mut file = std::fs::OpenOptions::new().write(true).open(path).expect("the file");
        file.write_all(&[0; 4096]).expect("rewritten in place");
    });
    assert!(received.len() < length);
}

#[test]
fn a_file_that_grows_while_sent_is_not_taken_for_the_one_promised() {
    let (length, received, body) = interrupted(|server| {
        let path = server.root().join("large.bin");
        let mut file = std::fs::OpenOptions::new().append(true).open(path).expect("the file");
        file.write_all(b"more").expect("appended");
    });
    assert!(received.len() < length && body.starts_with(&received));
}

#[test]
fn a_unix_socket_serves_too() {
    let server =
        Site::new().listening("[[listen]]\naddress = \"unix:FOLDER/http.sock\"\nmode = \"0600\"\n").start();
    let mut stream =
        std::os::unix::net::UnixStream::connect(server.folder().join("http.sock")).expect("connected");
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").expect("sent");
    let mut answer = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut answer).expect("answered");
    assert!(answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(b"<h1>index</h1>\n"));
}
