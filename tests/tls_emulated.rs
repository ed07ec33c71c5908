//! Sessions over real sockets with a kernel that encrypts. Not among the tests that run unless asked
//! for, because most development machines and containers have no such kernel: `tests/emulation/run.sh` has.

mod tls_support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use httpd::ring::Ring;
use httpd::ring::uring::{Options, Uring};
use httpd::sys::fds::Fd;
use httpd::sys::tls_probe;
use httpd::tls::{self, ALERT, Session};
use rustls::version::TLS13;
use rustls::{ClientConfig, SupportedCipherSuite};
use tls_support::{Client, Fixture, body};

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\n\r\n";
const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\n\r\n";

fn aes_suites() -> Vec<SupportedCipherSuite> {
    let suites = tls_support::suites().into_iter();
    let wanted = suites.filter(|(version, suite)| **version == TLS13 && format!("{suite:?}").contains("AES"));
    wanted.map(|(_, suite)| suite).collect()
}

/// A counter of /proc/net/tls_stat.
fn counter(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/net/tls_stat").expect("a kernel with TLS");
    let mut words = text.split_whitespace();
    words.find(|word| *word == name).expect("a counter");
    words.next().unwrap().parse().unwrap()
}

/// The server's end of a connection.
struct Server {
    socket: TcpStream,
    ring: Uring,
    session: Session,
    plain: Vec<u8>,
}

impl Server {
    fn new(fixture: &Fixture, listener: &TcpListener) -> Self {
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let options = Options { submissions: 32, completions: 64, leases: 64, ..Options::default() };
        let (ring, _) = Uring::new(&options).expect("a ring on this kernel");
        Self { socket, ring, session: Session::new(&fixture.endpoint()), plain: Vec::new() }
    }

    fn fd(&self) -> Fd {
        Fd(self.socket.as_raw_fd())
    }

    /// Receives until the plaintext satisfies `enough`.
    fn receive_until(&mut self, enough: impl Fn(&[u8]) -> bool) -> tls::Received {
        let mut buffer = [0; 4096];
        let mut last = tls::Received::default();
        while !enough(&self.plain) {
            let count = self.socket.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "the client is gone");
            let mut out = Vec::new();
            last = self.session.receive(&buffer[..count], &mut self.plain, &mut out).unwrap();
            self.socket.write_all(&out).unwrap();
        }
        last
    }

    fn seal(&mut self, bytes: &[u8]) {
        let mut out = Vec::new();
        self.session.seal(bytes, b"", &mut out).unwrap();
        self.socket.write_all(&out).unwrap();
    }

    /// Has the kernel take over. Says whether it did.
    fn hand_over(&mut self) -> bool {
        let taken = self.session.hand_over().expect("AES-GCM");
        match self.ring.install_tls(self.fd(), &taken.info) {
            Ok(()) => self.session.kernel_sends(taken),
            Err(_) => self.session.kernel_refused(),
        }
        self.session.is_sent_by_kernel()
    }

    fn close(mut self) {
        let mut out = Vec::new();
        if let Some(goodbye) = self.session.close_notify(&mut out) {
            self.ring.send_record(self.fd(), ALERT, &goodbye).unwrap();
        }
        self.socket.write_all(&out).unwrap();
        self.socket.shutdown(Shutdown::Write).unwrap();
        // Until the client is done, too.
        let _ = self.socket.read_to_end(&mut Vec::new());
    }
}

fn listen() -> (TcpListener, std::net::SocketAddr) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// rustls's client over a socket: sends a request, reads to the end of the session. With `update`,
/// changes its key in the middle.
fn client(
    address: std::net::SocketAddr,
    config: std::sync::Arc<ClientConfig>,
    update: bool,
) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        let mut connection = Client::new(&config, "localhost").connection;
        let mut received = Vec::new();
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        stream.write_all(REQUEST).unwrap();
        if update {
            let mut first = [0; 100_000];
            stream.read_exact(&mut first).unwrap();
            received.extend_from_slice(&first);
            stream.conn.refresh_traffic_keys().unwrap();
            stream.write_all(REQUEST).unwrap();
        }
        stream.read_to_end(&mut received).expect("a session that ends with close_notify");
        stream.conn.send_close_notify();
        let _ = stream.flush();
        received
    })
}

#[test]
fn the_probe_finds_it() {
    let support = tls::probe(tls_probe::try_install);
    println!("kernel TLS: {}", support.text);
    assert!(support.usable);
    assert_eq!(support.text, "AES-128-GCM and AES-256-GCM");
}

#[test]
fn large_bodies_are_encrypted_by_the_kernel() {
    let fixture = Fixture::new();
    for suite in aes_suites() {
        let config = fixture.client().suite(suite).versions(&[&TLS13]).build();
        let (listener, address) = listen();
        let client = client(address, config, false);
        let before = counter("TlsTxSw");
        let mut server = Server::new(&fixture, &listener);
        server.receive_until(|plain| plain == REQUEST);
        server.seal(HEAD);
        assert!(server.hand_over());
        assert_eq!(counter("TlsTxSw"), before + 1);
        assert!(counter("TlsCurrTxSw") > 0);
        let sent = body(3_000_000);
        server.socket.write_all(&sent).unwrap();
        server.close();
        let received = client.join().unwrap();
        assert!(received == [HEAD, &sent].concat(), "{suite:?}");
    }
    assert_eq!(counter("TlsDecryptError"), 0);
    assert_eq!(counter("TlsRxSw"), 0, "receiving stays in userspace");
}

