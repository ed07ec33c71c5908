//! The hand-over of sending to the kernel, with a model of the kernel that reads the key block as it
//! does. The kernel itself is tried in `tests/emulation`.

mod tls_support;

use httpd::tls::{ALERT, Failure, HandOver};
use ktls::CryptoInfo;
use rustls::version::{TLS12, TLS13};
use rustls::{ConnectionTrafficSecrets, SupportedCipherSuite};
use tls_support::records::Tls13;
use tls_support::{Client, Fixture, Wire, body};

const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

fn established(fixture: &Fixture, suite: SupportedCipherSuite) -> Wire {
    let config = fixture.client().suite(suite).versions(&[&TLS13]).build();
    let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
    wire.shake_hands();
    wire
}

fn aes_suites() -> impl Iterator<Item = SupportedCipherSuite> {
    let suites = tls_support::suites().into_iter();
    suites
        .filter(|(version, suite)| **version == TLS13 && format!("{suite:?}").contains("AES"))
        .map(|(_, suite)| suite)
}

/// What the kernel does with plaintext.
fn send(kernel: &mut Tls13, bytes: &[u8], wire: &mut Wire) {
    for part in bytes.chunks(1 << 14) {
        wire.out.extend(kernel.seal(23, part));
        wire.session.count_sent(part.len()).unwrap();
    }
}

#[test]
fn the_key_block_is_the_one_of_the_ktls_crate() {
    let fixture = Fixture::new();
    let mut count = 0;
    for suite in aes_suites() {
        let mut wire = established(&fixture, suite);
        for _ in 0..3 {
            wire.seal(HEAD, b"");
        }
        wire.deliver();
        let ours = wire.session.hand_over().expect("AES-GCM").info;
        // What the client receives with is what the server sends with.
        let (sequence, secrets) = wire.client.connection.dangerous_extract_secrets().unwrap().rx;
        assert!(sequence > 3);
        let theirs = match CryptoInfo::from_rustls(suite, (sequence, secrets)).unwrap() {
            CryptoInfo::AesGcm128(block) => [
                &block.info.version.to_ne_bytes()[..],
                &block.info.cipher_type.to_ne_bytes(),
                &block.iv,
                &block.key,
                &block.salt,
                &block.rec_seq,
            ]
            .concat(),
            CryptoInfo::AesGcm256(block) => [
                &block.info.version.to_ne_bytes()[..],
                &block.info.cipher_type.to_ne_bytes(),
                &block.iv,
                &block.key,
                &block.salt,
                &block.rec_seq,
            ]
            .concat(),
            _ => panic!("another cipher"),
        };
        assert_eq!(*ours, theirs);
        count += 1;
    }
    assert_eq!(count, 2);
}

#[test]
fn the_layout_is_the_one_of_the_system_s_headers() {
    assert_eq!(size_of::<libc::tls12_crypto_info_aes_gcm_128>(), 40);
    assert_eq!(size_of::<libc::tls12_crypto_info_aes_gcm_256>(), 56);
    assert_eq!(std::mem::offset_of!(libc::tls12_crypto_info_aes_gcm_256, iv), 4);
    assert_eq!(std::mem::offset_of!(libc::tls12_crypto_info_aes_gcm_256, key), 12);
    assert_eq!(std::mem::offset_of!(libc::tls12_crypto_info_aes_gcm_256, salt), 44);
    assert_eq!(std::mem::offset_of!(libc::tls12_crypto_info_aes_gcm_256, rec_seq), 48);
    let fixture = Fixture::new();
    let mut lengths: Vec<_> = aes_suites()
        .map(|suite| established(&fixture, suite).session.hand_over().unwrap().info.len())
        .collect();
    lengths.sort_unstable();
    assert_eq!(lengths, [40, 56]);
}

#[test]
fn the_kernel_goes_on_exactly_where_userspace_stopped() {
    let fixture = Fixture::new();
    for suite in aes_suites() {
        let mut wire = established(&fixture, suite);
        wire.seal(HEAD, b"");
        wire.deliver();
        let HandOver { info, .. } = wire.session.hand_over().unwrap();
        let mut kernel = Tls13::from_crypto_info(&info);
        let large = body(100_000);
        let theirs: Vec<u8> = large.chunks(1 << 14).flat_map(|part| kernel.seal(23, part)).collect();
        // The kernel refused after all, so userspace makes the same records.
        wire.session.kernel_refused();
        assert!(wire.session.hand_over().is_none(), "not asked again");
        wire.seal(b"", &large);
        assert!(wire.out == theirs, "{suite:?}");
    }
}

