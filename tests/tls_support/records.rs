//! Records made and opened by other code than the server's, so that a mistake there is not repeated here.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use rustls::ConnectionTrafficSecrets;

/// One direction of a TLS 1.3 session.
pub struct Tls13 {
    key: LessSafeKey,
    iv: [u8; 12],
    pub sequence: u64,
}

impl Tls13 {
    pub fn new((sequence, secrets): (u64, ConnectionTrafficSecrets)) -> Self {
        let (algorithm, key, iv) = match &secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => panic!("a cipher nobody knows"),
        };
        let key = LessSafeKey::new(UnboundKey::new(algorithm, key.as_ref()).unwrap());
        Self { key, iv: iv.as_ref().try_into().unwrap(), sequence }
    }

    /// Reads the structure of setsockopt(2) as the kernel does.
    pub fn from_crypto_info(info: &[u8]) -> Self {
        assert_eq!(info[..2], 0x0304u16.to_ne_bytes(), "TLS 1.3");
        let (algorithm, length) = match u16::from_ne_bytes([info[2], info[3]]) {
            51 => (&AES_128_GCM, 16),
            52 => (&AES_256_GCM, 32),
            other => panic!("cipher {other}"),
        };
        assert_eq!(info.len(), 24 + length);
        let (iv, rest) = info[4..].split_at(8);
        let (key, rest) = rest.split_at(length);
        let (salt, sequence) = rest.split_at(4);
        Self {
            key: LessSafeKey::new(UnboundKey::new(algorithm, key).unwrap()),
            iv: [salt, iv].concat().try_into().unwrap(),
            sequence: u64::from_be_bytes(sequence.try_into().unwrap()),
        }
    }

    fn nonce(&mut self) -> Nonce {
        let mut nonce = (u128::from_be_bytes([&[0; 4], &self.iv[..]].concat().try_into().unwrap())
            ^ u128::from(self.sequence))
        .to_be_bytes();
        self.sequence += 1;
        nonce.rotate_left(4);
        Nonce::try_assume_unique_for_key(&nonce[..12]).unwrap()
    }

    /// A record with that content type.
    pub fn seal(&mut self, content_type: u8, content: &[u8]) -> Vec<u8> {
        self.seal_inner(&[content, &[content_type]].concat())
    }

    /// A record with whatever is inside, content type and padding included.
    pub fn seal_inner(&mut self, inner: &[u8]) -> Vec<u8> {
        let length = inner.len() + 16;
        let header = [23, 3, 3, (length >> 8) as u8, length as u8];
        let mut record = inner.to_vec();
        let nonce = self.nonce();
        self.key.seal_in_place_append_tag(nonce, Aad::from(header), &mut record).unwrap();
        [header.to_vec(), record].concat()
    }

    /// Opens the records in `wire`: content types and contents.
    pub fn open(&mut self, mut wire: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut opened = Vec::new();
        while !wire.is_empty() {
            let (header, rest) = wire.split_at(5);
            let (body, rest) = rest.split_at(usize::from(u16::from_be_bytes([header[3], header[4]])));
            let mut body = body.to_vec();
            let nonce = self.nonce();
            let inner =
                self.key.open_in_place(nonce, Aad::from(header), &mut body).expect("a genuine record");
            let (content_type, content) = inner.split_last().unwrap();
            opened.push((*content_type, content.to_vec()));
            wire = rest;
        }
        opened
    }
}
