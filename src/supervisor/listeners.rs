//! The listeners: opened before anything is given up, kept from generation to generation, handed to the
//! workers as duplicates.
//!
//! Each TCP address has one SO_REUSEPORT socket per worker, so that workers share no queue and no lock.
//! The supervisor's copy keeps a socket and its queue alive while its worker is dead or being replaced.
//! A unix socket and a socket made by somebody else (socket activation) are single, and shared.
//!
//! **Sockets of an address are never fewer than before.** Closing one of several sockets of an address
//! resets the connections that wait in its queue, and the kernel has no portable way to move them. When
//! there are fewer workers after a reload, the surplus sockets are dealt out among them: the load is a
//! little uneven until the next start, but nobody is refused. An address that is no longer configured is
//! closed when the new generation has taken over; who waits there is reset, as he would be a moment later.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use crate::config::{Address, Config, Listen};
use crate::observe::status;
use crate::sys::sockets::{self, Place};
use crate::sys::{Errno, Error};
use crate::worker::start;

/// All open listeners.
#[derive(Debug, Default)]
pub struct Listeners {
    bound: Vec<Bound>,
    adopted: Vec<Adopted>,
}

/// Who opened a listener.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// We did.
    Own,
    /// The service manager did (sd_listen_fds(3)).
    Activation,
    /// The program this one has replaced did.
    Predecessor,
}

/// A listener that was open when the program began.
#[derive(Debug)]
pub struct Adopted {
    /// Where it listens.
    pub place: Place,
    /// The socket.
    pub fd: OwnedFd,
    /// Who opened it.
    pub origin: Origin,
    /// The file of a unix socket that we are to remove in the end.
    pub file: Option<(u64, u64)>,
}

/// An address and its sockets.
#[derive(Debug)]
struct Bound {
    key: Key,
    address: Address,
    fds: Vec<OwnedFd>,
    /// How many of them a generation that serves accepts from.
    settled: usize,
    origin: Origin,
    /// The file of a unix socket that we made.
    file: Option<(u64, u64)>,
}

/// An address as configured, and the how-manieth of its kind: port 0 may stand there twice.
type Key = (Address, usize);

impl Listeners {
    /// None yet but those that were open when the program began.
    pub fn new(adopted: Vec<Adopted>) -> Self {
        Self { bound: Vec::new(), adopted }
    }

    /// Opens what `config` needs beyond what is open. When that fails, nothing has changed.
    ///
    /// # Errors
    /// When an address cannot be listened on.
    pub fn open(&mut self, config: &Config) -> Result<(), Error> {
        let before: Vec<usize> = self.bound.iter().map(|bound| bound.fds.len()).collect();
        let opened = keys(config).try_for_each(|(key, listen)| {
            let position = self.bound.iter().position(|bound| bound.key == key);
            let position = match position {
                Some(position) => position,
                None => self.bind(key, listen)?,
            };
            self.bound[position].prepare(listen, config.server.workers)
        });
        if opened.is_err() {
            let begun = self.bound.split_off(before.len());
            // What was handed to us is there for the next try, and before what was not taken.
            self.adopted.splice(..0, begun.into_iter().flat_map(Bound::give_back));
            for (bound, count) in self.bound.iter_mut().zip(before) {
                bound.fds.truncate(count);
            }
        }
        opened
    }

    /// A generation made from `config` serves: closes what it does not need.
    pub fn settle(&mut self, config: &Config) {
        self.close_others(config);
        for bound in &mut self.bound {
            bound.settled = bound.fds.len();
        }
        for Adopted { place, .. } in self.adopted.drain(..) {
            let address = address_of(&place);
            tracing::warn!("a listener on {address} was handed to us, but no [[listen]] names it: closed");
        }
    }

    /// The generation for which sockets were opened will not serve, the one made from `config` goes on
    /// (`None`: one of a predecessor, whose configuration is not known): closes what was opened since it
    /// settled. Nobody would ever accept from those.
    pub fn revert(&mut self, config: Option<&Config>) {
        if let Some(config) = config {
            self.close_others(config);
        }
        self.bound.retain_mut(|bound| {
            bound.fds.truncate(bound.settled);
            bound.settled > 0
        });
    }

    fn close_others(&mut self, config: &Config) {
        let wanted: Vec<Key> = keys(config).map(|(key, _)| key).collect();
        self.bound.retain(|bound| wanted.contains(&bound.key));
    }

