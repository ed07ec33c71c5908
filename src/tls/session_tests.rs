//! Sessions whose state no handshake could reach in a test's time.

use super::super::records::Secrets;
use super::*;

fn secrets_at(sequence: u64) -> Secrets {
    Secrets::new(Version::Tls12, Cipher::Aes128Gcm, &[7; 16], &[9; 12], sequence).expect("a key that fits")
}

/// A session of TLS 1.2 that has sent so many records.
fn session_at(sequence: u64) -> Session {
    let records = Records {
        records_max: Cipher::Aes128Gcm.records_max(),
        sending: Sending::Userspace(Sealer::new(secrets_at(sequence))),
        opener: Opener::new(secrets_at(0)),
        partial: Vec::new(),
        keys: None,
        patience: control::Patience::default(),
        closed: false,
        end_soon: false,
        kernel_may: false,
        unsent_alert: None,
    };
    Session { state: State::Established(Box::new(records)) }
}

#[test]
fn renegotiation_is_refused_without_using_up_the_key() {
    const MAX: u64 = 1 << 24;
    let check = |sequence: u64, warnings: usize, alert: Alert| {
        let mut session = session_at(sequence);
        let mut client = Sealer::new(secrets_at(0));
        let (mut answered, mut plain) = (0, Vec::new());
        let failure = loop {
            let (mut hello, mut out) = (Vec::new(), Vec::new());
            client.seal(HANDSHAKE, &[1, 0, 0, 0], &[], &mut hello, 0);
            match session.receive(&hello, &mut plain, &mut out) {
                Ok(_) => answered += 1,
                Err(failure) => break (failure, out.is_empty()),
            }
        };
        assert_eq!(failure, (Failure::Refused(alert), false), "{sequence}");
        assert_eq!(answered, warnings, "{sequence}");
    };
    check(0, 4, Alert::UNEXPECTED_MESSAGE);
    check(MAX - 6, 4, Alert::UNEXPECTED_MESSAGE);
    check(MAX - 5, 3, Alert::INTERNAL_ERROR);
    check(MAX - 3, 1, Alert::INTERNAL_ERROR);
    check(MAX - 2, 0, Alert::INTERNAL_ERROR);
}

#[test]
fn an_exhausted_key_still_says_the_end() {
    let mut session = session_at((1 << 24) - 3);
    let mut out = Vec::new();
    assert_eq!(session.seal(b"last", b"", &mut out), Ok(()));
    assert_eq!(session.seal(b"more", b"", &mut out), Err(Exhausted));
    let length = out.len();
    assert_eq!(session.close_notify(&mut out), None);
    assert!(out.len() > length);
}
