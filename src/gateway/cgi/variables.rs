//! What a program is told of a request: the meta-variables of RFC 3875 section 4.1 and those that
//! everybody relies on besides. Which script it is, and so SCRIPT_NAME, SCRIPT_FILENAME, PATH_INFO and
//! PATH_TRANSLATED, is found out where scripts are started, which also adds DOCUMENT_ROOT, PATH and what the
//! operator set for the mount.

use std::net::{IpAddr, SocketAddr};

use crate::http::fields::{Fields, Known, is_token_byte, list};
use crate::http::host;
use crate::http::request::{Request, Target};

/// The names of all variables, but those of fields.
const NAMES: [&str; 20] = [
    "AUTH_TYPE",
    "CONTENT_LENGTH",
    "CONTENT_TYPE",
    "GATEWAY_INTERFACE",
    "HTTPS",
    "QUERY_STRING",
    "REDIRECT_STATUS",
    "REMOTE_ADDR",
    "REMOTE_HOST",
    "REMOTE_PORT",
    "REMOTE_USER",
    "REQUEST_ID",
    "REQUEST_METHOD",
    "REQUEST_SCHEME",
    "REQUEST_URI",
    "SERVER_ADDR",
    "SERVER_NAME",
    "SERVER_PORT",
    "SERVER_PROTOCOL",
    "SERVER_SOFTWARE",
];

/// Whether a variable of that name can follow from a request. Nothing else is passed on where scripts are
/// started, whoever says it.
pub fn is_name(name: &[u8]) -> bool {
    match name.strip_prefix(b"HTTP_") {
        Some(b"" | b"PROXY") => false,
        Some(field) => field.iter().all(|byte| matches!(byte, b'A'..=b'Z' | b'0'..=b'9' | b'_')),
        None => NAMES.iter().any(|known| known.as_bytes() == name),
    }
}

/// Names and values.
#[derive(Clone, Default, Debug)]
pub struct Variables {
    /// `NAME=value`, each ended by a zero byte.
    bytes: Vec<u8>,
}

/// What is known of a request besides its own text.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The request. Local redirects come as a request of their own.
    pub request: &'a Request<'a>,
    /// Who asks, as far as trusted proxies tell it.
    pub client: Option<IpAddr>,
    /// Whether the connection is secure.
    pub secure: bool,
    /// The user, where this server has checked the password.
    pub user: Option<&'a [u8]>,
    /// Whether the program checks passwords itself, and so is given Authorization.
    pub passes_authorization: bool,
    /// The site's own name, for requests that name no host.
    pub site_name: Option<&'a [u8]>,
    /// The number under which the request is logged.
    pub request_id: u64,
}

impl Variables {
    /// All that follows from the request. CONTENT_LENGTH is added by [`Self::content_length`].
    pub fn of(about: &About<'_>) -> Self {
        let request = about.request;
        let mut own = Self { bytes: Vec::with_capacity(1024) };
        own.set("GATEWAY_INTERFACE", b"CGI/1.1");
        own.set("SERVER_SOFTWARE", concat!("httpd/", env!("CARGO_PKG_VERSION")).as_bytes());
        own.set("SERVER_PROTOCOL", request.version.name().as_bytes());
        own.set("REQUEST_METHOD", request.method_name);
        let (path, query) = match request.target {
            Target::Path { path, query } => (path, query),
            Target::Asterisk | Target::Authority => (&b"*"[..], None),
        };
        own.set("QUERY_STRING", query.unwrap_or_default());
        // Without scheme and host also where the client sent them, as every program expects it.
        let mark: &[u8] = if query.is_some() { b"?" } else { b"" };
        own.set_parts(b"REQUEST_URI", &[path, mark, query.unwrap_or_default()]);
        own.set("REQUEST_SCHEME", if about.secure { b"https" } else { b"http" });
        if about.secure {
            own.set("HTTPS", b"on");
        }
        let name = match request.host {
            b"" => about.site_name.unwrap_or(b"localhost"),
            host => host::without_final_dot(host),
        };
        own.set("SERVER_NAME", name);
        // Only php-cgi asks for it, which takes its absence for a call by a client's own path.
        own.set("REDIRECT_STATUS", b"200");
        own.set("REQUEST_ID", format!("{:016x}", about.request_id).as_bytes());
        if let Some(client) = about.client {
            let text = client.to_string();
            // An address stands for the name where no name was looked up (section 4.1.9).
            own.set("REMOTE_ADDR", text.as_bytes());
            own.set("REMOTE_HOST", text.as_bytes());
        } else {
            // Whoever is on the other end of a unix socket is on this machine.
            own.set("REMOTE_ADDR", b"127.0.0.1");
            own.set("REMOTE_HOST", b"localhost");
        }
        if let Some(user) = about.user {
            own.set("AUTH_TYPE", b"Basic");
            own.set("REMOTE_USER", user);
        }
        if let Some(value) = request.fields.first(Known::ContentType) {
            own.set("CONTENT_TYPE", value);
        }
        own.fields(request, about.passes_authorization && about.user.is_none());
        own
    }

