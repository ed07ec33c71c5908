//! A server session and rustls's client, with a wire of byte buffers between them.

#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod records;

use std::io::{Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use httpd::config;
use httpd::tls::{self, Endpoint, Established, Failure, Received, Session, TicketKeys};
use rustls::client::ClientSessionMemoryCache;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedCipherSuite, SupportedProtocolVersion};

pub const EVERY: Duration = Duration::from_secs(8 * 3600);

/// A certificate on disk, and ticket keys.
pub struct Fixture {
    pub directory: tempfile::TempDir,
    pub certificate: CertificateDer<'static>,
    pub tickets: TicketKeys,
    pub kernel: bool,
}

impl Fixture {
    pub fn new() -> Self {
        Self::with_key(&rcgen::PKCS_ECDSA_P256_SHA256)
    }

    pub fn with_key(algorithm: &'static rcgen::SignatureAlgorithm) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        std::fs::write(directory.path().join("cert.pem"), certificate.pem()).unwrap();
        std::fs::write(directory.path().join("key.pem"), key.serialize_pem()).unwrap();
        let tickets = ticket_keys();
        tickets.rotate(SystemTime::now(), EVERY);
        Self { directory, certificate: certificate.der().clone(), tickets, kernel: true }
    }

    pub fn config(&self) -> config::Config {
        let files = config::Certificate::Files {
            cert: self.directory.path().join("cert.pem"),
            key: self.directory.path().join("key.pem"),
        };
        config_with(vec![site(&["localhost"], vec![files])])
    }

    pub fn endpoint(&self) -> Endpoint {
        Endpoint::build(&self.config(), SystemTime::now(), Some(self.tickets), self.kernel).unwrap()
    }

    pub fn client(&self) -> ClientBuilder {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone()).unwrap();
        client_trusting(roots)
    }
}

pub fn client_trusting(roots: RootCertStore) -> ClientBuilder {
    ClientBuilder { roots, suites: None, versions: rustls::ALL_VERSIONS.to_vec(), alpn: true }
}

/// Memory as the supervisor would share it.
pub fn ticket_keys() -> TicketKeys {
    TicketKeys::new(Box::leak((0..tls::TICKET_WORDS).map(|_| AtomicU64::new(0)).collect()))
}

pub fn site(hosts: &[&str], certificates: Vec<config::Certificate>) -> config::Site {
    config::Site {
        types: Vec::new(),
        hosts: hosts.iter().map(|host| (*host).to_owned()).collect(),
        root: PathBuf::from("/"),
        index: Vec::new(),
        symlinks: config::Symlinks::Never,
        hidden: false,
        listing: false,
        fallback: None,
        clean_urls: false,
        https_redirect: None,
        hsts: None,
        error_pages: Vec::new(),
        certificates,
        rules: Vec::new(),
        mounts: Vec::new(),
        line: 7,
    }
}

pub fn config_with(sites: Vec<config::Site>) -> config::Config {
    let second = Duration::from_secs(1);
    config::Config {
        server: config::Server {
            workers: 1,
            pin: false,
            user: None,
            control: None,
            max_connections: 1,
            drain: second,
            name: None,
        },
        log: config::Log {
            level: config::Level::Info,
            access: config::AccessLog::Off,
            format: config::LogFormat::Combined,
        },
        timeouts: config::Timeouts {
            handshake: second,
            head: second,
            body: second,
            send: second,
            idle: second,
        },
        limits: config::Limits {
            head: 16384,
            body: 0,
            requests_per_connection: 0,
            connections_per_address: 0,
            lenient_line_ends: false,
        },
        tls: config::Tls { kernel: config::KernelTls::Auto, tickets: Some(EVERY), ticket_keys: Vec::new() },
        metrics: None,
        cache: config::Cache { memory: 0, max_file: 0, revalidate: second, ..config::Cache::default() },
        listen: Vec::new(),
        sites,
        warnings: Vec::new(),
    }
}

/// All suites of the provider, with the version each belongs to.
pub fn suites() -> Vec<(&'static SupportedProtocolVersion, SupportedCipherSuite)> {
    let suites = rustls::crypto::aws_lc_rs::ALL_CIPHER_SUITES.iter();
    let version = |suite: &SupportedCipherSuite| match suite {
        SupportedCipherSuite::Tls13(_) => &rustls::version::TLS13,
        SupportedCipherSuite::Tls12(_) => &rustls::version::TLS12,
    };
    // The fixture's key decides which TLS 1.2 suites can be agreed on.
    let usable = |suite: &&SupportedCipherSuite| !format!("{:?}", suite.suite()).contains("RSA");
    suites.filter(usable).map(|suite| (version(suite), *suite)).collect()
}

pub struct ClientBuilder {
    roots: RootCertStore,
    suites: Option<Vec<SupportedCipherSuite>>,
    versions: Vec<&'static SupportedProtocolVersion>,
    alpn: bool,
}

