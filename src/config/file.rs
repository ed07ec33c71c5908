//! The configuration file as it was written: every key it can hold, with the type of its value and the
//! place where it stands. Says nothing about what values mean; that is `resolve`.
//!
//! Tables are walked by hand over the parser's spanned tree, not through derived deserialisers: these stop
//! at the first mistake, and lose positions below flattened and untagged shapes.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::report::{Problems, Span};
use super::suggest;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Its bytes in the text.
    pub span: Span,
}

impl<T> At<T> {
    /// A value at a place.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

/// What holds keys.
pub trait Table: Sized + Default {
    /// Its full name; empty for the file itself.
    const NAME: &str;
    /// Its keys.
    const KEYS: &[&str];
    /// Reads what is there.
    fn read_table(table: &DeTable, span: Span, problems: &mut Problems) -> Self;
}

/// Defines the tables: a structure each, with an optional value for every key.
macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident $name:literal { $($key:ident $($text:literal)? : $type:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default)]
            #[allow(missing_docs)]
            pub struct $table {
                /// Where the table begins.
                pub at: Span,
                $(pub $key: Option<At<$type>>,)*
            }

            impl Table for $table {
                const NAME: &str = $name;
                const KEYS: &[&str] = &[$(tables!(@text $key $($text)?)),*];

                fn read_table(table: &DeTable, span: Span, problems: &mut Problems) -> Self {
                    unknown_keys::<Self>(table, &span, problems);
                    Self {
                        $($key: value(table, &span, $name, tables!(@text $key $($text)?), problems),)*
                        at: span,
                    }
                }
            }

            impl Read for $table {
                fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
                    match value.get_ref() {
                        DeValue::Table(table) => Some(Self::read_table(table, value.span(), problems)),
                        other => wrong_type(value, name, "a table", other, problems),
                    }
                }
            }
        )*

        /// Every table that has keys of its own, and these keys.
        pub const KNOWN: &[(&str, &[&str])] = &[$(($name, <$table as Table>::KEYS)),*];
    };
    (@text $key:ident) => { stringify!($key) };
    (@text $key:ident $text:literal) => { $text };
}

tables! {
    /// The whole file.
    File "" {
        server: Server,
        log: Log,
        timeouts: Timeouts,
        limits: Limits,
        tls: Tls,
        metrics: Metrics,
        cache: Cache,
        listen: Vec<Listen>,
        site: Vec<Site>,
    }
    /// `[server]`
    Server "server" {
        workers: i64,
        pin: bool,
        user: String,
        control: String,
        max_connections: i64,
        drain: Quantity,
        name: String,
    }
    /// `[log]`
    Log "log" {
        level: String,
        access: String,
        format: String,
    }
    /// `[timeouts]`
    Timeouts "timeouts" {
        handshake: Quantity,
        head: Quantity,
        body: Quantity,
        send: Quantity,
        idle: Quantity,
    }
    /// `[limits]`
    Limits "limits" {
        head: Quantity,
        body: Quantity,
        requests_per_connection: i64,
        connections_per_address: i64,
        lenient_line_ends: bool,
    }
    /// `[tls]`
    Tls "tls" {
        kernel: String,
        tickets: Quantity,
        ticket_keys: Strings,
    }
    /// `[metrics]`
    Metrics "metrics" {
        listen: String,
    }
    /// `[cache]`
    Cache "cache" {
        dir: String,
        memory: Quantity,
        max_file: Quantity,
        revalidate: Quantity,
        precompress: String,
        encodings: Strings,
        min_size: Quantity,
        max_size: Quantity,
        types: Strings,
        keep: Quantity,
    }
    /// `[[listen]]`
    Listen "listen" {
        address: String,
        tls: bool,
        proxy_protocol: bool,
        trusted: Strings,
        mode: String,
    }
    /// `[[site]]`
    Site "site" {
        host: Strings,
        root: String,
        index: Strings,
        symlinks: String,
        hidden: bool,
        listing: bool,
        fallback: String,
        clean_urls: bool,
        https_redirect: Switch,
        hsts: String,
        error_pages: Pairs,
        certificate: Vec<Certificate>,
        rule: Vec<Rule>,
        cgi: Vec<Cgi>,
        wcgi: Vec<Wcgi>,
    }
    /// `[[site.certificate]]`
    Certificate "site.certificate" {
        cert: String,
        key: String,
        self_signed: bool,
    }
    /// `[[site.rule]]`
    Rule "site.rule" {
        pattern "match": String,
        headers: Pairs,
        redirect: String,
        status: i64,
        auth: Auth,
        allow: Strings,
        deny: Strings,
    }
    /// `site.rule.auth`
    Auth "site.rule.auth" {
        realm: String,
        users: String,
    }
    /// `[[site.cgi]]`
    Cgi "site.cgi" {
        path: String,
        dir: String,
        script: String,
        timeout: Quantity,
        wall: Quantity,
        concurrency: i64,
        queue: i64,
        body: Quantity,
        chunked: String,
        env: Pairs,
        pass_authorization: bool,
        arguments: bool,
        user: String,
        umask: String,
        cpu: Quantity,
        memory: Quantity,
        files: i64,
        processes: i64,
        grace: Quantity,
        background: bool,
        gain_privileges: bool,
    }
    /// `[[site.wcgi]]`
    Wcgi "site.wcgi" {
        path: String,
        dir: String,
        script: String,
        memory: Quantity,
        read: Pairs,
        write: Pairs,
        timeout: Quantity,
        wall: Quantity,
        concurrency: i64,
        queue: i64,
        body: Quantity,
        chunked: String,
        env: Pairs,
        pass_authorization: bool,
        arguments: bool,
    }
}

