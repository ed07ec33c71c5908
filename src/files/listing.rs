//! A directory as a page or as JSON, in the order the client wants.

use serde::Serialize;

use super::entry::Listing;
use super::errors::push_escaped;
use super::rules::push_path;
use crate::sys::file::{Kind, Name, Stamp};

/// For a phone and a desk, by day and by night. The date gives way on narrow screens.
const STYLE: &str = "\
:root{color-scheme:light dark;--link:#1f57b8}\
@media(prefers-color-scheme:dark){:root{--link:#8ab4f8}}\
body{font:1rem/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.25rem;font-weight:600;padding:0 .5rem;overflow-wrap:anywhere}\
a{color:var(--link);text-decoration:none}a:hover{text-decoration:underline}\
table{border-collapse:collapse;width:100%}\
th,td{padding:.4rem .5rem;text-align:left;vertical-align:baseline;border-bottom:1px solid #8884}\
th{font-weight:600}th a{color:inherit}td:first-child{width:70%;overflow-wrap:anywhere}\
td a[href$='/']{font-weight:600}\
.n{padding-left:1.5rem;text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}\
tbody .n{opacity:.75}tbody tr:hover{background:#8881}p{padding:0 .5rem;opacity:.7}\
@media(max-width:36rem){.d{display:none}body{margin:1rem auto;padding:0 .5rem}}";

/// What a client chose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// For programs rather than people.
    pub json: bool,
    /// The order.
    pub order: Order,
}

/// In what order names stand. Directories always come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Order {
    key: Key,
    descending: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Key {
    Name,
    Size,
    Date,
}

impl Key {
    fn text(self) -> &'static str {
        match self {
            Key::Name => "name",
            Key::Size => "size",
            Key::Date => "date",
        }
    }
}

impl Order {
    /// The order a query asks for: `sort=name|size|date&order=asc|desc`. What it does not say, or
    /// says in words unknown, is by name, ascending.
    pub fn of(query: Option<&[u8]>) -> Self {
        let mut order = Self { key: Key::Name, descending: false };
        for pair in query.unwrap_or_default().split(|byte| *byte == b'&') {
            match pair {
                b"sort=name" => order.key = Key::Name,
                b"sort=size" => order.key = Key::Size,
                b"sort=date" => order.key = Key::Date,
                b"order=asc" => order.descending = false,
                b"order=desc" => order.descending = true,
                _ => {}
            }
        }
        order
    }
}

/// Leaves out what is never served and, unless the site serves them, hidden names; and puts the rest
/// in order: directories, then files, by name without regard to case. Done once, so that other orders
/// are a stable sort by number.
pub fn arrange(names: &mut Vec<Name>, hidden: bool, in_root: bool) {
    names.retain(|name| {
        let is_hidden = name.name.starts_with(b".") && !(in_root && name.name == b".well-known");
        let is_served = name.facts.is_some_and(|facts| facts.kind != Kind::Special);
        is_served && (hidden || !is_hidden) && name.name != b"." && name.name != b".."
    });
    names.shrink_to_fit();
    names.sort_unstable_by(|a, b| {
        let lower = |byte: &u8| byte.to_ascii_lowercase();
        let by_case = || a.name.cmp(&b.name);
        let by_name = || a.name.iter().map(lower).cmp(b.name.iter().map(lower)).then_with(by_case);
        is_directory(b).cmp(&is_directory(a)).then_with(by_name)
    });
}

/// A listing in the form a client chose.
pub fn render(path: &[u8], listing: &Listing, form: Form) -> Vec<u8> {
    match form.json {
        true => json(path, listing, form.order),
        false => html(path, listing, form.order),
    }
}

