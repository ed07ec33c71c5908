//! Certificates: read by the supervisor as root, checked so that what is served will work, and
//! described for `status`. Knows files and X.509; the handshake knows neither. RFC 5280, RFC 6066.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{Error as TlsError, InconsistentKeys};
use x509_parser::extensions::GeneralName;
use x509_parser::oid_registry;
use x509_parser::prelude::X509Certificate;
use x509_parser::public_key::PublicKey;
use zeroize::Zeroizing;

use super::staple;
use crate::config::{Certificate, Site};

/// Something the operator should put right.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// The file, or the site's place in the configuration.
    pub place: String,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub help: String,
}

/// What `status` says about a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateSummary {
    /// The site: its first host, or "default".
    pub site: String,
    /// The names the certificate is for.
    pub names: Vec<String>,
    /// Who vouches for it.
    pub issuer: String,
    /// When it begins to be valid.
    pub not_before: SystemTime,
    /// When it ceases to be valid.
    pub not_after: SystemTime,
    /// "ECDSA P-256", "RSA 2048".
    pub key: String,
    /// Where it was read from; `None`: made at start.
    pub file: Option<PathBuf>,
    /// Whether an OCSP response goes with it.
    pub stapled: bool,
}

impl CertificateSummary {
    /// Whether it expires within [`EXPIRY_WARNING`].
    pub fn expires_soon(&self, now: SystemTime) -> bool {
        self.not_after < now + EXPIRY_WARNING
    }
}

/// How long before its end a certificate is complained about. Automatic renewal comes a month before,
/// of the shortest-lived certificates half a week.
pub const EXPIRY_WARNING: Duration = Duration::from_secs(14 * 24 * 3600);

/// A certificate ready to be served.
pub struct Loaded {
    /// For the handshake.
    pub key: Arc<CertifiedKey>,
    /// For `status`.
    pub summary: CertificateSummary,
    /// When the staple must not be served any more.
    pub staple_until: Option<SystemTime>,
}

/// How good a key is for clients that can check several kinds: less is better. Elliptic curves
/// cost the server a tenth of RSA; Ed25519 is issued by no public authority.
pub fn rank(key: &CertifiedKey) -> u8 {
    match key.key.algorithm() {
        rustls::SignatureAlgorithm::ECDSA => 0,
        rustls::SignatureAlgorithm::ED25519 => 1,
        _ => 2,
    }
}

/// Loads one certificate of a site and checks it. Errors go to `problems`, what can be served
/// nevertheless to `warnings`.
pub fn load(
    site: &Site,
    certificate: &Certificate,
    now: SystemTime,
    provider: &CryptoProvider,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) -> Option<Loaded> {
    let (chain, key, file) = match certificate {
        Certificate::Files { cert, key } => {
            let chain = read_chain(cert).map_err(|problem| problems.push(problem)).ok();
            let key = read_key(key, warnings).map_err(|problem| problems.push(problem)).ok();
            (chain?, key?, Some(cert.as_path()))
        }
        Certificate::SelfSigned => match self_signed(site, now) {
            Ok((chain, key)) => (chain, key, None),
            Err(problem) => {
                problems.push(problem);
                return None;
            }
        },
    };
    let place = file.map_or_else(|| place(site), |file| file.display().to_string());
    let before = problems.len();
    let summary = check(site, &chain, &place, now, file, problems, warnings);
    let certified = certify(chain, key, &place, provider).map_err(|problem| problems.push(problem)).ok();
    if problems.len() > before {
        return None;
    }
    let (mut summary, mut certified) = (summary?, certified?);
    let mut staple_until = None;
    if let Some(found) = file.and_then(|file| staple::read(file, now, warnings)) {
        staple_until = found.until;
        certified.ocsp = Some(found.response);
        summary.stapled = true;
    }
    if !summary.stapled && must_staple(certified.cert.first()) {
        warnings.push(Problem {
            place,
            what: "the certificate demands a stapled OCSP response, and there is none".into(),
            help:
                "put the response (DER) beside the certificate, in a file of the same name with .ocsp added"
                    .into(),
        });
    }
    Some(Loaded { key: Arc::new(certified), summary, staple_until })
}

