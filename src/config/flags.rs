//! Flags of the command line as the file that says the same.

use super::file::{At, Cache, Certificate, Cgi, File, Listen, Server, Site};
use super::{CertificateFlag, Flags};

/// What positions in the file of [`file`] mean.
const NAMES: &[&str] =
    &["--root", "--cert", "--http-port", "--https-port", "--workers", "--cgi-bin", "--cache"];
const ROOT: usize = 0;
const CERT: usize = 1;
const HTTP_PORT: usize = 2;
const HTTPS_PORT: usize = 3;
const WORKERS: usize = 4;
const CGI_BIN: usize = 5;
const CACHE: usize = 6;

/// The file, and the flags that its positions stand for.
pub fn file(flags: &Flags) -> (File, &'static [&'static str]) {
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let listen = |flag: usize, port: u16, tls: bool| Listen {
        at: place(flag),
        // All of IPv4: a server started to be tried from another machine or out of a container.
        address: at(flag, format!("0.0.0.0:{port}")),
        tls: at(flag, tls),
        ..Listen::default()
    };
    let mut listeners = vec![listen(HTTP_PORT, flags.http_port, false)];
    let mut certificate = None;
    if let Some(cert) = &flags.cert {
        listeners.push(listen(HTTPS_PORT, flags.https_port, true));
        let made = matches!(cert, CertificateFlag::SelfSigned).then_some(true);
        let pem = |name: &str| match cert {
            CertificateFlag::Directory(dir) => at(CERT, text(&dir.join(name))),
            CertificateFlag::SelfSigned => None,
        };
        let table = Certificate {
            at: place(CERT),
            cert: pem("cert.pem"),
            key: pem("key.pem"),
            self_signed: made.and_then(|made| at(CERT, made)),
        };
        certificate = at(CERT, vec![table]);
    }
    let cgi = flags.cgi_bin.as_ref().and_then(|dir| {
        let (path, dir) = (at(CGI_BIN, "/cgi-bin/".to_owned()), at(CGI_BIN, text(dir)));
        at(CGI_BIN, vec![Cgi { at: place(CGI_BIN), path, dir, ..Cgi::default() }])
    });
    let root = at(ROOT, text(&flags.root));
    let site = Site { at: place(ROOT), root, certificate, cgi, ..Site::default() };
    let server = Server { workers: at(WORKERS, i64::from(flags.workers)), ..Server::default() };
    let cache = Cache {
        at: place(CACHE),
        dir: flags.cache.as_deref().and_then(|dir| at(CACHE, text(dir))),
        ..Cache::default()
    };
    let file = File {
        cache: at(CACHE, cache),
        server: at(WORKERS, server),
        listen: at(HTTP_PORT, listeners),
        site: at(ROOT, vec![site]),
        ..File::default()
    };
    (file, NAMES)
}

fn at<T>(flag: usize, value: T) -> Option<At<T>> {
    Some(At::new(value, place(flag)))
}

fn place(flag: usize) -> super::report::Span {
    flag..flag
}
