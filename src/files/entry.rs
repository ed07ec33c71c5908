//! What a path leads to, decided once when it is looked up, and ready to be sent.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Instant;

use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;

/// Index of a site in the configuration.
pub type SiteId = u16;

/// What one decoded path of one site leads to.
#[derive(Debug)]
pub struct Entry {
    /// When the file system was last asked.
    pub checked: Cell<Instant>,
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
    /// Nothing, or nothing that may be seen: 404 or 403.
    Refused(u16),
}

/// A file in all its forms.
#[derive(Debug)]
pub struct File {
    /// Facts of the identity form.
    pub facts: Facts,
    /// The forms; the first is the file itself.
    pub representations: Vec<Representation>,
}

/// One form of a file.
#[derive(Debug)]
pub struct Representation {
    /// `None`: the file itself; else the content coding.
    pub coding: Option<Coding>,
    /// The entity tag with its quotes.
    pub etag: Box<str>,
    /// Ready-made fields of a 200, as HTTP/1.1 writes them ("Name: value\r\n" each): everything but
    /// Date, Server and what depends on the connection. Contains Content-Length.
    pub fields: Rc<[u8]>,
    /// The same for a 304.
    pub fields_not_modified: Rc<[u8]>,
    /// Bytes.
    pub length: u64,
    /// Where the bytes are.
    pub body: Body,
}

/// A content coding (RFC 9110 section 8.4.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Coding {
    /// RFC 7932.
    Brotli,
    /// RFC 8878.
    Zstd,
    /// RFC 1952.
    Gzip,
}

/// Where a representation's bytes are.
#[derive(Clone, Debug)]
pub enum Body {
    /// In RAM.
    Memory(Bytes),
    /// In the file, kept open.
    File(Rc<Descriptor>),
}

/// A directory's listing, in both forms.
#[derive(Debug)]
pub struct Listing {
    /// For people.
    pub html: Bytes,
    /// For programs.
    pub json: Bytes,
}
