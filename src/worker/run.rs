//! A worker's life as a process: the ring is made, the sandbox entered, the supervisor told,
//! and then it steps until it is over.

use std::os::fd::AsRawFd;
use std::process::ExitCode;

use super::accept::Listener;
use super::start::{READY, Start, failed};
use super::{Life, Mailboxes, Setup, Worker};
use crate::conn::KERNEL_TLS_MIN;
use crate::files::Share;
use crate::observe::names::Counter;
use crate::ring::Ring;
use crate::ring::uring::{Options, Uring};
use crate::sys::fds::Fd;
use crate::sys::pass;
use crate::sys::sandbox::{Reads, Sandbox};

/// Lives as the worker described by `start`. Called in a process of its own.
pub fn run(start: Start) -> ExitCode {
    match serve(&start) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            tracing::error!("{reason}");
            // Without the supervisor nobody is left to be told.
            let _ = pass::send(&start.channel, &failed(&reason), None);
            ExitCode::FAILURE
        }
    }
}

/// Makes the ring and enters the sandbox: from here on there is nothing left to misuse.
///
/// # Errors
/// Why the worker cannot serve.
pub fn settle(start: &Start) -> Result<Uring, String> {
    // Before privileges go: the memory of a ring made with them is not charged to the user.
    let (mut ring, features) = Uring::new(&Options::default()).map_err(|failure| failure.explain())?;
    start.counters.set(Counter::RingFeatures, features.bits());
    let sites = start.config.sites.iter().map(|site| (site.root.as_path(), site.symlinks));
    let roots = Reads::of_roots(sites);
    let reads = match &start.config.cache.dir {
        Some(cache) => roots.and(cache),
        None => roots,
    };
    let sandbox = Sandbox::worker(reads);
    let entered = sandbox.enter(start.user.as_ref()).map_err(|error| error.to_string())?;
    for reason in entered.failed {
        tracing::warn!("a layer of the sandbox is missing: {reason}");
    }
    ring.limit(entered.readable);
    Ok(ring)
}

fn serve(start: &Start) -> Result<(), String> {
    let channel = Fd(start.channel.as_raw_fd());
    let ring = settle(start)?;
    let mut secret = [0; 32];
    aws_lc_rs::rand::fill(&mut secret).map_err(|_| "cannot get random bytes".to_owned())?;
    let listeners = start.listeners.iter().map(|listener| Listener {
        fd: Fd(listener.fd.as_raw_fd()),
        tls: listener.tls,
        proxy_protocol: listener.proxy_protocol,
        trusted: listener.trusted.as_slice().into(),
    });
    let setup = Setup {
        config: &start.config,
        listeners: listeners.collect(),
        channel,
        mailboxes: start.mailboxes.as_ref().map(|mailboxes| Mailboxes {
            fds: mailboxes.fds.each_ref().map(|fd| fd.as_ref().map(|fd| Fd(fd.as_raw_fd()))),
            epoch: mailboxes.epoch,
        }),
        tls: start.tls.clone(),
        access_log: start.access_log.as_ref().map(|log| Fd(log.as_raw_fd())),
        counters: start.counters.clone(),
        descriptors: Share::DESCRIPTORS,
        kernel_tls_min: KERNEL_TLS_MIN,
        secret,
    };
    let mut worker = Worker::new(ring, setup);
    worker
        .ring_mut()
        .send_now(channel, READY)
        .map_err(|errno| format!("cannot report to the supervisor: {errno}"))?;
    while worker.step().map_err(|error| error.to_string())? == Life::On {}
    Ok(())
}
