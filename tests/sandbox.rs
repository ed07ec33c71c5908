//! What a worker that has been taken over could still do: each attempt is made in a process of its own that has gone
//! the way of a worker up to its sandbox, and has to fail.
//!
//! This program is its own test harness: it forks, which a process with the threads of the usual one must not.

#![allow(unsafe_code, reason = "attempts are bare system calls")]

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use httpd::config::{Config, Environment, Source};
use httpd::observe::names::Counters;
use httpd::sys::pass;
use httpd::sys::process::{self, Ended, Fork};
use httpd::sys::sandbox;
use httpd::sys::user::{self, User};
use httpd::sys::wait::wait;
use httpd::worker::start::Start;

/// Not on every machine: the emulated ones have none.
const SHADOW: &str = "/etc/shadow";

/// What an attempt found.
type Found = io::Result<()>;

/// How it has to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// With an error.
    Refused,
    /// With the end of the process, by SIGSYS; where there is no seccomp, with an error.
    Fatal,
    /// Well: what a worker has to be able to do.
    Done,
}

use Fate::{Done, Fatal, Refused};

/// Whether an attempt only fails where landlock is there; root that stays root owns what is root's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Any,
    Landlock,
}

use By::{Any, Landlock};

/// The folder of an attempt: `root/index.html`, `beside/secret`, readable and writable by all.
type Attempt = fn(&Path) -> Found;

const ATTEMPTS: &[(&str, Fate, By, Attempt)] = &[
    ("read beneath the root", Done, Any, |at| opens(&at.join("root/index.html"), libc::O_RDONLY)),
    ("list the root", Done, Any, |at| fs::read_dir(at.join("root")).map(|_| ())),
    ("read the neighbour a deploy would flip to", Done, Any, |at| {
        opens(&at.join("releases/2/index.html"), libc::O_RDONLY)
    }),
    ("begin a thread", Done, Any, |_| thread(|| Ok(()))),
    ("wait a moment", Done, Any, |_| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        Ok(())
    }),
    ("read what lies beside the root", Refused, Landlock, |at| {
        opens(&at.join("beside/secret"), libc::O_RDONLY)
    }),
    ("list the folder above", Refused, Landlock, |at| fs::read_dir(at).map(|_| ())),
    ("read /etc/shadow", Refused, Landlock, |_| if_there(SHADOW, |shadow| opens(shadow, libc::O_RDONLY))),
    ("read /etc/passwd", Refused, Landlock, |_| opens(Path::new("/etc/passwd"), libc::O_RDONLY)),
    ("read its own memory map", Refused, Landlock, |_| opens(Path::new("/proc/self/maps"), libc::O_RDONLY)),
    ("read /etc/passwd in another thread", Refused, Landlock, |_| {
        thread(|| opens(Path::new("/etc/passwd"), libc::O_RDONLY))
    }),
    ("write a file of the root", Refused, Any, |at| opens(&at.join("root/index.html"), libc::O_WRONLY)),
    ("write it by openat2", Refused, Landlock, |at| opens2(&at.join("root/index.html"), libc::O_WRONLY)),
    ("cut it", Refused, Landlock, |at| opens2(&at.join("root/index.html"), libc::O_RDONLY | libc::O_TRUNC)),
    ("make a file in the root", Refused, Landlock, |at| {
        opens2(&at.join("root/new"), libc::O_WRONLY | libc::O_CREAT)
    }),
    ("truncate it", Refused, Any, |at| {
        call(libc::SYS_truncate, [path(&at.join("root/index.html")), 0, 0, 0, 0])
    }),
    ("remove a file of the root", Refused, Any, |at| fs::remove_file(at.join("root/index.html"))),
    ("rename it", Refused, Any, |at| fs::rename(at.join("root/index.html"), at.join("root/other"))),
    ("make a directory in the root", Refused, Any, |at| fs::create_dir(at.join("root/directory"))),
    ("make a link in the root", Refused, Any, |at| symlink("/etc", at.join("root/link"))),
    ("change the mode of a file", Refused, Any, |at| {
        fs::set_permissions(at.join("root/index.html"), fs::Permissions::from_mode(0o777))
    }),
    ("execute", Fatal, Any, |_| call(libc::SYS_execve, [path(Path::new("/bin/true")), 0, 0, 0, 0])),
    ("execute by descriptor", Fatal, Any, |_| {
        call(libc::SYS_execveat, [0, path(Path::new("")), 0, 0, libc::AT_EMPTY_PATH.into()])
    }),
    ("execute in another thread", Fatal, Any, |_| {
        thread(|| call(libc::SYS_execve, [path(Path::new("/bin/true")), 0, 0, 0, 0]))
    }),
    ("fork", Refused, Any, |_| call(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0])),
    ("clone3", Refused, Any, |_| call(libc::SYS_clone3, [0, 64, 0, 0, 0])),
    ("make a TCP socket", Fatal, Any, |_| socket(libc::AF_INET, libc::SOCK_STREAM)),
    ("make a UDP socket", Fatal, Any, |_| socket(libc::AF_INET6, libc::SOCK_DGRAM)),
    ("make a unix socket", Fatal, Any, |_| socket(libc::AF_UNIX, libc::SOCK_STREAM)),
    ("make a raw socket", Fatal, Any, |_| socket(libc::AF_PACKET, libc::SOCK_RAW)),
    ("connect what is there", Fatal, Any, |_| call(libc::SYS_connect, [0, 0, 0, 0, 0])),
    ("listen", Fatal, Any, |_| call(libc::SYS_listen, [0, 1, 0, 0, 0])),
    ("trace its parent", Fatal, Any, |_| {
        call(libc::SYS_ptrace, [libc::PTRACE_ATTACH.into(), parent(), 0, 0, 0])
    }),
    ("read its parent's memory", Fatal, Any, |_| call(libc::SYS_process_vm_readv, [parent(), 0, 0, 0, 0])),
    ("take a descriptor of its parent", Fatal, Any, |_| call(libc::SYS_pidfd_open, [parent(), 0, 0, 0, 0])),
    ("kill its parent", Refused, Any, |_| call(libc::SYS_kill, [parent(), 0, 0, 0, 0])),
    ("kill a thread of its parent", Refused, Any, |_| call(libc::SYS_tgkill, [parent(), parent(), 0, 0, 0])),
    ("become root", Fatal, Any, |_| call(libc::SYS_setresuid, [0, 0, 0, 0, 0])),
    ("become root's group", Fatal, Any, |_| call(libc::SYS_setresgid, [0, 0, 0, 0, 0])),
    ("take rights", Fatal, Any, |_| call(libc::SYS_capset, [0, 0, 0, 0, 0])),
    ("make a user namespace", Fatal, Any, |_| {
        call(libc::SYS_unshare, [libc::CLONE_NEWUSER.into(), 0, 0, 0, 0])
    }),
    ("mount", Fatal, Any, |_| call(libc::SYS_mount, [0, 0, 0, 0, 0])),
    ("load a BPF program", Fatal, Any, |_| call(libc::SYS_bpf, [0, 0, 0, 0, 0])),
    ("make a second ring", Fatal, Any, |_| call(libc::SYS_io_uring_setup, [8, 0, 0, 0, 0])),
    ("widen the ring", Refused, Any, |_| call(libc::SYS_io_uring_register, [0, 0, 0, 0, 0])),
    ("map machine code", Refused, Any, |_| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        call(libc::SYS_mmap, [0, 4096, (libc::PROT_READ | libc::PROT_EXEC).into(), flags.into(), -1])
    }),
    ("make a file in memory", Refused, Any, |_| {
        call(libc::SYS_memfd_create, [path(Path::new("x")), 0, 0, 0, 0])
    }),
    ("set options of sockets", Refused, Any, |_| {
        call(libc::SYS_setsockopt, [0, libc::SOL_SOCKET.into(), libc::SO_REUSEPORT.into(), 0, 0])
    }),
    ("type into the terminal", Refused, Any, |_| call(libc::SYS_ioctl, [0, 0x5412, 0, 0, 0])),
    ("wait for a child", Refused, Any, |_| call(libc::SYS_wait4, [-1, 0, libc::WNOHANG.into(), 0, 0])),
];

