//! Whole configurations: broken ones against the report they must give, sound ones against what they must
//! mean, and the example against the keys there are.
//!
//! `tests/golden/config/NAME.toml` must give `NAME.report`, to the byte; a name that begins with `valid` must
//! give none. `HTTPD_GOLDEN=write cargo test --test config` writes the reports anew: read the difference.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use httpd::config::{
    self, AccessLog, Address, Certificate, CertificateFlag, Chunked, Config, Directory, Encoding,
    Environment, Flags, KernelTls, Level, LogFormat, Module, MountKind, Precompress, Process, Programs,
    Report, Source, Symlinks,
};

const GOLDEN: &str = "tests/golden/config";

fn environment() -> Environment {
    Environment {
        root: false,
        cores: 4,
        runtime_dir: Some("/run/user/1000".into()),
        cache_dir: None,
        modules: true,
    }
}

fn load(name: &str) -> Result<Config, Report> {
    config::load(&Path::new(GOLDEN).join(format!("{name}.toml")), &environment())
}

fn valid(name: &str) -> Config {
    load(name).unwrap_or_else(|report| panic!("{name}:\n{report}"))
}

fn names() -> BTreeSet<String> {
    let entries = fs::read_dir(GOLDEN).expect("the golden files are there");
    entries
        .filter_map(|entry| {
            let path = entry.expect("the directory can be read").path();
            let is_toml = path.extension().is_some_and(|extension| extension == "toml");
            is_toml.then(|| path.file_stem().expect("a file has a name").to_string_lossy().into_owned())
        })
        .collect()
}