/// The page.
fn html(path: &[u8], listing: &Listing, order: Order) -> Vec<u8> {
    let names = sorted(listing, order);
    let mut page = Vec::with_capacity(2048 + names.len() * 160);
    push(&mut page, "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n");
    push(&mut page, "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>");
    push_text(&mut page, path);
    push(&mut page, "</title>\n<style>");
    push(&mut page, STYLE);
    push(&mut page, "</style>\n<h1>");
    push_trail(&mut page, path);
    push(&mut page, "</h1>\n<table>\n<thead><tr>");
    push_heading(&mut page, "", "Name", Key::Name, order);
    push_heading(&mut page, " class=\"n\"", "Size", Key::Size, order);
    push_heading(&mut page, " class=\"n d\"", "Modified", Key::Date, order);
    push(&mut page, "</tr></thead>\n<tbody>\n");
    if path != b"/" {
        push(&mut page, "<tr><td><a href=\"../\">../</a><td class=\"n\"><td class=\"n d\">\n");
    }
    for name in names {
        push_row(&mut page, name);
    }
    push(&mut page, "</tbody>\n</table>\n");
    if listing.truncated {
        push(&mut page, "<p>There is more here than is shown.</p>\n");
    }
    push(&mut page, "</html>\n");
    page
}

/// The same for programs.
fn json(path: &[u8], listing: &Listing, order: Order) -> Vec<u8> {
    #[derive(Serialize)]
    struct Page<'a> {
        path: std::borrow::Cow<'a, str>,
        truncated: bool,
        entries: Vec<Item<'a>>,
    }
    #[derive(Serialize)]
    struct Item<'a> {
        /// With replacement characters where it is not UTF-8; `href` is exact.
        name: std::borrow::Cow<'a, str>,
        href: String,
        r#type: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        size: Option<u64>,
        modified: String,
    }
    let entries = sorted(listing, order).into_iter().map(|name| Item {
        name: String::from_utf8_lossy(&name.name),
        href: String::from_utf8_lossy(&href(name)).into_owned(),
        r#type: if is_directory(name) { "directory" } else { "file" },
        size: (!is_directory(name)).then(|| size(name)),
        modified: moment(modified(name)).map_or_else(String::new, |moment| moment.rfc3339()),
    });
    let page = Page {
        path: String::from_utf8_lossy(path),
        truncated: listing.truncated,
        entries: entries.collect(),
    };
    serde_json::to_vec(&page).expect("strings and numbers can always be written")
}

fn sorted(listing: &Listing, order: Order) -> Vec<&Name> {
    let mut names: Vec<&Name> = listing.names.iter().collect();
    let key = |name: &&Name| match order.key {
        Key::Name => 0,
        Key::Size if is_directory(name) => 0,
        Key::Size => i128::from(size(name)),
        Key::Date => i128::from(modified(name).seconds),
    };
    match (order.key, order.descending) {
        (Key::Name, false) => {}
        (Key::Name, true) => {
            names.reverse();
            names.sort_by_key(|name| !is_directory(name));
        }
        (_, false) => names.sort_by_key(|name| (!is_directory(name), key(name))),
        (_, true) => names.sort_by_key(|name| (!is_directory(name), -key(name))),
    }
    names
}

/// The path, each of its directories a link.
fn push_trail(page: &mut Vec<u8>, path: &[u8]) {
    push(page, "<a href=\"/\">/</a>");
    let mut end = 1;
    for segment in path.split(|byte| *byte == b'/').filter(|segment| !segment.is_empty()) {
        end += segment.len() + 1;
        push(page, " <a href=\"");
        push_href(page, path.get(..end).unwrap_or(path));
        push(page, "\">");
        push_text(page, segment);
        push(page, "/</a>");
    }
}

fn push_heading(page: &mut Vec<u8>, class: &str, title: &str, key: Key, order: Order) {
    let is_current = order.key == key;
    let next = if is_current && !order.descending { "desc" } else { "asc" };
    let mark = match (is_current, order.descending) {
        (true, false) => " \u{2191}",
        (true, true) => " \u{2193}",
        (false, _) => "",
    };
    let sort = key.text();
    push(page, &format!("<th{class}><a href=\"?sort={sort}&amp;order={next}\">{title}</a>{mark}"));
}