/// How a process says that its attempt was refused: as such, and not because it was made wrongly.
const FAILED: i32 = 10;
const SUCCEEDED: i32 = 11;

fn main() -> ExitCode {
    let lacks: Vec<&str> = sandbox::lacking().iter().map(|lack| lack.feature).collect();
    println!("this kernel lacks: {}", if lacks.is_empty() { "nothing".into() } else { lacks.join("; ") });
    let landlock = !lacks.iter().any(|lack| lack.starts_with("landlock ("));
    let seccomp = !lacks.iter().any(|lack| lack.starts_with("seccomp"));
    let folder = tempfile::tempdir().expect("a folder");
    let mut bad = 0;
    for user in users() {
        let who = user.as_ref().map_or("who it was".into(), |user| user.name.to_string_lossy().into_owned());
        for (index, (name, fate, by, attempt)) in ATTEMPTS.iter().enumerate() {
            if (*by == Landlock && !landlock) || (!seccomp && *fate != Done) {
                println!("{name}: not on this kernel");
                continue;
            }
            let at = furnish(&folder.path().join(format!("{who}-{index}")));
            let ended = attempted(&at, user.as_ref(), *attempt);
            let good = match fate {
                Done => ended == Ended::Exited(SUCCEEDED),
                Refused => ended == Ended::Exited(FAILED),
                Fatal => ended == Ended::Killed(libc::SIGSYS),
            };
            if !good {
                eprintln!("{name}, as {who}: {ended}, which should be {fate:?}");
                bad += 1;
            }
        }
    }
    println!("{} attempts", ATTEMPTS.len());
    if bad == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whom workers become here: an unprivileged user and, as in containers, root that stays root.
fn users() -> Vec<Option<User>> {
    if !user::is_root() {
        return vec![None];
    }
    let found = ["www-data", "nobody"].into_iter().find_map(|name| User::find(name).ok().flatten());
    vec![Some(found.expect("somebody without rights")), None]
}

fn furnish(at: &Path) -> PathBuf {
    for (folder, file) in [("releases/1", "index.html"), ("releases/2", "index.html"), ("beside", "secret")] {
        fs::create_dir_all(at.join(folder)).expect("a folder");
        fs::write(at.join(folder).join(file), "text").expect("a file");
        fs::set_permissions(at.join(folder), fs::Permissions::from_mode(0o777)).expect("a mode");
        fs::set_permissions(at.join(folder).join(file), fs::Permissions::from_mode(0o666)).expect("a mode");
    }
    for above in at.ancestors().take(2) {
        fs::set_permissions(above, fs::Permissions::from_mode(0o755)).expect("a mode");
    }
    symlink("releases/1", at.join("root")).expect("a link");
    at.to_owned()
}

/// How the process ended that became a worker up to its sandbox and then made the attempt.
fn attempted(at: &Path, user: Option<&User>, attempt: Attempt) -> Ended {
    match process::fork().expect("a process") {
        Fork::Parent(child) => loop {
            match process::reap_any() {
                Some((pid, ended, _)) if pid == child => return ended,
                _ => drop(wait(&[], Some(std::time::Duration::from_millis(1)))),
            }
        },
        Fork::Child => {
            let code = match httpd::worker::settle(&start(at, user)) {
                Err(reason) => {
                    eprintln!("{reason}");
                    1
                }
                Ok(_ring) => match attempt(at) {
                    Ok(()) => SUCCEEDED,
                    Err(error)
                        if [libc::ENOSYS, libc::EACCES, libc::EPERM]
                            .map(Some)
                            .contains(&error.raw_os_error()) =>
                    {
                        FAILED
                    }
                    Err(error) => {
                        eprintln!("{error}");
                        1
                    }
                },
            };
            // Without the ends of values: this is a copy of the harness.
            std::process::exit(code)
        }
    }
}

fn start(at: &Path, user: Option<&User>) -> Start {
    let (channel, _supervisor) = pass::channel().expect("a channel");
    Start {
        index: 0,
        workers: 1,
        generation: 1,
        core: None,
        config: Rc::new(config(at)),
        listeners: Vec::new(),
        channel,
        counters: Counters::new().expect("a page"),
        access_log: None,
        user: user.cloned(),
        tls: None,
        mailboxes: None,
    }
}

fn config(at: &Path) -> Config {
    let file = at.join("httpd.toml");
    let root = at.join("root");
    let text = format!("[[listen]]\naddress = \"127.0.0.1:0\"\n[[site]]\nroot = \"{}\"\n", root.display());
    fs::write(&file, text).expect("written");
    Source::File(file)
        .load(&Environment::of_this_process())
        .map_err(|report| report.to_string())
        .expect("a config")
}

fn if_there(file: &str, attempt: fn(&Path) -> Found) -> Found {
    match Path::new(file) {
        file if file.exists() => attempt(file),
        _ => Err(io::Error::from_raw_os_error(libc::EACCES)),
    }
}

fn opens(file: &Path, flags: i32) -> Found {
    call(libc::SYS_openat, [libc::AT_FDCWD.into(), path(file), flags.into(), 0, 0])
}

/// openat2(2), whose flags no filter sees.
fn opens2(file: &Path, flags: i32) -> Found {
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { 0o600 };
    let how: &'static [u64; 3] = Box::leak(Box::new([flags as u64, mode, 0]));
    call(libc::SYS_openat2, [libc::AT_FDCWD.into(), path(file), how.as_ptr() as i64, 24, 0])
}

fn socket(family: i32, kind: i32) -> Found {
    call(libc::SYS_socket, [family.into(), kind.into(), 0, 0, 0])
}

fn parent() -> i64 {
    std::os::unix::process::parent_id().into()
}

fn path(path: &Path) -> i64 {
    let bytes = [path.as_os_str().as_bytes(), b"\0"].concat();
    Box::leak(bytes.into_boxed_slice()).as_ptr() as i64
}

fn thread(work: fn() -> Found) -> Found {
    std::thread::Builder::new().spawn(work)?.join().expect("a thread that does not panic")
}

fn call(number: i64, arguments: [i64; 5]) -> Found {
    let [a, b, c, d, e] = arguments;
    // SAFETY: no attempt names memory but what it leaked, for reading; those that name none pass null.
    let answer = unsafe { libc::syscall(number, a, b, c, d, e, 0) };
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