    /// Where there is a body whose length is known (section 4.1.2).
    pub fn content_length(&mut self, length: u64) {
        self.set("CONTENT_LENGTH", itoa::Buffer::new().format(length).as_bytes());
    }

    /// The two ends of the client's connection; `None` on unix sockets. `client` is who asks, who need not
    /// be who has connected: then the port says nothing.
    pub fn connection(
        &mut self,
        remote: Option<SocketAddr>,
        local: Option<SocketAddr>,
        client: Option<IpAddr>,
        secure: bool,
    ) {
        if let Some(remote) = remote
            && client == Some(remote.ip())
        {
            self.set("REMOTE_PORT", itoa::Buffer::new().format(remote.port()).as_bytes());
        }
        if let Some(local) = local {
            self.set("SERVER_ADDR", local.ip().to_string().as_bytes());
        }
        // Behind a unix socket stands a proxy, which has the usual port.
        let port = local.map_or(if secure { 443 } else { 80 }, |local| local.port());
        self.set("SERVER_PORT", itoa::Buffer::new().format(port).as_bytes());
    }

    /// All of them, as (name, value).
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let ended = self.bytes.strip_suffix(b"\0");
        let pairs = ended.into_iter().flat_map(|bytes| bytes.split(|&byte| byte == 0));
        pairs.filter_map(|pair| {
            let equals = memchr::memchr(b'=', pair)?;
            Some((&pair[..equals], &pair[equals + 1..]))
        })
    }

    /// The request's other fields as HTTP_*, repeated ones joined (section 4.1.18).
    fn fields(&mut self, request: &Request<'_>, authorization: bool) {
        let fields = &request.fields;
        let mut name = Vec::with_capacity(32);
        for (index, (field, value)) in fields.iter().enumerate() {
            let known = Known::of(field);
            if !is_passed(field, known, authorization) || is_of_connection(field, fields) {
                continue;
            }
            let same = |(other, _): &(&[u8], &[u8])| other.eq_ignore_ascii_case(field);
            if fields.iter().take(index).any(|pair| same(&pair)) {
                continue;
            }
            name.clear();
            name.extend_from_slice(b"HTTP_");
            name.extend(field.iter().map(|byte| match byte {
                b'-' => b'_',
                byte => byte.to_ascii_uppercase(),
            }));
            if known == Some(Known::Host) && !names_host(value, request.host) {
                // The host of an absolute target, which outranks the field (RFC 9112 section 3.2.2).
                self.set_parts(&name, &[request.host]);
                continue;
            }
            let separator: &[u8] = if known == Some(Known::Cookie) { b"; " } else { b", " };
            debug_assert!(is_name(&name));
            self.bytes.extend_from_slice(&name);
            self.bytes.push(b'=');
            self.bytes.extend_from_slice(value);
            for (_, further) in fields.iter().skip(index + 1).filter(same) {
                self.bytes.extend_from_slice(separator);
                self.bytes.extend_from_slice(further);
            }
            self.bytes.push(0);
        }
    }

    fn set(&mut self, name: &str, value: &[u8]) {
        self.set_parts(name.as_bytes(), &[value]);
    }

    fn set_parts(&mut self, name: &[u8], parts: &[&[u8]]) {
        debug_assert!(is_name(name));
        self.bytes.extend_from_slice(name);
        self.bytes.push(b'=');
        for part in parts {
            // No text of a request holds a zero byte; a path of the operator's cannot either.
            debug_assert!(!part.contains(&0));
            self.bytes.extend_from_slice(part);
        }
        self.bytes.push(0);
    }
}

