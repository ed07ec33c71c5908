//! Access log lines: the "combined" form of NCSA servers, and JSON. Pure: what is written where is
//! the worker's business.
//!
//! Whatever comes from a client is escaped, so that no request can forge a line or a field, or drive
//! the terminal of whoever reads the log.

use std::io::Write as _;
use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::calendar::{MONTHS, Moment};

/// The form of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// `client - user [time] "request" status bytes "referer" "user agent"`
    Combined,
    /// One object a line.
    Json,
}

/// What is said of one exchange. Bytes are as the client sent them.
#[derive(Clone, Debug)]
pub struct Record<'a> {
    /// The client's address, or what a trusted proxy says it is; `None` on a unix socket.
    pub client: Option<IpAddr>,
    /// The user who was let in.
    pub user: Option<&'a [u8]>,
    /// When the request came.
    pub time: SystemTime,
    /// The method; empty where the head could not be read.
    pub method: &'a [u8],
    /// The target.
    pub target: &'a [u8],
    /// `HTTP/1.1`; empty where the head could not be read.
    pub protocol: &'a str,
    /// The host asked for.
    pub host: &'a [u8],
    /// The status.
    pub status: u16,
    /// Bytes of content that were sent.
    pub bytes: u64,
    /// The Referer field.
    pub referer: Option<&'a [u8]>,
    /// The User-Agent field.
    pub user_agent: Option<&'a [u8]>,
    /// From the first byte of the request to the last of the response.
    pub duration: Duration,
    /// The content coding of the response.
    pub coding: Option<&'a str>,
    /// The version of TLS.
    pub tls: Option<&'a str>,
    /// The request's number, for finding it in other logs.
    pub request_id: u64,
}

/// Writes lines of one form.
#[derive(Debug)]
pub struct Lines {
    form: Form,
    /// The second whose text is kept: lines of one second share it.
    second: Option<u64>,
    text: Vec<u8>,
}

impl Lines {
    /// For lines of this form.
    pub fn new(form: Form) -> Self {
        Self { form, second: None, text: Vec::with_capacity(32) }
    }

    /// Appends one line.
    pub fn write(&mut self, out: &mut Vec<u8>, record: &Record<'_>) {
        let since = record.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        if self.second != Some(since.as_secs()) {
            self.second = Some(since.as_secs());
            self.text.clear();
            stamp(&mut self.text, self.form, &Moment::from(record.time));
        }
        match self.form {
            Form::Combined => combined(out, record, &self.text),
            Form::Json => json(out, record, &self.text, since.subsec_millis()),
        }
        out.push(b'\n');
    }
}

/// The part of a time that all lines of one second share.
fn stamp(out: &mut Vec<u8>, form: Form, moment: &Moment) {
    let Moment { year, month, day, hour, minute, second, .. } = moment;
    let written = match form {
        Form::Combined => {
            let month = MONTHS[usize::from(*month) - 1];
            write!(out, "{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
        }
        Form::Json => write!(out, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}."),
    };
    assert!(written.is_ok(), "a vector takes all that is written to it");
}

fn combined(out: &mut Vec<u8>, record: &Record<'_>, stamp: &[u8]) {
    match record.client {
        Some(address) => client(out, address),
        None => out.push(b'-'),
    }
    out.extend_from_slice(b" - ");
    match record.user {
        Some(user) if !user.is_empty() => escape(out, user, Space::Escaped),
        _ => out.push(b'-'),
    }
    out.extend_from_slice(b" [");
    out.extend_from_slice(stamp);
    out.extend_from_slice(b"] \"");
    if record.method.is_empty() {
        out.push(b'-');
    } else {
        escape(out, record.method, Space::Escaped);
        out.push(b' ');
        escape(out, record.target, Space::Escaped);
        out.push(b' ');
        out.extend_from_slice(record.protocol.as_bytes());
    }
    out.extend_from_slice(b"\" ");
    number(out, u64::from(record.status));
    out.push(b' ');
    number(out, record.bytes);
    for field in [record.referer, record.user_agent] {
        out.extend_from_slice(b" \"");
        match field {
            Some(value) => escape(out, value, Space::Kept),
            None => out.push(b'-'),
        }
        out.push(b'"');
    }
}

/// Whether a space can stand in a field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Space {
    Kept,
    Escaped,
}

