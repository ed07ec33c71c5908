//! TLS as the supervisor sees it: certificates read and watched, ticket keys made and rotated, the
//! kernel asked once whether it encrypts. Workers are given the result and never see a key file.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::config::{Config, KernelTls};
use crate::sys::shared::Page;
use crate::sys::tls_probe;
use crate::tls::{self, Endpoint, KernelSupport, Problem, TicketKeys};

/// How often the files of certificates are looked at, and ticket keys rotated when due. A look is a
/// handful of stat calls.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often an expiry that comes near is complained about.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// What outlives generations.
#[derive(Default)]
pub(super) struct Secure {
    keys: Option<TicketKeys>,
    probed: Option<KernelSupport>,
    looks_at: Option<Instant>,
    warns_at: Option<Instant>,
    /// Why files that changed could not be used, said once.
    refused: Option<String>,
}

/// Reads and checks all that TLS needs of `config`, as a start would; what should be put right though
/// it does not keep anything from being served.
///
/// # Errors
/// What keeps it from being served.
pub fn check(config: &Config) -> Result<Vec<String>, String> {
    let endpoint = Secure::default().endpoint(config, SystemTime::now())?;
    Ok(endpoint.map(|endpoint| endpoint.warnings().iter().map(sentence).collect()).unwrap_or_default())
}

impl Secure {
    /// What the sessions of a generation are made of; `None` where nobody speaks TLS.
    ///
    /// # Errors
    /// What keeps it from being served.
    pub(super) fn endpoint(&mut self, config: &Config, now: SystemTime) -> Result<Option<Endpoint>, String> {
        if !config.listen.iter().any(|listen| listen.tls) {
            self.looks_at = None;
            return Ok(None);
        }
        let kernel = config.tls.kernel != KernelTls::Off && self.probe().usable;
        if config.tls.kernel == KernelTls::Require && !kernel {
            return Err(format!("tls.kernel = \"require\", but {}", self.probe().text));
        }
        let keys = match config.tls.tickets {
            None => None,
            Some(every) => Some(self.ticket_keys(config, every, now)?),
        };
        let endpoint = Endpoint::build(config, now, keys, kernel).map_err(|problems| sentences(&problems))?;
        for warning in endpoint.warnings() {
            tracing::warn!("{}", sentence(warning));
        }
        self.refused = None;
        self.looks_at = Some(Instant::now() + LOOK_EVERY);
        self.warns_at = Some(Instant::now() + WARN_EVERY);
        Ok(Some(endpoint))
    }

    fn probe(&mut self) -> &KernelSupport {
        self.probed.get_or_insert_with(|| {
            let probed = tls::probe(tls_probe::try_install);
            tracing::debug!("kernel TLS: {}", probed.text);
            probed
        })
    }

    fn ticket_keys(
        &mut self,
        config: &Config,
        every: Duration,
        now: SystemTime,
    ) -> Result<TicketKeys, String> {
        let keys = self.shared_keys()?;
        if config.tls.ticket_keys.is_empty() {
            keys.rotate(now, every);
        } else {
            tls::read_ticket_keys(config, now, keys).map_err(|problems| sentences(&problems))?;
        }
        Ok(keys)
    }

    /// The keys all workers see. Their page is never unmapped: workers of any generation may use it.
    fn shared_keys(&mut self) -> Result<TicketKeys, String> {
        if let Some(keys) = self.keys {
            return Ok(keys);
        }
        let page = Page::new().map_err(|error| error.to_string())?;
        let keys = TicketKeys::new(page.forever());
        self.keys = Some(keys);
        Ok(keys)
    }