impl ClientBuilder {
    pub fn suite(mut self, suite: SupportedCipherSuite) -> Self {
        self.suites = Some(vec![suite]);
        self
    }

    pub fn versions(mut self, versions: &[&'static SupportedProtocolVersion]) -> Self {
        self.versions = versions.to_vec();
        self
    }

    pub fn trusting_nobody(mut self) -> Self {
        self.roots = RootCertStore::empty();
        self
    }

    pub fn without_alpn(mut self) -> Self {
        self.alpn = false;
        self
    }

    pub fn build(self) -> Arc<ClientConfig> {
        let mut provider = rustls::crypto::aws_lc_rs::default_provider();
        if let Some(suites) = self.suites {
            provider.cipher_suites = suites;
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&self.versions)
            .unwrap()
            .with_root_certificates(self.roots)
            .with_no_client_auth();
        config.resumption = rustls::client::Resumption::store(Arc::new(ClientSessionMemoryCache::new(8)));
        // For reading records from outside rustls.
        config.enable_secret_extraction = true;
        if self.alpn {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
        }
        Arc::new(config)
    }
}

/// rustls's client.
pub struct Client {
    pub connection: ClientConnection,
    closed: bool,
}

impl Client {
    pub fn new(config: &Arc<ClientConfig>, name: &str) -> Self {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        Self { connection: ClientConnection::new(config.clone(), name).unwrap(), closed: false }
    }

    pub fn write(&mut self, bytes: &[u8]) {
        self.connection.writer().write_all(bytes).unwrap();
    }

    /// What the client would send.
    pub fn output(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.connection.wants_write() {
            self.connection.write_tls(&mut bytes).unwrap();
        }
        bytes
    }

    /// Everything received, decrypted.
    pub fn read(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self.connection.reader().read_to_end(&mut bytes) {
            Ok(_) => self.closed = true,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
        bytes
    }

    pub fn is_closed_by_peer(&mut self) -> bool {
        self.read();
        self.closed
    }
}

/// The two, and what is under way.
pub struct Wire {
    pub session: Session,
    pub client: Client,
    /// What the server received, decrypted.
    pub plain: Vec<u8>,
    /// What the server sends.
    pub out: Vec<u8>,
    /// What the client received and has not been read from it.
    pub received: Vec<u8>,
    pub last: Received,
    pub established: Option<Established>,
    /// Sizes of the pieces in which bytes reach the server; 0: all at once.
    pub piece: usize,
}

impl Wire {
    pub fn new(endpoint: &Endpoint, client: Client) -> Self {
        Self {
            session: Session::new(endpoint),
            client,
            plain: Vec::new(),
            out: Vec::new(),
            received: Vec::new(),
            last: Received::default(),
            established: None,
            piece: 0,
        }
    }

    pub fn shake_hands(&mut self) -> Established {
        self.try_shake_hands().unwrap().expect("the handshake is complete")
    }

    pub fn try_shake_hands(&mut self) -> Result<Option<Established>, Failure> {
        for _ in 0..4 {
            self.turn()?;
        }
        Ok(self.established.clone())
    }

    /// Carries everything both have to send, in both directions.
    pub fn turn(&mut self) -> Result<(), Failure> {
        let bytes = self.client.output();
        let result = self.feed(&bytes);
        self.deliver();
        result
    }

    /// Gives bytes to the server.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let piece = if self.piece == 0 { bytes.len().max(1) } else { self.piece };
        for bytes in bytes.chunks(piece) {
            let received = self.session.receive(bytes, &mut self.plain, &mut self.out)?;
            self.established = self.established.take().or(received.established.clone());
            self.last = received;
        }
        Ok(())
    }

    /// Gives the client what the server has sent.
    pub fn deliver(&mut self) {
        let bytes = std::mem::take(&mut self.out);
        let mut bytes = &bytes[..];
        while !bytes.is_empty() {
            self.client.connection.read_tls(&mut bytes).unwrap();
            if self.client.connection.process_new_packets().is_err() {
                return;
            }
            let read = self.client.read();
            self.received.extend(read);
        }
    }

    pub fn seal(&mut self, first: &[u8], second: &[u8]) {
        self.session.seal(first, second, &mut self.out).unwrap();
    }

    pub fn close_notify(&mut self) {
        assert_eq!(self.session.close_notify(&mut self.out), None);
    }
}

/// Bytes that tell where they stand.
pub fn body(length: usize) -> Vec<u8> {
    (0..length as u32)
        .flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes())
        .take(length)
        .collect()
}

impl Wire {
    /// Replaces the client by its secrets: what it would send and receive can be made by hand.
    pub fn take_over_client(self) -> (Session, records::Tls13, records::Tls13) {
        assert!(self.out.is_empty() && self.established.is_some());
        let secrets = self.client.connection.dangerous_extract_secrets().unwrap();
        (self.session, records::Tls13::new(secrets.tx), records::Tls13::new(secrets.rx))
    }
}
