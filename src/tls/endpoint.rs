//! What all sessions of a generation share: certificates, ticket keys, and rustls's configuration made
//! of them. Built by the supervisor, as root, before it forks.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;
use std::time::SystemTime;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use zeroize::Zeroizing;

use super::certificates::{self, CertificateSummary, Fingerprint, Loaded, Problem};
use super::resolver::{Keys, Resolver};
use super::staple;
use super::tickets::{FileKeys, KEYS_MAX, TicketKeys, Ticketer};
use crate::config::{Certificate, Config};

/// Sessions are made of this; clones share everything.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

struct Inner {
    server: Arc<ServerConfig>,
    kernel_tls: bool,
    certificates: Vec<CertificateSummary>,
    warnings: Vec<Problem>,
    files: Vec<Fingerprint>,
    staples_until: Option<SystemTime>,
}

impl Endpoint {
    /// Reads and checks every certificate of the configuration. `tickets` are used if the
    /// configuration wants tickets; `kernel_tls`: whether the kernel can encrypt.
    ///
    /// # Errors
    /// Everything that is wrong, in the order of the configuration.
    pub fn build(
        config: &Config,
        now: SystemTime,
        tickets: Option<TicketKeys>,
        kernel_tls: bool,
    ) -> Result<Self, Vec<Problem>> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let (mut problems, mut warnings) = (Vec::new(), Vec::new());
        let mut files = Vec::new();
        let (mut resolver, mut summaries) = (Resolver::default(), Vec::new());
        let mut staples_until = None;
        // The site without hosts is the default one; without such a site the first is.
        let mut order: Vec<_> = config.sites.iter().collect();
        order.sort_by_key(|site| !site.hosts.is_empty());
        for site in order {
            for certificate in &site.certificates {
                if let Certificate::Files { cert, key } = certificate {
                    files.extend([cert, key, &staple::path(cert)].map(|path| Fingerprint::of(path)));
                }
            }
            let load = |certificate| {
                certificates::load(site, certificate, now, &provider, &mut problems, &mut warnings)
            };
            let mut loaded: Vec<Loaded> = site.certificates.iter().filter_map(load).collect();
            loaded.sort_by_key(|loaded| certificates::rank(&loaded.key));
            let keys: Keys = loaded.iter().map(|loaded| loaded.key.clone()).collect();
            if keys.is_empty() {
                continue;
            }
            site.hosts.iter().for_each(|host| resolver.add(host, &keys));
            resolver.set_default(&keys);
            for loaded in loaded {
                staples_until = staples_until.into_iter().chain(loaded.staple_until).min();
                summaries.push(loaded.summary);
            }
        }
        for site in config.sites.iter().filter(|site| site.certificates.is_empty()) {
            certificates::check_borrowed(site, |host| resolver.keys(Some(host)), &mut warnings);
        }
        if summaries.is_empty() && problems.is_empty() {
            problems.push(Problem {
                place: "configuration".into(),
                what: "a listener speaks TLS, and no site has a certificate".into(),
                help: "add [[site.certificate]] with cert and key, or self_signed = true for development"
                    .into(),
            });
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let tickets = config.tls.tickets.and_then(|rotation| Some(Ticketer::new(tickets?, rotation)));
        let server = Arc::new(server_config(provider, resolver, tickets));
        let inner = Inner { server, kernel_tls, certificates: summaries, warnings, files, staples_until };
        Ok(Self(Arc::new(inner)))
    }

    /// The certificates, for `status`.
    pub fn certificates(&self) -> &[CertificateSummary] {
        &self.0.certificates
    }

    /// What should be put right but does not keep anything from being served.
    pub fn warnings(&self) -> &[Problem] {
        &self.0.warnings
    }

    /// Whether another `build` would be different: a file has changed, or a staple must not be
    /// served any more. Looks at every file; for a check every minute or so.
    pub fn changed(&self, now: SystemTime) -> bool {
        self.0.staples_until.is_some_and(|until| until <= now)
            || self.0.files.iter().any(Fingerprint::has_changed)
    }

    /// Whether sessions may hand sending over to the kernel.
    pub fn kernel_tls(&self) -> bool {
        self.0.kernel_tls
    }

    pub(super) fn server(&self) -> &Arc<ServerConfig> {
        &self.0.server
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint").field("certificates", &self.0.certificates).finish_non_exhaustive()
    }
}

/// The provider's defaults already are what one wants: TLS 1.2 and 1.3, ciphers with authentication
/// only, X25519MLKEM768 first, the client's order of ciphers. 0-RTT is off: it needs single-use tickets.
fn server_config(
    provider: Arc<rustls::crypto::CryptoProvider>,
    resolver: Resolver,
    tickets: Option<Ticketer>,
) -> ServerConfig {
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has ciphers of both versions")
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    server.alpn_protocols = vec![b"http/1.1".to_vec()];
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = if tickets.is_some() { 2 } else { 0 };
    if let Some(tickets) = tickets {
        server.ticketer = Arc::new(tickets);
    }
    // Our record layer, not only the kernel's, is made of the secrets.
    server.enable_secret_extraction = true;
    // RFC 7627 is used with whoever has it, and not demanded: what it guards against needs client certificates,
    // renegotiation or exporters, of which there are none here, and OpenSSL before 1.1 does without it.
    server.require_ems = false;
    server
}

/// Reads the files of `tls.ticket_keys`; `None` where there are none.
///
/// # Errors
/// Every file that cannot be used.
pub fn read_ticket_keys(config: &Config) -> Result<Option<FileKeys>, Vec<Problem>> {
    if config.tls.ticket_keys.is_empty() {
        return Ok(None);
    }
    let mut problems = Vec::new();
    let mut contents = Vec::new();
    for path in &config.tls.ticket_keys {
        let read = || {
            let mut file = File::open(path)?;
            let mut bytes = Zeroizing::new(Vec::with_capacity(128));
            file.by_ref().take(100).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        match read() {
            Ok(bytes) => contents.push(bytes),
            Err(error) => {
                let error: std::io::Error = error;
                problems.push(Problem {
                    place: path.display().to_string(),
                    what: format!("cannot read the ticket key: {error}"),
                    help: "check the path and its permissions".into(),
                });
            }
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    FileKeys::parse(&contents).map(Some).map_err(|index| {
        vec![Problem {
            place: config.tls.ticket_keys[index].display().to_string(),
            what: if index < KEYS_MAX {
                "a ticket key must have 48 or 80 bytes".into()
            } else {
                format!("more than {KEYS_MAX} ticket keys")
            },
            help: "make one with: openssl rand -out FILE 80".into(),
        }]
    })
}
