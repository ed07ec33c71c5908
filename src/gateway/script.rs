//! Which program a path means, and what is left of the path for it: RFC 3875 sections 4.1.5, 4.1.6 and
//! 4.1.13. Pure: whoever asks answers what the disk says of a name. Paths are bytes, as to the kernel.

use std::path::Path;

use super::messages::Refusal;
use crate::config::{Mount, MountKind, Programs};

/// What the disk says of a name, symlinks followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// Nothing, or nothing that may be looked at.
    Nothing,
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Whether somebody may execute it.
        executable: bool,
    },
    /// A fifo, device or socket.
    Special,
}

/// A program that was found, and what it is told about the path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Script {
    /// SCRIPT_FILENAME.
    pub file: Vec<u8>,
    /// SCRIPT_NAME: the part of the path that leads to it, decoded.
    pub name: Vec<u8>,
    /// PATH_INFO: the part that follows, decoded; empty where nothing does.
    pub info: Vec<u8>,
    /// PATH_TRANSLATED: where `info` would lead below the root of the site; `None` where it is empty.
    pub translated: Option<Vec<u8>>,
    /// Whether its output passes unparsed.
    pub nph: bool,
}

/// The mount that answers a normalised path: the one with the longest path. `/a` without a slash belongs to
/// `/a/`.
pub fn mount_of(mounts: &[Mount], path: &[u8]) -> Option<usize> {
    let matching = mounts.iter().enumerate().filter(|(_, mount)| below(mount, path).is_some());
    matching.max_by_key(|(_, mount)| mount.path.len()).map(|(index, _)| index)
}

/// Finds the program a normalised path means: of all names that the path begins with the longest that is a
/// file. Since nothing lies below a file, that is the first file on the way down, and one look a segment
/// finds it.
///
/// # Errors
/// Why there is none.
pub fn resolve(
    mount: &Mount,
    root: &Path,
    path: &[u8],
    mut look: impl FnMut(&[u8]) -> Found,
) -> Result<Script, Refusal> {
    let native = matches!(mount.kind, MountKind::Process(_));
    let below = below(mount, path).ok_or(Refusal::NotFound)?;
    if path.contains(&0) {
        return Err(Refusal::NotFound);
    }
    let (file, end) = match &mount.programs {
        Programs::One(file) => (bytes(file).to_vec(), mount.path.len() - 1),
        Programs::Directory(dir) => descend(dir, below, &mut look).map(|(file, length)| {
            let begin = path.len() - below.len();
            (file, begin + length)
        })?,
    };
    match look(&file) {
        Found::File { executable } if executable || !native => {}
        Found::File { .. } | Found::Special => return Err(Refusal::Forbidden),
        Found::Nothing | Found::Directory => return Err(Refusal::NotFound),
    }
    // Of a path that lacks the slash of its mount, nothing follows.
    let (name, info) = path.split_at(end.min(path.len()));
    let stem = file.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    Ok(Script {
        name: name.to_vec(),
        info: info.to_vec(),
        translated: (!info.is_empty()).then(|| translated(root, info)),
        nph: native && stem.starts_with(b"nph-"),
        file,
    })
}

/// What of a path follows that of the mount; `None` where it lies elsewhere.
fn below<'p>(mount: &Mount, path: &'p [u8]) -> Option<&'p [u8]> {
    let prefix = mount.path.as_bytes();
    match path.strip_prefix(prefix) {
        None if prefix.strip_suffix(b"/") == Some(path) && !path.is_empty() => Some(b""),
        other => other,
    }
}

/// The first file on the way down, and how much of the path leads to it.
fn descend(
    dir: &Path,
    below: &[u8],
    look: &mut impl FnMut(&[u8]) -> Found,
) -> Result<(Vec<u8>, usize), Refusal> {
    let mut file = bytes(dir).to_vec();
    let mut length = 0;
    for segment in below.split(|byte| *byte == b'/') {
        // A name that begins with a dot is nobody's program, and `..` would lead out.
        if segment.is_empty() || segment.starts_with(b".") {
            return Err(Refusal::NotFound);
        }
        if !file.ends_with(b"/") {
            file.push(b'/');
        }
        file.extend_from_slice(segment);
        length += segment.len();
        match look(&file) {
            Found::Directory => length += 1,
            Found::File { .. } | Found::Special => return Ok((file, length)),
            Found::Nothing => return Err(Refusal::NotFound),
        }
    }
    Err(Refusal::NotFound)
}

