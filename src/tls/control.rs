//! Alerts, and the few handshake messages that may follow the handshake: what they look like on the
//! wire and how they are read. Knows bytes and limits, no keys and no connection. RFC 8446 sections
//! 4.6.3 and 6, RFC 5246 section 7.2.

use std::fmt;

/// The content type of alerts.
pub const ALERT: u8 = 21;
/// The content type of handshake messages.
pub const HANDSHAKE: u8 = 22;
/// The content type of application data, and the outer type of every protected TLS 1.3 record.
pub const APPLICATION_DATA: u8 = 23;

/// An alert's description.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Alert(pub u8);

impl Alert {
    /// The end of what the sender has to say.
    pub const CLOSE_NOTIFY: Self = Self(0);
    /// A message of a kind, or in a place, that is not allowed.
    pub const UNEXPECTED_MESSAGE: Self = Self(10);
    /// A record that was not protected by the right key, or was changed.
    pub const BAD_RECORD_MAC: Self = Self(20);
    /// A record larger than allowed.
    pub const RECORD_OVERFLOW: Self = Self(22);
    /// A message whose fields make no sense.
    pub const ILLEGAL_PARAMETER: Self = Self(47);
    /// A message that cannot be parsed.
    pub const DECODE_ERROR: Self = Self(50);
    /// A version nobody agreed on.
    pub const PROTOCOL_VERSION: Self = Self(70);
    /// Something failed that is not the peer's fault.
    pub const INTERNAL_ERROR: Self = Self(80);
    /// The user gave up; close_notify follows.
    pub const USER_CANCELED: Self = Self(90);
    /// TLS 1.2: there will be no second handshake on this connection.
    pub const NO_RENEGOTIATION: Self = Self(100);

    /// The two bytes of a fatal alert, or of the warnings that TLS has.
    pub fn encode(self) -> [u8; 2] {
        let warning = matches!(self, Self::CLOSE_NOTIFY | Self::USER_CANCELED | Self::NO_RENEGOTIATION);
        [if warning { 1 } else { 2 }, self.0]
    }

    /// The registered name.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "close_notify",
            10 => "unexpected_message",
            20 => "bad_record_mac",
            21 => "decryption_failed",
            22 => "record_overflow",
            40 => "handshake_failure",
            42 => "bad_certificate",
            43 => "unsupported_certificate",
            44 => "certificate_revoked",
            45 => "certificate_expired",
            46 => "certificate_unknown",
            47 => "illegal_parameter",
            48 => "unknown_ca",
            49 => "access_denied",
            50 => "decode_error",
            51 => "decrypt_error",
            70 => "protocol_version",
            71 => "insufficient_security",
            80 => "internal_error",
            86 => "inappropriate_fallback",
            90 => "user_canceled",
            100 => "no_renegotiation",
            109 => "missing_extension",
            110 => "unsupported_extension",
            112 => "unrecognized_name",
            113 => "bad_certificate_status_response",
            115 => "unknown_psk_identity",
            116 => "certificate_required",
            120 => "no_application_protocol",
            _ => "unknown",
        }
    }
}

impl fmt::Debug for Alert {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name(), self.0)
    }
}

/// Why a session failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// What came first is an HTTP request. Nothing was sent, so a plain answer can be.
    PlainHttp,
    /// The handshake cannot go on; the text is for the log.
    Handshake(&'static str),
    /// The peer ended the session with an alert.
    PeerAlert(Alert),
    /// The peer broke the rules after the handshake and was told so with this alert.
    Refused(Alert),
    /// More than [`super::HANDSHAKE_BYTES_MAX`] before the handshake was complete.
    TooMuchInput,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PlainHttp => f.write_str("plain HTTP on a TLS port"),
            Self::Handshake(why) => write!(f, "handshake failed: {why}"),
            Self::PeerAlert(alert) => write!(f, "peer sent alert {alert:?}"),
            Self::Refused(alert) => write!(f, "peer was refused with alert {alert:?}"),
            Self::TooMuchInput => f.write_str("too much input before the handshake was complete"),
        }
    }
}

/// What a peer's alert means to us.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The peer will send nothing more.
    Closed,
    /// Nothing to do.
    Ignored,
}

