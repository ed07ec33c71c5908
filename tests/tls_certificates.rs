//! Certificates: what is served to whom, and what is refused at start.

mod tls_support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use httpd::config::{Certificate, Config};
use httpd::tls::{Endpoint, Failure, Problem, read_ticket_keys};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::version::{TLS12, TLS13};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme, SupportedProtocolVersion};
use tls_support::{Client, Wire, config_with, site};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority, and a directory for what it signs.
struct Authority {
    directory: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::OrganizationName, "Test Trust");
        parameters.distinguished_name.push(DnType::CommonName, "Root 1");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = parameters.self_signed(&key).unwrap();
        Self {
            directory: tempfile::tempdir().unwrap(),
            certificate: certificate.der().clone(),
            pem: certificate.pem(),
            issuer: Issuer::new(parameters, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Signs a certificate and writes it and its key to `NAME.pem` and `NAME.key`.
    fn sign(
        &self,
        name: &str,
        hosts: &[&str],
        key: &KeyPair,
        change: impl Fn(&mut CertificateParams),
    ) -> Certificate {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut parameters = CertificateParams::new(hosts).unwrap();
        parameters.not_before = (SystemTime::now() - DAY).into();
        parameters.not_after = (SystemTime::now() + 90 * DAY).into();
        change(&mut parameters);
        let certificate = parameters.signed_by(key, &self.issuer).unwrap();
        let (cert, key_path) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}.key")));
        fs::write(&cert, format!("{}{}", certificate.pem(), self.pem)).unwrap();
        write_key(&key_path, &key.serialize_pem());
        Certificate::Files { cert, key: key_path }
    }

    fn ecdsa(&self, name: &str, hosts: &[&str]) -> Certificate {
        self.sign(name, hosts, &KeyPair::generate().unwrap(), |_| {})
    }

    fn rsa(&self, name: &str, hosts: &[&str]) -> Certificate {
        self.sign(name, hosts, &KeyPair::generate_for(&rcgen::PKCS_RSA_SHA256).unwrap(), |_| {})
    }
}

fn write_key(path: &Path, pem: &str) {
    fs::write(path, pem).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

fn build(config: &Config) -> Result<Endpoint, Vec<Problem>> {
    Endpoint::build(config, SystemTime::now(), None, false)
}

fn build_site(hosts: &[&str], certificates: Vec<Certificate>) -> Result<Endpoint, Vec<Problem>> {
    build(&config_with(vec![site(hosts, certificates)]))
}

fn words(problems: &[Problem]) -> Vec<&str> {
    problems.iter().map(|problem| problem.what.as_str()).collect()
}

/// The certificate a client is shown that asks for `name`.
fn shown(authority: &Authority, endpoint: &Endpoint, name: &str) -> Result<Vec<u8>, Failure> {
    shown_to(authority, endpoint, name, &[&TLS13], None)
}

fn shown_to(
    authority: &Authority,
    endpoint: &Endpoint,
    name: &str,
    versions: &[&'static rustls::SupportedProtocolVersion],
    suite: Option<rustls::SupportedCipherSuite>,
) -> Result<Vec<u8>, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.clone()).unwrap();
    let mut client = tls_support::client_trusting(roots).versions(versions);
    if let Some(suite) = suite {
        client = client.suite(suite);
    }
    let mut wire = Wire::new(endpoint, Client::new(&client.build(), name));
    wire.try_shake_hands()?;
    Ok(wire.client.connection.peer_certificates().expect("a certificate")[0].to_vec())
}

fn der(certificate: &Certificate) -> Vec<u8> {
    use rustls::pki_types::pem::PemObject;
    let Certificate::Files { cert, .. } = certificate else { panic!("no file") };
    CertificateDer::from_pem_file(cert).unwrap().to_vec()
}

#[test]
fn names_choose_the_certificate() {
    let authority = Authority::new();
    let (first, second) =
        (authority.ecdsa("first", &["a.test"]), authority.ecdsa("second", &["*.b.test", "b.test"]));
    let sites =
        vec![site(&["a.test"], vec![first.clone()]), site(&["*.b.test", "b.test"], vec![second.clone()])];
    let endpoint = build(&config_with(sites)).unwrap();
    assert_eq!(shown(&authority, &endpoint, "a.test"), Ok(der(&first)));
    assert_eq!(shown(&authority, &endpoint, "b.test"), Ok(der(&second)));
    assert_eq!(shown(&authority, &endpoint, "x.b.test"), Ok(der(&second)));
    // Who asks for another name gets the first site's, and may think of it what it likes.
    assert!(matches!(shown(&authority, &endpoint, "c.test"), Err(Failure::PeerAlert(_))));
}

