//! HTTPS. The same tests run twice: here, where the server encrypts in userspace, and on emulated machines
//! whose kernel has TLS (`tests/emulation/run.sh`), where it has to hand large bodies to the kernel.

mod certificates;
mod client;

use std::io::Write;
use std::net::TcpStream;

use self::client::{Secure, Versions};
use crate::kit::{Client, Server, Site};
use crate::processes::{replace_workers, until};

/// Whether this machine is an emulated one, with a kernel that encrypts.
fn emulated() -> bool {
    std::env::var_os("EMULATION_DIR").is_some()
}

/// A site that is served over TLS.
fn site() -> Site {
    let kernel = if emulated() { "require" } else { "off" };
    Site::new()
        .with(&format!("[tls]\nkernel = \"{kernel}\"\n"))
        .listening("[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n")
        .keys("[[site.certificate]]\nself_signed = true\n")
}

/// Bytes that repeat at a distance that is a multiple of nothing in between.
fn body(length: usize) -> Vec<u8> {
    let period: Vec<u8> =
        (0..65_521_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut bytes = period.repeat(length / period.len() + 1);
    bytes.truncate(length);
    bytes
}

/// The length of a large body: of one on emulated machines, which are slow, that is still some pieces long.
fn large() -> usize {
    if emulated() { 2_200_000 } else { 5_700_000 }
}

/// A counter of the kernel.
fn tls_stat(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").expect("a kernel with TLS");
    let mut words = text.split_whitespace();
    words.find(|word| *word == name).expect("a counter");
    words.next().and_then(|word| word.parse().ok()).expect("its value")
}

#[test]
fn a_page_in_each_version() {
    let server = site().start();
    for versions in [Versions::Tls12, Versions::Tls13] {
        let secure = Secure::new(&server).versions(versions);
        let mut client = secure.connect();
        let response = client.get("/");
        assert_eq!((response.status, &response.body[..]), (200, &b"<h1>index</h1>\n"[..]), "{versions:?}");
        assert_eq!(client.stream().conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(client.stream().conn.protocol_version(), Some(versions.number()));
    }
    assert_eq!(server.counter("handshakes_full"), 2);
    assert_eq!(server.counter("kernel_tls_on"), 0, "small pages are not worth the kernel's while");
}

#[test]
fn sizes_on_one_connection() {
    let sizes = [0, 1, 16_383, 16_384, 16_385, 65_535, 65_536, (1 << 20) + 1, large()];
    let mut site = site();
    for size in sizes {
        site = site.file(&format!("{size}.bin"), &body(size));
    }
    let server = site.start();
    for suite in client::suites() {
        let mut client = Secure::new(&server).suite(suite).connect();
        // The second time many of them come from memory.
        for _ in 0..2 {
            for size in sizes {
                let response = client.get(&format!("/{size}.bin"));
                assert_eq!(response.status, 200);
                assert!(response.body == body(size), "{size} bytes, {suite:?}");
            }
        }
    }
}

#[test]
fn the_kernel_encrypts_large_bodies_where_it_can() {
    let bytes = body(large());
    let server = site().file("large.bin", &bytes).start();
    let connections: Vec<_> = client::suites().map(|suite| Secure::new(&server).suite(suite)).collect();
    let before = if emulated() { tls_stat("TlsTxSw") } else { 0 };
    let mut open = Vec::new();
    for secure in &connections {
        let mut client = secure.connect();
        for _ in 0..3 {
            assert!(client.get("/large.bin").body == bytes);
        }
        open.push(client);
    }
    assert_eq!(server.counter("kernel_tls_refused"), 0);
    let on = server.counter("kernel_tls_on");
    if !emulated() {
        assert_eq!(on, 0);
        return;
    }
    // Once a connection, with AES-GCM of TLS 1.3.
    assert_eq!(on, 2);
    assert_eq!(tls_stat("TlsTxSw"), before + 2);
    assert!(tls_stat("TlsCurrTxSw") >= 2);
    assert_eq!((tls_stat("TlsRxSw"), tls_stat("TlsDecryptError")), (0, 0), "receiving stays in userspace");
}

#[test]
fn parts_of_files() {
    let bytes = body(3_000_000);
    let server = site().file("large.bin", &bytes).start();
    let mut client = Secure::new(&server).connect();
    for (range, expected) in [
        ("10-19", 10..20),
        ("100000-1999999", 100_000..2_000_000),
        ("-5", 2_999_995..3_000_000),
        ("16384-32767", 16_384..32_768),
    ] {
        let part = client.request("GET", "/large.bin", &format!("Range: bytes={range}\r\n"));
        assert_eq!(part.status, 206, "{range}");
        assert!(part.body == bytes[expected], "{range}");
    }
    let parts = client.request("GET", "/large.bin", "Range: bytes=0-99999,1000000-1099999\r\n");
    assert_eq!(parts.status, 206);
    let found = |part: &[u8]| parts.body.windows(part.len()).any(|window| window == part);
    assert!(found(&bytes[..100_000]) && found(&bytes[1_000_000..1_100_000]));
}

#[test]
fn requests_in_one_go_across_small_and_large_bodies() {
    let bytes = body(2_000_000);
    let server = site().file("large.bin", &bytes).start();
    for versions in [Versions::Tls12, Versions::Tls13] {
        let mut client = Secure::new(&server).versions(versions).connect();
        let paths = ["/", "/large.bin", "/", "/none", "/large.bin", "/large.bin", "/"];
        let requests: String =
            paths.iter().map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")).collect();
        client.send(requests.as_bytes());
        for path in paths {
            let response = client.response(true);
            match path {
                "/large.bin" => assert!(response.body == bytes),
                "/none" => assert_eq!(response.status, 404),
                _ => assert_eq!(response.body, b"<h1>index</h1>\n"),
            }
        }
    }
}

#[test]
fn requests_split_over_many_records() {
    let server = site().file("large.bin", &body(300_000)).start();
    let mut client = Secure::new(&server).connect();
    for _ in 0..2 {
        for byte in b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n" {
            client.send(&[*byte]);
        }
        assert!(client.response(true).body == body(300_000));
    }
}

#[test]
fn the_end_is_said_with_close_notify() {
    let server = site().file("large.bin", &body(large())).start();
    for versions in [Versions::Tls12, Versions::Tls13] {
        for (path, length) in [("/", 15), ("/large.bin", large())] {
            let mut client = Secure::new(&server).versions(versions).connect();
            let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
            client.send(request.as_bytes());
            client.head();
            let (received, end) = client.until_end();
            assert_eq!(received.len(), length);
            end.unwrap_or_else(|error| panic!("{versions:?} {path}: {error}"));
        }
    }
}

#[test]
fn idle_connections_are_told_that_the_server_stops() {
    let server = site().file("large.bin", &body(1_000_000)).start();
    let mut clients = [Secure::new(&server).connect(), Secure::new(&server).connect()];
    assert_eq!(clients[0].get("/").status, 200);
    assert_eq!(clients[1].get("/large.bin").status, 200);
    server.signal("TERM");
    for client in &mut clients {
        let (received, end) = client.until_end();
        assert!(received.is_empty());
        end.expect("close_notify");
    }
}

#[test]
fn a_truncated_body_does_not_end_with_close_notify() {
    // More than socket buffers take.
    let (length, cut) = if emulated() { (16_000_000, 12_000_000) } else { (30_000_000, 20_000_000) };
    let bytes = body(length);
    for versions in [Versions::Tls12, Versions::Tls13] {
        let server = site().file("large.bin", &bytes).start();
        let mut client = Secure::new(&server).versions(versions).connect();
        client.send(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
        client.head();
        let file = std::fs::OpenOptions::new().write(true).open(server.root().join("large.bin"));
        file.expect("the file").set_len(cut).expect("cut");
        let (received, end) = client.until_end();
        assert!(received.len() < bytes.len() && bytes.starts_with(&received));
        assert!(end.is_err(), "{versions:?}: an end that looks clean");
    }
}

#[test]
fn a_change_of_keys_in_the_middle() {
    let bytes = body(large());
    let server = site().file("large.bin", &bytes).start();
    let mut client = Secure::new(&server).versions(Versions::Tls13).connect();
    client.send(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    client.head();
    let mut received = client.rest_of(1000);
    client.stream().conn.refresh_traffic_keys().expect("a change of keys");
    client.stream().flush().expect("sent");
    received.extend(client.rest_of(bytes.len() - received.len()));
    assert!(received == bytes);
    let next = client.get("/");
    assert_eq!(next.status, 200);
    // Kernels before 6.14 cannot change theirs, so that the server ends the connection, cleanly.
    if emulated() {
        assert_eq!(next.field("connection"), Some("close"));
        let (received, end) = client.until_end();
        assert!(received.is_empty());
        end.expect("close_notify");
    } else {
        assert_eq!(next.field("connection"), None);
    }
}

#[test]
fn many_that_do_not_read_yet() {
    // More than socket buffers take.
    let bytes = body(5_700_000);
    let server = site().with("[server]\nworkers = 1\n").file("large.bin", &bytes).start();
    let mut clients: Vec<_> = (0..6).map(|_| Secure::new(&server).connect()).collect();
    for client in &mut clients {
        client.send(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n");
    }
    // Others are served meanwhile.
    assert_eq!(Secure::new(&server).connect().get("/").status, 200);
    // One of them leaves.
    drop(clients.pop());
    for mut client in clients.into_iter().rev() {
        assert!(client.response(true).body == bytes);
    }
}

#[test]
fn plain_http_is_told_so() {
    let server = site().start();
    let mut client = Client::new(TcpStream::connect(server.address()).expect("a connection"));
    let response = client.get("/");
    assert_eq!((response.status, response.field("connection")), (400, Some("close")));
    assert!(String::from_utf8_lossy(&response.body).contains("HTTPS"));
    assert!(client.rest().is_empty());
    assert_eq!(server.counter("handshakes_failed"), 1);
}

#[test]
fn nonsense_instead_of_a_handshake_harms_nobody() {
    let server = site().start();
    for bytes in [&b"\x16\x03\x01\x00\x05hello"[..], b"\x16\x03\x01\xff\xff", &[0; 100], b"\x80\x2e\x01"] {
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        stream.write_all(bytes).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        Client::new(stream).rest();
    }
    assert_eq!(Secure::new(&server).connect().get("/").status, 200);
}

/// Opens a second connection of the same client; whether it was resumed.
fn is_resumed(secure: &Secure) -> bool {
    let mut client = secure.connect();
    assert_eq!(client.get("/").status, 200);
    client.stream().conn.handshake_kind() == Some(rustls::HandshakeKind::Resumed)
}

#[test]
fn sessions_are_resumed_by_any_worker_and_the_next_generation() {
    let server = site().file("large.bin", &body(1_000_000)).start();
    for versions in [Versions::Tls12, Versions::Tls13] {
        let secure = Secure::new(&server).versions(versions);
        assert!(!is_resumed(&secure), "the first is full");
        for _ in 0..8 {
            assert!(is_resumed(&secure), "{versions:?}: two workers");
        }
        let old = server.workers();
        server.signal("HUP");
        replace_workers(&server, &old);
        assert!(is_resumed(&secure), "{versions:?}: another generation");
        let old = server.workers();
        crate::kit::signal(old[0], "KILL");
        until("another worker", || {
            let now = server.workers();
            now.len() == 2 && !now.contains(&old[0])
        });
        for _ in 0..4 {
            assert!(is_resumed(&secure), "{versions:?}: after a crash");
        }
        // What the kernel takes over is as good on a resumed session.
        let mut client = secure.connect();
        assert!(client.get("/large.bin").body == body(1_000_000));
    }
}

#[test]
fn sessions_are_resumed_by_the_next_program() {
    let server = site().start();
    for versions in [Versions::Tls12, Versions::Tls13] {
        let secure = Secure::new(&server).versions(versions);
        assert!(!is_resumed(&secure), "the first is full");
        let old = server.workers();
        server.signal("USR2");
        replace_workers(&server, &old);
        assert!(is_resumed(&secure), "{versions:?}");
    }
}

#[test]
fn a_ticket_key_that_was_removed_opens_nothing() {
    let site = site().with("ticket_keys = [\"a.key\", \"b.key\", \"c.key\"]\n");
    for (name, byte) in [("a.key", 1), ("b.key", 2), ("c.key", 3)] {
        std::fs::write(site.root().with_file_name(name), [byte; 48]).expect("a key");
    }
    let server = site.start();
    let config = server.folder().join("httpd.toml");
    let with = std::fs::read_to_string(&config).expect("the configuration");
    let without: String = with
        .lines()
        .filter(|line| !line.starts_with("ticket_keys"))
        .map(|line| format!("{line}\n"))
        .collect();
    // The last one starts the program anew, which has to know where its keys are from.
    for (text, signal) in [(&without, "HUP"), (&with, "HUP"), (&without, "USR2")] {
        let secure = Secure::new(&server);
        assert!(!is_resumed(&secure) && is_resumed(&secure), "{signal}");
        std::fs::write(&config, text).expect("written");
        let old = server.workers();
        server.signal(signal);
        replace_workers(&server, &old);
        assert!(!is_resumed(&secure), "{signal}: it was made with another key");
        assert!(is_resumed(&secure), "{signal}");
    }
}

#[test]
fn the_kernel_can_be_required() {
    let probed = httpd::tls::probe(httpd::sys::tls_probe::try_install);
    let site = Site::new()
        .with("[tls]\nkernel = \"require\"\n")
        .listening("[[listen]]\naddress = \"127.0.0.1:0\"\ntls = true\n")
        .keys("[[site.certificate]]\nself_signed = true\n");
    assert!(probed.usable || !emulated());
    if probed.usable {
        let server = site.start();
        assert_eq!(server.status()["kernel_tls"]["used"], true);
    } else {
        let said = site.refused();
        assert!(said.contains("tls.kernel = \"require\"") && said.contains(&probed.text), "{said}");
    }
}

/// What a client is shown of a server's certificate.
fn shown(server: &Server) -> Vec<u8> {
    let mut client = Secure::new(server).connect();
    assert_eq!(client.get("/").status, 200);
    client.stream().conn.peer_certificates().expect("a certificate")[0].to_vec()
}
