//! Records that no honest client sends, made with the client's own keys. RFC 8446 sections 4.6.3, 5
//! and 6; RFC 5246 section 7.

mod tls_support;

use httpd::tls::{Alert, Failure, Received, Session};
use rustls::version::{TLS12, TLS13};
use tls_support::records::Tls13;
use tls_support::{Client, Fixture, Wire};

fn established(fixture: &Fixture) -> (Session, Tls13, Tls13) {
    let config = fixture.client().versions(&[&TLS13]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    wire.shake_hands();
    wire.take_over_client()
}

/// Has the server receive what `make` makes. The answer must be one alert, or nothing.
fn check(
    fixture: &Fixture,
    what: &str,
    make: impl Fn(&mut Tls13) -> Vec<u8>,
    expected: Result<&[u8], Alert>,
) {
    for piece in [1, 100_000] {
        let (mut session, mut client, mut server) = established(fixture);
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        let bytes = make(&mut client);
        let mut pieces = bytes.chunks(piece);
        let result = pieces.try_for_each(|bytes| session.receive(bytes, &mut plain, &mut out).map(|_| ()));
        match expected {
            Ok(data) => {
                assert_eq!(result, Ok(()), "{what}");
                assert_eq!(plain, data, "{what}");
                assert!(out.is_empty(), "{what}");
            }
            Err(alert) => {
                assert_eq!(result, Err(Failure::Refused(alert)), "{what}");
                assert_eq!(server.open(&out), [(21, vec![2, alert.0])], "{what}");
                assert!(plain.is_empty(), "{what}");
                // Nothing more is said, not even goodbye.
                out.clear();
                assert_eq!(session.close_notify(&mut out), None, "{what}");
                assert_eq!(session.unsent_alert(), None, "{what}");
                assert!(out.is_empty(), "{what}");
            }
        }
    }
}

#[test]
fn records() {
    let fixture = Fixture::new();
    let check = |what, make: &dyn Fn(&mut Tls13) -> Vec<u8>, expected| check(&fixture, what, make, expected);
    const MAX: usize = 1 << 14;
    check("5.1, the longest", &|client| client.seal(23, &vec![7; MAX]), Ok(&[7; MAX]));
    check("5.1, too long", &|client| client.seal(23, &vec![7; MAX + 1]), Err(Alert::RECORD_OVERFLOW));
    check("5.2, header", &|_| vec![23, 3, 3, 0x41, 1], Err(Alert::RECORD_OVERFLOW));
    check("5.2, too short", &|_| [vec![23, 3, 3, 0, 15], vec![0; 15]].concat(), Err(Alert::BAD_RECORD_MAC));
    check("5.2, empty", &|_| vec![23, 3, 3, 0, 0], Err(Alert::BAD_RECORD_MAC));
    check("5.2, forged", &|_| [vec![23, 3, 3, 0, 40], vec![9; 40]].concat(), Err(Alert::BAD_RECORD_MAC));
    let changed = |client: &mut Tls13, at: usize| {
        let mut record = client.seal(23, b"data");
        record[at] ^= 1;
        record
    };
    check("5.2, changed content", &|client| changed(client, 6), Err(Alert::BAD_RECORD_MAC));
    check("5.2, changed tag", &|client| changed(client, 25), Err(Alert::BAD_RECORD_MAC));
    check("5.1, changed version", &|client| changed(client, 2), Err(Alert::BAD_RECORD_MAC));
    check("5.1, other protocol", &|client| changed(client, 1), Err(Alert::PROTOCOL_VERSION));
    check("5, unknown type", &|_| vec![99, 3, 3, 0, 40], Err(Alert::UNEXPECTED_MESSAGE));
    check("5, unprotected alert", &|_| vec![21, 3, 3, 0, 2, 2, 0], Err(Alert::UNEXPECTED_MESSAGE));
    check("5, change_cipher_spec", &|_| vec![20, 3, 3, 0, 1, 1], Err(Alert::UNEXPECTED_MESSAGE));
    check(
        "5.4, padding",
        &|client| client.seal_inner(&[b"data\x17".as_slice(), &[0; 99]].concat()),
        Ok(b"data"),
    );
    check("5.4, only padding", &|client| client.seal_inner(&[0; 99]), Err(Alert::UNEXPECTED_MESSAGE));
    check("5.2, unknown inner type", &|client| client.seal(99, b"data"), Err(Alert::UNEXPECTED_MESSAGE));
    check("5.2, inner change_cipher_spec", &|client| client.seal(20, &[1]), Err(Alert::UNEXPECTED_MESSAGE));
    let replayed = |client: &mut Tls13| {
        let record = client.seal(23, b"");
        [record.clone(), record].concat()
    };
    check("5.3, replayed", &replayed, Err(Alert::BAD_RECORD_MAC));
    let empty = |count| move |client: &mut Tls13| (0..count).flat_map(|_| client.seal(23, b"")).collect();
    check("empty records", &empty(32), Ok(b""));
    check("too many empty records", &empty(33), Err(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn messages() {
    let fixture = Fixture::new();
    let check = |what, make: &dyn Fn(&mut Tls13) -> Vec<u8>, expected| check(&fixture, what, make, expected);
    check("4.6.3, value", &|client| client.seal(22, &[24, 0, 0, 1, 2]), Err(Alert::ILLEGAL_PARAMETER));
    check("4.6.3, length", &|client| client.seal(22, &[24, 0, 0, 2, 0, 0]), Err(Alert::DECODE_ERROR));
    check(
        "5.1, behind a key update",
        &|client| client.seal(22, &[24, 0, 0, 1, 0, 24]),
        Err(Alert::UNEXPECTED_MESSAGE),
    );
    check("5.1, empty", &|client| client.seal(22, &[]), Err(Alert::UNEXPECTED_MESSAGE));
    check(
        "4.1.2, another hello",
        &|client| client.seal(22, &[1, 0, 0, 1, 0]),
        Err(Alert::UNEXPECTED_MESSAGE),
    );
    let interleaved = |client: &mut Tls13| [client.seal(22, &[24, 0]), client.seal(23, b"")].concat();
    check("5.1, data inside a message", &interleaved, Err(Alert::UNEXPECTED_MESSAGE));
    check("6, length", &|client| client.seal(21, &[2]), Err(Alert::DECODE_ERROR));
    check("6.1, user_canceled", &|client| client.seal(21, &[1, 90]), Ok(b""));
    let canceled = |client: &mut Tls13| (0..5).flat_map(|_| client.seal(21, &[1, 90])).collect();
    check("6.1, again and again", &canceled, Err(Alert::UNEXPECTED_MESSAGE));
}

#[test]
fn an_alert_is_not_answered() {
    let fixture = Fixture::new();
    let (mut session, mut client, _) = established(&fixture);
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let wire = client.seal(21, &[2, 80]);
    let result = session.receive(&wire, &mut plain, &mut out);
    assert_eq!(result, Err(Failure::PeerAlert(Alert::INTERNAL_ERROR)));
    assert_eq!(session.close_notify(&mut out), None);
    assert!(out.is_empty());
}

#[test]
fn what_came_before_a_bad_record_is_kept() {
    let fixture = Fixture::new();
    let (mut session, mut client, _) = established(&fixture);
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let wire = [client.seal(23, b"good"), vec![23, 3, 3, 0, 40], vec![0; 40]].concat();
    assert!(session.receive(&wire, &mut plain, &mut out).is_err());
    assert_eq!(plain, b"good");
}

#[test]
fn a_second_handshake_is_declined() {
    // rustls's client cannot ask for one, so the message is made by hand in a TLS 1.2 record.
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS12]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    wire.shake_hands();
    let mut bytes = Vec::new();
    {
        let secrets = wire.client.connection.dangerous_extract_secrets().unwrap();
        let (sequence, rustls::ConnectionTrafficSecrets::Aes256Gcm { key, iv }) = secrets.tx else {
            panic!("the suite that both like best");
        };
        use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_ref()).unwrap());
        let content = [1, 0, 0, 0];
        let aad = [&sequence.to_be_bytes()[..], &[22, 3, 3, 0, 4]].concat();
        let nonce = [&iv.as_ref()[..4], &[0xff; 8]].concat();
        let mut sealed = content.to_vec();
        let unique = Nonce::try_assume_unique_for_key(&nonce).unwrap();
        key.seal_in_place_append_tag(unique, Aad::from(aad), &mut sealed).unwrap();
        bytes.extend_from_slice(&[22, 3, 3, 0, 28]);
        bytes.extend_from_slice(&[0xff; 8]);
        bytes.extend_from_slice(&sealed);
    }
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let received = wire.session.receive(&bytes, &mut plain, &mut out);
    assert_eq!(received, Ok(Received::default()));
    assert_eq!((out[0], out.len()), (21, 5 + 8 + 2 + 16), "a warning, and the session goes on");
    assert_eq!(wire.session.seal(b"more", b"", &mut out), Ok(()));
}
