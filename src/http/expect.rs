//! The `Expect` field (RFC 9110 section 10.1.1).

use super::fields::{Known, list};
use super::request::{Request, Version};

/// What a client waits for before it sends a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Expectation {
    /// Nothing.
    Nothing,
    /// 100 (Continue), or a final answer.
    Continue,
    /// Something else: 417.
    Other,
}

/// What this request expects. An expectation of an HTTP/1.0 client is ignored, as the section asks.
pub fn of(request: &Request) -> Expectation {
    if request.fields.times(Known::Expect) == 0 || request.version == Version::Http10 {
        return Expectation::Nothing;
    }
    let mut expectation = Expectation::Nothing;
    for element in request.fields.all(Known::Expect).flat_map(list) {
        if !element.eq_ignore_ascii_case(b"100-continue") {
            return Expectation::Other;
        }
        expectation = Expectation::Continue;
    }
    expectation
}