/// How many warnings that mean nothing a peer may send on one connection.
const WARNINGS_MAX: u8 = 4;
/// How many key updates may come without application data between them. Each costs two key derivations.
const KEY_UPDATES_MAX: u8 = 8;
/// How many records without content may come in a row.
const EMPTY_RECORDS_MAX: u8 = 32;

/// Counts what a peer may do for nothing, and holds the part of a key update that has come.
#[derive(Default, Debug)]
pub struct Patience {
    warnings: u8,
    key_updates: u8,
    empty_records: u8,
    handshake: [u8; 5],
    handshake_length: u8,
}

/// What a record after the handshake asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Request {
    /// Nothing yet: part of a message.
    Incomplete,
    /// The peer's next record is under its next key.
    KeyUpdate {
        /// Whether ours must be, too.
        reply: bool,
    },
    /// TLS 1.2: answer with the warning no_renegotiation.
    Renegotiate,
}

impl Patience {
    /// Notes a record of application data.
    ///
    /// # Errors
    /// At the end of patience with empty ones.
    pub fn application_data(&mut self, length: usize) -> Result<(), Failure> {
        if self.handshake_length != 0 {
            return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
        }
        if length == 0 {
            return count(&mut self.empty_records, EMPTY_RECORDS_MAX);
        }
        self.empty_records = 0;
        self.key_updates = 0;
        Ok(())
    }

    /// Reads an alert.
    ///
    /// # Errors
    /// When it is fatal, no alert, or one too many.
    pub fn alert(&mut self, payload: &[u8], tls13: bool) -> Result<Heard, Failure> {
        let &[level, description] = payload else {
            return Err(Failure::Refused(Alert::DECODE_ERROR));
        };
        match (level, Alert(description)) {
            (_, Alert::CLOSE_NOTIFY) => Ok(Heard::Closed),
            // The level means nothing in TLS 1.3; every alert but these two is an error.
            (_, Alert::USER_CANCELED) if tls13 => self.warning(),
            (1, _) if !tls13 => self.warning(),
            (_, alert) => Err(Failure::PeerAlert(alert)),
        }
    }

    fn warning(&mut self) -> Result<Heard, Failure> {
        count(&mut self.warnings, WARNINGS_MAX).map(|()| Heard::Ignored)
    }

    /// Reads what one record holds of handshake messages. A key update must be the last thing in
    /// its record, because the next byte is under another key.
    ///
    /// # Errors
    /// For anything but a key update (TLS 1.3) or the begin of a handshake (TLS 1.2).
    pub fn handshake(&mut self, payload: &[u8], tls13: bool) -> Result<Request, Failure> {
        if payload.is_empty() {
            return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
        }
        if !tls13 {
            let client_hello = self.handshake_length == 0 && payload[0] == 1;
            if !client_hello {
                return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
            }
            return self.warning().map(|_| Request::Renegotiate);
        }
        for (index, byte) in payload.iter().enumerate() {
            let at = usize::from(self.handshake_length);
            self.handshake[at] = *byte;
            self.handshake_length += 1;
            // Judge as soon as it can be, so that nothing of another kind is waited for.
            const HEADER: [u8; 4] = [24, 0, 0, 1];
            if at < 4 && HEADER[at] != *byte {
                let alert = if at == 0 { Alert::UNEXPECTED_MESSAGE } else { Alert::DECODE_ERROR };
                return Err(Failure::Refused(alert));
            }
            if at == 4 {
                if index + 1 != payload.len() {
                    return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
                }
                self.handshake_length = 0;
                count(&mut self.key_updates, KEY_UPDATES_MAX)?;
                return match byte {
                    0 => Ok(Request::KeyUpdate { reply: false }),
                    1 => Ok(Request::KeyUpdate { reply: true }),
                    _ => Err(Failure::Refused(Alert::ILLEGAL_PARAMETER)),
                };
            }
        }
        Ok(Request::Incomplete)
    }
}

fn count(counter: &mut u8, max: u8) -> Result<(), Failure> {
    *counter += 1;
    if *counter > max { Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE)) } else { Ok(()) }
}

