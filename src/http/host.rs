//! Hosts as they are named in requests: `host [":" port]` (RFC 9110 section 7.2, RFC 3986 section 3.2.2).
//! Which site a host leads to is decided elsewhere.

use std::net::Ipv6Addr;

/// A host and perhaps a port, borrowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Host<'a> {
    /// A name, an IPv4 address, or an IPv6 literal with its brackets, as sent; never empty.
    pub name: &'a [u8],
    /// The port; `None` where there is none or an empty one.
    pub port: Option<u16>,
}

/// Splits and checks; `None` where this is not a host. User information is refused with it: it has no
/// place in `Host`, and in a target it is most likely meant to deceive (RFC 9110 section 4.2.4).
pub fn parse(text: &[u8]) -> Option<Host<'_>> {
    let (name, port) = if text.first() == Some(&b'[') {
        let end = memchr::memchr(b']', text)? + 1;
        is_literal(&text[1..end - 1]).then_some(())?;
        text.split_at(end)
    } else {
        // Nearly every name ends where its letters, digits, dots and hyphens do.
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-');
        let plain = text.iter().position(|byte| !is_plain(byte)).unwrap_or(text.len());
        let end = plain + text[plain..].iter().position(|&byte| byte == b':').unwrap_or(text.len() - plain);
        (end > 0 && is_name(&text[plain..end])).then_some(())?;
        text.split_at(end)
    };
    let port = match port {
        [] | [b':'] => None,
        [b':', digits @ ..] => Some(parse_port(digits)?),
        _ => return None,
    };
    Some(Host { name, port })
}

/// Whether a host as sent is `name`, which is in lower case. Hosts are compared without regard to case
/// (RFC 3986 section 3.2.2); the dot that ends a fully qualified name is ignored.
pub fn same(sent: &[u8], name: &[u8]) -> bool {
    without_final_dot(sent).eq_ignore_ascii_case(name)
}

/// Without the dot that ends a fully qualified name.
pub fn without_final_dot(name: &[u8]) -> &[u8] {
    match name {
        [rest @ .., b'.'] if !rest.is_empty() => rest,
        _ => name,
    }
}

/// Digits, at most 65535. Leading zeros are harmless, so no length is set; the value is.
fn parse_port(digits: &[u8]) -> Option<u16> {
    digits.iter().try_fold(0u16, |port, &digit| {
        let digit = digit.is_ascii_digit().then(|| u16::from(digit - b'0'))?;
        port.checked_mul(10)?.checked_add(digit)
    })
}

/// reg-name, of which IPv4 addresses are a part: unreserved, sub-delims and percent-encoded bytes.
fn is_name(name: &[u8]) -> bool {
    let mut rest = name;
    while let [byte, after @ ..] = rest {
        rest = match byte {
            b'%' => match after {
                [a, b, after @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => after,
                _ => return false,
            },
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' => after,
            b'-' | b'.' | b'_' | b'~' => after,
            b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' => after,
            _ => return false,
        };
    }
    true
}

/// What stands in brackets: an IPv6 address, without zone. The grammar's room for future kinds of
/// address (IPvFuture) is left unused: nobody can be reached by one.
fn is_literal(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(&str, Option<u16>)>) {
        let expected = expected.map(|(name, port)| Host { name: name.as_bytes(), port });
        assert_eq!(parse(text.as_bytes()), expected, "{text:?}");
    }

    /// RFC 3986 section 3.2.2, RFC 9110 section 7.2.
    #[test]
    fn hosts_are_split_and_checked() {
        check("example.org", Some(("example.org", None)));
        check("Example.ORG:8080", Some(("Example.ORG", Some(8080))));
        check("example.org.", Some(("example.org.", None)));
        check("a_b", Some(("a_b", None)));
        check("a%20b", Some(("a%20b", None)));
        check("127.0.0.1:80", Some(("127.0.0.1", Some(80))));
        check("[::1]", Some(("[::1]", None)));
        check("[2001:db8::1]:443", Some(("[2001:db8::1]", Some(443))));
        check("[::ffff:1.2.3.4]:1", Some(("[::ffff:1.2.3.4]", Some(1))));
        check("example.org:", Some(("example.org", None)));
        check("example.org:0080", Some(("example.org", Some(80))));
        check("example.org:65535", Some(("example.org", Some(65535))));
        for bad in [
            "",
            ":80",
            "a:65536",
            "a:-1",
            "a:+1",
            "a: 1",
            "a:b",
            "a:1:2",
            "a b",
            "a/b",
            "a\\b",
            "a@b",
            "user@a:80",
            "a?b",
            "a#b",
            "a%2",
            "a%zz",
            "::1",
            "[::1",
            "[::1]a",
            "[::1]80",
            "[]",
            "[::g]",
            "[fe80::1%25eth0]",
            "[v1.a]",
            "a,b c",
            "a\"b",
            "<a>",
            "\u{e9}",
            "a\0b",
            "a\tb",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn hosts_are_compared_without_case_and_final_dot() {
        assert!(same(b"Example.Org", b"example.org"));
        assert!(same(b"example.org.", b"example.org"));
        assert!(!same(b"example.org..", b"example.org"));
        assert!(!same(b"example.com", b"example.org"));
        assert!(!same(b".", b""));
        assert!(same(b"[2001:DB8::1]", b"[2001:db8::1]"));
    }
}
