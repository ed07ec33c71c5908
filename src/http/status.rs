//! Status codes and their reason phrases (RFC 9110 section 15 and the IANA registry), in one table.

/// Hands the table to a macro, so that whoever needs it in another form can make it when compiling:
/// the HTTP/1 writer has every status line ready.
macro_rules! with_statuses {
    ($callback:ident) => {
        $callback! {
            100 "Continue",
            101 "Switching Protocols",
            102 "Processing",
            103 "Early Hints",
            200 "OK",
            201 "Created",
            202 "Accepted",
            203 "Non-Authoritative Information",
            204 "No Content",
            205 "Reset Content",
            206 "Partial Content",
            207 "Multi-Status",
            208 "Already Reported",
            226 "IM Used",
            300 "Multiple Choices",
            301 "Moved Permanently",
            302 "Found",
            303 "See Other",
            304 "Not Modified",
            305 "Use Proxy",
            307 "Temporary Redirect",
            308 "Permanent Redirect",
            400 "Bad Request",
            401 "Unauthorized",
            402 "Payment Required",
            403 "Forbidden",
            404 "Not Found",
            405 "Method Not Allowed",
            406 "Not Acceptable",
            407 "Proxy Authentication Required",
            408 "Request Timeout",
            409 "Conflict",
            410 "Gone",
            411 "Length Required",
            412 "Precondition Failed",
            413 "Content Too Large",
            414 "URI Too Long",
            415 "Unsupported Media Type",
            416 "Range Not Satisfiable",
            417 "Expectation Failed",
            421 "Misdirected Request",
            422 "Unprocessable Content",
            423 "Locked",
            424 "Failed Dependency",
            425 "Too Early",
            426 "Upgrade Required",
            428 "Precondition Required",
            429 "Too Many Requests",
            431 "Request Header Fields Too Large",
            451 "Unavailable For Legal Reasons",
            500 "Internal Server Error",
            501 "Not Implemented",
            502 "Bad Gateway",
            503 "Service Unavailable",
            504 "Gateway Timeout",
            505 "HTTP Version Not Supported",
            506 "Variant Also Negotiates",
            507 "Insufficient Storage",
            508 "Loop Detected",
            510 "Not Extended",
            511 "Network Authentication Required",
        }
    };
}
pub(crate) use with_statuses;

macro_rules! reasons {
    ($($status:literal $reason:literal,)*) => {
        /// The reason phrase; empty for a status nobody registered.
        pub const fn reason(status: u16) -> &'static str {
            match status {
                $($status => $reason,)*
                _ => "",
            }
        }
    };
}
with_statuses!(reasons);

/// Whether a response of this status never has content (RFC 9110 sections 15.2, 15.3.5, 15.4.5).
pub const fn has_no_content(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_those_of_the_registry() {
        for (status, expected) in [
            (200, "OK"),
            (304, "Not Modified"),
            (413, "Content Too Large"),
            (431, "Request Header Fields Too Large"),
            (505, "HTTP Version Not Supported"),
            (306, ""),
            (418, ""),
            (999, ""),
        ] {
            assert_eq!(reason(status), expected, "{status}");
        }
        assert!(has_no_content(103) && has_no_content(204) && has_no_content(304) && !has_no_content(200));
    }
}
