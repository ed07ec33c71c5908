//! Names of methods (RFC 9110 section 9): which are registered, so that a method we do not serve gets
//! 405 and an invented one 501.

use super::request::Method;

/// The value of `Allow` for what is served from files.
pub const ALLOW: &str = "GET, HEAD, OPTIONS";

/// Which method a name is. Names are case-sensitive (RFC 9110 section 9.1).
pub fn of(name: &[u8]) -> Method {
    match name {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"OPTIONS" => Method::Options,
        _ if REGISTERED.iter().any(|&registered| registered.as_bytes() == name) => Method::Known,
        _ => Method::Unknown,
    }
}

/// The IANA registry of HTTP methods without those above, and without `*` and `PRI`, which are
/// reserved so that nobody uses them (RFC 9110 section 18.2, RFC 9113 section 11.6).
const REGISTERED: &[&str] = &[
    "ACL",
    "BASELINE-CONTROL",
    "BIND",
    "CHECKIN",
    "CHECKOUT",
    "CONNECT",
    "COPY",
    "DELETE",
    "LABEL",
    "LINK",
    "LOCK",
    "MERGE",
    "MKACTIVITY",
    "MKCALENDAR",
    "MKCOL",
    "MKREDIRECTREF",
    "MKWORKSPACE",
    "MOVE",
    "ORDERPATCH",
    "PATCH",
    "POST",
    "PROPFIND",
    "PROPPATCH",
    "PUT",
    "QUERY",
    "REBIND",
    "REPORT",
    "SEARCH",
    "TRACE",
    "UNBIND",
    "UNCHECKOUT",
    "UNLINK",
    "UNLOCK",
    "UPDATE",
    "UPDATEREDIRECTREF",
    "VERSION-CONTROL",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9110 section 9.1.
    #[test]
    fn methods_are_told_apart_by_case_sensitive_name() {
        for (name, method) in [
            ("GET", Method::Get),
            ("HEAD", Method::Head),
            ("OPTIONS", Method::Options),
            ("POST", Method::Known),
            ("CONNECT", Method::Known),
            ("PROPFIND", Method::Known),
            ("VERSION-CONTROL", Method::Known),
            ("get", Method::Unknown),
            ("Post", Method::Unknown),
            ("GETT", Method::Unknown),
            ("PRI", Method::Unknown),
            ("", Method::Unknown),
        ] {
            assert_eq!(of(name.as_bytes()), method, "{name}");
        }
    }
}
