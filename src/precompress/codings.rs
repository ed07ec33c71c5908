//! From bytes to coded bytes, as small as they get within reason: brotli 11, zstd 19, gzip by libdeflate's
//! 12. What is too large to be held in memory streams through the encoders, with brotli at a lower level.
//!
//! Knows nothing of files and where they lie.

use std::io::{self, Read, Write};

use crate::files::entry::Coding;
use crate::sys::brotli;

/// Larger sources are streamed. Up to here brotli's window holds all of a source, and the encoders together
/// take no more than [`memory`] says; brotli 11 takes half a minute for that much.
pub const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// Quality 11 searches every position; 9 is the best that does not, at a tenth of the time.
const BROTLI_STREAMED: i32 = 9;
const BROTLI_WHOLE: u32 = 11;

/// Its window is 8 MiB at most, which is the most that RFC 9659 section 3 lets a content coding ask of a client.
const ZSTD: i32 = 19;

/// libdeflate 12 makes files 4 % smaller than gzip -9, in a tenth of the time brotli 11 takes.
const GZIP_WHOLE: i32 = 12;
const GZIP_STREAMED: u32 = 9;

const PIECE_BYTES: usize = 256 << 10;

/// How much memory compressing a source takes, at most: measured with sources that fill it, and rounded up.
pub fn memory(size: u64) -> u64 {
    const FIXED: u64 = 12 << 20;
    // Brotli's tree of matches is 8 bytes for each byte of the window, its copy and commands as much again.
    const STREAMED: u64 = 160 << 20;
    if size > WHOLE_BYTES_MAX { STREAMED } else { FIXED + size * 16 }
}

/// Encoders that are kept from one source to the next, since setting them up costs as much as a small file.
pub struct Encoders {
    zstd: zstd::bulk::Compressor<'static>,
    gzip: libdeflater::Compressor,
}

impl Encoders {
    /// One set, for one thread.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn new() -> io::Result<Self> {
        let level = libdeflater::CompressionLvl::new(GZIP_WHOLE).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(Self { zstd: zstd::bulk::Compressor::new(ZSTD)?, gzip: libdeflater::Compressor::new(level) })
    }

    /// The source in a coding; `None` where that is no smaller.
    ///
    /// # Errors
    /// When there is no memory.
    pub fn code(&mut self, coding: Coding, source: &[u8]) -> io::Result<Option<Vec<u8>>> {
        let coded = match coding {
            Coding::Brotli => brotli::compress(source, BROTLI_WHOLE, window_bits(source.len())),
            Coding::Zstd => Some(self.zstd.compress(source)?),
            Coding::Gzip => {
                let mut coded = vec![0; source.len()];
                // Fails only for want of room.
                let length = self.gzip.gzip_compress(source, &mut coded).ok();
                length.map(|length| {
                    coded.truncate(length);
                    coded
                })
            }
        };
        Ok(coded.filter(|coded| coded.len() < source.len()))
    }
}

/// The smallest window of brotli that holds a source, less the bytes that RFC 7932 section 9.1 keeps back.
fn window_bits(size: usize) -> u32 {
    let holds = |bits: &u32| (1_usize << bits) - 16 >= size;
    (16..brotli::WINDOW_BITS_MAX).find(holds).unwrap_or(brotli::WINDOW_BITS_MAX)
}

/// Writes what `source` gives, `size` bytes if nothing changes it meanwhile, in a coding.
///
/// # Errors
/// Those of `source` and `into`, and when there is no memory.
pub fn stream(coding: Coding, source: &mut impl Read, size: u64, into: &mut impl Write) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    match coding {
        Coding::Brotli => {
            let mut parameters = ::brotli::enc::BrotliEncoderParams {
                quality: BROTLI_STREAMED,
                lgwin: brotli::WINDOW_BITS_MAX as i32,
                ..Default::default()
            };
            parameters.size_hint = usize::try_from(size).unwrap_or(usize::MAX);
            let mut encoder = ::brotli::CompressorWriter::with_params(into, PIECE_BYTES, &parameters);
            copy(source, &mut encoder, &mut piece)?;
            // What is left is written when it is dropped, and `into` has to remember should that fail.
            encoder.flush()?;
            drop(encoder);
            Ok(())
        }
        Coding::Zstd => {
            let mut encoder = zstd::stream::write::Encoder::new(into, ZSTD)?;
            encoder.set_pledged_src_size(Some(size))?;
            copy(source, &mut encoder, &mut piece)?;
            encoder.finish().map(drop)
        }
        Coding::Gzip => {
            let level = flate2::Compression::new(GZIP_STREAMED);
            let mut encoder = flate2::write::GzEncoder::new(into, level);
            copy(source, &mut encoder, &mut piece)?;
            encoder.finish().map(drop)
        }
    }
}

