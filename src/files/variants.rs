//! Compressed variants in the cache directory: what they are called, and the footer that proves that one
//! is whole and belongs to its source. The precompressor writes by this file and workers read by it.
//!
//! ```text
//! <cache.dir>/<root name>/<2 hex of the inode>/<inode>-<size>-<modified>-<changed>.<br|zst|gz>
//! coded bytes … footer of 64 bytes:  magic  coded length  source length  check  source hash  coded hash
//! ```
//!
//! The name is made of the source's facts, so that a variant of what the source used to be is simply not
//! found, publishing is one rename(2), and nothing needs a lock. The footer is there for what a name cannot
//! say: that the file is whole, that nobody put another in its place, and which contents were compressed.
//! It stands at the end, so that the coded bytes begin a page and are sent without an offset, and a file
//! that lost its end has lost its footer.
//!
//! Pure. Knows neither where the cache directory is nor who compresses.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::entry::Coding;
use crate::sys::file::{Facts, Stamp};

/// Bytes that follow the coded bytes in a variant's file.
pub const FOOTER_BYTES: usize = 64;

/// Names the format and its version. A later version has another magic, and its variants are made anew.
const MAGIC: [u8; 8] = *b"httpd-v1";

/// Readable characters of a root's name; the hash tells roots apart.
const STEM_BYTES_MAX: usize = 32;

/// The directory below the cache directory that holds the variants of one root, by the root's path as it is
/// configured, absolute: a deploy that flips a symlink keeps its directory, and files that stay are not compressed again.
pub fn root_name(root: &[u8]) -> String {
    // One path has many spellings. `..` stays, because what it means depends on symlinks.
    let mut segments = root.split(|&byte| byte == b'/').filter(|segment| !matches!(*segment, b"" | b"."));
    let plain: Vec<u8> = segments.clone().flat_map(|segment| [b"/".as_slice(), segment].concat()).collect();
    let readable = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(*byte),
        _ => '_',
    };
    let last = segments.next_back().unwrap_or_default();
    let stem: String = last.iter().take(STEM_BYTES_MAX).map(readable).collect();
    format!("{stem}-{:016x}", xxh3_64(&plain))
}

/// What tells one state of a source from another. The device is absent: it is another number after a
/// restart or on another host, and two files that agree in all of this are the same file in practice.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint {
    /// The source's inode.
    pub inode: u64,
    /// Its size in bytes.
    pub size: u64,
    /// When its contents changed.
    pub modified: Stamp,
    /// When its inode changed. Every write sets this too, and unlike the other nobody can set it at will.
    pub changed: Stamp,
}

impl Fingerprint {
    /// Of a source with these facts.
    pub fn of(facts: &Facts) -> Self {
        Self { inode: facts.inode, size: facts.size, modified: facts.modified, changed: facts.changed }
    }

    /// The variant's file name.
    pub fn name(&self, coding: Coding) -> String {
        let Self { inode, size, modified, changed } = self;
        format!(
            "{inode:x}-{size:x}-{:x}.{:x}-{:x}.{:x}{}",
            modified.seconds,
            modified.nanoseconds,
            changed.seconds,
            changed.nanoseconds,
            coding.suffix()
        )
    }

    /// The directory of the variant's file below the root's: 256 of them keep each small.
    pub fn directory(&self) -> String {
        format!("{:02x}", self.inode & 0xff)
    }

    /// The variant's path below the root's directory.
    pub fn path(&self, coding: Coding) -> String {
        format!("{}/{}", self.directory(), self.name(coding))
    }