#[test]
fn the_site_without_hosts_is_the_default_one() {
    let authority = Authority::new();
    let (first, default) = (authority.ecdsa("first", &["a.test"]), authority.ecdsa("default", &["c.test"]));
    let sites = vec![site(&["a.test"], vec![first]), site(&[], vec![default.clone()])];
    let endpoint = build(&config_with(sites)).unwrap();
    assert_eq!(shown(&authority, &endpoint, "c.test"), Ok(der(&default)));
}

#[test]
fn the_kind_of_key_follows_the_client() {
    use rustls::crypto::aws_lc_rs::cipher_suite::*;
    let authority = Authority::new();
    let (rsa, ecdsa) = (authority.rsa("rsa", &["a.test"]), authority.ecdsa("ecdsa", &["a.test"]));
    let endpoint = build_site(&["a.test"], vec![rsa.clone(), ecdsa.clone()]).unwrap();
    let shown = |version, suite| shown_to(&authority, &endpoint, "a.test", &[version], suite);
    assert_eq!(shown(&TLS13, None), Ok(der(&ecdsa)), "though RSA stands first");
    assert_eq!(shown(&TLS12, None), Ok(der(&ecdsa)));
    let old = Some(TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256);
    assert_eq!(shown(&TLS12, old), Ok(der(&rsa)));
    let old = Some(TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256);
    assert_eq!(shown(&TLS12, old), Ok(der(&ecdsa)));
    let keys: Vec<_> = endpoint.certificates().iter().map(|summary| summary.key.as_str()).collect();
    assert_eq!(keys, ["ECDSA P-256", "RSA 2048"]);
}

/// Handshakes per kind of key; a signature that goes wrong once in a thousand needs more than a few.
fn handshakes() -> usize {
    std::env::var("TLS_HANDSHAKES").map_or(40, |count| count.parse().expect("a number of handshakes"))
}

#[test]
fn keys_of_all_kinds_sign() {
    let authority = Authority::new();
    for (algorithm, name) in [
        (&rcgen::PKCS_ECDSA_P256_SHA256, "ECDSA P-256"),
        (&rcgen::PKCS_ECDSA_P384_SHA384, "ECDSA P-384"),
        (&rcgen::PKCS_ED25519, "Ed25519"),
        (&rcgen::PKCS_RSA_SHA256, "RSA 2048"),
    ] {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = authority.sign("any", &["a.test"], &key, |_| {});
        let endpoint = build_site(&["a.test"], vec![certificate.clone()]).unwrap();
        assert_eq!(endpoint.certificates()[0].key, name);
        let expected = Ok(der(&certificate));
        for turn in 0..handshakes() {
            let version = if turn % 2 == 0 { &TLS12 } else { &TLS13 };
            let shown = shown_to(&authority, &endpoint, "a.test", &[version], None);
            assert_eq!(shown, expected, "{name}, {version:?}, handshake {turn}");
        }
    }
}

/// The bytes inside PKCS#8's OCTET STRING: SEC1 for elliptic curves, PKCS#1 for RSA.
fn inner_key(pkcs8: &[u8]) -> Vec<u8> {
    fn value(der: &[u8]) -> (&[u8], &[u8]) {
        let (length, start) = match der[1] {
            0x82 => (usize::from(u16::from_be_bytes([der[2], der[3]])), 4),
            0x81 => (usize::from(der[2]), 3),
            short => (usize::from(short), 2),
        };
        der[start..].split_at(length)
    }
    let (sequence, _) = value(pkcs8);
    let (_, after_version) = value(sequence);
    let (_, after_algorithm) = value(after_version);
    value(after_algorithm).0.to_vec()
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}-----END {label}-----\n", base64(der))
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for (index, chunk) in bytes.chunks(3).enumerate() {
        let number =
            chunk.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS[(number >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { letter.into() } else { '=' });
        }
        if index % 16 == 15 {
            text.push('\n');
        }
    }
    text + "\n"
}

#[test]
fn keys_in_all_forms_are_read() {
    let authority = Authority::new();
    for (algorithm, label) in
        [(&rcgen::PKCS_ECDSA_P256_SHA256, "EC PRIVATE KEY"), (&rcgen::PKCS_RSA_SHA256, "RSA PRIVATE KEY")]
    {
        let key = KeyPair::generate_for(algorithm).unwrap();
        let certificate = authority.sign("any", &["a.test"], &key, |_| {});
        write_key(&authority.path("any.key"), &pem(label, &inner_key(&key.serialize_der())));
        let endpoint = build_site(&["a.test"], vec![certificate.clone()])
            .unwrap_or_else(|problems| panic!("{problems:?}"));
        assert_eq!(shown(&authority, &endpoint, "a.test"), Ok(der(&certificate)), "{label}");
    }
}

