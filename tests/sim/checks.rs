//! What must hold after every step, and at the end of a run. The rest of what must hold is asserted
//! where it can be broken: in the ring.

use std::time::Duration;

use httpd::worker::Worker;

use crate::fake_ring::FakeRing;
use crate::world::World;

/// Descriptors that are the worker's from its birth: two listeners, channel, log, two mailboxes.
const OWN: usize = 6;

pub fn after_step(worker: &mut Worker<FakeRing>) -> Result<(), String> {
    let connections = worker.connections();
    worker.ring_mut().connections = Some(connections);
    let mut world = worker.ring_mut().world.borrow_mut();
    world.connections_most = world.connections_most.max(connections);
    match world.clients.iter().enumerate().find_map(|(index, client)| {
        client.as_ref().and_then(|client| client.failure.as_ref()).map(|what| (index, what))
    }) {
        Some((index, what)) => Err(format!("client {index}: {what}")),
        None => Ok(()),
    }
}

/// Whether no client waits for anything.
pub fn all_over(world: &World) -> bool {
    world.clients.iter().flatten().all(|client| client.over)
}

/// After the worker is gone: nothing of it is left.
pub fn at_end(world: &mut World, descriptors_max: usize) -> Result<(), String> {
    world.ops.clear();
    world.forget_completions();
    let mut buried = Vec::new();
    world.graveyard.exhume(&mut buried);
    for socket in &mut world.sockets {
        // The process is gone: its sockets need no shutdown any more.
        socket.server_deaf = true;
    }
    buried.into_iter().for_each(|fd| world.close(fd));
    if world.fds.len() != OWN {
        return Err(format!("descriptors are left open: {:?} (of {descriptors_max})", world.fds));
    }
    if !world.log.is_empty() && world.log.last() != Some(&b'\n') {
        return Err("the log ends in the middle of a line".into());
    }
    Ok(())
}

/// How long after all clients are over, and it was told to stop, a worker may still live.
pub const STOPS_WITHIN: Duration = Duration::from_secs(31);