    /// When there is something to look at.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.looks_at
    }

    /// Whether it is time for [`Secure::look`]; if so, the next time is a while later.
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        let is_due = self.looks_at.is_some_and(|at| at <= now);
        if is_due {
            self.looks_at = Some(now + LOOK_EVERY);
        }
        is_due
    }

    /// Rotates ticket keys and complains about what expires. Whether the files of certificates are
    /// others than those being served.
    pub(super) fn look(&mut self, config: &Config, endpoint: &Endpoint, now: Instant) -> bool {
        let wall = SystemTime::now();
        if let (Some(keys), Some(every)) = (self.keys, config.tls.tickets)
            && config.tls.ticket_keys.is_empty()
            && keys.rotate(wall, every)
        {
            tracing::info!("rotated the keys of session tickets");
        }
        if self.warns_at.is_some_and(|at| at <= now) {
            self.warns_at = Some(now + WARN_EVERY);
            for certificate in endpoint.certificates().iter().filter(|found| found.expires_soon(wall)) {
                let days = certificate.not_after.duration_since(wall).unwrap_or_default().as_secs() / 86400;
                let names = certificate.names.join(", ");
                tracing::warn!("the certificate for {names} expires in {days} days: renew it");
            }
        }
        endpoint.changed(wall)
    }

    /// Notes that changed files cannot be used; whether that is news.
    pub(super) fn refuse(&mut self, reason: &str) -> bool {
        let news = self.refused.as_deref() != Some(reason);
        self.refused = Some(reason.to_owned());
        news
    }

    /// The ticket keys in a pipe, for the program that replaces this one: in its environment others
    /// could read them. `None`, where that fails, costs full handshakes.
    pub(super) fn export(&self) -> Option<OwnedFd> {
        let bytes = self.keys?.export();
        let (reader, mut writer) = std::io::pipe().ok()?;
        // A pipe takes a page without anybody reading, and the keys are less.
        const { assert!(tls::TICKET_WORDS * 8 <= 4096) };
        writer.write_all(&bytes).ok()?;
        Some(reader.into())
    }

    /// Takes over what [`Self::export`] gave.
    pub(super) fn import(&mut self, file: OwnedFd) {
        let mut bytes = zeroize::Zeroizing::new(Vec::with_capacity(4096));
        let read = std::fs::File::from(file).take(4096).read_to_end(&mut bytes);
        if read.is_ok()
            && let Ok(keys) = self.shared_keys()
        {
            keys.import(&bytes);
        }
    }

    /// Whether the kernel encrypts, in words; `None` where nobody asked, without TLS.
    pub(super) fn kernel(&self) -> Option<&KernelSupport> {
        self.probed.as_ref()
    }

    /// What `status` says, by name.
    pub(super) fn status(&self, endpoint: Option<&Endpoint>) -> Vec<(String, Value)> {
        let Some(endpoint) = endpoint else { return Vec::new() };
        let certificates: Vec<Value> = endpoint.certificates().iter().map(certificate).collect();
        let mut status = vec![("certificates".to_owned(), Value::from(certificates))];
        if let Some(probed) = &self.probed {
            let kernel = json!({ "used": endpoint.kernel_tls(), "probe": probed.text });
            status.push(("kernel_tls".to_owned(), kernel));
        }
        if let Some(reason) = &self.refused {
            status.push(("certificates_refused".to_owned(), Value::from(reason.as_str())));
        }
        if let Some(since) = self.keys.and_then(|keys| keys.since()) {
            status.push(("ticket_key_since".to_owned(), Value::from(seconds(since))));
        }
        status
    }
}

fn certificate(summary: &tls::CertificateSummary) -> Value {
    json!({
        "site": summary.site,
        "names": summary.names,
        "issuer": summary.issuer,
        "key": summary.key,
        "not_before": seconds(summary.not_before),
        "not_after": seconds(summary.not_after),
        "file": summary.file.as_ref().map(|file| file.display().to_string()),
        "stapled": summary.stapled,
    })
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn sentence(problem: &Problem) -> String {
    format!("{}: {} ({})", problem.place, problem.what, problem.help)
}

fn sentences(problems: &[Problem]) -> String {
    problems.iter().map(sentence).collect::<Vec<_>>().join("; ")
}
