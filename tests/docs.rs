//! The pages of documentation against the program: keys and configurations they show exist, files they point to are
//! there, and the tables of keys are those of config.example.toml.
//!
//! `HTTPD_GOLDEN=write cargo test --test docs` writes these tables anew.

use std::fs;
use std::path::Path;

use httpd::cli::reference;
use httpd::config::file::KNOWN;
use httpd::config::{self, Environment};

/// Every page with its text.
fn pages() -> Vec<(String, String)> {
    let mut paths = vec!["README.md".to_owned(), "ARCHITECTURE.md".to_owned()];
    for entry in fs::read_dir("docs").expect("the pages are there") {
        let path = entry.expect("the directory can be read").path();
        paths.extend(path.to_str().filter(|name| name.ends_with(".md")).map(str::to_owned));
    }
    paths.sort();
    let read = |path: String| fs::read_to_string(&path).map(|text| (path, text)).expect("a page can be read");
    paths.into_iter().map(read).collect()
}

/// What stands between a fence of this language and the next one.
fn blocks<'t>(text: &'t str, language: &str) -> Vec<&'t str> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|rest| rest.split("```").next().unwrap_or("")).collect()
}

/// What stands in backticks within a line, blocks left out.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let prose = text.split("```").step_by(2);
    prose.flat_map(str::lines).flat_map(|line| line.split('`').skip(1).step_by(2))
}

#[test]
fn the_reference_is_up_to_date() {
    let path = "docs/configuration.md";
    let found = fs::read_to_string(path).expect("the page is there");
    let end = found.find("-->\n").expect("the page says where the tables begin") + "-->\n".len();
    let wanted = format!("{}{}", &found[..end], reference::markdown());
    if std::env::var("HTTPD_GOLDEN").is_ok_and(|value| value == "write") {
        fs::write(path, &wanted).expect("the page can be written");
    } else {
        assert!(found == wanted, "{path} is old: HTTPD_GOLDEN=write cargo test --test docs");
    }
}

#[test]
fn configurations_that_are_shown_have_no_unknown_keys() {
    let folder = tempfile::tempdir().expect("a folder");
    let environment = Environment { root: true, cores: 2, runtime_dir: None, cache_dir: None, modules: true };
    let mut seen = 0;
    for (page, text) in pages() {
        for block in blocks(&text, "toml") {
            let path = folder.path().join("shown.toml");
            fs::write(&path, block).expect("a file can be written");
            // Files that it names need not be there, nor a table that another block of the page has.
            let report = config::load(&path, &environment).err().map(|report| report.to_string());
            for wrong in ["is not a known key", "not TOML", "must be", "is not in quotes", "belongs in"] {
                let told = report.as_deref().unwrap_or("");
                assert!(!told.contains(wrong), "{page}:\n{block}\n{told}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 5, "{seen} configurations were found");
}

/// `cache.max_file` or `server.pin = true`: of a table that there is, the key must be there too.
#[test]
fn keys_that_are_named_exist() {
    let mut seen = 0;
    for (page, text) in pages() {
        for word in words(&text) {
            let name = word.split(" = ").next().unwrap_or(word);
            let Some((table, key)) = name.rsplit_once('.') else { continue };
            let is_name =
                |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || b"_.".contains(&byte));
            let Some((_, keys)) = KNOWN.iter().find(|(known, _)| *known == table) else { continue };
            if is_name(name) && !matches!(key, "rs" | "toml") {
                assert!(keys.contains(&key), "{page}: `{word}`: [{table}] has no `{key}`");
                seen += 1;
            }
        }
    }
    assert!(seen >= 20, "{seen} names were found");
}

#[test]
fn files_that_are_pointed_to_are_there() {
    let mut seen = 0;
    for (page, text) in pages() {
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap_or(link);
            if !file.is_empty() && !link.contains("://") {
                let folder = Path::new(&page).parent().unwrap_or(Path::new(""));
                assert!(folder.join(file).exists(), "{page}: {link}");
                seen += 1;
            }
        }
    }
    assert!(seen >= 5, "{seen} links were found");
}
