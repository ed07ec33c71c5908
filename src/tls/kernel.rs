//! The hand-over of sending to the kernel: the structure that setsockopt(2) with TLS_TX takes, made
//! from the secrets of one direction. Knows bytes only; the ring makes the call.
//!
//! Only TLS 1.3 with AES-GCM is handed over. The kernel counts the explicit nonces of TLS 1.2 up from
//! the value it is given, while rustls makes them by exclusive or with the sequence number: the two
//! ways meet, and a nonce that repeats under one key gives AES-GCM away. ChaCha20 needs a module that
//! many hosts do not load, and the clients that prefer it have slow links.

use zeroize::Zeroizing;

use super::records::{Cipher, Secrets, Version};

/// The kernel's `tls12_crypto_info_aes_gcm_128` or `tls12_crypto_info_aes_gcm_256`, as bytes: version
/// and cipher in the byte order of the machine, then iv, key, salt, and the next record's number in
/// network order. Erased when dropped.
pub type CryptoInfo = Zeroizing<Vec<u8>>;

/// `TLS_1_3_VERSION` of `linux/tls.h`.
const VERSION: u16 = 0x0304;
/// `TLS_CIPHER_AES_GCM_128`.
const AES_GCM_128: u16 = 51;
/// `TLS_CIPHER_AES_GCM_256`.
const AES_GCM_256: u16 = 52;

/// Whether the kernel may be asked to send under such secrets.
pub fn suits(secrets: &Secrets) -> bool {
    secrets.version == Version::Tls13
        && matches!(secrets.cipher, Cipher::Aes128Gcm | Cipher::Aes256Gcm)
        && secrets.sequence < secrets.cipher.records_max() / 2
}

/// What the kernel needs to send the next record. `None` where it must not.
pub fn crypto_info(secrets: &Secrets) -> Option<CryptoInfo> {
    if !suits(secrets) {
        return None;
    }
    let cipher = match secrets.cipher {
        Cipher::Aes128Gcm => AES_GCM_128,
        Cipher::Aes256Gcm => AES_GCM_256,
        Cipher::Chacha20Poly1305 => return None,
    };
    let (salt, iv) = secrets.iv.split_at(4);
    // The exact capacity: a vector that grows leaves a copy of the key behind.
    let mut info = Zeroizing::new(Vec::with_capacity(4 + 8 + secrets.key().len() + 4 + 8));
    info.extend_from_slice(&VERSION.to_ne_bytes());
    info.extend_from_slice(&cipher.to_ne_bytes());
    info.extend_from_slice(iv);
    info.extend_from_slice(secrets.key());
    info.extend_from_slice(salt);
    info.extend_from_slice(&secrets.sequence.to_be_bytes());
    Some(info)
}

/// A structure that is right in form, for asking a kernel whether it knows the cipher.
pub fn specimen(cipher: Cipher) -> Option<CryptoInfo> {
    crypto_info(&Secrets::new(Version::Tls13, cipher, &[1; 32][..cipher.key_length()], &[2; 12], 0)?)
}
