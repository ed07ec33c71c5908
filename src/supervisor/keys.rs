//! What the supervisor does for TLS, since it alone may read keys: builds the endpoint of a generation,
//! makes and rotates ticket keys, notices changed files, and warns of the end of certificates.

use std::time::{Duration, Instant, SystemTime};

use crate::config::{Config, KernelTls};
use crate::observe::calendar::Moment;
use crate::observe::status;
use crate::sys::shared::Page;
use crate::sys::tls_probe;
use crate::tls::{self, Endpoint, KernelSupport, Problem, TicketKeys};

/// How often files, keys and dates are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(60);

/// How often a certificate that expires soon is complained about.
const WARN_EVERY: Duration = Duration::from_secs(24 * 3600);

const SECONDS_OF_DAY: i64 = 86_400;

/// Ticket keys, and what is known of the kernel.
#[derive(Default)]
pub struct Keys {
    /// On a page that all workers of all generations share.
    tickets: Option<TicketKeys>,
    kernel: Option<KernelSupport>,
    check_at: Option<Instant>,
    warned_at: Option<Instant>,
}

impl Keys {
    /// What the sessions of a generation are made of; `None` where no listener speaks TLS.
    ///
    /// # Errors
    /// Every certificate and key that cannot be used.
    pub fn endpoint(&mut self, config: &Config) -> Result<Option<Endpoint>, String> {
        if !config.listen.iter().any(|listen| listen.tls) {
            return Ok(None);
        }
        let now = SystemTime::now();
        let kernel = self.kernel_usable(config)?;
        let tickets = match config.tls.tickets {
            Some(every) => Some(self.tickets(config, now, every)?),
            None => None,
        };
        let endpoint = Endpoint::build(config, now, tickets, kernel).map_err(|problems| text(&problems))?;
        for Problem { place, what, help } in endpoint.warnings() {
            tracing::warn!("{place}: {what}; {help}");
        }
        self.check_at.get_or_insert_with(|| Instant::now() + CHECK_EVERY);
        self.warned_at = Some(Instant::now());
        Ok(Some(endpoint))
    }

    /// When [`Keys::check`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.check_at
    }

    /// Looks after what the current generation uses. Says whether it should be made anew.
    pub fn check(&mut self, in_use: Option<(&Config, &Endpoint)>, now: Instant) -> bool {
        if self.check_at.is_none_or(|at| at > now) {
            return false;
        }
        self.check_at = Some(now + CHECK_EVERY);
        let Some((config, endpoint)) = in_use else { return false };
        let date = SystemTime::now();
        if let (Some(tickets), Some(every), []) =
            (self.tickets, config.tls.tickets, config.tls.ticket_keys.as_slice())
            && tickets.rotate(date, every)
        {
            tracing::info!("the key for session tickets was changed");
        }
        if self.warned_at.is_none_or(|at| now.saturating_duration_since(at) >= WARN_EVERY) {
            self.warned_at = Some(now);
            for certificate in endpoint.certificates().iter().filter(|known| known.expires_soon(date)) {
                let (names, end) = (certificate.names.join(" "), Moment::from(certificate.not_after));
                tracing::warn!("the certificate of site {} ({names}) expires on {end}", certificate.site);
            }
        }
        endpoint.changed(date)
    }

    /// What `httpd status` says of certificates and TLS.
    pub fn status(&self, endpoint: &Endpoint) -> (Vec<status::Certificate>, status::Tls) {
        let now = SystemTime::now();
        let certificates = endpoint.certificates().iter().map(|certificate| status::Certificate {
            site: certificate.site.clone(),
            names: certificate.names.clone(),
            issuer: certificate.issuer.clone(),
            key: certificate.key.clone(),
            expires: Moment::from(certificate.not_after).to_string(),
            days_left: days_between(now, certificate.not_after),
            file: certificate.file.as_ref().map(|path| path.display().to_string()),
            stapled: certificate.stapled,
        });
        let since = self.tickets.and_then(|tickets| tickets.since());
        let tls = status::Tls {
            kernel: endpoint.kernel_tls(),
            kernel_says: self.kernel.as_ref().map(|kernel| kernel.text.clone()).unwrap_or_default(),
            ticket_key_since: since.map(|since| Moment::from(since).to_string()),
        };
        (certificates.collect(), tls)
    }

    /// The ticket keys, for a successor; empty where there are none.
    pub fn export(&self) -> Vec<u8> {
        self.tickets.map(|tickets| tickets.export().to_vec()).unwrap_or_default()
    }

    /// Takes over a predecessor's ticket keys.
    pub fn import(&mut self, bytes: &[u8]) {
        match self.page() {
            Ok(tickets) => drop(tickets.import(bytes)),
            Err(reason) => tracing::warn!("sessions of the program before cannot be resumed: {reason}"),
        }
    }

    fn page(&mut self) -> Result<TicketKeys, String> {
        if let Some(tickets) = self.tickets {
            return Ok(tickets);
        }
        const { assert!(tls::TICKET_WORDS <= crate::sys::shared::CELLS) };
        let page = Page::new().map_err(|error| error.to_string())?;
        let tickets = TicketKeys::new(page.forever());
        self.tickets = Some(tickets);
        Ok(tickets)
    }

    fn tickets(&mut self, config: &Config, now: SystemTime, every: Duration) -> Result<TicketKeys, String> {
        let tickets = self.page()?;
        if config.tls.ticket_keys.is_empty() {
            tickets.rotate(now, every);
        } else {
            tls::read_ticket_keys(config, now, tickets).map_err(|problems| text(&problems))?;
        }
        Ok(tickets)
    }

    fn kernel_usable(&mut self, config: &Config) -> Result<bool, String> {
        if config.tls.kernel == KernelTls::Off {
            return Ok(false);
        }
        let kernel = self.kernel.get_or_insert_with(|| {
            let kernel = tls::probe(tls_probe::try_install);
            let usable = if kernel.usable { "used" } else { "not used" };
            tracing::info!("kernel TLS: {usable}, {}", kernel.text);
            kernel
        });
        if config.tls.kernel == KernelTls::Require && !kernel.usable {
            return Err(format!("kernel TLS is required (tls.kernel) but cannot be used: {}", kernel.text));
        }
        Ok(kernel.usable)
    }
}

fn text(problems: &[Problem]) -> String {
    let lines = problems.iter().map(|Problem { place, what, help }| format!("{place}: {what}\n    {help}"));
    lines.collect::<Vec<_>>().join("\n")
}

fn days_between(now: SystemTime, then: SystemTime) -> i64 {
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    match then.duration_since(now) {
        Ok(left) => seconds(left) / SECONDS_OF_DAY,
        Err(passed) => -(seconds(passed.duration()) / SECONDS_OF_DAY) - 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_counted_down_and_beyond() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let day = Duration::from_secs(86_400);
        assert_eq!(days_between(now, now + day * 2), 2);
        assert_eq!(days_between(now, now + day / 2), 0);
        assert_eq!(days_between(now, now - day / 2), -1);
    }

    #[test]
    fn ticket_keys_outlive_the_program() {
        let (mut old, mut new) = (Keys::default(), Keys::default());
        assert!(old.export().is_empty());
        old.page().expect("a page").rotate(SystemTime::now(), Duration::from_secs(3600));
        new.import(&old.export());
        assert_eq!(new.export(), old.export());
    }
}