#[test]
fn a_session_under_the_kernel_s_keys() {
    let fixture = Fixture::new();
    for suite in aes_suites() {
        let mut wire = established(&fixture, suite);
        wire.seal(HEAD, b"first");
        wire.turn().unwrap();
        // The client has changed its key, so ours has changed, too.
        wire.client.connection.refresh_traffic_keys().unwrap();
        wire.turn().unwrap();
        // Part of the client's next record is here already.
        wire.client.write(b"GET /next HTTP/1.1\r\n\r\n");
        let request = wire.client.output();
        wire.feed(&request[..9]).unwrap();

        let taken = wire.session.hand_over().unwrap();
        let mut kernel = Tls13::from_crypto_info(&taken.info);
        wire.session.kernel_sends(taken);
        assert!(wire.session.is_sent_by_kernel());
        assert!(wire.session.hand_over().is_none());
        let large = body(300_000);
        send(&mut kernel, &large, &mut wire);
        wire.deliver();
        wire.feed(&request[9..]).unwrap();
        assert_eq!(wire.plain, b"GET /next HTTP/1.1\r\n\r\n");
        assert!(!wire.last.end_soon);

        // A change of the client's key alone is nothing; one that asks for ours ends the connection.
        wire.client.connection.refresh_traffic_keys().unwrap();
        wire.turn().unwrap();
        assert!(wire.last.end_soon);
        assert!(wire.out.is_empty());
        send(&mut kernel, b"the rest", &mut wire);
        let goodbye = wire.session.close_notify(&mut wire.out).expect("the kernel sends it");
        assert_eq!(goodbye, [1, 0]);
        assert_eq!(wire.session.close_notify(&mut wire.out), None, "once");
        wire.out.extend(kernel.seal(ALERT, &goodbye));
        wire.deliver();
        assert!(wire.client.is_closed_by_peer());
        assert!(wire.received == [HEAD, b"first", &large, b"the rest"].concat(), "{suite:?}");
    }
}

#[test]
fn the_kernel_is_asked_to_send_alerts() {
    let fixture = Fixture::new();
    let suite = aes_suites().next().unwrap();
    let mut wire = established(&fixture, suite);
    let taken = wire.session.hand_over().unwrap();
    wire.session.kernel_sends(taken);
    let failure = wire.feed(&[23, 3, 3, 0, 0]);
    assert!(matches!(failure, Err(Failure::Refused(_))));
    assert!(wire.out.is_empty());
    assert_eq!(wire.session.unsent_alert(), Some([2, 20]));
    assert_eq!(wire.session.unsent_alert(), None);
}

#[test]
fn a_key_is_not_used_for_ever() {
    let fixture = Fixture::new();
    let mut wire = established(&fixture, aes_suites().next().unwrap());
    let taken = wire.session.hand_over().unwrap();
    wire.session.kernel_sends(taken);
    let turn = 16 << 20;
    let turns = (0..).take_while(|_| wire.session.count_sent(turn).is_ok()).count() as u64;
    let sent = turns * turn as u64;
    assert!((255 << 30..256 << 30).contains(&sent), "{sent}");
}

#[test]
fn what_the_kernel_is_not_given() {
    let mut fixture = Fixture::new();
    for (version, suite) in tls_support::suites() {
        let config = fixture.client().suite(suite).versions(&[version]).build();
        let mut wire = Wire::new(&fixture.endpoint(), Client::new(&config, "localhost"));
        assert!(wire.session.hand_over().is_none(), "before the handshake");
        wire.shake_hands();
        let given = wire.session.hand_over().is_some();
        let expected = *version != TLS12 && format!("{suite:?}").contains("AES");
        assert_eq!(given, expected, "{suite:?}");
        wire.close_notify();
        assert!(wire.session.hand_over().is_none(), "after the end");
    }
    fixture.kernel = false;
    let wire = established(&fixture, aes_suites().next().unwrap());
    assert!(wire.session.hand_over().is_none(), "turned off");
}

#[test]
#[should_panic(expected = "a record was sealed during the hand-over")]
fn a_record_between_asking_and_telling() {
    let mut wire = established(&Fixture::new(), aes_suites().next().unwrap());
    let taken = wire.session.hand_over().unwrap();
    wire.seal(HEAD, b"");
    wire.session.kernel_sends(taken);
}

#[test]
#[should_panic(expected = "ciphertext for a socket whose kernel encrypts")]
fn ciphertext_after_the_hand_over() {
    let mut wire = established(&Fixture::new(), aes_suites().next().unwrap());
    let taken = wire.session.hand_over().unwrap();
    wire.session.kernel_sends(taken);
    wire.seal(HEAD, b"");
}

#[test]
fn the_secrets_of_both_ends_agree() {
    // Guards the tests above: they take the client's keys for the server's.
    let fixture = Fixture::new();
    let mut wire = established(&fixture, aes_suites().next().unwrap());
    wire.deliver();
    let info = wire.session.hand_over().unwrap().info;
    let (_, secrets) = wire.client.connection.dangerous_extract_secrets().unwrap().rx;
    let key = match &secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, .. } | ConnectionTrafficSecrets::Aes256Gcm { key, .. } => {
            key
        }
        _ => panic!("another cipher"),
    };
    assert!(info.windows(key.as_ref().len()).any(|part| part == key.as_ref()));
}
