//! The PROXY protocol, versions 1 and 2: what a trusted balancer sends before the first byte of its
//! client. Whom to trust is decided elsewhere; a peer who is trusted and sends no header, or a broken one,
//! is not answered: nothing is known of who would get the answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use memchr::memchr;

/// Bytes of a version 1 header with the longest addresses, and its CRLF.
const TEXT_MAX: usize = 107;

/// What begins a version 1 header.
const TEXT_START: &[u8] = b"PROXY ";

/// What begins a version 2 header.
const BINARY_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Bytes of a version 2 header before its addresses.
const BINARY_FIXED: usize = 16;

/// Bytes of addresses and further data. Balancers add a few hundred at most: names, TLS facts, a checksum,
/// padding; all of it is skipped.
const BINARY_REST_MAX: usize = 4096;

/// What has come so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parsed {
    /// The beginning of a header.
    Incomplete,
    /// A header.
    Complete {
        /// Its bytes; what follows is the client's.
        length: usize,
        /// The client; `None` where the balancer speaks for itself (its health checks), or knows no
        /// address of the internet: then the peer's own counts.
        source: Option<SocketAddr>,
    },
}

/// Not a header: the connection is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Malformed;

/// Parses the header that begins at the first of `bytes`.
pub fn parse(bytes: &[u8]) -> Result<Parsed, Malformed> {
    if agree(bytes, TEXT_START) {
        text(bytes)
    } else if agree(bytes, BINARY_START) {
        binary(bytes)
    } else {
        Err(Malformed)
    }
}

/// Whether one begins with the other.
fn agree(bytes: &[u8], start: &[u8]) -> bool {
    bytes.iter().zip(start).all(|(one, other)| one == other)
}

fn text(bytes: &[u8]) -> Result<Parsed, Malformed> {
    let window = &bytes[..bytes.len().min(TEXT_MAX)];
    let Some(end) = memchr(b'\n', window) else {
        return if window.len() == TEXT_MAX { Err(Malformed) } else { Ok(Parsed::Incomplete) };
    };
    let line = window[..end].strip_suffix(b"\r").ok_or(Malformed)?;
    let line = line.strip_prefix(TEXT_START).ok_or(Malformed)?;
    let line = std::str::from_utf8(line).map_err(|_| Malformed)?;
    let mut words = line.split(' ');
    let is_ipv4 = match words.next() {
        Some("TCP4") => true,
        Some("TCP6") => false,
        // What follows is to be ignored.
        Some("UNKNOWN") => return Ok(Parsed::Complete { length: end + 1, source: None }),
        _ => return Err(Malformed),
    };
    let mut address = || {
        let address: IpAddr = words.next()?.parse().ok()?;
        (address.is_ipv4() == is_ipv4).then_some(address)
    };
    let (source, _) = address().zip(address()).ok_or(Malformed)?;
    let mut port = || {
        let digits = words.next()?;
        digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
    };
    let (source_port, _): (u16, u16) = port().zip(port()).ok_or(Malformed)?;
    if words.next().is_some() {
        return Err(Malformed);
    }
    Ok(Parsed::Complete {
        length: end + 1,
        source: Some(SocketAddr::new(source.to_canonical(), source_port)),
    })
}

fn binary(bytes: &[u8]) -> Result<Parsed, Malformed> {
    if bytes.get(12).is_some_and(|version| !matches!(version, 0x20 | 0x21)) {
        return Err(Malformed);
    }
    let Some((fixed, rest)) = bytes.split_at_checked(BINARY_FIXED) else {
        return Ok(Parsed::Incomplete);
    };
    let length = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if length > BINARY_REST_MAX {
        return Err(Malformed);
    }
    let Some(rest) = rest.get(..length) else {
        return Ok(Parsed::Incomplete);
    };
    let is_local = fixed[12] == 0x20;
    let source = if is_local { None } else { binary_source(fixed[13], rest)? };
    Ok(Parsed::Complete { length: BINARY_FIXED + length, source })
}