/// Writes all but printable ASCII, quotes and backslashes as `\xHH`, which every reader of this form
/// copes with, while some of them end a field at the quote of `\"`.
fn escape(out: &mut Vec<u8>, bytes: &[u8], space: Space) {
    let is_plain = |&byte: &u8| match byte {
        b'"' | b'\\' => false,
        b' ' => space == Space::Kept,
        byte => byte.is_ascii_graphic(),
    };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| !is_plain(byte)) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        out.extend_from_slice(b"\\x");
        hex(out, special[0]);
        rest = &special[1..];
    }
    out.extend_from_slice(rest);
}

fn json(out: &mut Vec<u8>, record: &Record<'_>, stamp: &[u8], millisecond: u32) {
    out.extend_from_slice(b"{\"time\":\"");
    out.extend_from_slice(stamp);
    digits(out, millisecond, 3);
    out.extend_from_slice(b"Z\"");
    if let Some(address) = record.client {
        out.extend_from_slice(b",\"client\":\"");
        client(out, address);
        out.push(b'"');
    }
    text(out, "user", record.user);
    let request = (!record.method.is_empty()).then_some(record);
    text(out, "method", request.map(|request| request.method));
    text(out, "host", request.map(|request| request.host));
    text(out, "target", request.map(|request| request.target));
    text(out, "protocol", request.map(|request| request.protocol.as_bytes()));
    out.extend_from_slice(b",\"status\":");
    number(out, u64::from(record.status));
    out.extend_from_slice(b",\"bytes\":");
    number(out, record.bytes);
    text(out, "referer", record.referer);
    text(out, "user_agent", record.user_agent);
    out.extend_from_slice(b",\"duration\":");
    number(out, record.duration.as_secs());
    out.push(b'.');
    digits(out, record.duration.subsec_micros(), 6);
    text(out, "coding", record.coding.map(str::as_bytes));
    text(out, "tls", record.tls.map(str::as_bytes));
    out.extend_from_slice(b",\"request_id\":\"");
    for byte in record.request_id.to_be_bytes() {
        hex(out, byte);
    }
    out.extend_from_slice(b"\"}");
}

/// A member whose value is a string, or nothing where there is none.
fn text(out: &mut Vec<u8>, name: &str, value: Option<&[u8]>) {
    let Some(value) = value else { return };
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":\"");
    for chunk in value.utf8_chunks() {
        json_escape(out, chunk.valid());
        for byte in chunk.invalid() {
            // JSON knows characters only: a stray byte is shown as an escape that the reader sees.
            out.extend_from_slice(b"\\\\x");
            hex(out, *byte);
        }
    }
    out.push(b'"');
}

/// Escapes what JSON wants escaped, and beyond that what drives terminals, DEL and the C1 controls, what ends
/// a line for some readers, and what turns the direction of text around.
fn json_escape(out: &mut Vec<u8>, value: &str) {
    let is_special = |character: char| {
        character.is_control()
            || matches!(character, '"' | '\\' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut rest = value;
    while let Some(at) = rest.find(is_special) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain.as_bytes());
        let mut characters = special.chars();
        match characters.next() {
            Some(character @ ('"' | '\\')) => out.extend_from_slice(&[b'\\', character as u8]),
            // All of these are in the basic plane.
            Some(special) => {
                out.extend_from_slice(b"\\u");
                let [.., high, low] = u32::from(special).to_be_bytes();
                hex(out, high);
                hex(out, low);
            }
            None => {}
        }
        rest = characters.as_str();
    }
    out.extend_from_slice(rest.as_bytes());
}

fn client(out: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let [first, rest @ ..] = address.octets();
            number(out, u64::from(first));
            for octet in rest {
                out.push(b'.');
                number(out, u64::from(octet));
            }
        }
        IpAddr::V6(address) => {
            let written = write!(out, "{address}");
            assert!(written.is_ok(), "a vector takes all that is written to it");
        }
    }
}

fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// A number with leading zeros.
fn digits(out: &mut Vec<u8>, value: u32, width: usize) {
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value);
    out.resize(out.len() + width.saturating_sub(digits.len()), b'0');
    out.extend_from_slice(digits.as_bytes());
}