#[test]
fn broken_configurations_give_their_reports() {
    let write = std::env::var("HTTPD_GOLDEN").is_ok_and(|value| value == "write");
    let mut wrong = Vec::new();
    for name in names().iter().filter(|name| !name.starts_with("valid")) {
        let Err(report) = load(name) else {
            wrong.push(format!("{name}: no problem was found"));
            continue;
        };
        let (golden, found) = (Path::new(GOLDEN).join(format!("{name}.report")), report.to_string());
        if write {
            fs::write(&golden, &found).expect("the report can be written");
        }
        let expected = fs::read_to_string(&golden).unwrap_or_default();
        if found != expected {
            wrong.push(format!("{name}: expected\n{expected}\nfound\n{found}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_report_has_its_configuration() {
    let names = names();
    for entry in fs::read_dir(GOLDEN).expect("the golden files are there") {
        let path = entry.expect("the directory can be read").path();
        if path.extension().is_some_and(|extension| extension == "report") {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            assert!(names.contains(&name), "{name}.report belongs to nothing");
        }
    }
    assert!(names.len() >= 40);
}

#[test]
fn every_valid_configuration_loads() {
    names().iter().filter(|name| name.starts_with("valid")).for_each(|name| drop(valid(name)));
}

#[test]
fn what_is_left_out_has_defaults() {
    let config = valid("valid_minimal");
    assert_eq!(config.server.workers, 4);
    assert!(config.server.pin);
    assert_eq!(config.server.user, None);
    assert_eq!(config.server.control.as_deref(), Some(Path::new("/run/user/1000/httpd/control.sock")));
    assert_eq!(config.server.max_connections, 16_384);
    assert_eq!(config.server.drain, Duration::from_secs(30));
    assert_eq!(config.server.name.as_deref(), Some("httpd"));
    assert_eq!(config.log.level, Level::Info);
    assert_eq!(config.log.access, AccessLog::Stdout);
    assert_eq!(config.log.format, LogFormat::Combined);
    let timeouts = config.timeouts;
    let seconds = [timeouts.handshake, timeouts.head, timeouts.body, timeouts.send, timeouts.idle];
    assert_eq!(seconds.map(|time| time.as_secs()), [10, 10, 30, 30, 60]);
    assert_eq!((config.limits.head, config.limits.body), (16 << 10, 1 << 30));
    assert!(!config.limits.lenient_line_ends);
    assert_eq!(config.tls.kernel, KernelTls::Auto);
    assert_eq!(config.tls.tickets, Some(Duration::from_secs(8 * 3600)));
    assert_eq!((config.cache.memory, config.cache.max_file), (256 << 20, 1 << 20));
    assert_eq!(config.cache, config::Cache::default());
    let site = &config.sites[0];
    assert!(site.hosts.is_empty() && site.rules.is_empty() && site.certificates.is_empty());
    assert_eq!(site.index, ["index.html"]);
    assert_eq!(site.symlinks, Symlinks::Beneath);
    assert_eq!(site.line, 3);
    assert!(site.root.is_absolute() && site.root.ends_with("tests/golden/config/site"));
}

#[test]
fn defaults_depend_on_the_user() {
    let root = Environment { root: true, cores: 1, runtime_dir: None, cache_dir: None, modules: true };
    let config = config::load(&Path::new(GOLDEN).join("valid_minimal.toml"), &root).expect("it is valid");
    assert_eq!(config.server.user.as_deref(), Some("www-data"));
    assert_eq!(config.server.control.as_deref(), Some(Path::new("/run/httpd/control.sock")));
    assert_eq!(config.cache.dir.as_deref(), Some(Path::new("/var/cache/httpd")));
    let bare = Environment { root: false, ..root };
    let config = config::load(&Path::new(GOLDEN).join("valid_minimal.toml"), &bare).expect("it is valid");
    assert_eq!((config.server.control, config.cache.dir), (None, None));
    let managed = Environment { cache_dir: Some("/var/cache/private/x".into()), ..bare };
    let config = config::load(&Path::new(GOLDEN).join("valid_minimal.toml"), &managed).expect("it is valid");
    assert_eq!(config.cache.dir.as_deref(), Some(Path::new("/var/cache/private/x")));
}

#[test]
fn every_value_arrives() {
    let config = valid("valid_full");
    assert_eq!((config.server.workers, config.server.pin), (3, false));
    assert!(config.server.control.is_some_and(|path| path.ends_with("golden/config/run/control.sock")));
    assert_eq!((config.server.drain, config.server.name), (Duration::ZERO, None));
    assert!(
        matches!(config.log.access, AccessLog::File(path) if path.is_absolute() && path.ends_with("access.log"))
    );
    assert_eq!(config.timeouts.idle, Duration::from_millis(500));
    assert_eq!(config.timeouts.body, Duration::from_secs(180));
    assert_eq!((config.limits.head, config.limits.body), (1024, 0));
    let cache = config.cache;
    assert!(cache.dir.is_some_and(|path| path.ends_with("golden/config/variants")));
    assert_eq!(cache.precompress, Precompress::Startup);
    assert_eq!(cache.encodings, [Encoding::Zstd, Encoding::Gzip]);
    assert_eq!((cache.min_size, cache.max_size), (1, 2 << 20));
    assert_eq!(cache.types, ["application/pdf", "model/*"]);
    assert_eq!(cache.keep, Duration::from_secs(7200));
    assert_eq!((config.limits.requests_per_connection, config.limits.connections_per_address), (1000, 10));
    assert_eq!((config.tls.kernel, config.tls.tickets), (KernelTls::Off, None));
    assert_eq!(config.tls.ticket_keys.len(), 1);

    assert_eq!(config.metrics, Some(Address::Unix("/run/httpd/metrics.sock".into())));

    let [http, https, unix] = &config.listen[..] else { panic!("three listeners") };
    assert_eq!((http.tls, https.tls), (false, true));
    assert_eq!(unix.address, Address::Unix("/run/httpd/http.sock".into()));
    assert_eq!((unix.mode, unix.proxy_protocol), (0o600, true));
    let trusts = |address: &str| config::contains(&unix.trusted, address.parse().expect("an address"));
    assert!(trusts("10.9.9.9") && trusts("::1") && trusts("::ffff:10.0.0.1"));
    assert!(!trusts("11.0.0.1") && !trusts("::2"));

    let [site, other] = &config.sites[..] else { panic!("two sites") };
    assert_eq!(site.hosts, ["example.org", "*.example.org", "[2001:db8::1]"]);
    assert_eq!((site.https_redirect, other.https_redirect), (Some(8443), Some(443)));
    assert_eq!(site.error_pages, [(404, "/404.html".into()), (500, "/500.html".into())]);
    assert!(
        matches!(&site.certificates[..], [Certificate::Files { cert, .. }] if cert.ends_with("cert.pem"))
    );
    assert_eq!(other.certificates, [Certificate::SelfSigned]);
    let [assets, old, staff] = &site.rules[..] else { panic!("three rules") };
    assert_eq!(assets.headers[0], ("X-B".to_owned(), "1".to_owned()), "in the order of the file");
    assert_eq!(old.redirect.as_ref().map(|redirect| redirect.status), Some(308));
    let auth = staff.auth.as_ref().expect("a rule with passwords");
    assert_eq!((auth.realm.as_str(), auth.users.len()), ("staff", 1));
    assert_eq!((staff.allow.len(), staff.deny.len()), (2, 1));
}

#[test]
fn programs_are_mounted() {
    let path = Path::new(GOLDEN).join("valid_mounts.toml");
    let config = config::load(&path, &Environment { root: true, ..environment() }).expect("it is valid");
    let [cgi, git, exposed] = &config.sites[0].mounts[..] else { panic!("three mounts") };
    assert_eq!(cgi.path, "/cgi-bin/");
    assert!(matches!(&cgi.programs, Programs::Directory(dir) if dir.ends_with("golden/config/programs")));
    assert_eq!((cgi.timeout, cgi.wall), (Duration::from_secs(60), Duration::from_secs(600)));
    assert_eq!((cgi.concurrency, cgi.queue, cgi.body), (32, 128, 1 << 30));
    assert_eq!((cgi.chunked, cgi.pass_authorization, cgi.arguments), (Chunked::Spool, false, false));
    let MountKind::Process(process) = &cgi.kind else { panic!("a process") };
    assert_eq!((process.user.clone(), process.umask, process.background), (None, 0o022, true));
    assert_eq!((process.cpu, process.memory, process.files, process.processes), (None, None, None, None));
    assert_eq!((process.grace, process.gain_privileges), (Duration::from_secs(5), false));

    assert!(matches!(&git.programs, Programs::One(file) if file.ends_with("programs/run")));
    assert_eq!((git.timeout, git.wall), (Duration::from_secs(120), Duration::from_secs(3600)));
    assert_eq!((git.concurrency, git.queue, git.body), (4, 0, 512 << 20));
    assert_eq!((git.chunked, git.pass_authorization, git.arguments), (Chunked::Stream, true, true));
    let env = [("GIT_PROJECT_ROOT", "/srv/git"), ("A", "")];
    assert_eq!(git.env, env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    let MountKind::Process(process) = &git.kind else { panic!("a process") };
    let expected = Process {
        user: Some("nobody".into()),
        umask: 0o077,
        cpu: Some(Duration::from_secs(30)),
        memory: Some(1 << 30),
        files: Some(64),
        processes: Some(32),
        grace: Duration::ZERO,
        background: false,
        gain_privileges: true,
    };
    assert_eq!(*process, expected);
    let process = |config: &Config| config.sites[0].mounts[1].kind.clone();
    let MountKind::Process(unprivileged) = process(&valid("valid_mounts")) else { panic!("a process") };
    assert_eq!(unprivileged.user, None, "a plain user cannot become another");

    assert_eq!(exposed.kind, MountKind::Module(Module { memory: 64 << 20, directories: Vec::new() }));
    assert_eq!(exposed.timeout, Duration::from_secs(5));
    let directory = |name: &str, path: &str, writable| Directory {
        name: name.to_owned(),
        path: config.sites[1].root.parent().expect("it lies somewhere").join(path),
        writable,
    };
    let directories = vec![directory("/data", "site", false), directory("/scratch", "programs", true)];
    assert_eq!(config.sites[1].mounts[0].kind, MountKind::Module(Module { memory: 1 << 20, directories }));

    // What lies beneath the root at the path of a mount is not served; the module of the other site
    // would be, did not the first site's mount stand before it.
    let shown: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
    assert!(matches!(&shown[..], [one] if one.contains("gain_privileges")), "{shown:?}");
    let exposing = load("valid_exposed_programs").expect("a warning is no problem");
    let shown: Vec<String> = exposing.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(shown.len(), 1, "{shown:?}");
    assert!(
        shown[0].contains(":7:7: ") && shown[0].contains("beneath the root of the site on line 3"),
        "{}",
        shown[0]
    );
}

#[test]
fn metrics_for_everybody_are_warned_of() {
    let config = valid("valid_metrics_everywhere");
    let warnings: Vec<_> = config.warnings.iter().map(ToString::to_string).collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    assert!(warning.contains("toml:2:10: `[::]:9090` gives metrics to every machine"), "{warning}");
    assert_eq!(valid("valid_full").warnings, []);
}

#[test]
fn the_largest_cached_file_follows_a_small_memory() {
    assert_eq!(valid("valid_small_cache").cache.max_file, 64 << 10);
}

#[test]
fn flags_give_the_same_as_a_file() {
    let flags = Flags {
        root: PathBuf::from(GOLDEN).join("site"),
        cache: None,
        cert: None,
        http_port: 8080,
        https_port: 8443,
        workers: 0,
        cgi_bin: None,
    };
    assert!(
        Source::Flags(Flags { cgi_bin: Some(PathBuf::from(GOLDEN).join("programs")), ..flags.clone() })
            .load(&environment())
            .is_ok_and(|config| config.sites[0].mounts[0].path == "/cgi-bin/")
    );
    let config = Source::Flags(flags.clone()).load(&environment()).expect("the flags are right");
    let file = valid("valid_minimal");
    assert_eq!(config.sites[0].root, file.sites[0].root);
    assert_eq!((&config.server, &config.cache), (&file.server, &file.cache));
    assert_eq!(config.listen.len(), 1);

    let cert = Some(CertificateFlag::SelfSigned);
    let config =
        config::from_flags(&Flags { cert, ..flags.clone() }, &environment()).expect("they are right");
    assert_eq!(config.listen.iter().map(|listen| listen.tls).collect::<Vec<_>>(), [false, true]);
    assert_eq!(config.sites[0].certificates, [Certificate::SelfSigned]);

    let cert = Some(CertificateFlag::Directory("no/such".into()));
    let cgi_bin = Some("no/such".into());
    let flags = Flags { root: "no/such".into(), cert, https_port: 8080, workers: 2000, cgi_bin, ..flags };
    let report = config::from_flags(&flags, &environment()).expect_err("everything is wrong");
    let expected = "\
--root: `no/such` does not exist

--cert: `no/such/cert.pem` does not exist

--cert: `no/such/key.pem` does not exist

--https-port: `0.0.0.0:8080` is listened on twice
    = name another port

--workers: `server.workers` must be between 0 and 1024

--cgi-bin: `no/such` does not exist
";
    assert_eq!(report.to_string(), expected);
}

#[test]
fn a_file_that_is_not_there_is_reported() {
    let report = load("no_such_file").expect_err("it does not exist");
    assert_eq!(
        report.to_string(),
        "tests/golden/config/no_such_file.toml: the configuration does not exist\n    = name another file with -c\n"
    );
}

#[test]
fn a_glimpse_survives_mistakes() {
    let path = Path::new(GOLDEN).join("root_missing.toml");
    let config = config::glimpse(Some(&path), &environment()).expect("the structure is sound");
    assert!(config.server.control.is_some());
    assert!(config::glimpse(Some(&Path::new(GOLDEN).join("syntax_no_equals.toml")), &environment()).is_err());
    assert!(config::glimpse(None, &environment()).is_ok_and(|config| config.server.control.is_some()));
}

#[test]
fn modules_need_a_build_that_runs_them() {
    let without = Environment { modules: false, ..environment() };
    let path = Path::new(GOLDEN).join("valid_mounts.toml");
    let report = config::load(&path, &without).expect_err("it has modules").to_string();
    assert!(report.contains("this httpd was built without WebAssembly"), "{report}");
    assert!(report.contains("--features wcgi"), "{report}");
}

#[test]
fn the_example_loads_and_names_every_key() {
    let path = Path::new("config.example.toml");
    let config = config::load(path, &environment()).unwrap_or_else(|report| panic!("{report}"));
    assert_eq!((config.listen.len(), config.sites.len()), (2, 1));
    let text = fs::read_to_string(path).expect("the example is there");
    let mut table = String::new();
    let mut named = BTreeSet::new();
    for line in text.lines().map(|line| line.trim_start_matches("# ").trim()) {
        if line.starts_with('[') && line.ends_with(']') {
            table = line.trim_matches(['[', ']']).to_owned();
            let (parent, key) = table.rsplit_once('.').unwrap_or(("", &table));
            named.insert((parent.to_owned(), key.to_owned()));
        } else if let Some((key, value)) = line.split_once(" = ")
            && key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        {
            named.insert((table.clone(), key.to_owned()));
            let pairs = value.strip_prefix("{ ").unwrap_or("").split(", ");
            named.extend(
                pairs.filter_map(|pair| {
                    Some((format!("{table}.{key}"), pair.split_once(" = ")?.0.to_owned()))
                }),
            );
        }
    }
    for (table, keys) in config::file::KNOWN {
        for key in *keys {
            assert!(
                named.contains(&((*table).to_owned(), (*key).to_owned())),
                "`{table}.{key}` is not named"
            );
        }
    }
}
