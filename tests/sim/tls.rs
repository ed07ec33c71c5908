//! TLS for the clients: a certificate made for the occasion, and rustls as the other end.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime};

use httpd::config::{Certificate, Config};
use httpd::tls::{Endpoint, TICKET_WORDS, TicketKeys};
use rustls::client::{ClientSessionMemoryCache, Resumption};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

const HOST: &str = "example.org";

/// What one thread's runs share: making keys takes longer than most runs.
struct Fixture {
    endpoint: Endpoint,
    certificate: CertificateDer<'static>,
}

thread_local! {
    static FIXTURE: Fixture = Fixture::new();
}

impl Fixture {
    /// Ed25519: all its signatures are of one length, so that runs can be repeated step by step.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a folder");
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let parameters = rcgen::CertificateParams::new([HOST.to_owned()]).expect("a name");
        let made = parameters.self_signed(&key).expect("a certificate");
        let (cert, private) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
        std::fs::write(&cert, made.pem()).expect("room for it");
        std::fs::write(&private, key.serialize_pem()).expect("room for it");
        let mut config: Config = crate::site::config(&mut crate::faults::Rng::new(0));
        config.tls.tickets = Some(Duration::from_secs(3600));
        config.sites[0].certificates = vec![Certificate::Files { cert, key: private }];
        let words = (0..TICKET_WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let tickets = TicketKeys::new(words.leak());
        tickets.rotate(SystemTime::now(), Duration::from_secs(3600));
        let endpoint =
            Endpoint::build(&config, SystemTime::now(), Some(tickets), true).expect("a good certificate");
        Self { endpoint, certificate: made.der().clone() }
    }
}

/// The worker's side. The kernel is said to encrypt; by chance it refuses when asked to.
pub fn endpoint() -> Endpoint {
    FIXTURE.with(|fixture| fixture.endpoint.clone())
}

/// The settings of the clients of one run, which remember sessions for each other.
pub fn clients() -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    FIXTURE.with(|fixture| roots.add(fixture.certificate.clone())).expect("a good certificate");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = builder.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.resumption = Resumption::store(Arc::new(ClientSessionMemoryCache::new(8)));
    Arc::new(config)
}

/// A client's session.
pub struct Session {
    session: Box<ClientConnection>,
    /// The other side said that nothing follows.
    pub told: bool,
}

impl Session {
    pub fn new(config: &Arc<ClientConfig>) -> Self {
        let name = ServerName::try_from(HOST).expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name).expect("a client");
        Self { session: Box::new(session), told: false }
    }

    pub fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Takes what is to be said.
    pub fn say(&mut self, bytes: &[u8]) {
        self.session.writer().write_all(bytes).expect("rustls buffers it");
    }

    /// Says that nothing follows.
    pub fn take_leave(&mut self) {
        self.session.send_close_notify();
    }

    /// What has to go to the other side.
    pub fn outgoing(&mut self, into: &mut Vec<u8>) {
        while self.session.wants_write() {
            self.session.write_tls(into).expect("a vector takes all");
        }
    }

    /// Takes what came; gives what it says.
    pub fn hear(&mut self, mut bytes: &[u8]) -> Result<Vec<u8>, String> {
        let mut said = Vec::new();
        while !bytes.is_empty() {
            let taken = self.session.read_tls(&mut bytes).map_err(|error| error.to_string())?;
            let state = self.session.process_new_packets().map_err(|error| format!("TLS: {error}"))?;
            let already = said.len();
            said.resize(already + state.plaintext_bytes_to_read(), 0);
            self.session.reader().read_exact(&mut said[already..]).map_err(|error| error.to_string())?;
            self.told |= state.peer_has_closed();
            if taken == 0 {
                break;
            }
        }
        if self.told && !bytes.is_empty() {
            return Err("bytes after the closing alert".into());
        }
        Ok(said)
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TLS, handshaking: {}, told: {}", self.is_handshaking(), self.told)
    }
}