#[test]
fn a_certificate_for_development_is_made() {
    let endpoint = build_site(&["a.test"], vec![Certificate::SelfSigned]).unwrap();
    let summary = &endpoint.certificates()[0];
    let mut names = summary.names.clone();
    names.sort();
    assert_eq!(names, ["127.0.0.1", "::1", "a.test", "localhost"]);
    assert_eq!(summary.issuer, "httpd, a.test");
    assert_eq!((summary.key.as_str(), &summary.file), ("ECDSA P-256", &None));
    assert!(summary.not_after > SystemTime::now() + 300 * DAY);
    assert!(endpoint.warnings().is_empty(), "{:?}", endpoint.warnings());
    assert!(!endpoint.changed(SystemTime::now() + 1000 * DAY));
    // The same without a host.
    let endpoint = build_site(&[], vec![Certificate::SelfSigned]).unwrap();
    assert_eq!(endpoint.certificates()[0].site, "default");
}

#[test]
fn what_status_shows() {
    let authority = Authority::new();
    let certificate = authority.ecdsa("a", &["a.test", "www.a.test", "192.0.2.1"]);
    let endpoint = build_site(&["a.test"], vec![certificate]).unwrap();
    let summary = &endpoint.certificates()[0];
    assert_eq!(summary.names, ["a.test", "www.a.test", "192.0.2.1"]);
    assert_eq!(summary.issuer, "Test Trust, Root 1");
    assert_eq!(summary.file.as_deref(), Some(authority.path("a.pem").as_path()));
    assert!(!summary.expires_soon(SystemTime::now()));
    assert!(summary.expires_soon(SystemTime::now() + 77 * DAY));
}

