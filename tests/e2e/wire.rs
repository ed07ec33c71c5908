//! HTTP/1.1 on the wire: what is refused, and what happens to the connection.

use crate::kit::Site;

/// The status of the first response in `bytes`, and whether the server said it closes.
fn first(bytes: &[u8]) -> (u16, bool) {
    let text = String::from_utf8_lossy(bytes);
    let status = text.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, text.to_ascii_lowercase().contains("connection: close"))
}

#[test]
fn malformed_requests_are_refused_and_closed() {
    let server = Site::new().with("[limits]\nhead = \"4KiB\"\nbody = \"1MiB\"\n").start();
    let long = "x".repeat(5000);
    let many = format!("Padding: {}\r\n", "y".repeat(400)).repeat(12);
    let cases: &[(&str, String, u16)] = &[
        ("9112 2.2 bare LF", "GET / HTTP/1.1\nHost: a\n\n".into(), 400),
        ("9112 5.1 space before colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n".into(), 400),
        ("9112 5.2 obs-fold", "GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n".into(), 400),
        ("9112 3.2 no Host", "GET / HTTP/1.1\r\n\r\n".into(), 400),
        ("9112 3.2 two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n".into(), 400),
        (
            "9112 6.3 unequal lengths",
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".into(),
            400,
        ),
        (
            "9112 6.1 length and chunked",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n".into(),
            400,
        ),
        (
            "9112 6.1 other coding",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n".into(),
            501,
        ),
        ("9112 3 long target", format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        ("6585 5 long head", format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431),
        ("9110 15.6.6 version", "GET / HTTP/2.0\r\nHost: a\r\n\r\n".into(), 505),
        (
            "9110 15.5.14 large body",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n".into(),
            413,
        ),
        ("9110 10.1.1 expectation", "GET / HTTP/1.1\r\nHost: a\r\nExpect: miracle\r\n\r\n".into(), 417),
    ];
    for (label, request, status) in cases {
        assert_eq!(first(&server.raw(request.as_bytes())), (*status, true), "{label}");
    }
}

#[test]
fn methods_are_told_apart() {
    let server = Site::new().start();
    let mut client = server.connect();
    for (method, status) in [("POST", 405), ("DELETE", 405), ("BREW", 501), ("OPTIONS", 204)] {
        let response = client.request(method, "/", "Content-Length: 0\r\n");
        assert_eq!(response.status, status, "{method}");
        if status == 405 || status == 204 {
            assert_eq!(response.field("allow"), Some("GET, HEAD, OPTIONS"), "{method}");
        }
    }
    assert_eq!(client.request("OPTIONS", "*", "").status, 204);
    assert_eq!(client.get("http://localhost/index.html").status, 200);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Site::new().file("a", b"A").file("large", &vec![b'L'; 300_000]).file("z", b"Z").start();
    let mut client = server.connect();
    let request = |path| format!("GET /{path} HTTP/1.1\r\nHost: a\r\n\r\n");
    client.send([request("a"), request("large"), request("none"), request("z")].concat().as_bytes());
    assert_eq!(client.response(true).body, b"A");
    assert_eq!(client.response(true).body.len(), 300_000);
    assert_eq!(client.response(true).status, 404);
    assert_eq!(client.response(true).body, b"Z");
}

#[test]
fn requests_followed_by_the_end_of_the_stream_are_answered() {
    let server = Site::new().file("large", &vec![b'L'; 3_000_000]).start();
    let mut client = server.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.half_close();
    assert_eq!(client.response(true).body.len(), 3_000_000);
    assert_eq!(client.response(true).status, 200);
    assert!(client.rest().is_empty());
}

#[test]
fn a_request_may_come_in_any_pieces() {
    let server = Site::new().start();
    let request = b"GET /index.html HTTP/1.1\r\nHost: localhost\r\nUser-Agent: pieces\r\n\r\n";
    let mut client = server.connect();
    for cut in 1..request.len() {
        client.send(&request[..cut]);
        std::thread::sleep(std::time::Duration::from_millis(1));
        client.send(&request[cut..]);
        assert_eq!(client.response(true).status, 200, "cut at {cut}");
    }
}

#[test]
fn unwanted_bodies_are_dropped_and_the_connection_kept() {
    let server = Site::new().start();
    let mut client = server.connect();
    let with_length = client.request("POST", "/", "Content-Length: 5\r\n");
    assert_eq!(with_length.status, 405);
    client.send(b"12345");
    assert_eq!(client.request("POST", "/", "Transfer-Encoding: chunked\r\n").status, 405);
    client.send(b"3\r\nabc\r\n0\r\nTrailer: x\r\n\r\n");
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn a_long_unwanted_body_does_not_destroy_the_answer() {
    let server = Site::new().start();
    let mut client = server.connect();
    client.send(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10000000\r\n\r\n");
    for _ in 0..20 {
        client.send(&[b'x'; 10_000]);
    }
    let answer = client.rest();
    assert_eq!(first(&answer), (405, true));
}

#[test]
fn versions_decide_what_becomes_of_the_connection() {
    let server = Site::new().start();
    assert_eq!(first(&server.raw(b"GET / HTTP/1.0\r\n\r\n")), (200, true));
    assert_eq!(first(&server.raw(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")), (200, true));
    let mut client = server.connect();
    client.send(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    assert_eq!(client.response(true).field("connection"), Some("keep-alive"));
    assert_eq!(client.get("/").status, 200);
}

#[test]
fn slow_heads_end_at_their_deadline() {
    let server = Site::new().with("[timeouts]\nhead = \"200ms\"\nidle = \"300ms\"\n").start();
    let mut client = server.connect();
    client.send(b"GET / HTTP/1.1\r\nHost:");
    assert_eq!(first(&client.rest()), (408, true));
    let mut idle = server.connect();
    assert_eq!(idle.get("/").status, 200);
    assert!(idle.rest().is_empty());
}

#[test]
fn a_reader_that_stops_is_given_up() {
    let server =
        Site::new().with("[timeouts]\nsend = \"300ms\"\n").file("large", &vec![b'L'; 40_000_000]).start();
    let mut client = server.connect();
    client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n");
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert!(client.rest().len() < 40_000_000);
}

#[test]
fn requests_per_connection_are_limited() {
    let server = Site::new().with("[limits]\nrequests_per_connection = 2\n").start();
    let mut client = server.connect();
    assert_eq!(client.get("/").field("connection"), None);
    assert_eq!(client.get("/").field("connection"), Some("close"));
    assert!(client.rest().is_empty());
}

#[test]
fn connections_per_address_are_limited() {
    let server = Site::new().with("[server]\nworkers = 1\n[limits]\nconnections_per_address = 3\n").start();
    let mut held: Vec<_> = (0..3).map(|_| server.connect()).collect();
    held.iter_mut().for_each(|client| assert_eq!(client.get("/").status, 200));
    assert!(server.connect().rest().is_empty(), "a fourth connection is refused");
}

#[test]
fn accepting_pauses_at_the_limit_and_goes_on_below() {
    let server = Site::new().with("[server]\nworkers = 1\nmax_connections = 4\n").start();
    let mut held: Vec<_> = (0..12).map(|_| server.connect()).collect();
    for held in &mut held {
        // The later ones are accepted when earlier ones are gone.
        assert_eq!(held.get("/").status, 200);
        *held = server.connect();
    }
}