/// A key update of ours that asks for none in return.
pub const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(alert: Alert) -> Result<Request, Failure> {
        Err(Failure::Refused(alert))
    }

    #[test]
    fn handshake_messages_after_the_handshake() {
        let check = |section: &str, tls13: bool, records: &[&[u8]], expected: Result<Request, Failure>| {
            let mut patience = Patience::default();
            let mut last = Ok(Request::Incomplete);
            for record in records {
                last = patience.handshake(record, tls13);
                if last.is_err() {
                    break;
                }
            }
            assert_eq!(last, expected, "{section}");
        };
        let update = Ok(Request::KeyUpdate { reply: false });
        check("RFC 8446 4.6.3, not requested", true, &[&KEY_UPDATE], update);
        check("4.6.3, requested", true, &[&[24, 0, 0, 1, 1]], Ok(Request::KeyUpdate { reply: true }));
        check("4.6.3, other value", true, &[&[24, 0, 0, 1, 2]], refused(Alert::ILLEGAL_PARAMETER));
        check("5.1, split", true, &[&[24], &[0, 0], &[1, 0]], update);
        check("5.1, split, part", true, &[&[24], &[0, 0]], Ok(Request::Incomplete));
        check("5.1, key change inside", true, &[&[24, 0, 0, 1, 0, 24]], refused(Alert::UNEXPECTED_MESSAGE));
        check("5.1, empty", true, &[&[]], refused(Alert::UNEXPECTED_MESSAGE));
        check("6.2, length", true, &[&[24, 0, 0, 2]], refused(Alert::DECODE_ERROR));
        check("4.1.2, second hello", true, &[&[1]], refused(Alert::UNEXPECTED_MESSAGE));
        check("4.6.1, ticket from a client", true, &[&[4]], refused(Alert::UNEXPECTED_MESSAGE));
        check("RFC 5246 7.4.1.2", false, &[&[1, 0, 0, 9]], Ok(Request::Renegotiate));
        check("RFC 5246 7.4", false, &[&[24, 0, 0, 1, 0]], refused(Alert::UNEXPECTED_MESSAGE));
    }

    #[test]
    fn alerts() {
        let check = |section: &str, tls13: bool, payload: &[u8], expected| {
            assert_eq!(Patience::default().alert(payload, tls13), expected, "{section}");
        };
        check("RFC 8446 6.1", true, &[1, 0], Ok(Heard::Closed));
        check("6, level is ignored", true, &[2, 0], Ok(Heard::Closed));
        check("6.1", true, &[1, 90], Ok(Heard::Ignored));
        check("6, warnings do not exist", true, &[1, 100], Err(Failure::PeerAlert(Alert(100))));
        check("6.2", true, &[2, 48], Err(Failure::PeerAlert(Alert(48))));
        check("6, one alert a record", true, &[1, 0, 1, 0], Err(Failure::Refused(Alert::DECODE_ERROR)));
        check("6, fragment", true, &[1], Err(Failure::Refused(Alert::DECODE_ERROR)));
        check("RFC 5246 7.2", false, &[1, 100], Ok(Heard::Ignored));
        check("RFC 5246 7.2", false, &[2, 100], Err(Failure::PeerAlert(Alert(100))));
    }

    #[test]
    fn patience_ends() {
        let mut patience = Patience::default();
        for _ in 0..EMPTY_RECORDS_MAX {
            assert_eq!(patience.application_data(0), Ok(()));
        }
        assert!(patience.application_data(0).is_err());

        let mut patience = Patience::default();
        for _ in 0..KEY_UPDATES_MAX {
            assert!(patience.handshake(&KEY_UPDATE, true).is_ok());
        }
        assert_eq!(patience.application_data(1), Ok(()), "data buys more");
        for _ in 0..KEY_UPDATES_MAX {
            assert!(patience.handshake(&KEY_UPDATE, true).is_ok());
        }
        assert!(patience.handshake(&KEY_UPDATE, true).is_err());

        let mut patience = Patience::default();
        assert_eq!(patience.handshake(&[24, 0], true), Ok(Request::Incomplete));
        assert!(patience.application_data(1).is_err(), "data inside a handshake message");
    }
}