#[test]
fn a_key_update_during_a_body_of_the_kernel() {
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let (listener, address) = listen();
    let client = client(address, config, true);
    let mut server = Server::new(&fixture, &listener);
    server.receive_until(|plain| plain == REQUEST);
    assert!(server.hand_over());
    let sent = body(1_000_000);
    server.socket.write_all(&sent[..500_000]).unwrap();
    let last = server.receive_until(|plain| plain == [REQUEST, REQUEST].concat());
    assert!(last.end_soon);
    server.socket.write_all(&sent[500_000..]).unwrap();
    server.close();
    assert!(client.join().unwrap() == sent);
}

#[test]
fn short_sends_to_a_slow_reader() {
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let (listener, address) = listen();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let client = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 100_000).unwrap();
        let mut connection = Client::new(&config, "localhost").connection;
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        stream.write_all(REQUEST).unwrap();
        wait.recv().unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("a session that ends with close_notify");
        received
    });
    let mut server = Server::new(&fixture, &listener);
    server.receive_until(|plain| plain == REQUEST);
    assert!(server.hand_over());
    rustix::net::sockopt::set_socket_send_buffer_size(&server.socket, 100_000).unwrap();
    server.socket.set_nonblocking(true).unwrap();
    let sent = body(4_000_000);
    let (mut at, mut full) = (0, 0);
    while at < sent.len() {
        match server.socket.write(&sent[at..]) {
            Ok(count) => {
                server.session.count_sent(count).unwrap();
                at += count;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                full += 1;
                // The first time the client begins to read.
                if full == 1 {
                    go.send(()).unwrap();
                }
                std::thread::yield_now();
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(full > 0, "the socket was never full");
    server.socket.set_nonblocking(false).unwrap();
    server.close();
    assert!(client.join().unwrap() == sent);
}

#[test]
fn files_go_through_sendfile_behind_a_held_back_head() {
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let (listener, address) = listen();
    let client = client(address, config, false);
    let mut server = Server::new(&fixture, &listener);
    server.receive_until(|plain| plain == REQUEST);
    assert!(server.hand_over());
    let sent = body(200_000);
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&sent).unwrap();
    let flags = rustix::net::SendFlags::MORE;
    assert_eq!(rustix::net::send(&server.socket, HEAD, flags), Ok(HEAD.len()));
    let mut offset = 0;
    while offset < sent.len() as u64 {
        let count = rustix::fs::sendfile(&server.socket, &file, Some(&mut offset), 70_000).unwrap();
        assert_ne!(count, 0);
    }
    server.close();
    assert!(client.join().unwrap() == [HEAD, &sent].concat());
}

#[test]
fn a_client_that_will_send_no_more_is_served_from_userspace() {
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let (listener, address) = listen();
    let client = std::thread::spawn(move || {
        let mut socket = TcpStream::connect(address).unwrap();
        let mut connection = Client::new(&config, "localhost").connection;
        let mut stream = rustls::Stream::new(&mut connection, &mut socket);
        stream.write_all(REQUEST).unwrap();
        stream.sock.shutdown(Shutdown::Write).unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).expect("a session that ends with close_notify");
        received
    });
    let mut server = Server::new(&fixture, &listener);
    server.receive_until(|plain| plain == REQUEST);
    assert_eq!(server.socket.read(&mut [0; 10]).unwrap(), 0);
    // The kernel adds its layer to connections only whose both directions are open.
    assert!(!server.hand_over());
    let sent = body(300_000);
    server.seal(&sent);
    server.close();
    assert!(client.join().unwrap() == sent);
}

#[test]
fn openssl_understands_the_kernel() {
    let fixture = Fixture::new();
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"] {
        let (listener, address) = listen();
        let mut openssl = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-tls1_3",
                "-servername",
                "localhost",
                "-ciphersuites",
                suite,
                "-connect",
            ])
            .arg(address.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = openssl.stdin.take().unwrap();
        stdin.write_all(REQUEST).unwrap();
        let mut server = Server::new(&fixture, &listener);
        server.receive_until(|plain| plain == REQUEST);
        assert!(server.hand_over());
        let sent = body(1_000_000);
        let mut writer = server.socket.try_clone().unwrap();
        let writing = std::thread::spawn(move || {
            writer.write_all(&sent).unwrap();
            sent
        });
        let mut received = vec![0; 1_000_000];
        openssl.stdout.take().unwrap().read_exact(&mut received).unwrap();
        assert!(received == writing.join().unwrap(), "{suite}");
        drop(stdin);
        server.close();
        openssl.wait().unwrap();
    }
}

#[test]
fn what_the_kernel_refuses_of_sends() {
    // The ring must not use these on such sockets.
    let fixture = Fixture::new();
    let config = fixture.client().versions(&[&TLS13]).build();
    let (listener, address) = listen();
    let client = client(address, config, false);
    let mut server = Server::new(&fixture, &listener);
    server.receive_until(|plain| plain == REQUEST);
    assert!(server.hand_over());
    for flag in [libc::MSG_WAITALL, libc::MSG_ZEROCOPY] {
        let flags = rustix::net::SendFlags::from_bits_retain(flag.try_into().unwrap());
        assert_eq!(rustix::net::send(&server.socket, b"x", flags), Err(rustix::io::Errno::OPNOTSUPP));
    }
    server.socket.write_all(b"still alive").unwrap();
    server.close();
    assert_eq!(client.join().unwrap(), b"still alive");
}
