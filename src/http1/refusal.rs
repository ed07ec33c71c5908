//! Why a request is refused on the ground of its form (RFC 9112). After any of these the end of the
//! request cannot be trusted, so the connection is closed behind the answer.

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// A line ends with LF alone (RFC 9112 section 2.2).
    BareLineFeed,
    /// A CR without LF (RFC 9112 section 2.2).
    BareCarriageReturn,
    /// More than a few empty lines before the request (RFC 9112 section 2.2).
    EmptyLines,
    /// The request line is not method, target and version with one space between (RFC 9112 section 3).
    RequestLine,
    /// The target holds bytes it may not (RFC 9112 section 3.2).
    TargetBytes,
    /// The target has a form that does not go with the method, or none of the four (RFC 9112 section 3.2).
    TargetForm,
    /// The request line alone exceeds the limit (RFC 9110 section 15.5.15).
    TargetTooLong,
    /// Not HTTP/1 (RFC 9112 section 2.3).
    Version,
    /// A field line without name or colon, or with a name that is not a token (RFC 9112 section 5).
    FieldName,
    /// Whitespace between a name and its colon (RFC 9112 section 5.1).
    SpaceBeforeColon,
    /// A field line folded over several lines (RFC 9112 section 5.2).
    FoldedLine,
    /// A control byte in a value (RFC 9110 section 5.5).
    FieldValue,
    /// More fields than anybody needs (RFC 6585 section 5).
    TooManyFields,
    /// A head beyond the limit (RFC 6585 section 5).
    HeadTooLong,
    /// HTTP/1.1 without `Host` (RFC 9112 section 3.2).
    HostMissing,
    /// More than one `Host` (RFC 9112 section 3.2).
    HostRepeated,
    /// A host that is none (RFC 9112 section 3.2).
    HostMalformed,
    /// `Content-Length` that is not one number within 64 bits (RFC 9112 section 6.3).
    ContentLength,
    /// More than one `Content-Length` (RFC 9112 section 6.3).
    ContentLengthRepeated,
    /// `Content-Length` beside `Transfer-Encoding` (RFC 9112 section 6.3).
    LengthAndCoding,
    /// `Transfer-Encoding` in an HTTP/1.0 request (RFC 9112 section 6.1).
    CodingOnHttp10,
    /// A transfer coding other than chunked, once and last (RFC 9112 section 6.1).
    TransferCoding,
    /// A chunk whose size is no number, or too large (RFC 9112 section 7.1).
    ChunkSize,
    /// Extensions of chunks that are malformed or too long (RFC 9112 section 7.1.1).
    ChunkExtension,
    /// A chunk longer than its size (RFC 9112 section 7.1).
    ChunkEnd,
    /// Trailers that are malformed (RFC 9112 section 7.1.2).
    Trailer,
    /// Trailers beyond the limit (RFC 9112 section 7.1.2).
    TrailersTooLong,
}

impl Refusal {
    /// The status to answer with.
    pub const fn status(self) -> u16 {
        use Refusal::*;
        match self {
            TargetTooLong => 414,
            TooManyFields | HeadTooLong | TrailersTooLong => 431,
            TransferCoding => 501,
            Version => 505,
            _ => 400,
        }
    }

    /// One sentence for the error page and the log.
    pub const fn explanation(self) -> &'static str {
        use Refusal::*;
        match self {
            BareLineFeed => "A line of the request ends without a carriage return.",
            BareCarriageReturn => "The request has a carriage return that ends no line.",
            EmptyLines => "Too many empty lines precede the request.",
            RequestLine => "The request line is not a method, a target and a version with one space between.",
            TargetBytes => "The request target holds characters that must be percent-encoded.",
            TargetForm => "The request target does not fit the method.",
            TargetTooLong => "The request line is too long.",
            Version => "Only versions 1.0 and 1.1 of HTTP are spoken on this connection.",
            FieldName => "A header line has no valid name followed by a colon.",
            SpaceBeforeColon => "A header line has whitespace before its colon.",
            FoldedLine => "A header line is folded over several lines.",
            FieldValue => "A header value holds control characters.",
            TooManyFields => "The request has too many header lines.",
            HeadTooLong => "The header section is too long.",
            HostMissing => "The request names no host.",
            HostRepeated => "The request names its host more than once.",
            HostMalformed => "The host of the request is malformed.",
            ContentLength => "The Content-Length is not a number within bounds.",
            ContentLengthRepeated => "The Content-Length is given more than once.",
            LengthAndCoding => "The request has both Content-Length and Transfer-Encoding.",
            CodingOnHttp10 => "HTTP/1.0 knows no Transfer-Encoding.",
            TransferCoding => "The only transfer coding understood is chunked, once.",
            ChunkSize => "The size of a chunk is malformed or too large.",
            ChunkExtension => "The extensions of a chunk are malformed or too long.",
            ChunkEnd => "A chunk does not end where its size says.",
            Trailer => "The trailer section is malformed.",
            TrailersTooLong => "The trailer section is too long.",
        }
    }
}
