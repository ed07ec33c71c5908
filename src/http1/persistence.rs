//! Whether a connection goes on after a request (RFC 9112 section 9.3).

use crate::http::fields::{Fields, Known, list};
use crate::http::request::Version;

/// What the client wants of the connection after the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Persistence {
    /// That it goes on.
    Persist,
    /// That it ends.
    Close,
}

/// The persistence asked for by a request. `close` wins over everything; HTTP/1.0 persists only where
/// `keep-alive` is named, and must then be told so in the answer.
pub fn of(version: Version, fields: &Fields) -> Persistence {
    if fields.times(Known::Connection) == 0 {
        return if version == Version::Http11 { Persistence::Persist } else { Persistence::Close };
    }
    let (mut close, mut keep_alive) = (false, version == Version::Http11);
    for option in fields.all(Known::Connection).flat_map(list) {
        close |= option.eq_ignore_ascii_case(b"close");
        keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
    }
    if keep_alive && !close { Persistence::Persist } else { Persistence::Close }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(version: Version, section: &str, expected: Persistence) {
        let fields = Fields::of_section(section.as_bytes()).expect("a field section");
        assert_eq!(of(version, &fields), expected, "{section:?}");
    }

    /// RFC 9112 section 9.3, RFC 9110 section 7.6.1.
    #[test]
    fn connections_persist_as_asked() {
        use Persistence::{Close, Persist};
        use Version::{Http10, Http11};
        check(Http11, "", Persist);
        check(Http11, "Connection: keep-alive\n", Persist);
        check(Http11, "Connection: close\n", Close);
        check(Http11, "Connection: CLOSE\n", Close);
        check(Http11, "Connection: keep-alive, close\n", Close);
        check(Http11, "Connection: close, keep-alive\n", Close);
        check(Http11, "Connection: keep-alive\nConnection: TE, close\n", Close);
        check(Http11, "Connection: closed\n", Persist);
        check(Http11, "Connection: \"close\"\n", Persist);
        check(Http11, "Connection: ,,\n", Persist);
        check(Http10, "", Close);
        check(Http10, "Connection: Keep-Alive\n", Persist);
        check(Http10, "Connection: TE , keep-alive\n", Persist);
        check(Http10, "Connection: close, keep-alive\n", Close);
        check(Http10, "Keep-Alive: timeout=5\n", Close);
    }
}