    /// The listeners of one worker, as duplicates.
    ///
    /// # Errors
    /// When descriptors run out.
    pub fn of_worker(&self, config: &Config, index: u32) -> Result<Vec<start::Listener>, Error> {
        let (worker, workers) = (index as usize, config.server.workers as usize);
        let mut listeners = Vec::new();
        for (position, (key, listen)) in keys(config).enumerate() {
            let bound = self.bound.iter().find(|bound| bound.key == key);
            let bound = bound.expect("what is configured was opened");
            for fd in bound.of_worker(worker, workers) {
                let fd =
                    fd.try_clone().map_err(|_| Error::new("hand on", bound.address_text(), Errno::MFILE))?;
                listeners.push(start::Listener {
                    index: position,
                    fd,
                    address: bound.address.clone(),
                    tls: listen.tls,
                    proxy_protocol: listen.proxy_protocol,
                    trusted: listen.trusted.clone(),
                });
            }
        }
        Ok(listeners)
    }

    /// What `httpd status` says of them.
    pub fn status(&self, config: &Config) -> Vec<status::Listener> {
        let mut listeners = Vec::new();
        for (key, listen) in keys(config) {
            let Some(bound) = self.bound.iter().find(|bound| bound.key == key) else { continue };
            listeners.push(status::Listener {
                configured: text(&listen.address),
                address: bound.address_text(),
                url: url(&bound.address, listen.tls),
                tls: listen.tls,
                sockets: u32::try_from(bound.fds.len()).unwrap_or(u32::MAX),
                origin: match bound.origin {
                    Origin::Own => "httpd",
                    Origin::Activation => "activation",
                    Origin::Predecessor => "predecessor",
                }
                .to_owned(),
            });
        }
        listeners
    }

    /// Takes a listener that was handed to us, for somebody who is no [[listen]].
    pub fn adopt(&mut self, address: &Address) -> Option<Adopted> {
        let position = self.adopted.iter().position(|adopted| is_meant(address, &adopted.place))?;
        Some(self.adopted.remove(position))
    }

    /// Takes back what [`Self::adopt`] gave.
    pub fn give_back(&mut self, adopted: Adopted) {
        self.adopted.push(adopted);
    }

    /// All sockets, for a successor: each with whether the service manager made it, and the file it has.
    pub fn all(&self) -> impl Iterator<Item = (&OwnedFd, Origin, Option<(u64, u64)>)> {
        let bound = self.bound.iter();
        let bound = bound.flat_map(|bound| bound.fds.iter().map(|fd| (fd, bound.origin, bound.file)));
        // What no generation has taken yet: the first one of this program has failed.
        let adopted = self.adopted.iter().map(|adopted| (&adopted.fd, adopted.origin, adopted.file));
        bound.chain(adopted)
    }

    /// The sockets that the service manager is to keep over a restart, by address: those over TCP that it has
    /// not made itself. A unix socket loses its name when the program ends, and with it who could come.
    pub fn lasting(&self) -> impl Iterator<Item = (SocketAddr, &[OwnedFd])> {
        self.bound.iter().filter_map(|bound| match bound.address {
            Address::Tcp(address) if bound.origin != Origin::Activation => Some((address, &bound.fds[..])),
            _ => None,
        })
    }

    /// Binds a new address, or takes what was handed to us; returns its position.
    fn bind(&mut self, key: Key, listen: &Listen) -> Result<usize, Error> {
        let fits = |adopted: &Adopted| is_meant(&listen.address, &adopted.place);
        let mut bound = match self.adopted.iter().position(fits) {
            Some(position) => Bound::adopted(key, self.adopted.remove(position)),
            None => match &listen.address {
                Address::Tcp(address) => self.bind_tcp(key.clone(), *address)?,
                Address::Unix(path) => Bound {
                    fds: vec![sockets::listen_unix(path, listen.mode)?],
                    settled: 0,
                    file: sockets::socket_file(path),
                    address: listen.address.clone(),
                    origin: Origin::Own,
                    key,
                },
            },
        };
        if bound.origin == Origin::Predecessor {
            // It had a socket for each of its workers.
            let address = bound.address_text();
            let same = |adopted: &mut Adopted| address_of(&adopted.place) == address;
            bound.fds.extend(self.adopted.extract_if(.., same).map(|adopted| adopted.fd));
        }
        if bound.origin != Origin::Own {
            bound.settled = bound.fds.len();
        }
        self.bound.push(bound);
        Ok(self.bound.len() - 1)
    }

