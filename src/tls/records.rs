//! The record layer after the handshake: one [`Sealer`] for what we send, one [`Opener`] for what
//! comes. Both take plaintext and ciphertext where they lie and never copy a body twice. Knows keys,
//! sequence numbers and record headers; knows neither what the contents mean nor rustls.
//! RFC 8446 section 5, RFC 5246 section 6.2, RFC 5288, RFC 7905.

use aws_lc_rs::aead::{self, Aad, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

use super::control::{APPLICATION_DATA, Alert, Failure};

/// The longest content of a record.
pub const CONTENT_MAX: usize = 1 << 14;
/// The length of a record's header.
pub const HEADER: usize = 5;
/// The most a record is longer than its content: header, TLS 1.2's explicit nonce, tag, inner type.
pub const OVERHEAD_MAX: usize = HEADER + EXPLICIT_NONCE + 1 + TAG;

const TAG: usize = 16;
const EXPLICIT_NONCE: usize = 8;

/// Which rules the records follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}

/// How records are protected. Both versions use the same three.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cipher {
    /// AES-128 in Galois/counter mode.
    Aes128Gcm,
    /// AES-256 in Galois/counter mode.
    Aes256Gcm,
    /// ChaCha20 and Poly1305.
    Chacha20Poly1305,
}

impl Cipher {
    fn algorithm(self) -> &'static aead::Algorithm {
        match self {
            Self::Aes128Gcm => &aead::AES_128_GCM,
            Self::Aes256Gcm => &aead::AES_256_GCM,
            Self::Chacha20Poly1305 => &aead::CHACHA20_POLY1305,
        }
    }

    /// The length of a key.
    pub fn key_length(self) -> usize {
        match self {
            Self::Aes128Gcm => 16,
            Self::Aes256Gcm | Self::Chacha20Poly1305 => 32,
        }
    }

    /// How many records one key may protect (RFC 8446 section 5.5: 2^24.5 for AES-GCM; ChaCha20
    /// has no bound that a connection could reach).
    pub fn records_max(self) -> u64 {
        match self {
            Self::Aes128Gcm | Self::Aes256Gcm => 1 << 24,
            Self::Chacha20Poly1305 => u64::MAX,
        }
    }
}

/// All there is to know of one direction of a session. Erased when dropped.
pub struct Secrets {
    /// Which rules.
    pub version: Version,
    /// Which cipher.
    pub cipher: Cipher,
    /// The key, in the first [`Cipher::key_length`] bytes.
    pub key: Zeroizing<[u8; 32]>,
    /// The nonce of record 0; later ones differ by the exclusive or of their number. For AES-GCM in
    /// TLS 1.2 the last eight bytes travel in each record, and the peer's are not used.
    pub iv: Zeroizing<[u8; 12]>,
    /// The number of the next record.
    pub sequence: u64,
}

impl Secrets {
    /// Puts together what a handshake agreed on. `None`: the key does not fit the cipher.
    pub fn new(version: Version, cipher: Cipher, key: &[u8], iv: &[u8], sequence: u64) -> Option<Self> {
        let mut secrets =
            Self { version, cipher, key: Zeroizing::new([0; 32]), iv: Zeroizing::new([0; 12]), sequence };
        if key.len() != cipher.key_length() || iv.len() != 12 {
            return None;
        }
        secrets.key[..key.len()].copy_from_slice(key);
        secrets.iv.copy_from_slice(iv);
        Some(secrets)
    }

    /// The key's bytes.
    pub fn key(&self) -> &[u8] {
        &self.key[..self.cipher.key_length()]
    }

    fn aead(&self) -> LessSafeKey {
        let key = UnboundKey::new(self.cipher.algorithm(), self.key());
        LessSafeKey::new(key.expect("the key has the cipher's length"))
    }

    fn nonce(&self) -> [u8; 12] {
        let mut nonce = *self.iv;
        for (byte, number) in nonce[4..].iter_mut().zip(self.sequence.to_be_bytes()) {
            *byte ^= number;
        }
        nonce
    }

    fn has_explicit_nonce(&self) -> bool {
        self.version == Version::Tls12 && self.cipher != Cipher::Chacha20Poly1305
    }

    fn advance(&mut self) {
        self.sequence = self.sequence.checked_add(1).expect("no connection sends 2^64 records");
    }