/// Whether a field becomes a variable.
///
/// `Proxy` would become HTTP_PROXY, which many libraries obey (CVE-2016-5385). A name with an underscore, or
/// another byte that no shell has in names, could pass for that of another field. Bodies arrive without
/// transfer coding, and what is expected of the server is not for the program.
fn is_passed(name: &[u8], known: Option<Known>, authorization: bool) -> bool {
    match known {
        Some(Known::Authorization) => authorization,
        Some(
            Known::Connection
            | Known::ContentLength
            | Known::ContentType
            | Known::Expect
            | Known::Proxy
            | Known::Te
            | Known::Trailer
            | Known::TransferEncoding
            | Known::Upgrade,
        ) => false,
        Some(_) => true,
        None => {
            const OTHERS: [&[u8]; 4] =
                [b"Keep-Alive", b"Proxy-Connection", b"Proxy-Authorization", b"Proxy-Authenticate"];
            debug_assert!(name.iter().all(|&byte| is_token_byte(byte)));
            name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
                && !OTHERS.iter().any(|other| other.eq_ignore_ascii_case(name))
        }
    }
}

/// Whether the client says that a field is for the next hop only (RFC 9110 section 7.6.1). Not so for what
/// programs decide by: a client could hide it from them behind a proxy that has checked it.
fn is_of_connection(name: &[u8], fields: &Fields<'_>) -> bool {
    fields.times(Known::Connection) > 0
        && Known::of(name).is_none()
        && fields.all(Known::Connection).flat_map(list).any(|option| option.eq_ignore_ascii_case(name))
}