#[test]
fn what_cannot_be_served_is_refused() {
    let authority = Authority::new();
    let check = |certificate: &Certificate, now: SystemTime, expected: &[&str]| {
        let config = config_with(vec![site(&["a.test"], vec![certificate.clone()])]);
        let problems = Endpoint::build(&config, now, None, false).expect_err("a problem");
        assert!(problems.iter().all(|problem| !problem.place.is_empty() && !problem.help.is_empty()));
        let found = words(&problems);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} / {expected}");
        }
    };
    let now = SystemTime::now();
    let good = authority.ecdsa("good", &["a.test"]);
    let Certificate::Files { cert, key } = &good else { panic!() };
    let files = |cert: &Path, key: &Path| Certificate::Files { cert: cert.to_owned(), key: key.to_owned() };
    let missing = authority.path("missing");
    check(&files(&missing, &missing), now, &["cannot read the certificate", "cannot read the key"]);
    check(&files(key, key), now, &["there is no certificate in the file"]);
    check(&files(cert, cert), now, &["there is no private key in the file"]);
    check(&good, now + 91 * DAY, &["the certificate expired on "]);
    check(&good, now - 2 * DAY, &["the certificate is not valid before "]);

    let other = authority.ecdsa("other", &["a.test"]);
    let Certificate::Files { key: other_key, cert: other_cert } = &other else { panic!() };
    check(&files(cert, other_key), now, &["the private key does not belong to the certificate"]);

    let wrong = authority.path("wrong.pem");
    let leaf = fs::read_to_string(cert).unwrap();
    let (leaf, root) = leaf.split_at(leaf.find("-----END").unwrap());
    let (end, root) = root.split_at(root.find("-----BEGIN").unwrap());
    let leaf = format!("{leaf}{end}");
    fs::write(&wrong, format!("{root}{leaf}")).unwrap();
    let belongs = "the private key does not belong to the certificate";
    check(&files(&wrong, key), now, &["the first certificate is an authority's", belongs]);
    let strangers = fs::read_to_string(other_cert).unwrap();
    fs::write(&wrong, format!("{leaf}{strangers}")).unwrap();
    check(&files(&wrong, key), now, &["certificate 2 of the file did not sign certificate 1"]);
    fs::write(&wrong, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    check(
        &files(&wrong, key),
        now,
        &["certificate 1 of the file cannot be parsed", "the private key cannot be used"],
    );
    fs::write(&wrong, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
    check(&files(cert, &wrong), now, &["the private key cannot be used"]);

    let problems = build(&config_with(vec![site(&["a.test"], Vec::new())])).expect_err("no certificate");
    assert_eq!(words(&problems), ["a listener speaks TLS, and no site has a certificate"]);
}

#[test]
fn all_problems_are_told_at_once() {
    let authority = Authority::new();
    let missing = || Certificate::Files { cert: authority.path("x.pem"), key: authority.path("x.key") };
    let sites = vec![site(&["a.test"], vec![missing(), missing()]), site(&["b.test"], vec![missing()])];
    assert_eq!(build(&config_with(sites)).expect_err("problems").len(), 6);
}

#[test]
fn what_is_served_with_a_warning() {
    let authority = Authority::new();
    let check = |certificate: &Certificate, expected: &[&str]| {
        let endpoint = build_site(&["a.test", "*.a.test"], vec![certificate.clone()]).unwrap();
        let found = words(endpoint.warnings());
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found} / {expected}");
        }
    };
    let names = ["a.test", "*.a.test"];
    check(&authority.ecdsa("good", &names), &[]);
    check(&authority.ecdsa("less", &["a.test"]), &["the certificate is not for *.a.test"]);
    check(
        &authority.ecdsa("none", &["b.test"]),
        &["the certificate is not for a.test", "the certificate is not for *.a.test"],
    );
    let key = KeyPair::generate().unwrap();
    let soon =
        |parameters: &mut CertificateParams| parameters.not_after = (SystemTime::now() + 5 * DAY).into();
    check(&authority.sign("soon", &names, &key, soon), &["the certificate expires in 4 days, on "]);

    let open = authority.ecdsa("open", &names);
    fs::set_permissions(authority.path("open.key"), fs::Permissions::from_mode(0o644)).unwrap();
    check(&open, &["the private key can be read by more than its owner (mode 0644)"]);

    let alone = authority.ecdsa("alone", &names);
    let chain = fs::read_to_string(authority.path("alone.pem")).unwrap();
    fs::write(authority.path("alone.pem"), &chain[..chain.rfind("-----BEGIN").unwrap()]).unwrap();
    check(&alone, &["the certificate stands alone"]);

    let staple = |parameters: &mut CertificateParams| {
        let content = vec![0x30, 3, 2, 1, 5];
        let oid = [1, 3, 6, 1, 5, 5, 7, 1, 24];
        parameters.custom_extensions.push(rcgen::CustomExtension::from_oid_content(&oid, content));
    };
    check(
        &authority.sign("staple", &names, &key, staple),
        &["the certificate demands a stapled OCSP response"],
    );
    fs::write(authority.path("good.pem.ocsp"), b"nonsense").unwrap();
    check(&authority.ecdsa("good", &names), &["not a successful OCSP response"]);
}

#[test]
fn a_site_without_certificate_is_shown_another() {
    let authority = Authority::new();
    let certificate = authority.ecdsa("a", &["a.test", "*.a.test", "b.test", "deep.in.a.test"]);
    let sites = |hosts| vec![site(&["*.a.test", "a.test"], vec![certificate.clone()]), site(hosts, vec![])];
    let warnings = |hosts| build(&config_with(sites(hosts))).unwrap().warnings().to_vec();
    assert!(warnings(&["b.test", "x.a.test", "deep.in.a.test"]).is_empty());
    assert!(warnings(&[]).is_empty());
    let found = warnings(&["b.test", "c.test", "other.in.a.test", "*.c.test"]);
    let expected = ["c.test", "other.in.a.test", "*.c.test"];
    let expected = expected
        .map(|host| format!("the site has no certificate, and the one shown instead is not for {host}"));
    assert_eq!(words(&found), expected);
    assert!(found[0].place.starts_with("site b.test"), "{found:?}");
    let endpoint = build(&config_with(sites(&["b.test"]))).unwrap();
    assert_eq!(shown(&authority, &endpoint, "deep.in.a.test"), Ok(der(&certificate)));
}

/// Notes the OCSP response that came with a certificate.
#[derive(Debug)]
struct Stapled(Arc<Mutex<Vec<u8>>>, Arc<dyn ServerCertVerifier>);

impl ServerCertVerifier for Stapled {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.0.lock().unwrap() = response.to_vec();
        self.1.verify_server_cert(certificate, intermediates, name, &[], now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.1.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.1.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.1.supported_verify_schemes()
    }
}

