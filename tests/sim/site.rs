//! The site that is served: its configuration, its files, and how they change while it is served.

use std::time::Duration;

use httpd::config::{
    AccessLog, Address, Auth, Cache, Chunked, Config, KernelTls, Level, Limits, Listen, Log, LogFormat,
    Module, Mount, MountKind, Process, Programs, Redirect, Rule, Server, Site, Timeouts, Tls,
};
use httpd::sys::file::Symlinks;

use crate::faults::{Odds, Rng};
use crate::tree::{Tree, Version};
use crate::variants::{self, SHIPPED};
use crate::world::World;

/// How long what was looked up is served before it is looked at again.
pub const REVALIDATE: Duration = Duration::from_secs(1);
/// Larger files stay on disk, in some runs; in others all but the largest are kept in memory.
pub const FILE_MAX: usize = 4096;
pub const TIMEOUTS: Timeouts = Timeouts {
    handshake: Duration::from_secs(10),
    head: Duration::from_secs(10),
    body: Duration::from_secs(30),
    send: Duration::from_secs(30),
    idle: Duration::from_secs(60),
};
pub const DRAIN: Duration = Duration::from_secs(30);
pub const HEAD_MAX: u32 = 4096;
pub const BODY_MAX: u64 = 10_000;
pub const PASSWORD: &str = "sesame";
/// The least that bcrypt takes.
const COST: u32 = 4;

pub fn config(rng: &mut Rng) -> Config {
    Config {
        server: Server {
            workers: 1,
            pin: false,
            user: None,
            control: None,
            max_connections: *rng.pick(&[2, 5, 1000]),
            drain: DRAIN,
            name: rng.chance(500).then(|| "httpd".into()),
        },
        log: Log {
            level: Level::Error,
            access: AccessLog::Stdout,
            format: *rng.pick(&[LogFormat::Combined, LogFormat::Json]),
        },
        timeouts: TIMEOUTS,
        limits: Limits {
            head: HEAD_MAX,
            body: BODY_MAX,
            requests_per_connection: *rng.pick(&[0, 0, 3]),
            connections_per_address: 0,
            lenient_line_ends: false,
        },
        tls: Tls { kernel: KernelTls::Auto, tickets: None, ticket_keys: Vec::new() },
        metrics: None,
        cache: Cache {
            memory: *rng.pick(&[0, 8 << 10, 1 << 20, 64 << 20]),
            max_file: *rng.pick(&[FILE_MAX as u64, 500_000]),
            revalidate: REVALIDATE,
            dir: Some(variants::CACHE.into()),
            min_size: 100,
            ..Cache::default()
        },
        listen: vec![Listen {
            address: Address::Tcp(([10, 0, 0, 0], 80).into()),
            tls: false,
            proxy_protocol: false,
            trusted: Vec::new(),
            mode: 0o666,
        }],
        sites: vec![site(*rng.pick(&[1, 2, 100]), *rng.pick(&[0, 1, 128]))],
        warnings: Vec::new(),
    }
}

/// Its mounts run so many scripts at once, and keep so many waiting.
fn site(concurrency: u32, queue: u32) -> Site {
    let rule = |pattern: &str| Rule {
        pattern: pattern.into(),
        headers: Vec::new(),
        redirect: None,
        auth: None,
        allow: Vec::new(),
        deny: Vec::new(),
    };
    let hash = bcrypt::hash_with_salt(PASSWORD, COST, [7; 16]).expect("a cost it takes").to_string();
    let auth = Auth { realm: "staff".into(), users: vec![("ali".into(), hash)] };
    let redirect = Redirect { to: "https://new.example{path}".into(), status: 308 };
    Site {
        hosts: Vec::new(),
        root: "/srv/current".into(),
        index: vec!["index.html".into()],
        symlinks: Symlinks::Beneath,
        hidden: false,
        listing: true,
        fallback: None,
        clean_urls: false,
        https_redirect: None,
        hsts: None,
        error_pages: vec![(404, "/404.html".into())],
        certificates: Vec::new(),
        rules: vec![
            Rule { auth: Some(auth), ..rule("/private/**") },
            Rule { redirect: Some(redirect), ..rule("/old/**") },
        ],
        mounts: [("/cgi/", Chunked::Spool), ("/stream/", Chunked::Stream), ("/wasm/", Chunked::Spool)]
            .map(|(path, chunked)| Mount { concurrency, queue, ..mount(path, chunked) })
            .into(),
        types: Vec::new(),
        line: 1,
    }
}

/// How long a script may be silent, and run.
pub const SILENT: Duration = Duration::from_secs(20);
pub const WALL: Duration = Duration::from_secs(100);