fn hex(out: &mut Vec<u8>, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> Record<'static> {
        Record {
            client: Some("192.0.2.7".parse().unwrap()),
            user: None,
            time: UNIX_EPOCH + Duration::from_millis(1_763_730_245_042),
            method: b"GET",
            target: b"/a?b=c",
            protocol: "HTTP/1.1",
            host: b"example.org",
            status: 200,
            bytes: 1234,
            referer: None,
            user_agent: Some(b"curl/8"),
            duration: Duration::from_micros(1_000_250),
            coding: None,
            tls: None,
            request_id: 0xbeef,
        }
    }

    fn line(form: Form, record: &Record<'_>) -> String {
        let mut out = Vec::new();
        Lines::new(form).write(&mut out, record);
        String::from_utf8(out).expect("log lines are UTF-8")
    }

    fn parsed(record: &Record<'_>) -> serde_json::Value {
        let line = line(Form::Json, record);
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        serde_json::from_str(&line).expect("valid JSON")
    }

    #[test]
    fn a_combined_line() {
        assert_eq!(
            line(Form::Combined, &record()),
            "192.0.2.7 - - [21/Nov/2025:13:04:05 +0000] \"GET /a?b=c HTTP/1.1\" 200 1234 \"-\" \"curl/8\"\n"
        );
    }

    #[test]
    fn a_json_line() {
        assert_eq!(
            line(Form::Json, &record()),
            "{\"time\":\"2025-11-21T13:04:05.042Z\",\"client\":\"192.0.2.7\",\"method\":\"GET\",\
             \"host\":\"example.org\",\"target\":\"/a?b=c\",\"protocol\":\"HTTP/1.1\",\"status\":200,\
             \"bytes\":1234,\"user_agent\":\"curl/8\",\"duration\":1.000250,\
             \"request_id\":\"000000000000beef\"}\n"
        );
    }

    #[test]
    fn what_is_there_is_shown() {
        let record = Record {
            client: Some("2001:db8::1".parse().unwrap()),
            user: Some(b"ada"),
            referer: Some(b"https://example.org/"),
            coding: Some("br"),
            tls: Some("TLSv1.3"),
            ..record()
        };
        assert_eq!(
            line(Form::Combined, &record),
            "2001:db8::1 - ada [21/Nov/2025:13:04:05 +0000] \"GET /a?b=c HTTP/1.1\" 200 1234 \
             \"https://example.org/\" \"curl/8\"\n"
        );
        let value = parsed(&record);
        assert_eq!(value["user"], "ada");
        assert_eq!(value["coding"], "br");
        assert_eq!(value["tls"], "TLSv1.3");
    }

    #[test]
    fn an_unreadable_request_is_a_dash() {
        let record = Record { client: None, method: b"", target: b"", protocol: "", status: 400, ..record() };
        assert!(line(Form::Combined, &record).starts_with("- - - [21/Nov/2025:13:04:05 +0000] \"-\" 400 "));
        let value = parsed(&record);
        assert!(value.get("method").is_none() && value.get("client").is_none());
    }

    #[test]
    fn no_bytes_forge_a_line_or_a_field() {
        let every_byte: Vec<u8> = (0..=255).collect();
        let record = Record {
            user: Some(&every_byte),
            method: &every_byte,
            target: &every_byte,
            host: &every_byte,
            referer: Some(&every_byte),
            user_agent: Some(&every_byte),
            ..record()
        };
        let line = line(Form::Combined, &record);
        assert_eq!(line.matches('"').count(), 6, "{line}");
        assert_eq!(line.split_once(" [").unwrap().0.split(' ').count(), 3, "{line}");
        assert!(line.trim_end_matches('\n').bytes().all(|byte| byte == b' ' || byte.is_ascii_graphic()));
        assert!(line.contains("\\x00\\x01") && line.contains("!\\x22#") && line.contains("[\\x5c]"));
        let value = parsed(&record);
        let agent = value["user_agent"].as_str().unwrap();
        assert!(agent.starts_with('\0') && agent.contains("!\"#") && agent.ends_with("\\xfe\\xff"));
    }

    #[test]
    fn json_keeps_characters_and_escapes_controls_of_terminals() {
        let record = Record { user_agent: Some("é\u{1b}[2J\u{9b}\u{7f}".as_bytes()), ..record() };
        assert!(line(Form::Json, &record).contains("\"é\\u001b[2J\\u009b\\u007f\""));
        let record = Record { user_agent: Some("\u{2028}\u{202e}\u{2069}\u{2070}".as_bytes()), ..record };
        assert!(line(Form::Json, &record).contains("\"\\u2028\\u202e\\u2069\u{2070}\""));
    }

    #[test]
    fn the_kept_second_is_renewed() {
        let mut lines = Lines::new(Form::Combined);
        let mut out = Vec::new();
        for seconds in [0, 0, 1] {
            let time = UNIX_EPOCH + Duration::from_secs(seconds);
            lines.write(&mut out, &Record { time, ..record() });
        }
        let text = String::from_utf8(out).unwrap();
        let seconds: Vec<_> = text.lines().filter_map(|line| line.split([':', ' ']).nth(6)).collect();
        assert_eq!(seconds, ["00", "00", "01"]);
    }
}