/// A successful OCSP response without an end. RFC 6960 section 4.2.1.
fn ocsp_response() -> Vec<u8> {
    let tlv = |tag: u8, contents: &[&[u8]]| {
        let contents = contents.concat();
        [&[tag, 0x81, u8::try_from(contents.len()).unwrap()], &contents[..]].concat()
    };
    let time = tlv(0x18, &[b"20260101000000Z"]);
    let single = tlv(0x30, &[&tlv(0x30, &[&[5; 60]]), &[0x80, 0], &time]);
    let data = tlv(0x30, &[&tlv(0xa2, &[&[4, 1, 7]]), &time, &tlv(0x30, &[&single])]);
    let basic = tlv(0x30, &[&data, &tlv(0x30, &[&[6, 1, 42]]), &[3, 2, 0, 1]]);
    let bytes = tlv(0x30, &[&[6, 1, 42], &tlv(4, &[&basic])]);
    tlv(0x30, &[&[10, 1, 0], &tlv(0xa0, &[&bytes])])
}

#[test]
fn an_ocsp_response_beside_the_certificate_is_stapled() {
    let authority = Authority::new();
    let certificate = authority.ecdsa("a", &["a.test"]);
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate.clone()).unwrap();
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build().unwrap();
    let stapled = |version: &'static SupportedProtocolVersion| {
        let endpoint = build_site(&["a.test"], vec![certificate.clone()]).unwrap();
        let seen = Arc::default();
        let verifier = Arc::new(Stapled(Arc::clone(&seen), verifier.clone()));
        let config = rustls::ClientConfig::builder_with_protocol_versions(&[version]);
        let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
        Wire::new(&endpoint, Client::new(&Arc::new(config), "a.test")).shake_hands();
        let seen = seen.lock().unwrap().clone();
        (seen, endpoint.certificates()[0].stapled)
    };
    assert_eq!(stapled(&TLS13), (Vec::new(), false));
    fs::write(authority.path("a.pem.ocsp"), ocsp_response()).unwrap();
    for version in [&TLS12, &TLS13] {
        assert_eq!(stapled(version), (ocsp_response(), true), "{version:?}");
    }
}

#[test]
fn changed_files_are_noticed() {
    let authority = Authority::new();
    let certificate = authority.ecdsa("a", &["a.test"]);
    let now = SystemTime::now();
    let rebuild = || build_site(&["a.test"], vec![certificate.clone()]).unwrap();
    let endpoint = rebuild();
    assert!(!endpoint.changed(now));
    authority.ecdsa("a", &["a.test", "b.test"]);
    assert!(endpoint.changed(now));
    let endpoint = rebuild();
    assert!(!endpoint.changed(now));
    fs::write(authority.path("a.pem.ocsp"), b"").unwrap();
    assert!(endpoint.changed(now), "a response beside it");
    let endpoint = rebuild();
    fs::remove_file(authority.path("a.key")).unwrap();
    assert!(endpoint.changed(now), "a file that is gone");

    // As certbot does it: a link to the newest.
    authority.ecdsa("b1", &["a.test"]);
    authority.ecdsa("b2", &["a.test"]);
    for (link, target) in [("live.pem", "b1.pem"), ("live.key", "b1.key")] {
        std::os::unix::fs::symlink(authority.path(target), authority.path(link)).unwrap();
    }
    let live = Certificate::Files { cert: authority.path("live.pem"), key: authority.path("live.key") };
    let endpoint = build_site(&["a.test"], vec![live]).unwrap();
    assert!(!endpoint.changed(now));
    for (link, target) in [("live.pem", "b2.pem"), ("live.key", "b2.key")] {
        fs::remove_file(authority.path(link)).unwrap();
        std::os::unix::fs::symlink(authority.path(target), authority.path(link)).unwrap();
    }
    assert!(endpoint.changed(now));
}

#[test]
fn ticket_keys_come_from_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let read = |files: Vec<PathBuf>| {
        let mut config = config_with(Vec::new());
        config.tls.ticket_keys = files;
        read_ticket_keys(&config)
    };
    let (small, large) = (file("small", &[1; 48]), file("large", &[2; 80]));
    assert!(read(Vec::new()).expect("nothing to read").is_none());
    assert!(read(vec![small.clone(), large]).expect("good ones").is_some());
    let problems = read(vec![small.clone(), file("bad", &[1; 47])]).expect_err("a length");
    assert_eq!(words(&problems), ["a ticket key must have 48 or 80 bytes"]);
    let problems = read(vec![directory.path().join("missing"), small.clone()]).expect_err("no file");
    assert!(problems[0].what.starts_with("cannot read the ticket key"));
    let problems = read(vec![small; 9]).expect_err("too many");
    assert_eq!(words(&problems), ["more than 8 ticket keys"]);
}
