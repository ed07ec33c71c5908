//! Sessions against rustls's client, byte buffers between them. RFC 8446, RFC 5246.

mod tls_support;

use httpd::tls::{Alert, Failure};
use tls_support::{Client, Fixture, Wire, body};

use rustls::version::{TLS12, TLS13};

#[test]
fn a_request_and_a_response_with_every_suite() {
    let fixture = Fixture::new();
    for (version, suite) in tls_support::suites() {
        let config = fixture.client().suite(suite).versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        let established = wire.shake_hands();
        assert_eq!(established.version, if *version == TLS13 { "TLSv1.3" } else { "TLSv1.2" });
        assert!(established.cipher.starts_with("TLS_"), "{}", established.cipher);
        assert!(established.alpn);
        assert!(!established.resumed);
        assert_eq!(established.server_name.as_deref(), Some("localhost"));
        wire.client.write(b"GET / HTTP/1.1\r\n\r\n");
        wire.turn().unwrap();
        assert_eq!(wire.plain, b"GET / HTTP/1.1\r\n\r\n");
        let large = body(100_000);
        wire.seal(b"HTTP/1.1 200 OK\r\n\r\n", &large);
        wire.turn().unwrap();
        assert_eq!(wire.received, [b"HTTP/1.1 200 OK\r\n\r\n".as_slice(), &large].concat(), "{suite:?}");
        wire.close_notify();
        wire.turn().unwrap();
        assert!(wire.client.is_closed_by_peer());
    }
}

#[test]
fn a_fatal_alert_of_the_client_is_told() {
    let fixture = Fixture::new();
    let config = fixture.client().trusting_nobody().versions(&[&TLS13]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    assert_eq!(wire.try_shake_hands(), Err(Failure::PeerAlert(Alert(48))));
    let config = fixture.client().trusting_nobody().versions(&[&TLS12]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    assert_eq!(wire.try_shake_hands(), Err(Failure::PeerAlert(Alert(48))));
}