/// The source address by family and transport. Datagrams cannot carry this connection, so a header that
/// speaks of them is wrong.
fn binary_source(family: u8, rest: &[u8]) -> Result<Option<SocketAddr>, Malformed> {
    match family {
        0x00 => Ok(None),
        0x11 => {
            let [a, b, c, d, _, _, _, _, port @ .., _, _] = rest.first_chunk::<12>().ok_or(Malformed)?;
            let address = IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d));
            Ok(Some(SocketAddr::new(address, u16::from_be_bytes(*port))))
        }
        0x21 => {
            let rest = rest.first_chunk::<36>().ok_or(Malformed)?;
            let address = rest.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets)).ok_or(Malformed)?;
            Ok(Some(SocketAddr::new(
                IpAddr::V6(address).to_canonical(),
                u16::from_be_bytes([rest[32], rest[33]]),
            )))
        }
        // Two paths of 108 bytes, which are no addresses anybody could be known by.
        0x31 if rest.len() >= 216 => Ok(None),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on the whole, having seen that every prefix waits or says the same.
    fn verdict(bytes: &[u8]) -> Result<Parsed, Malformed> {
        let verdict = parse(bytes);
        for end in 0..bytes.len() {
            let early = parse(&bytes[..end]);
            let complete = matches!(verdict, Ok(Parsed::Complete { length, .. }) if length <= end);
            assert!(if complete {
                early == verdict
            } else {
                early == Ok(Parsed::Incomplete) || early == verdict
            });
        }
        verdict
    }

    fn check_text(header: &str, expected: Option<&str>) {
        let followed = format!("{header}GET / HTTP/1.1\r\n");
        let source = expected.map(|source| source.parse().unwrap());
        assert_eq!(
            verdict(followed.as_bytes()),
            Ok(Parsed::Complete { length: header.len(), source }),
            "{header:?}"
        );
    }

    #[test]
    fn version_1_names_the_client() {
        check_text("PROXY TCP4 192.0.2.1 192.0.2.2 56324 443\r\n", Some("192.0.2.1:56324"));
        check_text("PROXY TCP6 2001:db8::1 2001:db8::2 1 65535\r\n", Some("[2001:db8::1]:1"));
        check_text("PROXY TCP6 ::ffff:192.0.2.1 ::1 1 2\r\n", Some("192.0.2.1:1"));
        check_text("PROXY UNKNOWN\r\n", None);
        check_text("PROXY UNKNOWN ffff:f...f:ffff what ever\r\n", None);
        for bad in [
            "GET / HTTP/1.1\r\n",
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY TCP4\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2  1\r\n",
            "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
            "PROXY TCP4 ::1 ::2 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\r\n",
            "proxy TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        ] {
            assert_eq!(verdict(bad.as_bytes()), Err(Malformed), "{bad:?}");
        }
        let exact = |length: usize| format!("PROXY UNKNOWN {}\r\n", "x".repeat(length - 16));
        check_text(&exact(107), None);
        assert_eq!(verdict(exact(108).as_bytes()), Err(Malformed));
    }

    fn header(version: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = (rest.len() as u16).to_be_bytes();
        [BINARY_START, &[version, family], &length, rest].concat()
    }

    fn check_binary(version: u8, family: u8, rest: &[u8], expected: Result<Option<&str>, Malformed>) {
        let header = header(version, family, rest);
        let followed = [&header[..], b"GET"].concat();
        let expected = expected.map(|source| Parsed::Complete {
            length: header.len(),
            source: source.map(|source| source.parse().unwrap()),
        });
        assert_eq!(verdict(&followed), expected, "{version:x} {family:x} {}", rest.len());
    }

    #[test]
    fn version_2_names_the_client() {
        let ipv4 = [192, 0, 2, 1, 192, 0, 2, 2, 0x12, 0x34, 0, 80];
        let mut ipv6 = [0u8; 36];
        (ipv6[15], ipv6[31], ipv6[33]) = (1, 2, 80);
        check_binary(0x21, 0x11, &ipv4, Ok(Some("192.0.2.1:4660")));
        check_binary(0x21, 0x21, &ipv6, Ok(Some("[::1]:80")));
        let with_more = [&ipv4[..], &[0x03, 0, 4, 1, 2, 3, 4]].concat();
        check_binary(0x21, 0x11, &with_more, Ok(Some("192.0.2.1:4660")));
        check_binary(0x21, 0x31, &[0; 216], Ok(None));
        check_binary(0x21, 0x00, b"", Ok(None));
        check_binary(0x21, 0x00, b"whatever", Ok(None));
        check_binary(0x20, 0x11, &ipv4, Ok(None));
        check_binary(0x20, 0xff, b"", Ok(None));
        check_binary(0x21, 0x00, &[0; BINARY_REST_MAX], Ok(None));
        check_binary(0x21, 0x00, &[0; BINARY_REST_MAX + 1], Err(Malformed));
        check_binary(0x21, 0x11, &ipv4[..11], Err(Malformed));
        check_binary(0x21, 0x21, &ipv6[..35], Err(Malformed));
        check_binary(0x21, 0x31, &[0; 215], Err(Malformed));
        for family in [0x01, 0x10, 0x12, 0x22, 0x32, 0x41, 0xff] {
            check_binary(0x21, family, &[0; 216], Err(Malformed));
        }
        for version in [0x00, 0x11, 0x22, 0x2f, 0x31] {
            check_binary(version, 0x11, &ipv4, Err(Malformed));
        }
    }
}
