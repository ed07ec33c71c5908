//! Who asks, when trusted proxies stand between (RFC 7239, and `X-Forwarded-For` as it is used).

use std::net::{IpAddr, SocketAddr};

use super::fields::{Fields, Known, trim};

/// The address to log: going back from the peer, the first that is not a trusted proxy. Each proxy vouches
/// for the one before it, so what stands left of an address that is not trusted may be invented, and what
/// is no address ends the chain at the proxy that let it through.
///
/// Where both fields are there, `X-Forwarded-For` counts: most proxies write that one and hand the other on
/// as the client made it up.
pub fn client(fields: &Fields, peer: IpAddr, is_trusted: impl Fn(IpAddr) -> bool) -> IpAddr {
    if !is_trusted(peer) {
        return peer;
    }
    let mut chain = Chain { client: None, is_trusted };
    if fields.times(Known::XForwardedFor) > 0 {
        for element in fields.all(Known::XForwardedFor).flat_map(|value| value.split(|&byte| byte == b',')) {
            chain.hop(address(trim(element)));
        }
    } else {
        for element in fields.all(Known::Forwarded).flat_map(|value| Unquoted { rest: Some(value), at: b',' })
        {
            chain.hop(forwarded_for(element));
        }
    }
    chain.client.unwrap_or(peer)
}

/// Hops are read from the left, since they may be spread over several fields; what is known after each is
/// what would be found going back from it.
struct Chain<F> {
    client: Option<IpAddr>,
    is_trusted: F,
}

impl<F: Fn(IpAddr) -> bool> Chain<F> {
    fn hop(&mut self, address: Option<IpAddr>) {
        match address {
            None => self.client = None,
            Some(address) if self.client.is_none() || !(self.is_trusted)(address) => {
                self.client = Some(address)
            }
            Some(_) => {}
        }
    }
}

/// The node of the `for` parameter of a forwarded-element (RFC 7239 section 4).
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    for pair in (Unquoted { rest: Some(element), at: b';' }) {
        let Some(equals) = pair.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        if trim(&pair[..equals]).eq_ignore_ascii_case(b"for") {
            let node = trim(&pair[equals + 1..]);
            let node = node.strip_prefix(b"\"").and_then(|node| node.strip_suffix(b"\"")).unwrap_or(node);
            return address(node);
        }
    }
    None
}

/// An address, with or without port; IPv6 with brackets where a port follows, and perhaps without where none
/// does. `unknown` and obfuscated names are none.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(text).ok()?;
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().or_else(|_| text.parse::<SocketAddr>().map(|address| address.ip())).ok()?;
    Some(IpAddr::to_canonical(&address))
}

/// Splits where a byte stands outside quotes.
struct Unquoted<'a> {
    rest: Option<&'a [u8]>,
    at: u8,
}

impl<'a> Iterator for Unquoted<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest?;
        let (mut quoted, mut escaped) = (false, false);
        let end = rest.iter().position(|&byte| {
            match byte {
                _ if escaped => escaped = false,
                b'\\' if quoted => escaped = true,
                b'"' => quoted = !quoted,
                _ => return byte == self.at && !quoted,
            }
            false
        });
        self.rest = end.map(|end| &rest[end + 1..]);
        Some(trim(&rest[..end.unwrap_or(rest.len())]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(peer: &str, lines: &[&str], expected: &str) {
        let section: String = lines.iter().map(|line| format!("{line}\r\n")).collect();
        let fields = Fields::of_section(section.as_bytes()).unwrap();
        let is_trusted = |address: IpAddr| match address {
            IpAddr::V4(address) => address.octets()[0] == 10,
            IpAddr::V6(address) => address.segments()[0] == 0xfd00,
        };
        let found = client(&fields, peer.parse().unwrap(), is_trusted);
        assert_eq!(found, expected.parse::<IpAddr>().unwrap(), "{peer} {lines:?}");
    }

    #[test]
    fn only_trusted_peers_are_believed() {
        check("192.0.2.1", &["X-Forwarded-For: 192.0.2.9"], "192.0.2.1");
        check("192.0.2.1", &["Forwarded: for=192.0.2.9"], "192.0.2.1");
        check("10.0.0.1", &[], "10.0.0.1");
    }

    #[test]
    fn the_rightmost_untrusted_address_counts() {
        for (lines, expected) in [
            (&["X-Forwarded-For: 192.0.2.9"][..], "192.0.2.9"),
            (&["X-Forwarded-For: 6.6.6.6, 192.0.2.9"], "192.0.2.9"),
            (&["X-Forwarded-For: 6.6.6.6, 192.0.2.9 ,10.0.0.2"], "192.0.2.9"),
            (
                &["X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 192.0.2.9", "X-Forwarded-For: 10.0.0.2"],
                "192.0.2.9",
            ),
            (&["X-Forwarded-For: 10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["X-Forwarded-For: 192.0.2.9, bad, 10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            (&["X-Forwarded-For: 192.0.2.9, bad"], "10.0.0.1"),
            (&["X-Forwarded-For: bad, 192.0.2.9"], "192.0.2.9"),
            (&["X-Forwarded-For: 192.0.2.9, unknown, 192.0.2.8"], "192.0.2.8"),
            (&["X-Forwarded-For:"], "10.0.0.1"),
            (&["X-Forwarded-For: 192.0.2.9:1234"], "192.0.2.9"),
            (&["X-Forwarded-For: 2001:db8::1"], "2001:db8::1"),
            (&["X-Forwarded-For: [2001:db8::1]"], "2001:db8::1"),
            (&["X-Forwarded-For: [2001:db8::1]:80"], "2001:db8::1"),
            (&["X-Forwarded-For: ::ffff:192.0.2.9, ::ffff:10.0.0.2"], "192.0.2.9"),
            (&["X-Forwarded-For: 192.0.2.9", "Forwarded: for=6.6.6.6"], "192.0.2.9"),
        ] {
            check("10.0.0.1", lines, expected);
        }
    }

    /// RFC 7239 sections 4, 6 and 7.1.
    #[test]
    fn forwarded_elements_are_read() {
        for (lines, expected) in [
            (&["Forwarded: for=192.0.2.60;proto=http;by=203.0.113.43"][..], "192.0.2.60"),
            (&["Forwarded: For=\"[2001:db8:cafe::17]:4711\""], "2001:db8:cafe::17"),
            (&["Forwarded: proto=https; for=\"192.0.2.43:47011\""], "192.0.2.43"),
            (
                &["Forwarded: for=192.0.2.43, for=198.51.100.17;by=203.0.113.60, for=10.0.0.2"],
                "198.51.100.17",
            ),
            (&["Forwarded: for=192.0.2.43", "Forwarded: for=198.51.100.17"], "198.51.100.17"),
            (&["Forwarded: for=192.0.2.43, for=_hidden, for=10.0.0.2"], "10.0.0.2"),
            (&["Forwarded: for=192.0.2.43, for=unknown"], "10.0.0.1"),
            (&["Forwarded: for=192.0.2.43, proto=http"], "10.0.0.1"),
            (&["Forwarded: for=192.0.2.43;host=\"a,for=6.6.6.6;\\\"b\""], "192.0.2.43"),
            (&["Forwarded: for=\"_a\\\", for=6.6.6.6"], "10.0.0.1"),
        ] {
            check("10.0.0.1", lines, expected);
        }
    }
}