    /// What TLS 1.2 authenticates beside the content (RFC 5246 section 6.2.3.3).
    fn aad12(&self, content_type: u8, version: [u8; 2], length: usize) -> [u8; 13] {
        let mut aad = [0; 13];
        aad[..8].copy_from_slice(&self.sequence.to_be_bytes());
        aad[8] = content_type;
        aad[9..11].copy_from_slice(&version);
        aad[11..].copy_from_slice(&u16::try_from(length).expect("a record's length").to_be_bytes());
        aad
    }
}

/// Protects what we send.
pub struct Sealer {
    secrets: Secrets,
    /// The expanded key, 600 bytes; made when it is needed.
    aead: Option<LessSafeKey>,
}

impl Sealer {
    /// Makes ready to send.
    pub fn new(secrets: Secrets) -> Self {
        Self { aead: None, secrets }
    }

    /// The secrets, with the number of the next record.
    pub fn secrets(&self) -> &Secrets {
        &self.secrets
    }

    /// Gives memory back until the next record.
    pub fn rest(&mut self) {
        self.aead = None;
    }

    /// Writes one record with the content `first`, `second` into `out`, from `at` on; `out` grows if it
    /// has to. Says where the record ends.
    ///
    /// Content in one piece is encrypted from where it lies into its place, which is 15 to 35 percent
    /// faster than copying and encrypting in place. Only a record that joins two pieces is copied.
    pub fn seal(
        &mut self,
        content_type: u8,
        first: &[u8],
        second: &[u8],
        out: &mut Vec<u8>,
        at: usize,
    ) -> usize {
        let length = first.len() + second.len();
        assert!(length <= CONTENT_MAX, "a record holds no more");
        assert!(self.secrets.sequence < self.secrets.cipher.records_max(), "the key is used up");
        let tls13 = self.secrets.version == Version::Tls13;
        let explicit = if self.secrets.has_explicit_nonce() { EXPLICIT_NONCE } else { 0 };
        let trailer = usize::from(tls13) + TAG;
        let protected = explicit + length + trailer;
        let end = at + HEADER + protected;
        if out.len() < end {
            out.resize(end, 0);
        }
        let outer_type = if tls13 { APPLICATION_DATA } else { content_type };
        let [high, low] = u16::try_from(protected).expect("a record's length").to_be_bytes();
        let header = [outer_type, 3, 3, high, low];
        let nonce = self.secrets.nonce();
        let (head, rest) = out[at..end].split_at_mut(HEADER + explicit);
        head[..HEADER].copy_from_slice(&header);
        head[HEADER..].copy_from_slice(&nonce[12 - explicit..]);
        let (body, trailer) = rest.split_at_mut(length);
        let aad12;
        let (aad, inner_type): (&[u8], &[u8]) = if tls13 {
            (&header, &[content_type])
        } else {
            aad12 = self.secrets.aad12(content_type, [3, 3], length);
            (&aad12, &[])
        };
        let aead = self.aead.get_or_insert_with(|| self.secrets.aead());
        let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(aad));
        let sealed = if first.is_empty() || second.is_empty() {
            let content = if first.is_empty() { second } else { first };
            aead.seal_out_of_place_scatter(nonce, aad, content, body, inner_type, trailer)
        } else {
            body[..first.len()].copy_from_slice(first);
            body[first.len()..].copy_from_slice(second);
            aead.seal_in_place_scatter(nonce, aad, body, inner_type, trailer)
        };
        sealed.expect("encryption of a record cannot fail");
        self.secrets.advance();
        end
    }
}

/// Opens what the peer sends.
pub struct Opener {
    secrets: Secrets,
    /// The expanded key; made when it is needed.
    aead: Option<LessSafeKey>,
}

/// The header of a record that may come after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    bytes: [u8; HEADER],
}

impl Header {
    /// The length of what follows the header.
    pub fn length(self) -> usize {
        usize::from(u16::from_be_bytes([self.bytes[3], self.bytes[4]]))
    }
}

impl Opener {
    /// Makes ready to receive.
    pub fn new(secrets: Secrets) -> Self {
        Self { aead: None, secrets }
    }

    /// Gives memory back until the next record.
    pub fn rest(&mut self) {
        self.aead = None;
    }