fn names_host(value: &[u8], name: &[u8]) -> bool {
    host::parse(value).is_some_and(|host| host.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::method;
    use crate::http::request::Version;
    use std::collections::BTreeMap;

    fn request<'a>(method_name: &'a str, target: &'a str, section: &'a str) -> Request<'a> {
        let (path, query) = match target.split_once('?') {
            Some((path, query)) => (path, Some(query.as_bytes())),
            None => (target, None),
        };
        Request {
            method: method::of(method_name.as_bytes()),
            method_name: method_name.as_bytes(),
            version: Version::Http11,
            target_text: target.as_bytes(),
            target: Target::Path { path: path.as_bytes(), query },
            host: b"example.org",
            fields: Fields::of_section(section.as_bytes()).expect("a field section"),
        }
    }

    fn about<'a>(request: &'a Request<'a>) -> About<'a> {
        About {
            request,
            client: Some([192, 0, 2, 7].into()),
            secure: false,
            user: None,
            passes_authorization: false,
            site_name: Some(b"site.example"),
            request_id: 255,
        }
    }

    fn all(variables: &Variables) -> BTreeMap<String, String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut found = BTreeMap::new();
        for (name, value) in variables.iter() {
            assert!(found.insert(text(name), text(value)).is_none(), "{} twice", text(name));
        }
        found
    }

    /// The variables of a GET with these fields.
    fn with(section: &str) -> BTreeMap<String, String> {
        let request = request("GET", "/", section);
        all(&Variables::of(&about(&request)))
    }

    /// RFC 3875 section 4.1.
    #[test]
    fn the_variables_of_a_plain_request() {
        let request = request("GET", "/cgi-bin/a%20b/c?x=%41&y", "Host: example.org:8080\r\n");
        let mut variables = Variables::of(&about(&request));
        let (remote, local) = (([192, 0, 2, 7], 4711), ([192, 0, 2, 1], 8080));
        variables.connection(Some(remote.into()), Some(local.into()), Some([192, 0, 2, 7].into()), false);
        let expected = [
            ("GATEWAY_INTERFACE", "CGI/1.1"),
            ("HTTP_HOST", "example.org:8080"),
            ("QUERY_STRING", "x=%41&y"),
            ("REDIRECT_STATUS", "200"),
            ("REMOTE_ADDR", "192.0.2.7"),
            ("REMOTE_HOST", "192.0.2.7"),
            ("REMOTE_PORT", "4711"),
            ("REQUEST_ID", "00000000000000ff"),
            ("REQUEST_METHOD", "GET"),
            ("REQUEST_SCHEME", "http"),
            ("REQUEST_URI", "/cgi-bin/a%20b/c?x=%41&y"),
            ("SERVER_ADDR", "192.0.2.1"),
            ("SERVER_NAME", "example.org"),
            ("SERVER_PORT", "8080"),
            ("SERVER_PROTOCOL", "HTTP/1.1"),
        ];
        let mut found = all(&variables);
        assert!(found.remove("SERVER_SOFTWARE").is_some_and(|value| value.starts_with("httpd/")));
        let expected: BTreeMap<_, _> =
            expected.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn only_what_follows_from_requests_is_a_name() {
        for name in ["CONTENT_LENGTH", "REQUEST_ID", "HTTP_HOST", "HTTP_X_1", "HTTP__"] {
            assert!(is_name(name.as_bytes()), "{name}");
        }
        for name in [
            "",
            "A",
            "LD_PRELOAD",
            "BASH_ENV",
            "PATH",
            "PATH_INFO",
            "SCRIPT_FILENAME",
            "DOCUMENT_ROOT",
            "UNIQUE_ID",
            "HTTP_",
            "HTTP_PROXY",
            "HTTP_x",
            "HTTP_A-B",
            "BASH_FUNC_a%%",
            "server_name",
            "SERVER_NAME ",
        ] {
            assert!(!is_name(name.as_bytes()), "{name}");
        }
    }

    /// RFC 3875 sections 4.1.2, 4.1.3 and 4.1.7.
    #[test]
    fn what_is_absent_is_unset_but_for_the_query() {
        let found = with("");
        assert_eq!(found["QUERY_STRING"], "");
        assert_eq!(found["REQUEST_URI"], "/");
        for name in ["CONTENT_LENGTH", "CONTENT_TYPE", "AUTH_TYPE", "REMOTE_USER", "HTTPS", "HTTP_HOST"] {
            assert!(!found.contains_key(name), "{name}");
        }
        let request = request("POST", "/?", "Content-Type: a/b\r\nContent-Length: 3\r\n");
        let mut variables = Variables::of(&about(&request));
        variables.content_length(3);
        let found = all(&variables);
        assert_eq!((&*found["CONTENT_TYPE"], &*found["CONTENT_LENGTH"]), ("a/b", "3"));
        assert_eq!(found["REQUEST_URI"], "/?");
        assert!(!found.contains_key("HTTP_CONTENT_TYPE") && !found.contains_key("HTTP_CONTENT_LENGTH"));
    }

    /// RFC 3875 sections 4.1.1, 4.1.11 and 4.1.18.
    #[test]
    fn only_this_servers_users_are_named() {
        let request = request("GET", "/", "Authorization: Basic YTpi\r\n");
        let plain = about(&request);
        let check = |about: About<'_>, user: Option<&str>, authorization: Option<&str>| {
            let found = all(&Variables::of(&about));
            assert_eq!(found.get("REMOTE_USER").map(String::as_str), user);
            assert_eq!(found.get("AUTH_TYPE").map(String::as_str), user.map(|_| "Basic"));
            assert_eq!(found.get("HTTP_AUTHORIZATION").map(String::as_str), authorization);
        };
        check(plain, None, None);
        check(About { user: Some(b"ann"), ..plain }, Some("ann"), None);
        check(About { passes_authorization: true, ..plain }, None, Some("Basic YTpi"));
        check(About { passes_authorization: true, user: Some(b"ann"), ..plain }, Some("ann"), None);
    }

    /// RFC 3875 section 4.1.18, RFC 9110 sections 5.3 and 7.6.1.
    #[test]
    fn fields_become_variables() {
        let check = |section: &str, expected: &[(&str, &str)]| {
            let mut found = with(section);
            found.retain(|name, _| name.starts_with("HTTP_"));
            let expected: BTreeMap<_, _> =
                expected.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            assert_eq!(found, expected, "{section:?}");
        };
        check("x-one: 1\r\nX-ONE: 2\r\nX-Two: a\r\n", &[("HTTP_X_ONE", "1, 2"), ("HTTP_X_TWO", "a")]);
        check("Cookie: a=1\r\nX: y\r\nCookie: b=2\r\n", &[("HTTP_COOKIE", "a=1; b=2"), ("HTTP_X", "y")]);
        check("Git-Protocol: version=2\r\n", &[("HTTP_GIT_PROTOCOL", "version=2")]);
        check("Content-Encoding: gzip\r\n", &[("HTTP_CONTENT_ENCODING", "gzip")]);
        check("X-Empty:\r\n", &[("HTTP_X_EMPTY", "")]);
        check("Proxy: http://evil/\r\nPROXY: b\r\n", &[]);
        check("X_One: 1\r\nX-One: 2\r\n", &[("HTTP_X_ONE", "2")]);
        check("X.One: 1\r\nX!: 2\r\n() { :; }: 3\r\n".split_once("()").map_or("", |(good, _)| good), &[]);
        check("TE: trailers\r\nTrailer: X\r\nUpgrade: h2c\r\nKeep-Alive: 5\r\nExpect: 100-continue\r\n", &[]);
        check("Transfer-Encoding: chunked\r\nProxy-Authorization: x\r\nProxy-Connection: y\r\n", &[]);
        check("Connection: close, X-Hop\r\nX-Hop: 1\r\nX-End: 2\r\n", &[("HTTP_X_END", "2")]);
        check("Connection: Cookie\r\nCookie: a=1\r\n", &[("HTTP_COOKIE", "a=1")]);
    }

    /// RFC 9112 section 3.2.2: the host of an absolute target outranks the field.
    #[test]
    fn the_host_is_the_one_that_was_asked_for() {
        assert_eq!(with("Host: example.org:81\r\n")["HTTP_HOST"], "example.org:81");
        assert_eq!(with("Host: other.example\r\n")["HTTP_HOST"], "example.org");
        let request = Request { host: b"", version: Version::Http10, ..request("GET", "/", "") };
        let found = all(&Variables::of(&about(&request)));
        assert_eq!((&*found["SERVER_NAME"], &*found["SERVER_PROTOCOL"]), ("site.example", "HTTP/1.0"));
    }

    #[test]
    fn ends_of_the_connection_are_told_as_far_as_they_are_the_clients() {
        let request = request("GET", "/", "");
        let check = |remote: Option<&str>, local: Option<&str>, expected: [Option<&str>; 3]| {
            let parse = |text: &str| text.parse().expect("an address");
            let mut variables = Variables::of(&About { secure: true, ..about(&request) });
            let client = Some([192, 0, 2, 7].into());
            variables.connection(remote.map(parse), local.map(parse), client, true);
            let found = all(&variables);
            let names = ["REMOTE_PORT", "SERVER_ADDR", "SERVER_PORT"];
            assert_eq!(names.map(|name| found.get(name).map(String::as_str)), expected);
            assert_eq!((&*found["HTTPS"], &*found["REQUEST_SCHEME"]), ("on", "https"));
        };
        check(Some("192.0.2.7:5"), Some("[::1]:443"), [Some("5"), Some("::1"), Some("443")]);
        check(Some("10.0.0.1:5"), Some("10.0.0.2:8443"), [None, Some("10.0.0.2"), Some("8443")]);
        check(None, None, [None, None, Some("443")]);
    }
}
