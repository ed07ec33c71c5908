//! The reference of the configuration, read from config.example.toml, where every key stands with a sentence: the
//! manual page httpd.toml(5) and the tables of docs/configuration.md. Values in, text out.

use std::fmt::Write as _;

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use super::manual::NO_DATE;

const EXAMPLE: &str = include_str!("../../config.example.toml");

const DESCRIPTION: &str = "The configuration of httpd is one file in TOML. Relative paths count from its \
    directory. Sizes are written \"64KiB\" (B, KiB, MiB, GiB, TiB), times \"30s\" (ms, s, m, h, d). An unknown \
    key is an error. Where a list of strings is wanted, one string will do. Tables in double brackets may be \
    repeated; those of a site belong to the [[site]] above them.";

const VALUES: &str = "A value shown is the default, except in [[listen]], [[site]] and their tables, where it is an \
    example; so is that of a key marked \"unset\", which has no default, or the one its sentence names. Times, counts, \
    modes and switches shown for [[site.cgi]] and [[site.wcgi]] are what holds when the key is left out, unless its \
    sentence says otherwise.";

/// One table of the configuration.
#[derive(Debug, Default)]
pub struct Table {
    /// As it is written, with its brackets.
    pub header: String,
    /// What it is for; may be empty.
    pub about: String,
    /// Its keys, in the order of the example.
    pub keys: Vec<Key>,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// Its name; a status for pages of errors.
    pub name: String,
    /// An example, or the default.
    pub value: String,
    /// Whether the example has it commented out.
    pub is_unset: bool,
    /// What it does.
    pub about: String,
}

/// Every table with its keys; a table that the example repeats stands once.
pub fn tables() -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let (mut about, mut shared) = (String::new(), String::new());
    let mut current = None;
    for line in EXAMPLE.lines() {
        let comment = line.strip_prefix('#').map(str::trim);
        let text = comment.unwrap_or(line).trim();
        if text.starts_with('[') && text.ends_with(']') {
            let about = std::mem::take(&mut about);
            shared.clear();
            let known = tables.iter().position(|table| table.header == text);
            current = known.or_else(|| {
                tables.push(Table { header: text.to_owned(), about, keys: Vec::new() });
                tables.len().checked_sub(1)
            });
        } else if let Some((name, value)) = assignment(text) {
            // One sentence may hold for several keys that follow each other.
            if !about.is_empty() {
                shared = std::mem::take(&mut about);
            }
            let about = shared.clone();
            let Some(table) = current.and_then(|at| tables.get_mut(at)) else { continue };
            // What is repeated without a sentence is another example of it.
            if !about.is_empty() && table.keys.iter().all(|key| key.name != name) {
                let (name, value) = (name.to_owned(), value.to_owned());
                table.keys.push(Key { name, value, is_unset: comment.is_some(), about });
            }
        } else if text.is_empty() {
            about.clear();
            shared.clear();
        } else {
            about.push_str(if about.is_empty() { "" } else { " " });
            about.push_str(text);
        }
    }
    tables
}

/// The manual page httpd.toml(5), in roff.
pub fn page(version: &str) -> String {
    let mut roff = Roff::new();
    let source = format!("httpd {version}");
    roff.control("TH", ["httpd.toml", "5", NO_DATE, source.as_str(), "File Formats"]);
    roff.control("SH", ["NAME"]).text([roman("httpd.toml - configuration of httpd(8)")]);
    roff.control("SH", ["DESCRIPTION"]).text([roman(DESCRIPTION)]);
    roff.control("PP", []).text([roman(VALUES)]);
    roff.control("PP", []).text([bold("httpd -t -c "), italic("FILE")]);
    roff.text([roman("prints every mistake of a file with its line and what would help.")]);
    for table in tables() {
        roff.control("SH", [table.header.as_str()]);
        if !table.about.is_empty() {
            roff.text(prose(&table.about));
        }
        for key in table.keys {
            let unset = if key.is_unset { "  (unset)" } else { "" };
            let line = [bold(key.name), roman(format!(" = {}{unset}", key.value))];
            roff.control("TP", []).text(line).text(prose(&key.about));
        }
    }
    roff.control("SH", ["FILES"]).control("TP", []);
    roff.text([italic("/etc/httpd/config.toml")]).text([roman("The configuration of the system service.")]);
    roff.control("SH", ["SEE ALSO"]).text([bold("httpd"), roman("(8)")]);
    roff.render()
}

/// The tables of docs/configuration.md.
pub fn markdown() -> String {
    let mut text = String::new();
    for table in tables() {
        let _ = write!(text, "\n### `{}`\n", table.header);
        if !table.about.is_empty() {
            let _ = write!(text, "\n{}\n", table.about);
        }
        text.push_str("\n| key | |\n|---|---|\n");
        for key in table.keys {
            let line = format!("{} = {}", key.name, key.value).replace('|', "\\|");
            let unset = if key.is_unset { " *unset*" } else { "" };
            let _ = writeln!(text, "| `{line}`{unset} | {} |", key.about.replace('|', "\\|"));
        }
    }
    text
}

/// What stands in backticks is bold in roff.
fn prose(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 0 { roman(part) } else { bold(part) }).collect()
}

fn assignment(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once(" = ")?;
    let is_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().all(is_key).then_some((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::file::KNOWN;

    #[test]
    fn every_key_is_explained() {
        let tables = tables();
        for (name, keys) in KNOWN.iter().filter(|(name, _)| !name.is_empty() && *name != "site.rule.auth") {
            let table = tables.iter().find(|table| table.header.trim_matches(['[', ']']) == *name);
            let table = table.unwrap_or_else(|| panic!("[{name}] is not there"));
            for key in *keys {
                let is_table =
                    tables.iter().any(|t| t.header.trim_matches(['[', ']']) == format!("{name}.{key}"));
                let explained =
                    table.keys.iter().any(|known| known.name == *key && known.about.ends_with('.'));
                assert!(explained || is_table, "{name}.{key}");
            }
        }
    }

    #[test]
    fn nothing_is_explained_that_is_no_key() {
        for table in tables() {
            let name = table.header.trim_matches(['[', ']']);
            let known = KNOWN.iter().find(|(known, _)| *known == name);
            for key in &table.keys {
                let status = name == "site.error_pages" && key.name.parse::<u16>().is_ok();
                assert!(
                    status || known.is_some_and(|(_, keys)| keys.contains(&key.name.as_str())),
                    "{name}.{}",
                    key.name
                );
            }
        }
    }

    #[test]
    fn the_page_begins_as_manual_pages_do() {
        let page = page("1.2.3");
        assert!(page.contains(".TH httpd.toml 5 \\& \"httpd 1.2.3\" \"File Formats\"\n"), "{page}");
        assert!(page.contains(".SH [server]\n.TP\n\\fBworkers\\fR = 0\n"), "{page}");
    }
}
