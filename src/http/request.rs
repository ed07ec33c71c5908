//! A request as a value, borrowed from the bytes it came in.

/// A request method (RFC 9110 section 9).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// GET
    Get,
    /// HEAD
    Head,
    /// OPTIONS
    Options,
    /// Any other registered method: POST, PUT, DELETE, CONNECT, TRACE, PATCH and those of WebDAV.
    Known,
    /// A token nobody registered.
    Unknown,
}

/// A version of HTTP/1 (RFC 9112 section 2.3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1, and later 1.x.
    Http11,
}

impl Version {
    /// As messages name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http10 => "HTTP/1.0",
            Self::Http11 => "HTTP/1.1",
        }
    }
}

/// What a request is about, without the host (RFC 9112 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// A path as sent, beginning with a slash, and the query after the first question mark.
    Path {
        /// Still encoded.
        path: &'a [u8],
        /// Without the question mark.
        query: Option<&'a [u8]>,
    },
    /// `OPTIONS *`
    Asterisk,
    /// `CONNECT host:port`, which is refused with 405 like every method we do not serve.
    Authority,
}

/// A request head that obeys every rule of [`crate::http1::head`].
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The method.
    pub method: Method,
    /// The method as sent.
    pub method_name: &'a [u8],
    /// The version.
    pub version: Version,
    /// The target as sent, for logs.
    pub target_text: &'a [u8],
    /// The target.
    pub target: Target<'a>,
    /// The host asked for, without port, as sent; empty where HTTP/1.0 names none.
    pub host: &'a [u8],
    /// The fields, in order.
    pub fields: super::fields::Fields<'a>,
}