    /// Which rules the records follow.
    pub fn version(&self) -> Version {
        self.secrets.version
    }

    /// Judges a header before the rest of the record is waited for. `None`: it is not all there.
    ///
    /// # Errors
    /// When no record of the session can begin so.
    pub fn header(&self, wire: &[u8]) -> Result<Option<Header>, Failure> {
        let Some(&bytes) = wire.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let (known, length_max) = match self.secrets.version {
            Version::Tls13 => (bytes[0] == APPLICATION_DATA, CONTENT_MAX + 256),
            // 20, a change of ciphers, is refused: nothing may change them any more.
            Version::Tls12 => ((21..=23).contains(&bytes[0]), CONTENT_MAX + 2048),
        };
        if !known {
            return Err(Failure::Refused(Alert::UNEXPECTED_MESSAGE));
        }
        if bytes[1] != 3 {
            return Err(Failure::Refused(Alert::PROTOCOL_VERSION));
        }
        let header = Header { bytes };
        if header.length() > length_max {
            return Err(Failure::Refused(Alert::RECORD_OVERFLOW));
        }
        Ok(Some(header))
    }

    /// Opens the record `body` and appends its content to `plain`, straight from where it lies.
    /// Says the content's type. On failure `plain` is as before.
    ///
    /// # Errors
    /// When the record was not made by the peer, or by a peer that breaks the rules.
    pub fn open(&mut self, header: Header, body: &[u8], plain: &mut Vec<u8>) -> Result<u8, Failure> {
        let start = plain.len();
        let result = self.open_into(header, body, plain, start);
        if result.is_err() {
            // What a refused record decrypts to must not be seen by anybody.
            plain.truncate(start);
        }
        result
    }

    fn open_into(
        &mut self,
        header: Header,
        body: &[u8],
        plain: &mut Vec<u8>,
        start: usize,
    ) -> Result<u8, Failure> {
        const FORGED: Failure = Failure::Refused(Alert::BAD_RECORD_MAC);
        let mut nonce = self.secrets.nonce();
        let mut sealed = body;
        if self.secrets.has_explicit_nonce() {
            let (explicit, rest) = body.split_first_chunk::<EXPLICIT_NONCE>().ok_or(FORGED)?;
            nonce[4..].copy_from_slice(explicit);
            sealed = rest;
        }
        let (ciphertext, tag) = sealed.split_last_chunk::<TAG>().ok_or(FORGED)?;
        plain.resize(start + ciphertext.len(), 0);
        let into = &mut plain[start..];
        let aead = self.aead.get_or_insert_with(|| self.secrets.aead());
        let nonce = Nonce::assume_unique_for_key(nonce);
        let [content_type, major, minor, ..] = header.bytes;
        match self.secrets.version {
            Version::Tls13 => {
                let aad = Aad::from(header.bytes);
                aead.open_separate_gather(nonce, aad, ciphertext, tag, into).map_err(|_| FORGED)?;
                self.secrets.advance();
                let content_type = strip_padding(plain, start)?;
                check_length(plain.len() - start)?;
                Ok(content_type)
            }
            Version::Tls12 => {
                let aad = self.secrets.aad12(content_type, [major, minor], ciphertext.len());
                let aad = Aad::from(aad);
                aead.open_separate_gather(nonce, aad, ciphertext, tag, into).map_err(|_| FORGED)?;
                self.secrets.advance();
                check_length(ciphertext.len())?;
                Ok(content_type)
            }
        }
    }
}

/// Takes the padding and the inner content type off the end.
fn strip_padding(plain: &mut Vec<u8>, start: usize) -> Result<u8, Failure> {
    let inner = &plain[start..];
    if inner.len() > CONTENT_MAX + 1 {
        return Err(Failure::Refused(Alert::RECORD_OVERFLOW));
    }
    let last = inner.iter().rposition(|byte| *byte != 0);
    let last = last.ok_or(Failure::Refused(Alert::UNEXPECTED_MESSAGE))?;
    let content_type = inner[last];
    plain.truncate(start + last);
    Ok(content_type)
}

fn check_length(length: usize) -> Result<(), Failure> {
    if length > CONTENT_MAX { Err(Failure::Refused(Alert::RECORD_OVERFLOW)) } else { Ok(()) }
}