/// A size or a time: a number, or a text with a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// `512`
    Number(i64),
    /// `"64KiB"`
    Text(String),
}

/// Yes, no, or yes with a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// `true`, `false`
    Flag(bool),
    /// `8443`
    Number(i64),
}

/// A list of strings; a single string is a list of one.
pub type Strings = Vec<At<String>>;

/// A table whose keys are up to the operator, in the order of the text.
#[derive(Clone, Debug, Default)]
pub struct Pairs(pub Vec<(At<String>, At<String>)>);

/// Reads a file. What is no TOML is reported; where that leaves no doubt about the rest, the rest is read too.
pub fn parse(source: &str, problems: &mut Problems) -> Option<File> {
    let (root, errors) = DeTable::parse_recoverable(source);
    let errors: Vec<_> = errors
        .into_iter()
        .map(|error| (error.span().unwrap_or(source.len()..source.len()), error.message().to_owned()))
        .collect();
    let is_local = |message: &str| LOCAL.iter().any(|start| message.starts_with(start));
    let first_structural =
        errors.iter().filter(|(_, message)| !is_local(message)).map(|(span, _)| span.start).min();
    for (span, message) in &errors {
        // One mistake of structure makes the parser find more behind it that are none.
        let astray = first_structural
            .is_some_and(|first| first < span.start || first == span.start && is_local(message));
        if !astray {
            let (what, help) = syntax(message, source.get(span.clone()).unwrap_or(""));
            problems.only(lines(source, span), span, what, help);
        }
    }
    first_structural.is_none().then(|| File::read_table(root.get_ref(), 0..0, problems))
}

/// What the parser says of mistakes that end within one value: it knows well what follows them.
const LOCAL: [&str; 8] = [
    "duplicate key",
    "string values must be quoted",
    "invalid boolean",
    "invalid integer",
    "invalid float",
    "unexpected leading zero",
    "missing escaped value",
    "invalid comment character",
];