    fn bind_tcp(&self, key: Key, address: SocketAddr) -> Result<Bound, Error> {
        let port = |address: &Address| match address {
            Address::Tcp(address) => Some(address.port()),
            Address::Unix(_) => None,
        };
        // Where we listen on the port ourselves, the check would find us: `0.0.0.0` beside `127.0.0.1`.
        if !self.bound.iter().any(|bound| port(&bound.address) == Some(address.port())) {
            sockets::check_unused(address)?;
        }
        let first = open_tcp(address)?;
        let place = sockets::place(&first)
            .map_err(|errno| Error::new("ask for the address of", address.to_string(), errno))?;
        let Some(Place::Tcp(address)) = place else {
            return Err(Error::new("listen on", address.to_string(), Errno::OPNOTSUPP));
        };
        let address = Address::Tcp(address);
        Ok(Bound { key, address, fds: vec![first], settled: 0, origin: Origin::Own, file: None })
    }
}

impl Bound {
    fn adopted(key: Key, adopted: Adopted) -> Self {
        let Adopted { place, fd, origin, file } = adopted;
        let address = match place {
            Place::Tcp(address) => Address::Tcp(address),
            Place::Unix(path) => Address::Unix(path),
        };
        Self { key, address, fds: vec![fd], settled: 0, origin, file }
    }

    /// What of it was handed to us; what we opened ourselves is closed.
    fn give_back(mut self) -> Vec<Adopted> {
        if self.origin == Origin::Own {
            return Vec::new();
        }
        let place = match &self.address {
            Address::Tcp(address) => Place::Tcp(*address),
            Address::Unix(path) => Place::Unix(path.clone()),
        };
        // Taken out, so that it is not removed with this.
        let (origin, file) = (self.origin, self.file.take());
        let handed = self.fds.drain(..self.settled);
        handed.map(|fd| Adopted { place: place.clone(), fd, origin, file }).collect()
    }

    /// Brings the number of sockets, or the mode of the file, to what is configured now.
    fn prepare(&mut self, listen: &Listen, workers: u32) -> Result<(), Error> {
        match &self.address {
            Address::Tcp(address) if self.origin != Origin::Activation => {
                while self.fds.len() < workers as usize {
                    self.fds.push(open_tcp(*address)?);
                }
                Ok(())
            }
            Address::Unix(path) if self.file.is_some() => sockets::set_mode(path, listen.mode),
            _ => Ok(()),
        }
    }

    /// Which sockets a worker accepts from: a single one is everybody's; of many each is somebody's.
    fn of_worker(&self, worker: usize, workers: usize) -> impl Iterator<Item = &OwnedFd> {
        let is_shared = self.fds.len() < workers;
        let of_worker = move |(position, _): &(usize, _)| is_shared || position % workers == worker;
        self.fds.iter().enumerate().filter(of_worker).map(|(_, fd)| fd)
    }

    fn address_text(&self) -> String {
        text(&self.address)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let (Address::Unix(path), Some(file)) = (&self.address, self.file) {
            sockets::remove_socket_file(path, file);
        }
    }
}

fn open_tcp(address: SocketAddr) -> Result<OwnedFd, Error> {
    let listener = sockets::listen_tcp(address)?;
    if !listener.is_local {
        tracing::warn!("listening on {address}, which is no address of this machine (yet)");
    }
    Ok(listener.fd)
}

fn keys(config: &Config) -> impl Iterator<Item = (Key, &Listen)> {
    let mut seen = HashMap::<&Address, usize>::new();
    config.listen.iter().map(move |listen| {
        let count = seen.entry(&listen.address).or_default();
        *count += 1;
        ((listen.address.clone(), *count), listen)
    })
}

/// Whether a listener that was handed to us is the one configured. Any port does for port 0.
fn is_meant(configured: &Address, place: &Place) -> bool {
    match (configured, place) {
        (Address::Tcp(wanted), Place::Tcp(there)) => {
            wanted == there || (wanted.port() == 0 && wanted.ip() == there.ip())
        }
        (Address::Unix(wanted), Place::Unix(there)) => wanted == there,
        _ => false,
    }
}

fn address_of(place: &Place) -> String {
    match place {
        Place::Tcp(address) => address.to_string(),
        Place::Unix(path) => format!("unix:{}", path.display()),
    }
}

fn text(address: &Address) -> String {
    match address {
        Address::Tcp(address) => address.to_string(),
        Address::Unix(path) => format!("unix:{}", path.display()),
    }
}

/// What a client would be given.
pub fn url(address: &Address, tls: bool) -> String {
    match address {
        Address::Tcp(address) => format!("{}://{address}", if tls { "https" } else { "http" }),
        Address::Unix(_) => text(address),
    }
}