fn mount(path: &str, chunked: Chunked) -> Mount {
    let process = Process {
        user: None,
        umask: 0,
        cpu: None,
        memory: None,
        files: None,
        processes: None,
        grace: Duration::ZERO,
        background: true,
        gain_privileges: false,
    };
    let module = Module { memory: 0, directories: Vec::new() };
    Mount {
        path: path.into(),
        programs: Programs::Directory("/srv/cgi".into()),
        kind: if path == "/wasm/" { MountKind::Module(module) } else { MountKind::Process(process) },
        timeout: SILENT,
        wall: WALL,
        concurrency: 2,
        queue: 3,
        body: BODY_MAX,
        chunked,
        env: Vec::new(),
        pass_authorization: false,
        arguments: false,
        line: 1,
    }
}

/// Paths whose files change, or come and go.
const CHANGING: [&str; 5] = ["/a.txt", "/big.bin", "/sub/page.html", "/new.txt", INDEX];
/// Never removed: in its place would be a listing.
const INDEX: &str = "/index.html";
/// All paths that lead to a file by their own name, sometimes at least.
pub const FILES: [&str; 10] = [
    "/a.txt",
    "/big.bin",
    "/sub/page.html",
    "/new.txt",
    "/index.html",
    "/empty.txt",
    "/steady.bin",
    "/small.css",
    "/steady.txt",
    SHIPPED,
];

pub fn tree(rng: &mut Rng, odds: &Odds) -> Tree {
    let mut tree = Tree::new(odds.granularity);
    tree.symlink("srv/current", "release");
    for path in FILES.into_iter().filter(|&path| path != "/new.txt" && path != SHIPPED) {
        let bytes = contents(path, rng);
        tree.replace(&name_of(path), bytes);
    }
    // More than one buffer or piece of it takes too many steps through small sockets.
    let most = if odds.holds_much() { *rng.pick(&[400_000, 400_000, 3 << 20]) } else { 20_000 };
    tree.replace(&name_of("/steady.bin"), text(rng, FILE_MAX + 1, most));
    for path in
        ["/sub/index.html", "/.hidden", "/list/one.txt", "/list/two.txt", "/private/x.txt", "/404.html"]
    {
        let bytes = text(rng, 1, 300);
        tree.replace(&name_of(path), bytes);
    }
    tree.replace("etc/secret", b"not to be seen".to_vec());
    tree.symlink("srv/release/link.txt", "steady.bin");
    tree.symlink("srv/release/out.txt", "/etc/secret");
    tree.symlink("srv/release/up.txt", "../../etc/secret");
    tree.fifo("srv/release/fifo");
    tree
}

/// Where a path of the site is in the tree.
pub fn name_of(path: &str) -> String {
    format!("srv/release{path}")
}

/// What a path may have led to from `from` on.
pub fn versions(world: &World, path: &str, from: Duration) -> Vec<Version> {
    let path = match path {
        "/" => "/index.html",
        "/sub/" => "/sub/index.html",
        "/link.txt" => "/steady.bin",
        path => path,
    };
    world.tree.versions(&name_of(path), from)
}

/// Changes one file.
pub fn mutate(world: &mut World) {
    let mut rng = world.rng.fork();
    let path = *rng.pick(&CHANGING);
    let name = name_of(path);
    let in_place = rng.chance(world.odds.in_place);
    world.note(format_args!("{path} changes{}", if in_place { " in place" } else { "" }));
    if path != INDEX && rng.chance(150) {
        return world.tree.remove(&name);
    }
    let bytes = contents(path, &mut rng);
    if in_place { world.tree.rewrite(&name, bytes) } else { world.tree.replace(&name, bytes) }
}

fn contents(path: &str, rng: &mut Rng) -> Vec<u8> {
    match path {
        "/empty.txt" => Vec::new(),
        "/big.bin" | "/steady.bin" => text(rng, FILE_MAX + 1, 40_000),
        // Hardly to be compressed: also what is made of it stays on disk.
        "/steady.txt" => {
            (0..rng.within(1000, 2000)).flat_map(|_| format!("{:x}", rng.next()).into_bytes()).collect()
        }
        _ => text(rng, 0, 2 * FILE_MAX),
    }
}

fn text(rng: &mut Rng, low: usize, high: usize) -> Vec<u8> {
    // Chance for the first bytes, then the same again with a counter: large files cost little.
    let length = rng.within(low, high);
    let pattern: Vec<u8> = (0..length.min(1009)).map(|_| b' ' + rng.below(90) as u8).collect();
    let mut bytes = pattern.repeat(length / 1009 + 1);
    bytes.truncate(length);
    for (count, piece) in bytes.chunks_mut(1009).enumerate().skip(1) {
        let mark = format!("{count:>8}");
        let end = piece.len().min(mark.len());
        piece[..end].copy_from_slice(&mark.as_bytes()[..end]);
    }
    bytes
}