    /// What a file name in the cache says; `None` where it is no variant's, as a temporary name is.
    pub fn from_name(name: &[u8]) -> Option<(Self, Coding)> {
        let text = std::str::from_utf8(name).ok()?;
        let coding = Coding::ALL.into_iter().find(|coding| text.ends_with(coding.suffix()))?;
        let mut parts = text.strip_suffix(coding.suffix())?.split('-');
        let (inode, size) = (hex(parts.next()?)?, hex(parts.next()?)?);
        let (modified, changed) = (stamp(parts.next()?)?, stamp(parts.next()?)?);
        let own = Self { inode, size, modified, changed };
        // Written in one way only: no second name may stand for the same variant.
        (own.name(coding) == text).then_some((own, coding))
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

fn stamp(text: &str) -> Option<Stamp> {
    let (seconds, nanoseconds) = text.split_once('.')?;
    // Times before 1970 are written in two's complement.
    let seconds = hex(seconds)?.cast_signed();
    Some(Stamp { seconds, nanoseconds: u32::from_str_radix(nanoseconds, 16).ok()? })
}

/// What stands behind the coded bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Footer {
    /// How many coded bytes there are.
    pub coded_length: u64,
    /// xxh3_128 of the source's contents: for a source that changed without a trace in its facts, and for an
    /// entity tag on which replicas agree.
    pub source_hash: u128,
    /// xxh3_128 of the coded bytes.
    pub coded_hash: u128,
}

impl Footer {
    /// The bytes that end the variant's file.
    pub fn encode(&self, fingerprint: &Fingerprint, coding: Coding) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        let (head, hashes) = bytes.split_at_mut(32);
        let fields = [self.coded_length, fingerprint.size].map(u64::to_le_bytes);
        let (source, coded) = (self.source_hash.to_le_bytes(), self.coded_hash.to_le_bytes());
        head[..8].copy_from_slice(&MAGIC);
        head[8..16].copy_from_slice(&fields[0]);
        head[16..24].copy_from_slice(&fields[1]);
        hashes[..16].copy_from_slice(&source);
        hashes[16..].copy_from_slice(&coded);
        let check = check(&bytes, fingerprint, coding);
        bytes[24..32].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads the end of a file of `file_bytes` that lies where the variant of a source belongs; `None` where
    /// it is not that variant, whole.
    pub fn decode(bytes: &[u8], file_bytes: u64, fingerprint: &Fingerprint, coding: Coding) -> Option<Self> {
        let bytes: &[u8; FOOTER_BYTES] = bytes.try_into().ok()?;
        let u64_at = |at: usize| bytes[at..].first_chunk().map(|field| u64::from_le_bytes(*field));
        let u128_at = |at: usize| bytes[at..].first_chunk().map(|field| u128::from_le_bytes(*field));
        let own = Self { coded_length: u64_at(8)?, source_hash: u128_at(32)?, coded_hash: u128_at(48)? };
        let is_whole = own.coded_length.checked_add(FOOTER_BYTES as u64) == Some(file_bytes);
        let is_ours = bytes[..8] == MAGIC
            && u64_at(16) == Some(fingerprint.size)
            && u64_at(24) == Some(check(bytes, fingerprint, coding));
        (is_whole && is_ours).then_some(own)
    }
}

/// Over the rest of the footer and the name, so that neither a flipped bit nor a file under another's name
/// passes.
fn check(bytes: &[u8; FOOTER_BYTES], fingerprint: &Fingerprint, coding: Coding) -> u64 {
    let mut bytes = *bytes;
    bytes[24..32].fill(0);
    xxh3_64_with_seed(&bytes, xxh3_64(fingerprint.name(coding).as_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fingerprint() -> Fingerprint {
        let modified = Stamp { seconds: 0x6600_0000, nanoseconds: 999_999_999 };
        let changed = Stamp { seconds: -1, nanoseconds: 0 };
        Fingerprint { inode: 0x1234_abcd, size: 4096, modified, changed }
    }

    #[test]
    fn roots_have_names_that_people_can_read() {
        for (root, stem) in [
            ("/var/www/html", "html"),
            ("/var/www/html///", "html"),
            ("/srv/www.example.org", "www_example_org"),
            ("/srv/..", "__"),
            ("/srv/größe", "gr____e"),
            ("/srv/./a/.", "a"),
            ("/", ""),
            ("", ""),
        ] {
            let name = root_name(root.as_bytes());
            assert_eq!(name.rsplit_once('-').map(|(stem, _)| stem), Some(stem), "{root}: {name}");
        }
        assert_eq!(root_name(b"/srv/a"), root_name(b"/srv//./a/"));
        assert_ne!(root_name(b"/srv/a"), root_name(b"/mnt/a"));
        assert!(root_name("x".repeat(300).as_bytes()).len() <= STEM_BYTES_MAX + 17);
        assert_eq!(root_name(b"/srv/a"), "a-1621424eef85252c", "the layout on disk is a promise");
    }

    #[test]
    fn names_tell_the_fingerprint() {
        let name = "1234abcd-1000-66000000.3b9ac9ff-ffffffffffffffff.0.zst";
        assert_eq!(fingerprint().name(Coding::Zstd), name);
        assert_eq!(fingerprint().path(Coding::Zstd), format!("cd/{name}"));
        assert_eq!(Fingerprint::from_name(name.as_bytes()), Some((fingerprint(), Coding::Zstd)));
        for foreign in [
            "",
            ".zst",
            "1-2-3.4-5.6",
            "1-2-3.4-5.6.xz",
            "1-2-3-5.6.br",
            "1-2-3.4-5.6-7.br",
            "01-2-3.4-5.6.br",
            "+1-2-3.4-5.6.br",
            "1-2-3.4-5.6.br.tmp",
            "A-2-3.4-5.6.br",
            "1-2-3.4-5.fffffffff.br",
            "\u{e4}-2-3.4-5.6.br",
        ] {
            assert_eq!(Fingerprint::from_name(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn a_footer_passes_only_as_it_was_written() {
        let footer = Footer { coded_length: 1000, source_hash: 7 << 100, coded_hash: 9 };
        let print = fingerprint();
        let bytes = footer.encode(&print, Coding::Brotli);
        let decode = |bytes: &[u8], length| Footer::decode(bytes, length, &print, Coding::Brotli);
        assert_eq!(decode(&bytes, 1064), Some(footer));
        assert_eq!(decode(&bytes, 1063), None, "cut in front");
        assert_eq!(decode(&bytes[1..], 1064), None);
        assert_eq!(Footer::decode(&bytes, 1064, &print, Coding::Gzip), None, "another coding's");
        let other = Fingerprint { inode: 1, ..print };
        assert_eq!(Footer::decode(&bytes, 1064, &other, Coding::Brotli), None, "another source's");
        for bit in 0..FOOTER_BYTES * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&flipped, 1064), None, "bit {bit}");
        }
        let endless = Footer { coded_length: u64::MAX, ..footer };
        assert_eq!(decode(&endless.encode(&print, Coding::Brotli), 63), None);
    }

    proptest! {
        #[test]
        fn names_are_read_as_they_were_written(
            inode: u64, size: u64, seconds: (i64, i64), nanoseconds: (u32, u32), coding in 0..3_usize,
        ) {
            let modified = Stamp { seconds: seconds.0, nanoseconds: nanoseconds.0 };
            let changed = Stamp { seconds: seconds.1, nanoseconds: nanoseconds.1 };
            let (print, coding) = (Fingerprint { inode, size, modified, changed }, Coding::ALL[coding]);
            let name = print.name(coding);
            prop_assert_eq!(Fingerprint::from_name(name.as_bytes()), Some((print, coding)));
        }

        #[test]
        fn anything_may_be_read(bytes: Vec<u8>, length: u64) {
            let _ = Fingerprint::from_name(&bytes);
            prop_assert_eq!(Footer::decode(&bytes, length, &fingerprint(), Coding::Gzip), None);
        }
    }
}