fn push_row(page: &mut Vec<u8>, name: &Name) {
    push(page, "<tr><td><a href=\"");
    push_escaped(page, &href(name));
    push(page, "\">");
    push_text(page, &name.name);
    push(page, if is_directory(name) { "/" } else { "" });
    push(page, "</a><td class=\"n\"");
    if !is_directory(name) {
        push(page, &format!(" title=\"{} bytes\">{}", size(name), human(size(name))));
    } else {
        push(page, ">");
    }
    push(page, "<td class=\"n d\">");
    if let Some(moment) = moment(modified(name)) {
        push(page, &moment.short());
    }
    push(page, "\n");
}

fn push(page: &mut Vec<u8>, text: &str) {
    page.extend_from_slice(text.as_bytes());
}

/// Names need not be UTF-8, but a page must be.
fn push_text(page: &mut Vec<u8>, text: &[u8]) {
    push_escaped(page, String::from_utf8_lossy(text).as_bytes());
}

fn push_href(page: &mut Vec<u8>, path: &[u8]) {
    let mut encoded = Vec::new();
    push_path(&mut encoded, path);
    push_escaped(page, &encoded);
}

/// A relative reference to a name in the directory.
fn href(name: &Name) -> Vec<u8> {
    let mut href = Vec::with_capacity(name.name.len() + 8);
    push_path(&mut href, &name.name);
    if is_directory(name) {
        href.push(b'/');
    }
    href
}

fn is_directory(name: &Name) -> bool {
    name.facts.is_some_and(|facts| facts.kind == Kind::Directory)
}

fn size(name: &Name) -> u64 {
    name.facts.map_or(0, |facts| facts.size)
}

fn modified(name: &Name) -> Stamp {
    name.facts.map_or(Stamp::default(), |facts| facts.modified)
}

/// With three digits at most, and one decimal below ten.
fn human(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // Tenths, so that no float rounds 9.96 to 10.0 in one place and 9.9 in the other.
    let (mut tenths, mut unit) = (u128::from(bytes) * 10, 0);
    while tenths >= 10_000 && unit + 1 < UNITS.len() || unit == 0 {
        tenths = (tenths + 512) / 1024;
        unit += 1;
    }
    match tenths {
        0..100 => format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit]),
        _ => format!("{} {}", (tenths + 5) / 10, UNITS[unit]),
    }
}

/// A time in UTC, for people.
struct Moment {
    year: i64,
    month: u32,
    day: u32,
    hour: u32,
    minute: u32,
    second: u32,
}

impl Moment {
    fn short(&self) -> String {
        format!("{:04}-{:02}-{:02} {:02}:{:02}", self.year, self.month, self.day, self.hour, self.minute)
    }

    fn rfc3339(&self) -> String {
        let Self { year, month, day, hour, minute, second } = self;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }
}

