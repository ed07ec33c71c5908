//! Answers of our own: pages for errors and redirects, small enough to read as source; and what the
//! system's refusals mean to a client.
//!
//! Nothing in a page comes from the request but what is escaped here, and nothing tells what the
//! server is or where its files lie.

use super::rules::push_field;
use super::{Plan, PlanBody};
use crate::http::status::reason;
use crate::sys::Errno;

/// Ends `<style>`, so that a page costs one packet. Light or dark as the reader's system is.
const STYLE: &str = ":root{color-scheme:light dark}\
body{font:1rem/1.5 system-ui,sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem}\
h1{font-size:1.5rem;margin:0}p{margin:.5rem 0}";

/// A refusal with a page that says what was refused and, in a sentence, why. The sentence is plain
/// text; empty, it is the usual one of the status.
pub fn refuse(status: u16, explanation: &str) -> Plan {
    Refusal { explanation: explanation.into(), ..Refusal::new(status) }.page()
}

/// A refusal that has no page yet: the site may have one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status code.
    pub status: u16,
    /// Why, for people; empty: the usual sentence.
    pub explanation: String,
    /// Field lines besides those about content.
    pub fields: Vec<u8>,
}

impl Refusal {
    /// For the usual reason.
    pub fn new(status: u16) -> Self {
        Self { status, explanation: String::new(), fields: Vec::new() }
    }

    /// With a further field, such as Allow or Retry-After.
    #[must_use]
    pub fn with(mut self, name: &str, value: &[u8]) -> Self {
        push_field(&mut self.fields, name, value);
        self
    }

    /// The refusal with a page of our own.
    pub fn page(&self) -> Plan {
        let explanation =
            if self.explanation.is_empty() { usual(self.status) } else { self.explanation.as_str() };
        let mut text = Vec::with_capacity(explanation.len());
        push_escaped(&mut text, explanation.as_bytes());
        page(self.status, &text, &self.fields)
    }
}

/// Sends the client elsewhere. `location` is a URL or a path, encoded.
pub fn redirect(status: u16, location: &[u8]) -> Plan {
    let mut text = b"It is now at <a href=\"".to_vec();
    push_escaped(&mut text, location);
    text.extend_from_slice(b"\">");
    push_escaped(&mut text, location);
    text.extend_from_slice(b"</a>.");
    let mut fields = Vec::with_capacity(location.len() + 16);
    push_field(&mut fields, "Location", location);
    page(status, &text, &fields)
}

/// An answer without content that says which methods there are (RFC 9110 section 9.3.7).
pub fn options(allow: &str) -> Plan {
    let mut extra = Vec::new();
    push_field(&mut extra, "Allow", allow.as_bytes());
    Plan { extra, ..Plan::empty(204) }
}

fn page(status: u16, text: &[u8], fields: &[u8]) -> Plan {
    let reason = reason(status);
    let mut body = Vec::with_capacity(640 + text.len());
    for piece in [
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>",
        itoa::Buffer::new().format(status),
        " ",
        reason,
        "</title>\n<style>",
        STYLE,
        "</style>\n<h1>",
        itoa::Buffer::new().format(status),
        " ",
        reason,
        "</h1>\n<p>",
    ] {
        body.extend_from_slice(piece.as_bytes());
    }
    body.extend_from_slice(text);
    body.extend_from_slice(b"</p>\n</html>\n");

    let mut extra = Vec::with_capacity(160);
    push_field(&mut extra, "Content-Type", b"text/html; charset=utf-8");
    push_field(&mut extra, "Content-Length", itoa::Buffer::new().format(body.len()).as_bytes());
    extra.extend_from_slice(fields);
    Plan { extra, body: PlanBody::Text(body), ..Plan::empty(status) }
}

fn usual(status: u16) -> &'static str {
    match status {
        400 => "The request is not valid HTTP, or its path cannot be a path.",
        401 => "A user name and password are needed here.",
        403 => "You are not allowed to see this.",
        404 => "There is nothing at this address.",
        405 => "This method does not work here.",
        408 => "The request took too long to arrive.",
        412 => "It has changed since you saw it, or is not what you expect.",
        413 => "The body of the request is too large.",
        414 => "The address is too long.",
        416 => "The part that was asked for is not there.",
        417 => "The request expects something this server does not do.",
        421 => "No site of that name is served here.",
        429 => "Too many requests; please slow down.",
        431 => "The head of the request is too large.",
        500 => "Something went wrong on this server.",
        501 => "This server does not know that method or transfer coding.",
        503 => "The server is busy; please try again.",
        505 => "This server speaks HTTP/1.0 and HTTP/1.1.",
        _ => "The request could not be answered.",
    }
}

/// What a refusal to open or read means to the client.
pub fn status_of(errno: Errno) -> u16 {
    match errno {
        Errno::ACCESS | Errno::PERM => 403,
        // XDEV and LOOP: a symlink that the site does not follow. NXIO: a socket. INVAL: a name
        // that the file system cannot hold.
        Errno::NOENT
        | Errno::NOTDIR
        | Errno::ISDIR
        | Errno::XDEV
        | Errno::LOOP
        | Errno::NAMETOOLONG
        | Errno::NXIO
        | Errno::NODEV
        | Errno::INVAL
        | Errno::ILSEQ => 404,
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN | Errno::INTR => 503,
        _ => 500,
    }
}

/// Appends text so that it is text in HTML, also within an attribute.
pub fn push_escaped(into: &mut Vec<u8>, text: &[u8]) {
    for byte in text {
        match byte {
            b'&' => into.extend_from_slice(b"&amp;"),
            b'<' => into.extend_from_slice(b"&lt;"),
            b'>' => into.extend_from_slice(b"&gt;"),
            b'"' => into.extend_from_slice(b"&quot;"),
            b'\'' => into.extend_from_slice(b"&#39;"),
            byte => into.push(*byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(plan: &Plan) -> String {
        let PlanBody::Text(body) = &plan.body else { panic!("a page") };
        assert!(
            String::from_utf8_lossy(&plan.extra).contains(&format!("Content-Length: {}\r\n", body.len())),
            "the length is told"
        );
        String::from_utf8_lossy(body).into_owned()
    }

    #[test]
    fn pages_say_what_and_why() {
        let page = text(&refuse(404, ""));
        assert!(page.contains("<title>404 Not Found</title>") && page.contains("nothing at this address"));
        let page = text(&refuse(400, "<b> & \"c\""));
        assert!(page.contains("&lt;b&gt; &amp; &quot;c&quot;"), "{page}");
    }

    #[test]
    fn fields_cannot_be_split() {
        let plan = Refusal::new(405).with("Allow", b"GET\r\nX: y").page();
        assert!(String::from_utf8_lossy(&plan.extra).contains("Allow: GETX: y\r\n"));
    }

    #[test]
    fn redirects_name_the_place_twice() {
        let plan = redirect(301, b"/a/?b=1&c=%22");
        assert!(String::from_utf8_lossy(&plan.extra).contains("Location: /a/?b=1&c=%22\r\n"));
        assert!(text(&plan).contains("<a href=\"/a/?b=1&amp;c=%22\">/a/?b=1&amp;c=%22</a>"));
    }
}
