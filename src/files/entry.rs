//! What a path leads to, decided once when it is looked up, and ready to be sent.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Instant;

use super::compress;
use super::listing::Form;
use super::negotiate::Choices;
use crate::config::Encoding;
use crate::sys::bytes::{Bytes, Gauge};
use crate::sys::fds::Descriptor;
use crate::sys::file::{Facts, Name};

/// Index of a site in the configuration.
pub type SiteId = u16;

/// What one decoded path of one site leads to.
#[derive(Debug)]
pub struct Entry {
    /// When the file system was last asked.
    pub checked: Cell<Instant>,
    /// Whether it may answer other requests than the one it was looked up for: not where the
    /// system was out of means, nor where the file changed under our eyes.
    pub lasting: bool,
    /// What it leads to.
    pub target: Target,
}

/// What a path leads to.
#[derive(Debug)]
pub enum Target {
    /// A file.
    File(File),
    /// A directory without an index, to be listed.
    Listing(Listing),
    /// A directory named without its slash.
    Directory,
    /// Nothing that may be seen: 404 or 403; or nothing that can be had now: 500 or 503.
    Refused(u16),
}

/// A file in all its forms.
#[derive(Debug)]
pub struct File {
    /// The decoded path of the file where it is not the one that was asked for: an index, or what a
    /// clean URL stands for. Rules about who may see it hold for this path too.
    pub path: Option<Box<[u8]>>,
    /// The forms, never none. The first is the file itself, where the site has it or it was decoded.
    pub representations: Vec<Representation>,
    /// Which of them goes to whom.
    pub choices: Choices,
    /// Whether the answer depends on Accept-Encoding: it does where there may be other forms one day.
    pub varies: bool,
    /// Whether the file itself can be had only from a coded form, and was found not to be: too large
    /// or broken.
    pub undecodable: bool,
}

/// One form of a file.
#[derive(Clone, Debug)]
pub struct Representation {
    /// `None`: the file itself; else the content coding.
    pub coding: Option<Coding>,
    /// Where it comes from.
    pub origin: Origin,
    /// Facts of the file that holds this form.
    pub facts: Facts,
    /// Whether the last change was long enough before the look that a later one must show in the
    /// facts. File times are as coarse as the kernel's tick, or as seconds on other systems.
    pub settled: bool,
    /// xxh3_128 of its bytes, where they were at hand.
    pub hash: Option<u128>,
    /// The entity tag with its quotes.
    pub etag: Box<str>,
    /// Seconds since 1970 of Last-Modified; never later than the look.
    pub last_modified: i64,
    /// Ready-made fields of a 200, as HTTP/1.1 writes them ("Name: value\r\n" each): everything but
    /// Date, Server and what depends on the connection. Begins with Content-Type, then
    /// Content-Length.
    pub fields: Rc<[u8]>,
    /// Where in `fields` Content-Type ends.
    pub type_end: usize,
    /// Where in `fields` Content-Length ends; what follows holds for a part as well.
    pub length_end: usize,
    /// The fields of a 304 (RFC 9110 section 15.4.5).
    pub fields_not_modified: Rc<[u8]>,
    /// Bytes. The file that holds them may be longer: a variant's has a footer.
    pub length: u64,
    /// Where the bytes are.
    pub body: Body,
}

impl Representation {
    /// The value of Content-Type.
    pub fn media_type(&self) -> &str {
        let line = self.fields.get(..self.type_end).unwrap_or_default();
        let value = line.strip_prefix(b"Content-Type: ").and_then(|value| value.strip_suffix(b"\r\n"));
        std::str::from_utf8(value.unwrap_or_default()).unwrap_or_default()
    }
}

/// Where a form of a file comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It is the file of that name.
    Itself,
    /// A compressed file that the site ships.
    Sidecar,
    /// The cache directory.
    Cache,
    /// Decompressed from a sidecar, because the site ships nothing else.
    Decoded,
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Coding {
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
    /// RFC 1952.
    Gzip,
}

impl Coding {
    /// All of them, in the order in which sidecars are looked for.
    pub const ALL: [Coding; 3] = [Coding::Brotli, Coding::Zstd, Coding::Gzip];

    /// Of a configured encoding.
    pub fn of(encoding: Encoding) -> Self {
        match encoding {
            Encoding::Brotli => Coding::Brotli,
            Encoding::Zstd => Coding::Zstd,
            Encoding::Gzip => Coding::Gzip,
        }
    }

