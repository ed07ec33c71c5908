//! What the supervisor does for monitoring: it holds the listener of the metrics, answers the process that
//! serves them, and says on a page whether the server serves.

use std::os::fd::{AsFd as _, OwnedFd};
use std::rc::Rc;

use super::Supervisor;
use super::companions::CompanionId;
use super::listeners::{Adopted, Origin};
use super::machine::State;
use crate::config::{Address, Config};
use crate::metrics::start::STATUS;
use crate::observe::health::Verdict;
use crate::sys::{Error, memory_file, pass, sockets};

/// Owner and group may connect, as to other unix sockets.
const MODE: u32 = 0o660;

/// The listener of the metrics, as long as the configuration names the same address.
#[derive(Debug)]
pub(super) struct Listener {
    configured: Address,
    pub fd: OwnedFd,
    pub origin: Origin,
    /// The file of a unix socket that we are to remove in the end.
    pub file: Option<(u64, u64)>,
}

impl Listener {
    /// As it was handed to us; `None`: we opened it ourselves.
    fn give_back(mut self) -> Option<Adopted> {
        let place = sockets::place(&self.fd).ok().flatten()?;
        let fd = self.fd.try_clone().ok().filter(|_| self.origin != Origin::Own)?;
        // Taken out, so that it is not removed with this.
        Some(Adopted { place, fd, origin: self.origin, file: self.file.take() })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let (Address::Unix(path), Some(file)) = (&self.configured, self.file) {
            sockets::remove_socket_file(path, file);
        }
    }
}

impl Supervisor {
    /// The listener of the metrics that a generation needs: the one there is, or a new one.
    pub(super) fn metrics_listener(&mut self, config: &Config) -> Result<Option<Rc<Listener>>, Error> {
        let Some(configured) = &config.metrics else { return Ok(None) };
        let mut known = self.generations.values().filter_map(|generation| generation.metrics.as_ref());
        if let Some(known) = known.find(|known| known.configured == *configured) {
            return Ok(Some(Rc::clone(known)));
        }
        let configured = configured.clone();
        if let Some(adopted) = self.listeners.adopt(&configured) {
            let Adopted { fd, origin, file, .. } = adopted;
            return Ok(Some(Rc::new(Listener { configured, fd, origin, file })));
        }
        let (fd, file) = match &configured {
            Address::Tcp(address) => {
                sockets::check_unused(*address)?;
                (sockets::listen_tcp(*address)?.fd, None)
            }
            Address::Unix(path) => (sockets::listen_unix(path, MODE)?, sockets::socket_file(path)),
        };
        Ok(Some(Rc::new(Listener { configured, fd, origin: Origin::Own, file })))
    }

    /// The listener of the metrics of the generation that serves.
    pub(super) fn current_metrics(&self) -> Option<&Listener> {
        let current = self.machine.current()?;
        self.generations.get(&current.id)?.metrics.as_deref()
    }

    /// Generation `id` serves: the listeners of others are closed, if it has not the same.
    pub(super) fn settle_metrics(&mut self, id: u64) {
        for (_, generation) in self.generations.iter_mut().filter(|(other, _)| **other != id) {
            generation.metrics = None;
        }
    }

    /// Generation `id` will not serve: the listener of its metrics is closed, if no other has the same, or
    /// kept for the next generation, if it was handed to us.
    pub(super) fn revert_metrics(&mut self, id: u64) {
        let listener = self.generations.get_mut(&id).and_then(|generation| generation.metrics.take());
        if let Some(adopted) = listener.and_then(Rc::into_inner).and_then(Listener::give_back) {
            self.listeners.give_back(adopted);
        }
    }

    /// Sends the status to the process that serves metrics. If that fails, it answers its clients so.
    pub(super) fn tell_status(&self, id: CompanionId) {
        let channel = self.attending.get(&id).and_then(|process| process.channel.as_ref());
        let (Some(channel), Ok(text)) = (channel, serde_json::to_vec(&self.status())) else { return };
        match memory_file::holding(&text) {
            Ok(file) => {
                let _ = pass::send(channel, STATUS, Some(file.as_fd()));
            }
            Err(error) => tracing::warn!("{error}, for the metrics"),
        }
    }

    /// Says whether the server serves.
    pub(super) fn say_health(&self) {
        let serving = self.machine.current().map(|current| {
            current.workers.iter().filter(|worker| worker.state == State::Serving).count() as u64
        });
        self.health.set(match serving {
            _ if self.machine.is_stopping() => Verdict::Draining,
            Some(workers @ 1..) => Verdict::Serving(workers),
            _ => Verdict::Idle,
        });
    }
}
