//! TLS as the supervisor sees it: certificates read and watched, ticket keys made and rotated, the
//! kernel asked once whether it encrypts. Workers are given the result and never see a key file.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::Supervisor;
use crate::config::{Config, KernelTls};
use crate::sys::shared::Page;
use crate::sys::tls_probe;
use crate::tls::{self, Endpoint, FileKeys, KernelSupport, Problem, TicketKeys};

/// How often the files of certificates are looked at, and ticket keys rotated when due. A look is a
/// handful of stat calls.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// How often an expiry that comes near is complained about.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

/// What outlives generations.
#[derive(Default)]
pub(super) struct Secure {
    keys: Option<TicketKeys>,
    /// Whether those keys are from files: then nothing of them may last longer than the files are configured.
    from_files: bool,
    probed: Option<KernelSupport>,
    looks_at: Option<Instant>,
    warns_at: Option<Instant>,
    /// Why files that changed could not be used, said once.
    refused: Option<String>,
}

/// The TLS of a generation.
pub(super) struct Secured {
    /// What its sessions are made of; `None` where nobody speaks TLS.
    pub(super) endpoint: Option<Endpoint>,
    /// What becomes of the ticket keys when the generation serves; `None`: nothing was read for it.
    tickets: Option<Tickets>,
}

/// Where the ticket keys of a configuration come from.
enum Tickets {
    Unused,
    /// Ours, changed so often.
    Own(Duration),
    Files(FileKeys),
}

impl Secured {
    /// For a generation with the certificates and keys of the one before.
    pub(super) fn unchanged(endpoint: Option<Endpoint>) -> Self {
        Self { endpoint, tickets: None }
    }
}

impl Secure {
    /// Reads what the sessions of a generation are made of. Whoever serves is not affected before
    /// [`Self::accept`].
    ///
    /// # Errors
    /// What keeps it from being served.
    pub(super) fn read(&mut self, config: &Config, now: SystemTime) -> Result<Secured, String> {
        // A refusal may have been put right since, by loading the module.
        self.probed.take_if(|probed| !probed.usable);
        if !config.listen.iter().any(|listen| listen.tls) {
            return Ok(Secured { endpoint: None, tickets: Some(Tickets::Unused) });
        }
        let kernel = config.tls.kernel != KernelTls::Off && self.probe().usable;
        if config.tls.kernel == KernelTls::Require && !kernel {
            return Err(format!("tls.kernel = \"require\", but {}", self.probe().text));
        }
        let tickets = match config.tls.tickets {
            None => Tickets::Unused,
            Some(every) => match tls::read_ticket_keys(config).map_err(|problems| sentences(&problems))? {
                None => Tickets::Own(every),
                Some(keys) => Tickets::Files(keys),
            },
        };
        let keys = match tickets {
            Tickets::Unused => None,
            Tickets::Own(_) | Tickets::Files(_) => Some(self.shared_keys()?),
        };
        let endpoint = Endpoint::build(config, now, keys, kernel).map_err(|problems| sentences(&problems))?;
        Ok(Secured { endpoint: Some(endpoint), tickets: Some(tickets) })
    }

    /// Takes in that a generation serves now. What its certificates lack is said, where they were just read.
    pub(super) fn accept(&mut self, secured: &mut Secured, now: Instant) {
        let Some(tickets) = secured.tickets.take() else { return };
        let wall = SystemTime::now();
        if let Some(keys) = self.keys {
            let were_from_files = std::mem::take(&mut self.from_files);
            match tickets {
                Tickets::Files(files) => {
                    keys.replace(wall, &files);
                    self.from_files = true;
                }
                // Whoever drains uses them, too.
                Tickets::Own(_) | Tickets::Unused if were_from_files => keys.renew(wall),
                Tickets::Own(every) => _ = keys.rotate(wall, every),
                Tickets::Unused => {}
            }
        }
        self.refused = None;
        self.looks_at = secured.endpoint.as_ref().map(|_| now + LOOK_EVERY);
        self.warns_at = secured.endpoint.as_ref().map(|_| now + WARN_EVERY);
        for warning in secured.endpoint.iter().flat_map(Endpoint::warnings) {
            tracing::warn!("{}", sentence(warning));
        }
    }

