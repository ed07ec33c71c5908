//! Names of sites, and ranges of addresses, as an operator writes them. RFC 9110 section 7.2 and RFC 1123
//! section 2.1 for names, RFC 4632 for ranges.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

use super::Address;
use super::units::Complaint;

/// Longest name, without its final dot (RFC 1035 section 2.3.4).
const NAME_MAX: usize = 253;

/// Longest label (RFC 1035 section 2.3.4).
const LABEL_MAX: usize = 63;

/// `sun_path` less its final NUL.
pub const SOCKET_PATH_MAX: usize = 107;

/// A host as sites carry it: lower case, without final dot, IPv6 in brackets.
///
/// # Errors
/// A sentence and its help.
pub fn host(text: &str) -> Result<String, Complaint> {
    if let Some((_, rest)) = text.split_once("://") {
        let name = rest.split(['/', ':']).next().unwrap_or("");
        return complain(format!("`{text}` is a URL, not a host"), format!("write \"{name}\""));
    }
    if text.contains('/') {
        return complain(format!("`{text}` holds a path"), "a host is a name or an address".to_owned());
    }
    if let Some(literal) = ipv6(text)? {
        return Ok(format!("[{literal}]"));
    }
    if let Some((name, port)) = text.split_once(':') {
        let what = format!("`{text}` names port `{port}`; sites answer on every port that is listened on");
        return complain(what, format!("write \"{name}\""));
    }
    let lower = text.to_ascii_lowercase();
    let name = lower.strip_suffix('.').unwrap_or(&lower);
    if name == "*" {
        let help = "leave `host` out: a site without hosts answers for all that no other site has";
        return complain("`*` is not a host".to_owned(), help.to_owned());
    }
    labels(text, name.strip_prefix("*.").unwrap_or(name))?;
    Ok(name.to_owned())
}

/// An IPv6 literal, with or without brackets; `None`: something else.
fn ipv6(text: &str) -> Result<Option<Ipv6Addr>, Complaint> {
    let Some(rest) = text.strip_prefix('[') else { return Ok(text.parse().ok()) };
    let Some((literal, rest)) = rest.split_once(']') else {
        return complain(format!("`{text}` lacks its closing bracket"), "write \"[::1]\"".to_owned());
    };
    if let Some(port) = rest.strip_prefix(':') {
        let what = format!("`{text}` names port `{port}`; sites answer on every port that is listened on");
        return complain(what, format!("write \"[{literal}]\""));
    }
    match literal.parse() {
        Ok(address) if rest.is_empty() => Ok(Some(address)),
        _ => complain(
            format!("`{text}` is not an IPv6 address"),
            "one looks like \"[2001:db8::1]\"".to_owned(),
        ),
    }
}

