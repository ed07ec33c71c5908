//! From a request to its answer (RFC 9110): what is asked for, and what is said. Pure.

use crate::http::request::{Method, Request, Target, Version};
use crate::http1::head::{self, HeadLimits, Parsed};
use crate::http1::persistence::Persistence;
use crate::http1::write::{self, ConnectionField};
use crate::observe::health::Verdict;

/// Monitoring sends a few hundred bytes; browsers, out of which somebody may look, a little more.
const LIMITS: HeadLimits = HeadLimits { bytes: 8 * 1024, lenient_line_ends: false };

/// The form of the metrics: version 0.0.4 of Prometheus' text.
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";

/// What a client wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    /// Not known yet: the head is not complete.
    More,
    /// `/metrics`; `head_only` for HEAD.
    Metrics {
        /// Whether the body is left out.
        head_only: bool,
    },
    /// `/health`.
    Health {
        /// Whether the body is left out.
        head_only: bool,
    },
    /// Something that is answered with this status.
    Refused(u16),
}

/// What the bytes so far ask for.
pub fn wanted(input: &[u8]) -> Wanted {
    match head::parse(input, LIMITS) {
        Ok(Parsed::Incomplete) => Wanted::More,
        Ok(Parsed::Complete { request, .. }) => route(&request),
        Err(refusal) => Wanted::Refused(refusal.status()),
    }
}

fn route(request: &Request) -> Wanted {
    let head_only = request.method == Method::Head;
    let Target::Path { path, .. } = request.target else { return Wanted::Refused(404) };
    match (path, request.method) {
        (b"/metrics" | b"/health", method) if method != Method::Get && !head_only => Wanted::Refused(405),
        (b"/metrics", _) => Wanted::Metrics { head_only },
        (b"/health", _) => Wanted::Health { head_only },
        _ => Wanted::Refused(404),
    }
}

/// The metrics.
pub fn metrics(text: &str, head_only: bool, common: &[u8]) -> Vec<u8> {
    write(200, PROMETHEUS, "", text, head_only, common)
}

/// Whether the server serves: 200, or 503 for a balancer to send its clients elsewhere.
pub fn health(verdict: Verdict, head_only: bool, common: &[u8]) -> Vec<u8> {
    let (status, text) = match verdict {
        Verdict::Serving(1) => (200, "serving with 1 worker\n".to_owned()),
        Verdict::Serving(workers) => (200, format!("serving with {workers} workers\n")),
        Verdict::Idle => (503, "no worker serves\n".to_owned()),
        Verdict::Draining => (503, "draining\n".to_owned()),
    };
    write(status, PLAIN, "Cache-Control: no-store\r\n", &text, head_only, common)
}

/// That it cannot be answered.
pub fn refused(status: u16, common: &[u8]) -> Vec<u8> {
    let (fields, text) = match status {
        404 => ("", "there is /metrics and /health\n"),
        405 => ("Allow: GET, HEAD\r\n", "GET or HEAD\n"),
        503 => ("Retry-After: 1\r\n", "the supervisor did not answer in time\n"),
        _ => ("", "this is no request that is understood here\n"),
    };
    write(status, PLAIN, fields, text, false, common)
}

/// A whole response. Connections are not kept: whoever asks every few seconds loses nothing by it, and
/// nobody holds one of the few there are.
fn write(status: u16, kind: &str, more: &str, text: &str, head_only: bool, common: &[u8]) -> Vec<u8> {
    let fields = format!("Content-Type: {kind}\r\nContent-Length: {}\r\n{more}", text.len());
    let mut out = Vec::new();
    let connection = ConnectionField::telling(Version::Http11, Persistence::Close);
    write::head(&mut out, status, [common, fields.as_bytes(), b"", b""], connection);
    if !head_only {
        out.extend_from_slice(text.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        for (request, expected) in [
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Metrics { head_only: false }),
            ("GET /metrics?x=1 HTTP/1.0\r\n\r\n", Wanted::Metrics { head_only: false }),
            ("GET http://a/metrics HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Metrics { head_only: false }),
            ("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Metrics { head_only: true }),
            ("GET /health HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Health { head_only: false }),
            ("HEAD /health HTTP/1.0\r\n\r\n", Wanted::Health { head_only: true }),
            ("POST /health HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", Wanted::Refused(405)),
            ("GET /metrics/ HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Refused(404)),
            ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Refused(404)),
            ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", Wanted::Refused(404)),
            ("GET /metrics HTTP/1.1\r\n\r\n", Wanted::Refused(400)),
            ("GET /metrics HTTP/1.1\nHost: a\n\n", Wanted::Refused(400)),
            ("\u{16}\u{3}\u{1}", Wanted::Refused(400)),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", Wanted::Refused(505)),
            ("GET /metrics HTTP/1.1\r\nHost: a\r\n", Wanted::More),
            ("", Wanted::More),
        ] {
            assert_eq!(wanted(request.as_bytes()), expected, "{request:?}");
        }
        let endless = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nA: {}", "b".repeat(LIMITS.bytes));
        assert_eq!(wanted(endless.as_bytes()), Wanted::Refused(431));
        assert_eq!(wanted(&[b'A'; LIMITS.bytes]), Wanted::Refused(414));
    }

    #[test]
    fn answers_are_whole_and_end_the_connection() {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        assert_eq!(
            text(health(Verdict::Serving(2), false, b"Date: d\r\n")),
            "HTTP/1.1 200 OK\r\nDate: d\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 23\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\nserving with 2 workers\n"
        );
        let head = text(metrics("a 1\n", true, b""));
        assert!(head.contains("Content-Length: 4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(text(metrics("a 1\n", false, b"")).ends_with("\r\n\r\na 1\n"));
        for verdict in [Verdict::Idle, Verdict::Draining] {
            assert!(health(verdict, false, b"").starts_with(b"HTTP/1.1 503 "), "{verdict:?}");
        }
        assert!(text(refused(405, b"")).contains("\r\nAllow: GET, HEAD\r\n"));
        assert!(refused(431, b"").starts_with(b"HTTP/1.1 431 "));
    }
}
