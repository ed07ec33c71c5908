//! A site to be compressed, the command that does it, and the check that all of it is right.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use httpd::files::entry::Coding;
use httpd::files::variants::{self, FOOTER_BYTES, Fingerprint, Footer};
use httpd::sys::tree;

/// A site, its cache, and the configuration that names both.
pub struct Site {
    pub directory: tempfile::TempDir,
}

impl Site {
    pub fn new() -> Self {
        Self::with("")
    }

    /// With more lines for `[cache]`.
    pub fn with(cache: &str) -> Self {
        let site = Self { directory: tempfile::tempdir().expect("a directory") };
        fs::create_dir(site.root()).expect("a root");
        site.configure(cache);
        site
    }

    pub fn configure(&self, cache: &str) {
        let text = format!(
            "[server]\nuser = \"root\"\nworkers = 1\ncontrol = \"control\"\n[log]\naccess = \"off\"\n\
             [cache]\ndir = \"cache\"\n{cache}\n\
             [[listen]]\naddress = \"unix:{}/http.sock\"\n[[site]]\nroot = \"root\"\n",
            self.directory.path().display()
        );
        fs::write(self.config(), text).expect("a configuration");
    }

    pub fn root(&self) -> PathBuf {
        self.directory.path().join("root")
    }

    pub fn cache(&self) -> PathBuf {
        self.directory.path().join("cache")
    }

    pub fn config(&self) -> PathBuf {
        self.directory.path().join("config.toml")
    }

    pub fn put(&self, path: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().expect("it lies in the root")).expect("directories");
        fs::write(&path, contents).expect("it is written");
        path
    }

    pub fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_httpd"));
        command.arg("compress").arg("-c").arg(self.config()).args(more);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
        command
    }

    /// Compresses, and gives what was said for programs.
    pub fn compress(&self, more: &[&str]) -> serde_json::Value {
        let output = self.command(&[&["--json"], more].concat()).output().expect("the binary runs");
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Where the variant of a file belongs.
    pub fn variant(&self, path: &Path, coding: Coding) -> PathBuf {
        let facts = tree::facts(File::open(path).expect("it is there")).expect("facts");
        let root = self.root();
        let name = variants::root_name(root.as_os_str().as_encoded_bytes());
        self.cache().join(name).join(Fingerprint::of(&facts).path(coding))
    }

    /// What is being written, or was left behind.
    pub fn drafts(&self) -> Vec<PathBuf> {
        let all = files_below(&self.cache()).into_iter();
        all.filter(|path| path.extension().is_some_and(|end| end == "tmp")).collect()
    }

    /// All variants there are; whatever has a variant's name must be one.
    pub fn variants(&self) -> HashMap<(Fingerprint, Coding), Vec<u8>> {
        let mut found = HashMap::new();
        for path in files_below(&self.cache()) {
            let name = path.file_name().expect("a name").as_encoded_bytes();
            let Some((fingerprint, coding)) = Fingerprint::from_name(name) else { continue };
            // A variant may be replaced meanwhile, but it is never half there.
            let Ok(bytes) = fs::read(&path) else { continue };
            let coded =
                check(&bytes, &fingerprint, coding).unwrap_or_else(|| panic!("{} is wrong", path.display()));
            found.insert((fingerprint, coding), decode(coding, coded));
        }
        found
    }

    /// That every file that has a variant has it right, and that `must` have all.
    pub fn check(&self, must: impl Fn(&str) -> bool) -> usize {
        let mut checked = 0;
        for path in files_below(&self.root()) {
            let name =
                path.strip_prefix(self.root()).expect("it lies in the root").to_string_lossy().into_owned();
            let source = fs::read(&path).expect("it is there");
            for coding in Coding::ALL {
                let variant = self.variant(&path, coding);
                let Ok(bytes) = fs::read(&variant) else {
                    assert!(!must(&name), "{name} has no {}", coding.name());
                    continue;
                };
                let facts = tree::facts(File::open(&path).expect("it is there")).expect("facts");
                let coded = check(&bytes, &Fingerprint::of(&facts), coding).expect("a right footer");
                assert!(coded.len() < source.len(), "{name} is no smaller by {}", coding.name());
                assert!(decode(coding, coded) == source, "{name} by {}", coding.name());
                checked += 1;
            }
        }
        checked
    }
}

pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The coded bytes of a variant's file, if its footer is right.
pub fn check<'a>(bytes: &'a [u8], fingerprint: &Fingerprint, coding: Coding) -> Option<&'a [u8]> {
    let at = bytes.len().checked_sub(FOOTER_BYTES)?;
    let footer = Footer::decode(&bytes[at..], bytes.len() as u64, fingerprint, coding)?;
    let coded = &bytes[..at];
    let source = decode(coding, coded);
    let hash = xxhash_rust::xxh3::xxh3_128;
    (footer.coded_hash == hash(coded) && footer.source_hash == hash(&source)).then_some(coded)
}

pub fn decode(coding: Coding, coded: &[u8]) -> Vec<u8> {
    let mut source = Vec::new();
    match coding {
        Coding::Brotli => brotli::BrotliDecompress(&mut &*coded, &mut source).map(|()| 0),
        Coding::Zstd => zstd::stream::read::Decoder::new(coded).and_then(|mut d| d.read_to_end(&mut source)),
        Coding::Gzip => flate2::read::GzDecoder::new(coded).read_to_end(&mut source),
    }
    .unwrap_or_else(|error| panic!("{} does not decode: {error}", coding.name()));
    source
}

/// Regular files, symlinks followed to files.
pub fn files_below(directory: &Path) -> Vec<PathBuf> {
    let (mut files, mut pending) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = pending.pop() {
        let Ok(names) = fs::read_dir(&directory) else { continue };
        for name in names.filter_map(Result::ok) {
            let kind = name.file_type().expect("a kind");
            match name.path() {
                path if kind.is_dir() => pending.push(path),
                path if path.is_file() => files.push(path),
                _ => {}
            }
        }
    }
    files
}

/// A page of about so many words, the same for the same seed.
pub fn page(seed: u64, words: usize) -> String {
    const WORDS: [&str; 16] = [
        "the",
        "server",
        "compresses",
        "<p>",
        "</p>\n",
        "variant",
        "of",
        "every",
        "page",
        "<a href=\"/x\">",
        "</a>",
        "while",
        "nobody",
        "waits",
        "for",
        "it",
    ];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut text = format!("<!doctype html><title>{seed}</title>\n");
    for _ in 0..words {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        text.push_str(WORDS[(state >> 33) as usize % WORDS.len()]);
        text.push(if state.is_multiple_of(11) { '\n' } else { ' ' });
    }
    text
}

pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as u8
    };
    (0..length).map(step).collect()
}

/// Waits for something that a background process does; the time is only there to end a test that failed.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(120), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A server that runs, and ends with the test.
pub struct Server(pub Child);

impl Server {
    pub fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn().expect("it starts"))
    }

    pub fn signal(&self, signal: &str) {
        self::signal(self.0.id(), signal);
    }
}

pub fn signal(pid: u32, signal: &str) {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status().expect("kill");
    assert!(sent.success());
}

impl Drop for Server {
    fn drop(&mut self) {
        self.signal("TERM");
        let _ = self.0.wait();
    }
}