fn labels(text: &str, name: &str) -> Result<(), Complaint> {
    if name.is_empty() {
        return complain("a host is empty".to_owned(), "leave `host` out for the default site".to_owned());
    }
    if name.contains('*') {
        let help = "a wildcard stands in front: \"*.example.org\"";
        return complain(format!("`{text}` has a star where none can be"), help.to_owned());
    }
    if !name.is_ascii() {
        let help = "write the form that is in the DNS, which begins with \"xn--\"";
        return complain(format!("`{text}` is not ASCII"), help.to_owned());
    }
    if name.len() > NAME_MAX {
        return complain(format!("a host is longer than {NAME_MAX} letters"), String::new());
    }
    // Underscores are in no host name by the letter, and in many by use.
    let wrong = |letter: char| !(letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_'));
    for label in name.split('.') {
        if let Some(letter) = label.chars().find(|letter| wrong(*letter)) {
            let what = format!("`{text}` is not a host: `{letter}` cannot be in one");
            return complain(what, "a host looks like \"example.org\"".to_owned());
        }
        if label.is_empty() {
            return complain(format!("`{text}` has an empty part between dots"), String::new());
        }
        if label.len() > LABEL_MAX {
            return complain(format!("`{text}` has a part longer than {LABEL_MAX} letters"), String::new());
        }
        if label.starts_with('-') || label.ends_with('-') {
            return complain(format!("`{text}` has a part that begins or ends with a hyphen"), String::new());
        }
    }
    Ok(())
}

/// A range of addresses; a single address is a range of one.
///
/// # Errors
/// A sentence and its help.
pub fn range(text: &str) -> Result<IpNet, Complaint> {
    const LIKE: &str = "a range looks like \"10.0.0.0/8\", \"2001:db8::/32\" or \"127.0.0.1\"";
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let Ok(net) = text.parse::<IpNet>() else {
        return complain(format!("`{text}` is not a range of addresses"), LIKE.to_owned());
    };
    if net.addr() != net.network() {
        let what = format!("`{text}` has bits set beyond its first {}", net.prefix_len());
        return complain(what, format!("did you mean \"{}\" or \"{}\"?", net.trunc(), net.addr()));
    }
    Ok(net)
}

/// A place to listen.
///
/// # Errors
/// A sentence and its help.
pub fn address(text: &str) -> Result<Address, Complaint> {
    if let Some(path) = text.strip_prefix("unix:") {
        return match path {
            _ if !path.starts_with('/') => complain(
                format!("`{text}` is not an absolute path"),
                "a unix socket is \"unix:/run/httpd/http.sock\"".to_owned(),
            ),
            _ if path.len() > SOCKET_PATH_MAX => complain(
                format!("the path of the socket is longer than {SOCKET_PATH_MAX} bytes"),
                "the kernel allows no more".to_owned(),
            ),
            _ => Ok(Address::Unix(PathBuf::from(path))),
        };
    }
    text.parse::<SocketAddr>().map(Address::Tcp).or_else(|_| not_an_address(text))
}

fn not_an_address(text: &str) -> Result<Address, Complaint> {
    const LIKE: &str = "an address looks like \"0.0.0.0:80\", \"[::]:80\" or \"unix:/run/httpd/http.sock\"";
    let what = format!("`{text}` is not an address to listen on");
    if text.parse::<IpAddr>().is_ok() || text.starts_with('[') && text.ends_with(']') {
        let host =
            if text.contains(':') && !text.starts_with('[') { format!("[{text}]") } else { text.to_owned() };
        return complain(format!("`{text}` has no port"), format!("write \"{host}:80\""));
    }
    if text.starts_with('/') {
        return complain(what, format!("did you mean \"unix:{text}\"?"));
    }
    let Some((host, port)) = text.rsplit_once(':').or_else(|| text.parse::<u16>().ok().map(|_| ("", text)))
    else {
        return complain(what, LIKE.to_owned());
    };
    if port.parse::<u16>().is_err() {
        return complain(format!("`{port}` is not a port"), "a port is a number up to 65535".to_owned());
    }
    match host {
        "" | "*" => complain(what, format!("write \"0.0.0.0:{port}\" for IPv4 or \"[::]:{port}\" for IPv6")),
        "localhost" => complain(what, format!("write \"127.0.0.1:{port}\" or \"[::1]:{port}\"")),
        _ if host.parse::<Ipv6Addr>().is_ok() => complain(what, format!("write \"[{host}]:{port}\"")),
        _ => complain(what, format!("names are not looked up; {LIKE}")),
    }
}

fn complain<T>(what: String, help: String) -> Result<T, Complaint> {
    Err((what, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, expected) in [
            ("example.org", "example.org"),
            ("Example.ORG", "example.org"),
            ("example.org.", "example.org"),
            ("*.Example.org", "*.example.org"),
            ("localhost", "localhost"),
            ("127.0.0.1", "127.0.0.1"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
            ("2001:db8:0::1", "[2001:db8::1]"),
            ("a_b.example", "a_b.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(expected), "{text}");
        }
        for (text, what, help) in [
            ("", "empty", "leave `host` out"),
            (".", "empty", ""),
            ("*", "`*` is not a host", "leave `host` out"),
            ("*.", "`*` is not a host", ""),
            ("a.*.b", "star", "in front"),
            ("*a.b", "star", "in front"),
            ("example.org:80", "port `80`", "\"example.org\""),
            ("[::1]:80", "port `80`", "\"[::1]\""),
            ("[::1", "closing bracket", ""),
            ("[::g]", "not an IPv6", ""),
            ("[::1]x", "not an IPv6", ""),
            ("https://example.org/", "a URL", "\"example.org\""),
            ("example.org/a", "a path", ""),
            ("exämple.org", "not ASCII", "xn--"),
            ("a b", "` ` cannot", ""),
            ("a..b", "empty part", ""),
            ("-a.b", "hyphen", ""),
        ] {
            let complaint = host(text).expect_err(text);
            assert!(complaint.0.contains(what) && complaint.1.contains(help), "{text}: {complaint:?}");
        }
        assert!(host(&"a".repeat(64)).is_err());
        assert!(host(&["a"; 127].join(".")).is_ok());
        assert!(host(&["a"; 128].join(".")).is_err());
    }

    #[test]
    fn ranges() {
        for (text, expected) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("127.0.0.1", "127.0.0.1/32"),
            ("::1", "::1/128"),
            ("2001:db8::/32", "2001:db8::/32"),
            ("0.0.0.0/0", "0.0.0.0/0"),
        ] {
            assert_eq!(range(text).map(|net| net.to_string()).as_deref(), Ok(expected), "{text}");
        }
        for (text, help) in [
            ("10.0.0.1/8", "did you mean \"10.0.0.0/8\" or \"10.0.0.1\"?"),
            ("10.0.0.0/33", "looks like"),
            ("10.0.0", "looks like"),
            ("all", "looks like"),
            ("", "looks like"),
        ] {
            assert!(range(text).expect_err(text).1.contains(help), "{text}");
        }
    }

    #[test]
    fn addresses() {
        for text in ["0.0.0.0:8080", "[::]:8080", "127.0.0.1:0", "unix:/run/a.sock"] {
            assert!(address(text).is_ok(), "{text}");
        }
        for (text, help) in [
            ("8080", "\"0.0.0.0:8080\""),
            (":8080", "\"0.0.0.0:8080\""),
            ("*:8080", "\"[::]:8080\""),
            ("localhost:8080", "\"127.0.0.1:8080\""),
            ("example.org:8080", "names are not looked up"),
            ("0.0.0.0", "\"0.0.0.0:80\""),
            ("::", "\"[::]:80\""),
            ("[::]", "\"[::]:80\""),
            ("::1:8080", "\"[::1:8080]:80\""),
            ("0.0.0.0:99999", "up to 65535"),
            ("unix:a.sock", "unix:/run"),
            ("/run/a.sock", "\"unix:/run/a.sock\""),
            ("", "looks like"),
        ] {
            let complaint = address(text).expect_err(text);
            assert!(complaint.1.contains(help), "{text}: {complaint:?}");
        }
        assert!(address(&format!("unix:/{}", "a".repeat(107))).is_err());
    }
}