fn syntax(message: &str, text: &str) -> (String, String) {
    let message = message.trim();
    if message.starts_with("duplicate key") {
        let what = format!("`{text}` stands here for the second time");
        return (
            what,
            "keep one; only tables in double brackets, [[listen]] and [[site]], repeat".to_owned(),
        );
    }
    if message.starts_with("string values must be quoted") {
        return match text.is_empty() {
            true => {
                ("the value is missing".to_owned(), "write one after the `=`, or remove the key".to_owned())
            }
            false => (format!("`{text}` is not in quotes"), format!("write \"{text}\"")),
        };
    }
    if message.starts_with("unexpected leading zero") {
        return ("a number does not begin with a zero".to_owned(), "leave the zero out".to_owned());
    }
    let help = if message.starts_with("key with no value") {
        "a line is `key = value`, `[table]`, or a comment that begins with `#`"
    } else if message.starts_with("unclosed") || message.contains("missing comma") {
        "look for the bracket or comma that is missing here or above"
    } else if message.starts_with("invalid basic string") {
        "a string ends on its line, with the quote it began with"
    } else if message.starts_with("missing escaped value") {
        "a backslash in a string is written twice, or the string in single quotes"
    } else {
        ""
    };
    (format!("not TOML: {message}"), help.to_owned())
}

/// The whole lines that a span touches.
fn lines(source: &str, span: &Span) -> Span {
    let bytes = source.as_bytes();
    let newline = |byte: &u8| *byte == b'\n';
    let before = bytes.get(..span.start).unwrap_or(bytes);
    let start = before.iter().rposition(newline).map_or(0, |at| at + 1);
    let after = bytes.get(span.end..).unwrap_or_default();
    let end = after.iter().position(newline).map_or(source.len(), |at| span.end + at);
    start..end + 1
}

fn value<T: Read>(
    table: &DeTable,
    at: &Span,
    name: &str,
    key: &str,
    problems: &mut Problems,
) -> Option<At<T>> {
    let value = table.get(key)?;
    let full = full_name(name, key);
    let read = T::read(value, &full, problems);
    if read.is_none() {
        problems.note_meant(at, full);
    }
    read.map(|read| At::new(read, value.span()))
}

fn full_name(table: &str, key: &str) -> String {
    if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
}

fn unknown_keys<T: Table>(table: &DeTable, at: &Span, problems: &mut Problems) {
    for key in table.keys().filter(|key| !T::KEYS.contains(&key.get_ref().as_ref())) {
        let word = key.get_ref().as_ref();
        let what = format!("`{}` is not a known key", full_name(T::NAME, word));
        if let Some(near) = suggest::nearest(word, T::KEYS.iter().copied()) {
            problems.note_meant(at, full_name(T::NAME, near));
            problems.at(&key.span(), what, format!("did you mean `{near}`?"));
        } else {
            problems.at(&key.span(), what, home(T::NAME, T::KEYS, word));
        }
    }
}

/// Where an unknown key may belong; else, which keys there are.
fn home(table: &str, keys: &[&str], word: &str) -> String {
    // What those tables hold are common words, which say little about where one was meant to be.
    let common = |name: &str| matches!(name, "site.cgi" | "site.wcgi");
    let elsewhere = KNOWN.iter().find(|(name, keys)| *name != table && !common(name) && keys.contains(&word));
    if let Some((name, _)) = elsewhere {
        return match name.is_empty() {
            true => format!("{} is a table of its own, not part of {}", header(word), header(table)),
            false => format!("`{word}` belongs in {}", header(name)),
        };
    }
    match table.is_empty() {
        true => format!("the tables are {}", keys.join(", ")),
        false => format!("the keys of {} are {}", header(table), keys.join(", ")),
    }
}

/// A table's name as it is written in a file.
fn header(table: &str) -> String {
    match table {
        "listen" | "site" | "site.certificate" | "site.rule" | "site.cgi" | "site.wcgi" => {
            format!("[[{table}]]")
        }
        "site.rule.auth" => "`auth` of [[site.rule]]".to_owned(),
        other => format!("[{other}]"),
    }
}

/// What can stand after an equals sign.
trait Read: Sized {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self>;
}

impl Read for bool {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            other => wrong_type(value, name, "true or false", other, problems),
        }
    }
}

impl Read for i64 {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::Integer(number) => integer(number, &value.span(), name, problems),
            other => wrong_type(value, name, "a whole number", other, problems),
        }
    }
}

