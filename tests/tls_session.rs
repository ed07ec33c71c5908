//! Sessions against rustls's client, byte buffers between them. RFC 8446, RFC 5246.

mod tls_support;

use std::collections::HashSet;
use std::time::SystemTime;

use httpd::tls::{Alert, Endpoint, Failure, HANDSHAKE_BYTES_MAX, Session, sealed_length};
use proptest::prelude::*;
use rustls::AlertDescription;
use rustls::version::{TLS12, TLS13};
use tls_support::{Client, EVERY, Fixture, Wire, body, ticket_keys};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

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
        for length in [0, 1, 5_000, 16_384 - HEAD.len(), 16_385 - HEAD.len(), 100_000] {
            wire.client.write(REQUEST);
            wire.turn().unwrap();
            assert_eq!(wire.plain, REQUEST);
            wire.plain.clear();
            let body = body(length);
            wire.seal(HEAD, &body);
            assert!(wire.out.len() <= sealed_length(HEAD.len() + length));
            wire.turn().unwrap();
            assert_eq!(wire.received, [HEAD, &body].concat(), "{suite:?} {length}");
            wire.received.clear();
        }
        wire.close_notify();
        wire.turn().unwrap();
        assert!(wire.client.is_closed_by_peer());
    }
}

#[test]
fn a_large_request_body_arrives() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        wire.shake_hands();
        let upload = body(60_000);
        for piece in [0, 1, 5, 4096, 16_384, 16_405] {
            wire.piece = piece;
            wire.client.write(&upload);
            wire.turn().unwrap();
            assert!(wire.plain == upload, "{version:?} in pieces of {piece}");
            wire.plain.clear();
        }
    }
}

#[test]
fn records_split_at_every_byte() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().versions(&[version]).build();
        let endpoint = fixture.endpoint();
        let mut wire = Wire::new(&endpoint, Client::new(&config, "localhost"));
        wire.piece = 1;
        wire.shake_hands();
        wire.client.write(REQUEST);
        wire.client.write(REQUEST);
        let bytes = wire.client.output();
        wire.feed(&bytes).unwrap();
        assert_eq!(wire.plain, [REQUEST, REQUEST].concat());
        // Two pieces, cut everywhere.
        for cut in 0..=bytes.len() {
            wire.client.write(REQUEST);
            wire.client.write(REQUEST);
            let bytes = wire.client.output();
            wire.plain.clear();
            wire.piece = 0;
            wire.feed(&bytes[..cut]).unwrap();
            wire.feed(&bytes[cut..]).unwrap();
            assert_eq!(wire.plain, [REQUEST, REQUEST].concat(), "cut at {cut}");
        }
    }
}

#[test]
fn a_request_comes_with_the_finished_message() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        for piece in [0, 1, 7] {
            let config = fixture.client().versions(&[version]).build();
            let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
            wire.piece = piece;
            // The client holds it back until its own Finished is out.
            wire.client.write(REQUEST);
            wire.shake_hands();
            assert_eq!(wire.plain, REQUEST, "{version:?}, {piece}");
            wire.seal(HEAD, b"");
            wire.turn().unwrap();
            assert_eq!(wire.received, HEAD);
        }
    }
}

#[test]
fn clients_without_protocol_negotiation_are_served() {
    let fixture = Fixture::new();
    let config = fixture.client().without_alpn().build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    assert!(!wire.shake_hands().alpn);
}

#[test]
fn a_buffer_goes_round() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        wire.shake_hands();
        wire.session.update_key_after(if *version == TLS13 { 9 } else { u64::MAX });
        let (mut buffer, mut sent) = (Vec::new(), Vec::new());
        for length in [70_000, 70_000, 10, 70_000, 0, 65_536, 1] {
            let body = body(length);
            wire.session.seal_over(HEAD, &body, &mut buffer).unwrap();
            sent.extend([HEAD, &body].concat());
            wire.out.extend_from_slice(&buffer);
            wire.session.rest();
        }
        wire.deliver();
        assert!(wire.received == sent, "{version:?}");
    }
}