/// Complains of the hosts of a site without certificate that another's, which is shown instead, is not for.
pub fn check_borrowed<'k>(
    site: &Site,
    shown: impl Fn(&str) -> &'k [Arc<CertifiedKey>],
    warnings: &mut Vec<Problem>,
) {
    let is_for = |key: &Arc<CertifiedKey>, host: &str| {
        let leaf = key.cert.first().and_then(|leaf| x509_parser::parse_x509_certificate(leaf).ok());
        leaf.is_some_and(|(_, leaf)| names(&leaf).iter().any(|name| covers(name, host)))
    };
    for host in &site.hosts {
        if !shown(host).iter().all(|key| is_for(key, host)) {
            warnings.push(problem(
                place(site),
                format!("the site has no certificate, and the one shown instead is not for {host}"),
                "add [[site.certificate]] to the site, or have the other one name the host",
            ));
        }
    }
}

/// The site, for messages.
pub fn site_name(site: &Site) -> String {
    site.hosts.first().cloned().unwrap_or_else(|| "default".into())
}

fn place(site: &Site) -> String {
    format!("site {} (line {})", site_name(site), site.line)
}

fn problem(place: impl Into<String>, what: impl Into<String>, help: impl Into<String>) -> Problem {
    Problem { place: place.into(), what: what.into(), help: help.into() }
}

fn read_chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, Problem> {
    let place = path.display().to_string();
    let bytes = fs::read(path).map_err(|error| {
        problem(
            &*place,
            format!("cannot read the certificate: {error}"),
            "check the path and its permissions",
        )
    })?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(problem(
            place,
            "there is no certificate in the file",
            "it must hold the chain as PEM, the server's own certificate first",
        )),
        Err(error) => {
            Err(problem(place, format!("not a PEM file: {error}"), "it must hold the chain as PEM"))
        }
    }
}

fn read_key(path: &Path, warnings: &mut Vec<Problem>) -> Result<PrivateKeyDer<'static>, Problem> {
    let place = path.display().to_string();
    let unreadable = |error: std::io::Error| {
        problem(&*place, format!("cannot read the key: {error}"), "check the path and its permissions")
    };
    let mut file = File::open(path).map_err(unreadable)?;
    let facts = file.metadata().map_err(unreadable)?;
    // One allocation of the right size: a vector that grows leaves copies of the key behind.
    let room = usize::try_from(facts.len()).unwrap_or(0).min(1 << 20) + 1;
    let mut bytes = Zeroizing::new(Vec::with_capacity(room));
    file.read_to_end(&mut bytes).map_err(unreadable)?;
    if facts.mode() & 0o044 != 0 {
        warnings.push(problem(
            &*place,
            format!(
                "the private key can be read by more than its owner (mode {:04o})",
                facts.mode() & 0o7777
            ),
            format!("chmod 600 {place}"),
        ));
    }
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        let what = match error {
            pem::Error::NoItemsFound => "there is no private key in the file".to_owned(),
            other => format!("not a PEM file: {other}"),
        };
        problem(&*place, what, "it must hold a PKCS#8, SEC1 or PKCS#1 key as PEM, without a password")
    })
}

fn self_signed(
    site: &Site,
    now: SystemTime,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Problem> {
    let mut names = site.hosts.clone();
    names.extend(["localhost", "127.0.0.1", "::1"].map(String::from));
    names.sort();
    names.dedup();
    let make = || -> Result<_, rcgen::Error> {
        let mut parameters = rcgen::CertificateParams::new(names)?;
        parameters.distinguished_name.push(rcgen::DnType::CommonName, format!("httpd, {}", site_name(site)));
        // An hour for clocks that are behind; clients refuse certificates of more than 398 days.
        parameters.not_before = (now - Duration::from_secs(3600)).into();
        parameters.not_after = (now + Duration::from_secs(365 * 24 * 3600)).into();
        parameters.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = parameters.self_signed(&key)?;
        Ok((certificate.der().clone(), key.serialize_der()))
    };
    let failed = |error: String| {
        problem(place(site), format!("cannot make a certificate: {error}"), "name certificate files instead")
    };
    let (certificate, key) = make().map_err(|error| failed(error.to_string()))?;
    let key = PrivateKeyDer::try_from(key).map_err(|error| failed(error.to_owned()))?;
    Ok((vec![certificate], key))
}

/// Brings chain and key together, if they belong together.
fn certify(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    place: &str,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, Problem> {
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        TlsError::InconsistentKeys(InconsistentKeys::KeyMismatch) => problem(
            place,
            "the private key does not belong to the certificate",
            "the first certificate of the file must be the server's own, and the key the one it was made for",
        ),
        other => problem(
            place,
            format!("the private key cannot be used: {other}"),
            "use ECDSA (P-256, P-384), Ed25519, or RSA of 2048 to 8192 bits",
        ),
    })
}

