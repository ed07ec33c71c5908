//! From a request's host and path to a plan: which site, which rules, which file, in which form.
//!
//! [`Files::answer`] decides whatever is known; what is not known it asks for as a [`Question`],
//! which the worker has a [`lookup::Lookup`] answer: a machine that names the next fact it wants.
//! The result is an [`entry::Entry`], cached, from which the same request is then answered.

pub mod entry;

use std::ops::Range;
use std::rc::Rc;

use crate::sys::bytes::Bytes;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;
use entry::{Coding, SiteId};

/// What is to be sent in answer to a request, decided.
#[derive(Debug)]
pub struct Plan {
    /// The status code.
    pub status: u16,
    /// Ready-made fields, each ending with CRLF; with Content-Length where the status has one.
    pub prepared: Option<Rc<[u8]>>,
    /// Further fields, in the same form.
    pub extra: Vec<u8>,
    /// The body; `Empty` for HEAD and for statuses without one.
    pub body: PlanBody,
    /// The content coding chosen, for the log.
    pub coding: Option<Coding>,
}

/// The bytes of a response's content.
#[derive(Debug)]
pub enum PlanBody {
    /// None.
    Empty,
    /// From RAM.
    Memory(Bytes, Range<usize>),
    /// Made for this response.
    Text(Vec<u8>),
    /// From a file; `facts` are those it must still have when its last byte is sent.
    File { file: Rc<Descriptor>, range: Range<u64>, facts: Facts },
    /// multipart/byteranges: in turn a part's head and its bytes, then the closing delimiter as a
    /// part without bytes (RFC 9110 section 14.6).
    Parts(Vec<(Vec<u8>, PlanBody)>),
}

/// What [`Files::answer`] says.
#[derive(Debug)]
pub enum Answer {
    /// Send this.
    Ready(Plan),
    /// Look this up, then ask again with what was found.
    Lookup(Question),
    /// Have this password verified, tell [`Files::verified`], then ask again.
    Verify(Credential),
}

/// What is to be looked up: a decoded path of a site.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Question {
    /// Which site.
    pub site: SiteId,
    /// Decoded, normalised, beginning with a slash.
    pub path: Vec<u8>,
}

/// A password to verify.
#[derive(Clone, Debug)]
pub struct Credential {
    /// Keyed hash of user, password and stored hash, under which the verdict is remembered.
    pub key: [u8; 32],
    /// As the client sent it.
    pub password: Vec<u8>,
    /// The bcrypt hash on file.
    pub hash: String,
}