    fn probe(&mut self) -> &KernelSupport {
        self.probed.get_or_insert_with(|| {
            let probed = tls::probe(tls_probe::try_install);
            tracing::debug!("kernel TLS: {}", probed.text);
            probed
        })
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
            && !self.from_files
            && keys.rotate(wall, every)
        {
            tracing::info!("rotated the keys of session tickets");
        }
        for warning in self.expiring(endpoint, now, wall) {
            tracing::warn!("{warning}");
        }
        endpoint.changed(wall)
    }

    /// What is to be said today of certificates that expire soon.
    fn expiring(&mut self, endpoint: &Endpoint, now: Instant, wall: SystemTime) -> Vec<String> {
        if self.warns_at.is_none_or(|at| now < at) {
            return Vec::new();
        }
        self.warns_at = Some(now + WARN_EVERY);
        let soon = endpoint.certificates().iter().filter(|found| found.expires_soon(wall));
        soon.map(|certificate| expiry(certificate, wall)).collect()
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

    /// Whether what [`Self::export`] gives is from files.
    pub(super) fn is_from_files(&self) -> bool {
        self.from_files
    }

    /// Takes over what [`Self::export`] gave.
    pub(super) fn import(&mut self, file: OwnedFd, from_files: bool) {
        let mut bytes = zeroize::Zeroizing::new(Vec::with_capacity(4096));
        let read = std::fs::File::from(file).take(4096).read_to_end(&mut bytes);
        if read.is_ok()
            && let Ok(keys) = self.shared_keys()
        {
            self.from_files = keys.import(&bytes) && from_files;
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

impl Supervisor {
    /// Takes in certificates that changed without anybody saying so: a generation with the same
    /// configuration and what the files hold now.
    pub(super) fn watch_certificates(&mut self) {
        let now = Instant::now();
        if !self.secure.is_due(now) {
            return;
        }
        let Some(current) = self.machine.current().map(|current| current.id) else { return };
        let Some(generation) = self.generations.get(&current) else { return };
        let Some(endpoint) = &generation.tls.endpoint else { return };
        let config = Rc::clone(&generation.config);
        if !self.secure.look(&config, endpoint, now) || !self.machine.may_begin() {
            return;
        }
        match self.begin_afresh(Config::clone(&config)) {
            Ok(()) => tracing::info!("certificate files have changed: taking them in"),
            Err(reason) if self.secure.refuse(&reason) => {
                tracing::error!("certificate files have changed, those before go on being used: {reason}");
            }
            Err(_) => {}
        }
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

fn expiry(certificate: &tls::CertificateSummary, now: SystemTime) -> String {
    let names = certificate.names.join(", ");
    match certificate.not_after.duration_since(now) {
        Ok(left) => {
            format!("the certificate for {names} expires in {} days: renew it", left.as_secs() / 86400)
        }
        Err(_) => format!("the certificate for {names} has expired: renew it"),
    }
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::config::{self, CertificateFlag, Environment, Flags};

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn config(folder: &Path, certificate: CertificateFlag) -> Config {
        let flags = Flags {
            root: folder.to_owned(),
            cert: Some(certificate),
            http_port: 8080,
            https_port: 8443,
            workers: 1,
            ..Flags::default()
        };
        config::from_flags(&flags, &Environment::of_this_process()).unwrap()
    }

    fn config_with_keys(folder: &Path, keys: &[u8]) -> Config {
        let file = |key: &u8| {
            let path = folder.join(format!("{key}.key"));
            std::fs::write(&path, [*key; 48]).unwrap();
            path
        };
        let mut config = config(folder, CertificateFlag::SelfSigned);
        config.tls.ticket_keys = keys.iter().map(file).collect();
        config
    }

    impl Secure {
        fn serve(&mut self, config: &Config) -> Secured {
            let mut secured = self.read(config, SystemTime::now()).unwrap();
            self.accept(&mut secured, Instant::now());
            secured
        }

        /// Which of the keys of files, by their names, are among those that open tickets.
        fn held(&self) -> Vec<u8> {
            let bytes = self.keys.unwrap().export();
            let is_held = |key: &u8| bytes.windows(16).any(|name| name == [*key; 16]);
            (1..=9).filter(is_held).collect()
        }
    }

    #[test]
    fn ticket_keys_are_those_of_the_generation_that_serves() {
        let folder = tempfile::tempdir().unwrap();
        let with_keys = |keys: &[u8]| config_with_keys(folder.path(), keys);
        let mut secure = Secure::default();
        let now = SystemTime::now();
        let mut coming = secure.read(&with_keys(&[1, 2, 3]), now).unwrap();
        assert!(secure.held().is_empty(), "it does not serve yet");
        secure.accept(&mut coming, Instant::now());
        assert_eq!(secure.held(), [1, 2, 3]);

        assert!(secure.read(&with_keys(&[4]), now).is_ok() && secure.read(&with_keys(&[]), now).is_ok());
        let mut missing = with_keys(&[4]);
        missing.tls.ticket_keys.push(PathBuf::from("/nowhere"));
        assert!(secure.read(&missing, now).is_err());
        assert_eq!(secure.held(), [1, 2, 3], "as long as none of them serves");

        let mut config = with_keys(&[1, 2, 3]);
        config.tls.tickets = Some(Duration::ZERO);
        secure.look(&config, coming.endpoint.as_ref().unwrap(), Instant::now());
        assert_eq!(secure.held(), [1, 2, 3], "they are not rotated");

        let mut successor = Secure::default();
        successor.import(secure.export().unwrap(), secure.is_from_files());
        assert_eq!(successor.held(), [1, 2, 3]);
        let mut without_tickets = with_keys(&[]);
        without_tickets.tls.tickets = None;
        secure.serve(&without_tickets);
        assert!(secure.held().is_empty(), "not even for who drains");
        secure.serve(&with_keys(&[1, 2, 3]));
        for mut secure in [secure, successor] {
            secure.serve(&with_keys(&[]));
            assert!(secure.held().is_empty(), "those of files that are not configured any more are gone");
            let own = secure.keys.unwrap().export();
            secure.serve(&with_keys(&[]));
            assert!(own == secure.keys.unwrap().export(), "ours last until they are rotated");
        }
    }

    #[test]
    fn a_generation_that_does_not_serve_does_not_stop_the_watch() {
        let folder = tempfile::tempdir().unwrap();
        let with = config(folder.path(), CertificateFlag::SelfSigned);
        let mut without = with.clone();
        without.listen.retain(|listen| !listen.tls);
        let mut secure = Secure::default();
        let secured = secure.serve(&with);
        let due = secure.deadline().unwrap();
        assert!(secure.read(&without, SystemTime::now()).unwrap().endpoint.is_none());
        secure.accept(&mut Secured::unchanged(secured.endpoint), Instant::now() + LOOK_EVERY);
        assert_eq!(secure.deadline(), Some(due));
        secure.serve(&without);
        assert_eq!(secure.deadline(), None);
    }

    #[test]
    fn a_kernel_that_refused_is_asked_again() {
        let folder = tempfile::tempdir().unwrap();
        for usable in [false, true] {
            let probed = KernelSupport { usable, text: "as before".to_owned() };
            let mut secure = Secure { probed: Some(probed), ..Secure::default() };
            secure.serve(&config(folder.path(), CertificateFlag::SelfSigned));
            assert_eq!(secure.kernel().unwrap().text == "as before", usable);
        }
    }

    #[test]
    fn an_expiry_that_comes_near_is_said_daily() {
        let said = |days: u32| {
            let folder = tempfile::tempdir().unwrap();
            let key = rcgen::KeyPair::generate().unwrap();
            let mut parameters = rcgen::CertificateParams::new(["a.test".to_owned()]).unwrap();
            let wall = SystemTime::now();
            parameters.not_before = (wall - DAY).into();
            parameters.not_after = (wall + days * DAY + DAY / 2).into();
            let certificate = parameters.self_signed(&key).unwrap();
            std::fs::write(folder.path().join("cert.pem"), certificate.pem()).unwrap();
            std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
            let mut secure = Secure::default();
            let now = Instant::now();
            let directory = CertificateFlag::Directory(folder.path().to_owned());
            let endpoint = secure.serve(&config(folder.path(), directory)).endpoint.unwrap();
            assert!(secure.expiring(&endpoint, now, wall).is_empty(), "it was said when it was read");
            let later = now + DAY + LOOK_EVERY;
            let said = secure.expiring(&endpoint, later, wall);
            assert!(secure.expiring(&endpoint, later + DAY / 2, wall).is_empty(), "once a day");
            assert_eq!(secure.expiring(&endpoint, later + DAY, wall), said);
            (said, secure.expiring(&endpoint, later + 2 * DAY, wall + (days + 1) * DAY))
        };
        let soon = ["the certificate for a.test expires in 13 days: renew it".to_owned()];
        let expired = ["the certificate for a.test has expired: renew it".to_owned()];
        assert_eq!(said(13), (soon.to_vec(), expired.to_vec()));
        assert_eq!(said(20), (vec![], expired.to_vec()));
    }
}