fn copy(source: &mut impl Read, into: &mut impl Write, piece: &mut [u8]) -> io::Result<()> {
    loop {
        match source.read(piece) {
            Ok(0) => return Ok(()),
            Ok(length) => into.write_all(piece.get(..length).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Decoding, for whoever checks.
#[cfg(test)]
pub mod testing {
    use std::io::Read as _;

    use super::*;

    /// What coded bytes stand for.
    pub fn decode(coding: Coding, coded: &[u8]) -> Vec<u8> {
        let mut source = Vec::new();
        match coding {
            Coding::Brotli => ::brotli::BrotliDecompress(&mut &*coded, &mut source).map(|()| 0),
            Coding::Zstd => {
                zstd::stream::read::Decoder::new(coded).and_then(|mut d| d.read_to_end(&mut source))
            }
            Coding::Gzip => flate2::read::MultiGzDecoder::new(coded).read_to_end(&mut source),
        }
        .unwrap_or_else(|error| panic!("{coding:?} does not decode: {error}"));
        source
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::testing::decode;
    use super::*;

    fn round_trip(source: &[u8]) {
        let mut encoders = Encoders::new().expect("memory");
        for coding in Coding::ALL {
            if let Some(coded) = encoders.code(coding, source).expect("memory") {
                assert!(coded.len() < source.len());
                assert!(decode(coding, &coded) == source, "{coding:?} of {} bytes", source.len());
            }
            let mut streamed = Vec::new();
            stream(coding, &mut &*source, source.len() as u64, &mut streamed).expect("it streams");
            assert!(decode(coding, &streamed) == source, "{coding:?}, streamed, of {} bytes", source.len());
        }
    }

    #[test]
    fn windows_hold_their_sources() {
        for (size, expected) in [
            (0, 16),
            ((1 << 16) - 16, 16),
            ((1 << 16) - 15, 17),
            ((1 << 22) - 16, 22),
            (1 << 22, 23),
            (1 << 30, 24),
        ] {
            assert_eq!(window_bits(size), expected, "{size}");
        }
    }

    #[test]
    fn clients_can_hold_the_windows() {
        // RFC 9659: no more than 8 MiB for zstd, however large the source.
        let source: Vec<u8> =
            (0..9_u32 << 18).flat_map(|i| (i.wrapping_mul(2_654_435_761) >> 28).to_le_bytes()).collect();
        let mut streamed = Vec::new();
        stream(Coding::Zstd, &mut &*source, source.len() as u64, &mut streamed).expect("it streams");
        let mut reader = zstd::stream::read::Decoder::new(&*streamed).expect("a decoder");
        reader.window_log_max(23).expect("a window of 8 MiB");
        let decoded = io::copy(&mut reader, &mut io::sink()).expect("it fits into the window");
        assert_eq!(decoded, source.len() as u64);
    }

    #[test]
    fn what_does_not_shrink_is_refused() {
        let noise: Vec<u8> = (0..2000_u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ ((i * i) >> 7) as u8)
            .collect();
        let mut encoders = Encoders::new().expect("memory");
        for source in [&b""[..], b"a", b"ab", &noise[..20]] {
            for coding in Coding::ALL {
                assert_eq!(encoders.code(coding, source).expect("memory"), None, "{coding:?} {source:?}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn whatever_is_coded_decodes(words in proptest::collection::vec("[a-e]{1,6}[ \n<]", 0..400), noise: Vec<u8>) {
            round_trip(words.concat().as_bytes());
            round_trip(&noise);
        }
    }
}
