//! Coding and decoding what is at hand: answers of our own while the client waits, and files that a
//! site ships only compressed.
//!
//! Pure computation on bytes in memory. What makes variants, slowly and well, is the precompressor.

use std::io::{Read, Write};

use super::entry::Coding;

/// Shorter answers fit in one packet or two as they are.
const PLAIN_BYTES_MIN: usize = 1024;

/// Longer answers are sent as they are: at this length gzip takes some milliseconds on a slow core, for
/// which every other client of the worker waits.
const PLAIN_BYTES_MAX: usize = 512 * 1024;

/// zstd's fastest level but for the negative ones, which hardly compress.
const ZSTD_LEVEL: i32 = 1;

/// The exponent of the largest window that zstd clients must take, 8 MiB (RFC 9659).
const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Codes an answer at low cost; `None` where that would not pay.
pub fn cheaply(plain: &[u8], coding: Coding) -> Option<Vec<u8>> {
    if !(PLAIN_BYTES_MIN..=PLAIN_BYTES_MAX).contains(&plain.len()) {
        return None;
    }
    let coded = match coding {
        Coding::Zstd => zstd::bulk::compress(plain, ZSTD_LEVEL).ok()?,
        Coding::Gzip => {
            let into = Vec::with_capacity(plain.len() / 4);
            let mut encoder = flate2::write::GzEncoder::new(into, flate2::Compression::fast());
            encoder.write_all(plain).ok()?;
            encoder.finish().ok()?
        }
        // No level of it is cheap.
        Coding::Brotli => return None,
    };
    (coded.len() < plain.len()).then_some(coded)
}

/// Why something is not decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Undecoded {
    /// It becomes larger than was allowed.
    TooLarge,
    /// It is not what its name says, or broken.
    Broken,
}

/// Decodes, to at most so many bytes: a few bytes may stand for gigabytes.
///
/// # Errors
/// Where it becomes larger, or cannot be decoded.
pub fn decode(coded: &[u8], coding: Coding, bytes_max: usize) -> Result<Vec<u8>, Undecoded> {
    match coding {
        Coding::Gzip => drain(flate2::bufread::MultiGzDecoder::new(coded), bytes_max),
        Coding::Brotli => drain(brotli::Decompressor::new(coded, 64 * 1024), bytes_max),
        Coding::Zstd => {
            let decoder = zstd::stream::read::Decoder::with_buffer(coded);
            let mut decoder = decoder.map_err(|_| Undecoded::Broken)?;
            decoder.window_log_max(ZSTD_WINDOW_LOG_MAX).map_err(|_| Undecoded::Broken)?;
            drain(decoder, bytes_max)
        }
    }
}

fn drain(decoder: impl Read, bytes_max: usize) -> Result<Vec<u8>, Undecoded> {
    let mut plain = Vec::new();
    // One more than allowed shows that there is more.
    let limit = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    decoder.take(limit).read_to_end(&mut plain).map_err(|_| Undecoded::Broken)?;
    if plain.len() > bytes_max { Err(Undecoded::TooLarge) } else { Ok(plain) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(plain: &[u8], coding: Coding) -> Vec<u8> {
        match coding {
            Coding::Brotli => {
                let mut coded = Vec::new();
                let mut encoder = brotli::CompressorWriter::new(&mut coded, 4096, 5, 22);
                encoder.write_all(plain).expect("memory takes everything");
                drop(encoder);
                coded
            }
            coding => {
                let long = plain.len().max(PLAIN_BYTES_MIN);
                assert!(long <= PLAIN_BYTES_MAX);
                cheaply(plain, coding).expect("it compresses")
            }
        }
    }

    #[test]
    fn what_is_coded_is_decoded() {
        let plain = b"let x = 1;\n".repeat(1000);
        for coding in Coding::ALL {
            let coded = coded(&plain, coding);
            assert!(coded.len() < plain.len() / 10);
            assert_eq!(decode(&coded, coding, plain.len()).as_ref(), Ok(&plain), "{coding:?}");
            let bomb = decode(&coded, coding, plain.len() - 1);
            assert_eq!(bomb, Err(Undecoded::TooLarge), "{coding:?}");
            let cut = decode(&coded[..coded.len() - 5], coding, plain.len());
            assert_eq!(cut, Err(Undecoded::Broken), "{coding:?}");
            for foreign in [&b"<html>"[..], &b"\xff".repeat(50), b""] {
                assert_ne!(decode(foreign, coding, 100).ok().as_deref(), Some(foreign), "{coding:?}");
            }
        }
        assert_eq!(cheaply(&plain, Coding::Brotli), None);
    }

    #[test]
    fn only_what_pays_is_compressed() {
        assert_eq!(cheaply(&[b'x'; PLAIN_BYTES_MIN - 1], Coding::Gzip), None);
        assert_eq!(cheaply(&[b'x'; PLAIN_BYTES_MAX + 1], Coding::Zstd), None);
        let noise: Vec<u8> =
            (0..200_u32).flat_map(|n| xxhash_rust::xxh3::xxh3_128(&n.to_le_bytes()).to_le_bytes()).collect();
        assert_eq!(cheaply(&noise, Coding::Zstd), None);
        assert_eq!(cheaply(&noise, Coding::Gzip), None);
    }

    /// Some archivers write a member for each part (RFC 1952 section 2.2).
    #[test]
    fn members_of_gzip_are_joined() {
        let plain = b"0123456789".repeat(200);
        let twice = coded(&plain, Coding::Gzip).repeat(2);
        assert_eq!(decode(&twice, Coding::Gzip, 1 << 20), Ok(plain.repeat(2)));
    }
}