fn resumed(endpoint: &Endpoint, config: &std::sync::Arc<rustls::ClientConfig>) -> bool {
    let mut wire = Wire::new(endpoint, Client::new(config, "localhost"));
    let resumed = wire.shake_hands().resumed;
    // The tickets of TLS 1.3 come after the handshake.
    wire.seal(HEAD, b"");
    wire.turn().unwrap();
    assert_eq!(wire.received, HEAD);
    resumed
}

#[test]
fn sessions_are_resumed_by_other_processes_and_generations() {
    for version in [&TLS12, &TLS13] {
        let fixture = Fixture::new();
        let config = fixture.client().versions(&[version]).build();
        let (here, there) = (fixture.endpoint(), fixture.endpoint());
        assert!(!resumed(&here, &config), "the first time");
        assert!(resumed(&there, &config), "{version:?}: other endpoint, same keys");
        let later = SystemTime::now() + EVERY;
        assert!(fixture.tickets.rotate(later, EVERY));
        assert!(resumed(&here, &config), "{version:?}: the previous key opens");
        assert!(resumed(&here, &config), "{version:?}: the new ticket");
        fixture.tickets.rotate(later + EVERY, EVERY);
        fixture.tickets.rotate(later + EVERY * 2, EVERY);
        assert!(!resumed(&there, &config), "{version:?}: the key is forgotten");
        assert!(resumed(&there, &config));

        let next = ticket_keys();
        assert!(next.import(&fixture.tickets.export()));
        let after = Endpoint::build(&fixture.config(), SystemTime::now(), Some(next), true).unwrap();
        assert!(resumed(&after, &config), "{version:?}: the next program");
    }
}

#[test]
fn without_tickets_every_handshake_is_full() {
    let fixture = Fixture::new();
    let config = fixture.client().build();
    let none = Endpoint::build(&fixture.config(), SystemTime::now(), None, true).unwrap();
    let mut configuration = fixture.config();
    configuration.tls.tickets = None;
    let off = Endpoint::build(&configuration, SystemTime::now(), Some(fixture.tickets), true).unwrap();
    for endpoint in [none, off] {
        assert!(!resumed(&endpoint, &config));
        assert!(!resumed(&endpoint, &config));
    }
}

#[test]
fn the_client_changes_its_key_at_any_time() {
    let fixture = Fixture::new();
    for piece in [0, 1] {
        let config = fixture.client().versions(&[&TLS13]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        wire.piece = piece;
        wire.shake_hands();
        for round in 0..20 {
            wire.client.connection.refresh_traffic_keys().unwrap();
            if round % 3 == 0 {
                wire.client.connection.refresh_traffic_keys().unwrap();
            }
            wire.client.write(REQUEST);
            wire.turn().unwrap();
            assert_eq!(wire.plain, REQUEST, "round {round}");
            wire.plain.clear();
            let body = body(20_000);
            wire.seal(HEAD, &body);
            if round % 2 == 0 {
                wire.client.connection.refresh_traffic_keys().unwrap();
            }
            wire.turn().unwrap();
            wire.turn().unwrap();
            assert_eq!(wire.received, [HEAD, &body].concat(), "round {round}");
            wire.received.clear();
        }
        wire.close_notify();
        wire.turn().unwrap();
        assert!(wire.client.is_closed_by_peer());
    }
}

#[test]
fn the_server_changes_its_key_when_it_is_used_up() {
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    wire.shake_hands();
    wire.session.update_key_after(4);
    let sent = body(1_000_000);
    wire.seal(HEAD, &sent);
    wire.turn().unwrap();
    assert_eq!(wire.received, [HEAD, &sent].concat());
    wire.close_notify();
    wire.turn().unwrap();
    assert!(wire.client.is_closed_by_peer());

    // TLS 1.2 has no such thing: the connection ends, and still does so properly.
    let config = fixture.client().versions(&[&TLS12]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    wire.shake_hands();
    wire.session.update_key_after(8);
    let mut sealed = 0;
    while wire.session.seal(HEAD, b"", &mut wire.out).is_ok() {
        sealed += 1;
        assert!(sealed < 8);
    }
    wire.close_notify();
    wire.turn().unwrap();
    assert!(wire.client.is_closed_by_peer());
}

#[test]
fn no_nonce_is_used_twice() {
    // TLS 1.2 with AES-GCM carries half of it in each record, that of rustls's Finished included.
    let fixture = Fixture::new();
    for (version, suite) in tls_support::suites() {
        if *version != TLS12 || !format!("{suite:?}").contains("GCM") {
            continue;
        }
        let config = fixture.client().suite(suite).versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        let mut sent = Vec::new();
        for _ in 0..4 {
            let bytes = wire.client.output();
            wire.feed(&bytes).unwrap();
            sent.extend_from_slice(&wire.out);
            wire.deliver();
        }
        wire.seal(HEAD, &body(200_000));
        sent.extend_from_slice(&wire.out);
        let (mut nonces, mut rest, mut protected) = (HashSet::new(), &sent[..], false);
        while let [content_type, _, _, high, low, body @ ..] = rest {
            let (record, after) = body.split_at(usize::from(u16::from_be_bytes([*high, *low])));
            if protected {
                assert!(nonces.insert(record[..8].to_vec()), "{suite:?}");
            }
            protected |= *content_type == 20;
            rest = after;
        }
        assert_eq!(nonces.len(), 1 + 13, "Finished and the body");
    }
}

#[test]
fn the_end_is_told_once_and_what_follows_is_ignored() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        wire.shake_hands();
        wire.client.write(REQUEST);
        wire.client.connection.send_close_notify();
        let mut bytes = wire.client.output();
        bytes.extend_from_slice(b"whatever");
        wire.feed(&bytes).unwrap();
        assert!(wire.last.closed);
        assert_eq!(wire.plain, REQUEST);
        wire.feed(b"more of it").unwrap();
        wire.seal(HEAD, b"a last answer");
        wire.close_notify();
        wire.close_notify();
        wire.deliver();
        assert!(wire.client.is_closed_by_peer());
        assert_eq!(wire.received, [HEAD, b"a last answer"].concat());
    }
}