/// As a file's path is made: the root, then the rest as it is.
fn translated(root: &Path, info: &[u8]) -> Vec<u8> {
    let root = bytes(root);
    [root.strip_suffix(b"/").unwrap_or(root), info].concat()
}

fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_encoded_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Chunked, Module, Process};
    use crate::http::target::normalise;
    use proptest::prelude::*;
    use std::time::Duration;

    fn mount(path: &str, programs: Programs) -> Mount {
        let process = Process {
            user: None,
            umask: 0o022,
            cpu: None,
            memory: None,
            files: None,
            processes: None,
            grace: Duration::from_secs(5),
            background: true,
            gain_privileges: false,
        };
        Mount {
            path: path.into(),
            programs,
            kind: MountKind::Process(process),
            timeout: Duration::from_secs(60),
            wall: Duration::from_secs(600),
            concurrency: 32,
            queue: 128,
            body: 1 << 30,
            chunked: Chunked::Spool,
            env: Vec::new(),
            pass_authorization: false,
            arguments: false,
            line: 1,
        }
    }

    fn directory(path: &str) -> Mount {
        mount(path, Programs::Directory("/cgi".into()))
    }

    const FILE: Found = Found::File { executable: true };

    const TREE: [(&str, Found); 11] = [
        ("/cgi", Found::Directory),
        ("/cgi/hello", FILE),
        ("/cgi/two words", FILE),
        ("/cgi/sub", Found::Directory),
        ("/cgi/sub/deep", Found::Directory),
        ("/cgi/sub/deep/script.pl", FILE),
        ("/cgi/readme", Found::File { executable: false }),
        ("/cgi/fifo", Found::Special),
        ("/cgi/nph-raw", FILE),
        ("/cgi/.hidden", FILE),
        ("/git", FILE),
    ];

    fn look(path: &[u8]) -> Found {
        TREE.iter().find(|(name, _)| name.as_bytes() == path).map_or(Found::Nothing, |(_, found)| *found)
    }

    /// `path` as a client sends it; the outcome as file, SCRIPT_NAME, PATH_INFO and PATH_TRANSLATED.
    fn check(mount: &Mount, path: &str, expected: Result<(&str, &str, &str, Option<&str>), u16>) {
        let mut buffer = Vec::new();
        let found = match normalise(path.as_bytes(), &mut buffer) {
            Err(_) => Err(400),
            Ok(path) => resolve(mount, Path::new("/srv/www/"), path, look).map_err(Refusal::status),
        };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let found = found.map(|script| {
            let translated = script.translated.as_deref().map(text);
            (text(&script.file), text(&script.name), text(&script.info), translated)
        });
        let expected = expected.map(|(file, name, info, translated)| {
            (file.to_owned(), name.to_owned(), info.to_owned(), translated.map(str::to_owned))
        });
        assert_eq!(found, expected, "{path}");
    }

    #[test]
    fn rfc_3875_4_1_5_the_longest_existing_script() {
        let mount = directory("/cgi-bin/");
        let fine = |path, file, name, info, translated| {
            check(&mount, path, Ok((file, name, info, translated)));
        };
        fine("/cgi-bin/hello", "/cgi/hello", "/cgi-bin/hello", "", None);
        fine("/cgi-bin/hello/", "/cgi/hello", "/cgi-bin/hello", "/", Some("/srv/www/"));
        fine("/cgi-bin/hello/a/b", "/cgi/hello", "/cgi-bin/hello", "/a/b", Some("/srv/www/a/b"));
        fine("/cgi-bin/hello/a%20b", "/cgi/hello", "/cgi-bin/hello", "/a b", Some("/srv/www/a b"));
        fine("/cgi-bin/two%20words", "/cgi/two words", "/cgi-bin/two words", "", None);
        fine("/cgi-bin/sub/../hello", "/cgi/hello", "/cgi-bin/hello", "", None);
        let script = "/cgi-bin/sub/deep/script.pl";
        fine(script, "/cgi/sub/deep/script.pl", script, "", None);
        fine("/cgi-bin/sub/deep/script.pl/x", "/cgi/sub/deep/script.pl", script, "/x", Some("/srv/www/x"));
    }

    #[test]
    fn what_is_no_script() {
        let mount = directory("/cgi-bin/");
        for (path, status) in [
            ("/cgi-bin", 404),
            ("/cgi-bin/", 404),
            ("/cgi-bin/none", 404),
            ("/cgi-bin/none/hello", 404),
            ("/cgi-bin/sub", 404),
            ("/cgi-bin/sub/", 404),
            ("/cgi-bin/sub/deep", 404),
            ("/cgi-bin/.hidden", 404),
            ("/cgi-bin/hellox", 404),
            ("/elsewhere/hello", 404),
            ("/cgi-bin/readme", 403),
            ("/cgi-bin/readme/x", 403),
            ("/cgi-bin/fifo", 403),
            ("/cgi-bin/hello/a%2fb", 400),
            ("/cgi-bin/hello/a%00b", 400),
            ("/cgi-bin/../../hello", 400),
        ] {
            check(&mount, path, Err(status));
        }
        // Not normalised, which no worker sends.
        for path in [&b"/cgi-bin/../git"[..], b"/cgi-bin//hello", b"/cgi-bin/hello/\0"] {
            assert_eq!(resolve(&mount, Path::new("/"), path, look), Err(Refusal::NotFound));
        }
    }

    #[test]
    fn one_script_answers_everything_below() {
        let git = mount("/git/", Programs::One("/git".into()));
        check(&git, "/git/a.git/info", Ok(("/git", "/git", "/a.git/info", Some("/srv/www/a.git/info"))));
        check(&git, "/git/.hidden", Ok(("/git", "/git", "/.hidden", Some("/srv/www/.hidden"))));
        check(&git, "/git/", Ok(("/git", "/git", "/", Some("/srv/www/"))));
        check(&git, "/git", Ok(("/git", "/git", "", None)));
        check(&git, "/gitx", Err(404));
        let whole = mount("/", Programs::One("/git".into()));
        check(&whole, "/", Ok(("/git", "", "/", Some("/srv/www/"))));
        check(&whole, "/a", Ok(("/git", "", "/a", Some("/srv/www/a"))));
        check(&mount("/x/", Programs::One("/cgi/readme".into())), "/x/", Err(403));
        check(&mount("/x/", Programs::One("/none".into())), "/x/", Err(404));
    }

    #[test]
    fn modules_need_no_permission_to_execute() {
        let module = Mount {
            kind: MountKind::Module(Module { memory: 1, directories: Vec::new() }),
            ..directory("/wasm/")
        };
        check(&module, "/wasm/readme", Ok(("/cgi/readme", "/wasm/readme", "", None)));
    }

    #[test]
    fn unparsed_scripts_are_known_by_name() {
        let nph = |path: &[u8]| resolve(&directory("/"), Path::new("/"), path, look).map(|script| script.nph);
        assert_eq!(
            (nph(b"/nph-raw"), nph(b"/nph-raw/x"), nph(b"/hello/nph-x")),
            (Ok(true), Ok(true), Ok(false))
        );
    }

    #[test]
    fn the_longest_mount_counts() {
        let mounts = ["/", "/a/", "/a/b/"].map(directory);
        for (path, expected) in [
            ("/", 0),
            ("/ab", 0),
            ("/a", 1),
            ("/a/", 1),
            ("/a/x", 1),
            ("/a/b", 2),
            ("/a/b/c", 2),
            ("/a/bc", 1),
        ] {
            assert_eq!(mount_of(&mounts, path.as_bytes()), Some(expected), "{path}");
        }
        assert_eq!(mount_of(&mounts[1..], b"/b"), None);
    }

    proptest! {
        /// RFC 3875 section 4.1.13.
        #[test]
        fn name_and_info_reproduce_the_path(path in "(/(cgi|sub|deep|hello|script\\.pl|\\.\\.|[a-c]{0,2})){0,6}") {
            let path = format!("/cgi-bin{path}");
            for mount in [directory("/cgi-bin/"), mount("/cgi-bin/", Programs::One("/git".into()))] {
                if let Ok(script) = resolve(&mount, Path::new("/r"), path.as_bytes(), look) {
                    prop_assert_eq!([&script.name[..], &script.info[..]].concat(), path.as_bytes());
                    prop_assert!(script.info.is_empty() || script.info.starts_with(b"/"));
                    prop_assert!(script.file.starts_with(b"/cgi/") || script.file == b"/git");
                }
            }
        }
    }
}