    /// As Content-Encoding and Accept-Encoding name it.
    pub fn name(self) -> &'static str {
        match self {
            Coding::Brotli => "br",
            Coding::Zstd => "zstd",
            Coding::Gzip => "gzip",
        }
    }

    /// What the name of a sidecar or variant ends in.
    pub fn suffix(self) -> &'static str {
        match self {
            Coding::Brotli => ".br",
            Coding::Zstd => ".zst",
            Coding::Gzip => ".gz",
        }
    }
}

/// Where a representation's bytes are.
#[derive(Clone, Debug)]
pub enum Body {
    /// In RAM.
    Memory(Bytes),
    /// In the file, kept open.
    File(Rc<Descriptor>),
}

/// What a directory holds. Rendered when it is asked for, because the order and the form are the
/// client's choice; kept as it was rendered last, because the next client mostly chooses the same.
#[derive(Debug)]
pub struct Listing {
    /// The names that may be seen: no hidden ones, nothing that is never served. In order.
    pub names: Vec<Name>,
    /// Whether there were more than are kept.
    pub truncated: bool,
    rendered: RefCell<Vec<Rendered>>,
}

/// A listing in a form and coding. `coding` is what was wanted; where compressing did not pay, the bytes
/// are plain and `coded` is none.
#[derive(Debug)]
struct Rendered {
    form: Form,
    wanted: Option<Coding>,
    coded: Option<Coding>,
    bytes: Bytes,
}

/// Renderings kept of one listing: for one form, plain and in both cheap codings.
const RENDERED_MAX: usize = 3;

impl Listing {
    /// Of names put in order by [`super::listing::arrange`].
    pub fn new(names: Vec<Name>, truncated: bool) -> Self {
        Self { names, truncated, rendered: RefCell::new(Vec::new()) }
    }

    /// The listing in a form and, if that pays, a coding: as it is kept, or rendered by `render`.
    pub fn rendered(
        &self,
        form: Form,
        wanted: Option<Coding>,
        gauge: &Gauge,
        render: impl FnOnce() -> Vec<u8>,
    ) -> (Option<Coding>, Bytes) {
        let mut kept = self.rendered.borrow_mut();
        if let Some(same) = kept.iter().find(|kept| kept.form == form && kept.wanted == wanted) {
            return (same.coded, same.bytes.clone());
        }
        // What was wanted coded and is kept plain serves as well: short and very long listings are never
        // coded, and the long ones should be in memory once.
        let plain = kept.iter().find(|kept| kept.form == form && kept.coded.is_none());
        let plain = plain.map_or_else(|| Bytes::new(render(), gauge), |kept| kept.bytes.clone());
        let coded = wanted.and_then(|coding| Some((coding, compress::cheaply(&plain, coding)?)));
        let (coded, bytes) = match coded {
            Some((coding, bytes)) => (Some(coding), Bytes::new(bytes, gauge)),
            None => (None, plain),
        };
        // The next client mostly chooses the same form.
        kept.retain(|kept| kept.form == form);
        kept.truncate(RENDERED_MAX - 1);
        kept.push(Rendered { form, wanted, coded, bytes: bytes.clone() });
        (coded, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::listing::Order;

    #[test]
    fn a_listing_that_is_not_coded_is_in_memory_once() {
        let gauge = Gauge::default();
        let form = Form { json: false, order: Order::of(None) };
        for (length, coded) in [(100, false), (600 << 10, false), (2000, true)] {
            for wanted in [
                [None, Some(Coding::Gzip), Some(Coding::Zstd)],
                [Some(Coding::Gzip), Some(Coding::Zstd), None],
            ] {
                let listing = Listing::new(Vec::new(), false);
                let renders = Cell::new(0);
                for _ in 0..2 {
                    for wanted in wanted {
                        let render = || {
                            renders.set(renders.get() + 1);
                            vec![b'x'; length]
                        };
                        let (coding, bytes) = listing.rendered(form, wanted, &gauge, render);
                        assert_eq!(coding, wanted.filter(|_| coded));
                        assert!(coded || bytes.len() == length);
                    }
                }
                if !coded {
                    assert_eq!((renders.get(), gauge.held()), (1, length as u64));
                }
            }
            assert_eq!(gauge.held(), 0);
        }
    }
}