#[test]
fn input_before_the_end_of_the_handshake_is_bounded() {
    let fixture = Fixture::new();
    let mut session = Session::new(&fixture.endpoint());
    let (mut plain, mut out, mut fed) = (Vec::new(), Vec::new(), 0);
    // A hello of almost 64 KiB, one byte a record.
    let mut wire = vec![22, 3, 1, 0, 4, 1, 0, 0xff, 0];
    let failure = loop {
        if let Err(failure) = session.receive(&wire, &mut plain, &mut out) {
            break failure;
        }
        fed += wire.len();
        assert!(fed <= HANDSHAKE_BYTES_MAX);
        wire = vec![22, 3, 1, 0, 1, 0];
    };
    assert_eq!(failure, Failure::TooMuchInput);
    // A session that failed is deaf, and does not panic.
    assert!(session.receive(&wire, &mut plain, &mut out).is_ok());
    assert_eq!(session.close_notify(&mut out), None);
}

#[test]
fn what_is_no_handshake_is_refused() {
    let fixture = Fixture::new();
    let check = |what: &str, bytes: &[u8], expected: Result<(), Failure>, alert: &[u8]| {
        let mut session = Session::new(&fixture.endpoint());
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let result = session.receive(bytes, &mut plain, &mut out).map(|_| ());
        assert_eq!(result, expected, "{what}");
        assert_eq!(out, alert, "{what}");
    };
    let decode_error = [21, 3, 3, 0, 2, 2, 50];
    check("plain HTTP", b"GET / HTTP/1.1\r\n\r\n", Err(Failure::PlainHttp), b"");
    check("plain HTTP", b"OPTIONS * HTTP/1.1\r\n\r\n", Err(Failure::PlainHttp), b"");
    check("nothing", b"", Ok(()), b"");
    check("a warning", &[21, 3, 3, 0, 2, 1, 0], Ok(()), b"");
    check("a fatal alert", &[21, 3, 3, 0, 2, 2, 40], Err(Failure::PeerAlert(Alert(40))), b"");
    check("ssh", b"SSH-2.0-x\r\n", Err(Failure::Handshake("a message that cannot be parsed")), &decode_error);
}