/// Checks what can be checked of a chain without trusting anybody.
fn check(
    site: &Site,
    chain: &[CertificateDer<'_>],
    place: &str,
    now: SystemTime,
    file: Option<&Path>,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) -> Option<CertificateSummary> {
    let mut parsed = Vec::with_capacity(chain.len());
    for (index, der) in chain.iter().enumerate() {
        match x509_parser::parse_x509_certificate(der) {
            Ok((_, certificate)) => parsed.push(certificate),
            Err(_) => {
                let what = format!("certificate {} of the file cannot be parsed", index + 1);
                problems.push(problem(place, what, "get the file anew from the authority"));
                return None;
            }
        }
    }
    check_order(&parsed, place, problems, warnings);
    let leaf = &parsed[0];
    let validity = leaf.validity();
    let (not_before, not_after) =
        (time(validity.not_before.timestamp()), time(validity.not_after.timestamp()));
    if not_after <= now {
        let what = format!("the certificate expired on {}", date(not_after));
        problems.push(problem(place, what, "renew it"));
    } else if not_before > now {
        let what = format!("the certificate is not valid before {}", date(not_before));
        problems.push(problem(place, what, "check the clock of this machine, or wait"));
    } else if not_after < now + EXPIRY_WARNING {
        let days = not_after.duration_since(now).unwrap_or_default().as_secs() / (24 * 3600);
        let what = format!("the certificate expires in {days} days, on {}", date(not_after));
        warnings.push(problem(place, what, "renew it; it is served as soon as the file has changed"));
    }
    let key = describe_key(leaf, place, problems);
    let names = names(leaf);
    for host in &site.hosts {
        if !names.iter().any(|name| covers(name, host)) {
            let what = format!("the certificate is not for {host}");
            warnings.push(problem(place, what, "ask the authority for one that names all hosts of the site"));
        }
    }
    Some(CertificateSummary {
        site: site_name(site),
        names,
        issuer: issuer(leaf),
        not_before,
        not_after,
        key,
        file: file.map(Path::to_path_buf),
        stapled: false,
    })
}

/// RFC 5246 section 7.4.2: each certificate vouches for the one before it. TLS 1.3 lets clients sort
/// them out; not all do.
fn check_order(
    parsed: &[X509Certificate<'_>],
    place: &str,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) {
    let leaf = &parsed[0];
    let self_issued =
        |certificate: &X509Certificate<'_>| certificate.subject().as_raw() == certificate.issuer().as_raw();
    if parsed.len() > 1 && leaf.is_ca() {
        problems.push(problem(
            place,
            "the first certificate is an authority's",
            "put the server's own certificate first, then each issuer after what it signed",
        ));
        return;
    }
    for (index, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer().as_raw() != pair[1].subject().as_raw() {
            problems.push(problem(
                place,
                format!("certificate {} of the file did not sign certificate {}", index + 2, index + 1),
                "put the server's own certificate first, then each issuer after what it signed",
            ));
            return;
        }
    }
    if parsed.len() == 1 && !self_issued(leaf) {
        warnings.push(problem(
            place,
            "the certificate stands alone: clients that do not know its issuer will refuse it",
            "use the file with the full chain (with certbot: fullchain.pem)",
        ));
    }
}

fn describe_key(leaf: &X509Certificate<'_>, place: &str, problems: &mut Vec<Problem>) -> String {
    let spki = leaf.public_key();
    match spki.parsed() {
        Ok(PublicKey::RSA(rsa)) => {
            // The bits of the modulus; x509-parser counts bytes times eight.
            let modulus = rsa.modulus.iter().skip_while(|byte| **byte == 0).copied().collect::<Vec<_>>();
            let bits = modulus.first().map_or(0, |first| modulus.len() * 8 - first.leading_zeros() as usize);
            if bits < 2048 {
                let what = format!("the RSA key has only {bits} bits");
                problems.push(problem(place, what, "use ECDSA P-256, or RSA with at least 2048 bits"));
            }
            format!("RSA {bits}")
        }
        Ok(PublicKey::EC(point)) => {
            format!("ECDSA P-{}", if point.key_size() > 384 { 521 } else { point.key_size() })
        }
        _ if spki.algorithm.algorithm == oid_registry::OID_SIG_ED25519 => "Ed25519".into(),
        _ => "unknown".into(),
    }
}

fn names(leaf: &X509Certificate<'_>) -> Vec<String> {
    let Ok(Some(extension)) = leaf.subject_alternative_name() else {
        return Vec::new();
    };
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        GeneralName::IPAddress([a, b, c, d]) => Some(std::net::Ipv4Addr::new(*a, *b, *c, *d).to_string()),
        GeneralName::IPAddress(bytes) => {
            <[u8; 16]>::try_from(*bytes).ok().map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())
        }
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// Whether a certificate's name is good for a host. A wildcard stands for one label; a site's
/// wildcard host needs the same wildcard (RFC 9525 section 6.3).
fn covers(name: &str, host: &str) -> bool {
    if name.eq_ignore_ascii_case(host) {
        return true;
    }
    let (Some(suffix), Some((label, rest))) = (name.strip_prefix("*."), host.split_once('.')) else {
        return false;
    };
    label != "*" && rest.eq_ignore_ascii_case(suffix)
}

fn issuer(leaf: &X509Certificate<'_>) -> String {
    let issuer = leaf.issuer();
    let organization = issuer.iter_organization().find_map(|name| name.as_str().ok());
    let common = issuer.iter_common_name().find_map(|name| name.as_str().ok());
    match (organization, common) {
        (Some(organization), Some(common)) => format!("{organization}, {common}"),
        (Some(name), None) | (None, Some(name)) => name.to_owned(),
        (None, None) => issuer.to_string(),
    }
}

/// RFC 7633: the TLS feature extension with status_request (5).
fn must_staple(leaf: Option<&CertificateDer<'_>>) -> bool {
    let Some(Ok((_, leaf))) = leaf.map(|leaf| x509_parser::parse_x509_certificate(leaf)) else {
        return false;
    };
    let mut extensions = leaf.extensions().iter();
    extensions.any(|found| {
        found.oid.to_id_string() == "1.3.6.1.5.5.7.1.24"
            && found.value.windows(3).any(|part| part == [2, 1, 5])
    })
}

fn time(seconds: i64) -> SystemTime {
    match u64::try_from(seconds) {
        // "99991231235959Z" stands for no end, and must not overflow anything.
        Ok(seconds) => UNIX_EPOCH + Duration::from_secs(seconds.min(253_402_300_799)),
        Err(_) => UNIX_EPOCH,
    }
}

fn date(time: SystemTime) -> String {
    httpdate::fmt_http_date(time)
}

/// A file as it was when it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fingerprint {
    path: PathBuf,
    found: Option<Identity>,
}

/// The resolved path, and what changes when a file does.
type Identity = (PathBuf, u64, u64, u64, i64, i64);

impl Fingerprint {
    /// Looks at the file, which need not exist.
    pub fn of(path: &Path) -> Self {
        Self { path: path.to_owned(), found: identity(path) }
    }

    /// Whether the file is another one now.
    pub fn has_changed(&self) -> bool {
        identity(&self.path) != self.found
    }
}

fn identity(path: &Path) -> Option<Identity> {
    let resolved = fs::canonicalize(path).ok()?;
    let facts = fs::metadata(&resolved).ok()?;
    Some((resolved, facts.dev(), facts.ino(), facts.len(), facts.mtime(), facts.mtime_nsec()))
}