impl Read for String {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => Some(text.to_string()),
            other => wrong_type(value, name, "a string", other, problems),
        }
    }
}

impl Read for Quantity {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => Some(Quantity::Text(text.to_string())),
            DeValue::Integer(number) => integer(number, &value.span(), name, problems).map(Quantity::Number),
            other => {
                wrong_type(value, name, "a string with a unit, such as \"30s\" or \"64KiB\"", other, problems)
            }
        }
    }
}

impl Read for Switch {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(Switch::Flag(*flag)),
            DeValue::Integer(number) => integer(number, &value.span(), name, problems).map(Switch::Number),
            other => wrong_type(value, name, "true, false or a port", other, problems),
        }
    }
}

impl Read for Strings {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        match value.get_ref() {
            DeValue::String(text) => Some(vec![At::new(text.to_string(), value.span())]),
            DeValue::Array(items) => {
                // Each item is asked, so that each wrong one is reported.
                let strings = items.iter().filter_map(|item| {
                    String::read(item, &format!("each of `{name}`"), problems)
                        .map(|text| At::new(text, item.span()))
                });
                let strings: Strings = strings.collect();
                (strings.len() == items.len()).then_some(strings)
            }
            other => wrong_type(value, name, "a list of strings", other, problems),
        }
    }
}

impl Read for Pairs {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        let DeValue::Table(table) = value.get_ref() else {
            return wrong_type(
                value,
                name,
                "a table, such as { \"Name\" = \"value\" }",
                value.get_ref(),
                problems,
            );
        };
        let mut pairs: Vec<_> = table
            .iter()
            .filter_map(|(key, value)| {
                let text = String::read(value, &full_name(name, key.get_ref()), problems)?;
                Some((At::new(key.get_ref().to_string(), key.span()), At::new(text, value.span())))
            })
            .collect();
        // The parser sorts by key; people mean the order in which they wrote.
        pairs.sort_by_key(|(key, _)| key.span.start);
        Some(Self(pairs))
    }
}

impl<T: Table> Read for Vec<T> {
    fn read(value: &Spanned<DeValue>, name: &str, problems: &mut Problems) -> Option<Self> {
        let one = |table: &DeTable, span: Range<usize>, problems: &mut Problems| {
            T::read_table(table, span, problems)
        };
        match value.get_ref() {
            DeValue::Array(items) => Some(
                items
                    .iter()
                    .filter_map(|item| match item.get_ref() {
                        DeValue::Table(table) => Some(one(table, item.span(), problems)),
                        other => wrong_type(item, name, "a table", other, problems),
                    })
                    .collect(),
            ),
            DeValue::Table(table) => {
                let what = format!("`{name}` needs double brackets, since there can be several");
                problems.at(&value.span(), what, format!("write [[{name}]]"));
                Some(vec![one(table, value.span(), problems)])
            }
            other => wrong_type(value, name, &format!("a table, [[{name}]]"), other, problems),
        }
    }
}

fn integer(number: &toml::de::DeInteger, span: &Span, name: &str, problems: &mut Problems) -> Option<i64> {
    let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok();
    if parsed.is_none() {
        problems.at(span, format!("`{name}` is too large a number"), "");
    }
    parsed
}

fn wrong_type<T>(
    value: &Spanned<DeValue>,
    name: &str,
    wanted: &str,
    found: &DeValue,
    problems: &mut Problems,
) -> Option<T> {
    let kind = match found {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    };
    let quotes = |text: &str| text.parse::<i64>().is_ok() || matches!(text, "true" | "false");
    let help = match found {
        DeValue::String(text) if quotes(text) && !wanted.contains("string") => {
            format!("leave out the quotes: {text}")
        }
        DeValue::Integer(number) if wanted.contains("a string") => {
            format!("put it into quotes: \"{number}\"")
        }
        _ => String::new(),
    };
    let name = if name.starts_with("each of") { name.to_owned() } else { format!("`{name}`") };
    problems.at(&value.span(), format!("{name} must be {wanted}, and this is {kind}"), help);
    None
}