/// Only after its hello does a TLS 1.3 server find out that there is nothing in common: the alert comes behind that.
#[test]
fn a_client_is_told_why_it_is_refused() {
    let fixture = Fixture::new();
    let rsa_alone = rustls::crypto::aws_lc_rs::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256;
    let builder = |version| fixture.client().versions(&[version]);
    let check = |section: &str, config: std::sync::Arc<rustls::ClientConfig>, expected: AlertDescription| {
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        assert!(matches!(wire.try_shake_hands(), Err(Failure::Handshake(_))), "{section}");
        let told = wire.client.connection.process_new_packets();
        assert_eq!(told.err(), Some(rustls::Error::AlertReceived(expected)), "{section}");
    };
    for version in [&TLS12, &TLS13] {
        let mut config = (*builder(version).build()).clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        check("RFC 7301 3.2", config.into(), AlertDescription::NoApplicationProtocol);
    }
    let config = builder(&TLS12).suite(rsa_alone).build();
    check("RFC 5246 7.4.1.3", config, AlertDescription::HandshakeFailure);
}

#[test]
fn a_fatal_alert_of_the_client_is_told() {
    let fixture = Fixture::new();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().trusting_nobody().versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        assert_eq!(wire.try_shake_hands(), Err(Failure::PeerAlert(Alert(48))));
    }
}

#[test]
fn no_part_of_what_a_client_sends_makes_trouble() {
    let fixture = Fixture::new();
    let endpoint = fixture.endpoint();
    for version in [&TLS12, &TLS13] {
        let config = fixture.client().versions(&[version]).build();
        let mut wire = Wire::new(&endpoint, Client::new(&config, "localhost"));
        let hello = wire.client.output();
        for cut in 0..hello.len() {
            let mut session = Session::new(&endpoint);
            let (mut plain, mut out) = (Vec::new(), Vec::new());
            assert!(session.receive(&hello[..cut], &mut plain, &mut out).is_ok(), "cut at {cut}");
            assert!(out.is_empty() && session.is_handshaking());
            assert_eq!(session.close_notify(&mut out), None);
        }
    }
}

/// What happens to a client's bytes on the way.
#[derive(Clone, Debug)]
enum Damage {
    Flip(u8),
    Set(u8),
    Remove(usize),
    Repeat(usize),
    Insert(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        (0u8..8).prop_map(Damage::Flip),
        any::<u8>().prop_map(Damage::Set),
        (1usize..40).prop_map(Damage::Remove),
        (1usize..600).prop_map(Damage::Repeat),
        prop::collection::vec(any::<u8>(), 1..40).prop_map(Damage::Insert),
    ]
}

fn apply(damage: &Damage, at: usize, bytes: &mut Vec<u8>) {
    match damage {
        Damage::Flip(bit) => bytes[at] ^= 1 << bit,
        Damage::Set(value) => bytes[at] = *value,
        Damage::Remove(count) => drop(bytes.drain(at..(at + count).min(bytes.len()))),
        Damage::Repeat(count) => {
            let part = bytes[at..(at + count).min(bytes.len())].to_vec();
            bytes.splice(at..at, part);
        }
        Damage::Insert(part) => drop(bytes.splice(at..at, part.iter().copied())),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_bytes_end_the_session_or_change_nothing(
        tls13 in any::<bool>(),
        at in any::<prop::sample::Index>(),
        damage in damage(),
        flight in 0usize..3,
        piece in 0usize..40,
    ) {
        thread_local!(static FIXTURE: Fixture = Fixture::new());
        let mut wire = FIXTURE.with(|fixture| {
            let config = fixture.client().versions(&[if tls13 { &TLS13 } else { &TLS12 }]).build();
            Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"))
        });
        wire.piece = piece;
        wire.client.write(REQUEST);
        for turn in 0..5 {
            let mut bytes = wire.client.output();
            if turn == flight && !bytes.is_empty() {
                apply(&damage, at.index(bytes.len()), &mut bytes);
            }
            if let Err(failure) = wire.feed(&bytes) {
                // What was opened before is genuine; nothing of a changed record gets through.
                prop_assert!(wire.plain.is_empty() || wire.plain == REQUEST, "{failure}");
                return Ok(());
            }
            wire.deliver();
        }
        prop_assert!(wire.plain.is_empty() || wire.plain == REQUEST);
    }
}

fn cases() -> u32 {
    std::env::var("TLS_CASES").map_or(256, |cases| cases.parse().expect("a number of cases"))
}
