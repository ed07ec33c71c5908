//! rustls's client, which believes every certificate.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, Error, ProtocolVersion, SignatureScheme,
};
use rustls::{StreamOwned, SupportedCipherSuite, SupportedProtocolVersion};

use crate::kit::{Client, PATIENCE, Server};

/// One client: its connections resume each other's sessions.
pub struct Secure {
    address: SocketAddr,
    suite: Option<SupportedCipherSuite>,
    versions: Option<Versions>,
    config: std::cell::OnceCell<Arc<ClientConfig>>,
}

/// A version of TLS.
#[derive(Clone, Copy, Debug)]
pub enum Versions {
    Tls12,
    Tls13,
}

impl Versions {
    pub fn number(self) -> ProtocolVersion {
        self.supported().version
    }

    fn supported(self) -> &'static SupportedProtocolVersion {
        match self {
            Self::Tls12 => &rustls::version::TLS12,
            Self::Tls13 => &rustls::version::TLS13,
        }
    }
}

/// The cipher suites of TLS 1.3, and one of 1.2.
pub fn suites() -> impl Iterator<Item = SupportedCipherSuite> {
    use aws_lc_rs::cipher_suite as known;
    [
        known::TLS13_AES_128_GCM_SHA256,
        known::TLS13_AES_256_GCM_SHA384,
        known::TLS13_CHACHA20_POLY1305_SHA256,
        known::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    ]
    .into_iter()
}

impl Secure {
    pub fn new(server: &Server) -> Self {
        Self { address: server.address(), suite: None, versions: None, config: std::cell::OnceCell::new() }
    }

    pub fn suite(self, suite: SupportedCipherSuite) -> Self {
        Self { suite: Some(suite), ..self }
    }

    pub fn versions(self, versions: Versions) -> Self {
        Self { versions: Some(versions), ..self }
    }

    /// Opens a connection.
    pub fn connect(&self) -> Client<StreamOwned<ClientConnection, TcpStream>> {
        let config = self.config.get_or_init(|| Arc::new(self.config()));
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::clone(config), name).expect("a session");
        let stream = TcpStream::connect(self.address).expect("a connection");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        Client::over(StreamOwned::new(session, stream))
    }

    fn config(&self) -> ClientConfig {
        let mut provider = aws_lc_rs::default_provider();
        if let Some(suite) = self.suite {
            provider.cipher_suites = vec![suite];
        }
        let versions = match (self.versions, self.suite) {
            (Some(versions), _) => vec![versions.supported()],
            (None, Some(SupportedCipherSuite::Tls12(_))) => vec![&rustls::version::TLS12],
            (None, Some(SupportedCipherSuite::Tls13(_))) => vec![&rustls::version::TLS13],
            (None, None) => rustls::ALL_VERSIONS.to_vec(),
        };
        let provider = Arc::new(provider);
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&versions)
            .expect("versions and suites that fit")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Credulous(provider)))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config
    }
}

/// Believes every certificate, but checks that the server has its key.
#[derive(Debug)]
struct Credulous(Arc<CryptoProvider>);

impl ServerCertVerifier for Credulous {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _staple: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