/// `None` outside of the years 1 to 9999, which the forms above cannot write.
fn moment(stamp: Stamp) -> Option<Moment> {
    let days = stamp.seconds.div_euclid(86_400);
    let second = u32::try_from(stamp.seconds.rem_euclid(86_400)).ok()?;
    if !(-719_162..=2_932_896).contains(&days) {
        return None;
    }
    // Years begin in March here, so that the leap day is the last of its year, and months have a
    // pattern; 719 468 days lie between 0000-03-01 and 1970-01-01.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    Some(Moment {
        year,
        month: u32::try_from(month).ok()?,
        day: u32::try_from(day).ok()?,
        hour: second / 3600,
        minute: second / 60 % 60,
        second: second % 60,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::testing::facts;

    fn listing() -> Listing {
        let name = |name: &[u8], kind: Kind, size: u64, seconds: i64| {
            let modified = Stamp { seconds, nanoseconds: 0 };
            Name {
                name: name.to_vec(),
                facts: Some(crate::sys::file::Facts { kind, size, modified, ..facts() }),
            }
        };
        let mut names = vec![
            name(b"b.txt", Kind::File, 10, 3),
            name(b"A.txt", Kind::File, 2_000, 1),
            name(b"<c>&\"'.txt", Kind::File, 5, 2),
            name(b"z", Kind::Directory, 4096, 9),
            name(b"x\xff y%", Kind::Directory, 0, 8),
            name(b".hidden", Kind::File, 1, 1),
            name(b"socket", Kind::Special, 1, 1),
        ];
        arrange(&mut names, false, false);
        Listing::new(names, false)
    }

    fn names(query: &str) -> Vec<String> {
        let json = json(b"/d/", &listing(), Order::of(Some(query.as_bytes())));
        let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
        let entries = value["entries"].as_array().expect("entries");
        entries.iter().map(|entry| entry["href"].as_str().expect("href").to_owned()).collect()
    }

    #[test]
    fn names_stand_in_the_order_asked_for() {
        let check = |query: &str, expected: [&str; 5]| assert_eq!(names(query), expected, "{query}");
        let (x, c) = ("x%FF%20y%25/", "%3Cc%3E%26%22%27.txt");
        check("", [x, "z/", c, "A.txt", "b.txt"]);
        check("sort=name&order=desc", ["z/", x, "b.txt", "A.txt", c]);
        check("sort=size", [x, "z/", c, "b.txt", "A.txt"]);
        check("sort=date&order=desc", ["z/", x, "b.txt", c, "A.txt"]);
        check("sort=junk&order=junk&x", [x, "z/", c, "A.txt", "b.txt"]);
    }

    #[test]
    fn nothing_in_a_name_is_markup() {
        let page = String::from_utf8(html(b"/d/<x>/", &listing(), Order::of(None))).expect("UTF-8");
        assert!(
            page.contains("<a href=\"%3Cc%3E%26%22%27.txt\">&lt;c&gt;&amp;&quot;&#39;.txt</a>"),
            "{page}"
        );
        assert!(page.contains("<title>/d/&lt;x&gt;/</title>"), "{page}");
        assert!(page.contains("<a href=\"/d/%3Cx%3E/\">&lt;x&gt;/</a>"), "{page}");
        assert!(page.contains("<a href=\"../\">") && page.contains("?sort=name&amp;order=desc"), "{page}");
        assert!(page.contains("1970-01-01 00:00") && page.contains("2.0 KiB"), "{page}");
        let page = String::from_utf8(html(b"/", &listing(), Order::of(None))).expect("UTF-8");
        assert!(!page.contains("../"), "nothing is above the root");
    }

    #[test]
    fn sizes_are_short() {
        let check = |bytes: u64, expected: &str| assert_eq!(human(bytes), expected, "{bytes}");
        check(0, "0 B");
        check(1023, "1023 B");
        check(1024, "1.0 KiB");
        check(10_239, "10 KiB");
        check(1_048_575, "1.0 MiB");
        check(1 << 40, "1.0 TiB");
        check(u64::MAX, "16 EiB");
    }

    #[test]
    fn times_are_dates() {
        let check = |seconds: i64, expected: Option<&str>| {
            let text = moment(Stamp { seconds, nanoseconds: 0 }).map(|moment| moment.rfc3339());
            assert_eq!(text.as_deref(), expected, "{seconds}");
        };
        check(0, Some("1970-01-01T00:00:00Z"));
        check(-1, Some("1969-12-31T23:59:59Z"));
        check(951_827_696, Some("2000-02-29T12:34:56Z"));
        check(1_709_251_199, Some("2024-02-29T23:59:59Z"));
        check(1_709_251_200, Some("2024-03-01T00:00:00Z"));
        check(253_402_300_799, Some("9999-12-31T23:59:59Z"));
        check(253_402_300_800, None);
        check(i64::MIN, None);
    }
}
