//! Where connections live. A slot is used again and again; each use has a number, so that a
//! completion for an earlier use is recognised and harmless.

use std::net::IpAddr;
use std::rc::Rc;

use crate::conn::Connection;
use crate::files::Credential;
use crate::sys::fds::Descriptor;
use crate::sys::file::Facts;

/// A connection with what only the worker knows of it.
#[derive(Debug)]
pub struct Live {
    /// Its socket.
    pub socket: Descriptor,
    /// The machine.
    pub connection: Connection,
    /// The address it is counted under, where addresses are.
    pub counted: Option<IpAddr>,
    /// Whether a receive or send is with the kernel; then closing takes a shutdown.
    pub in_flight: u8,
    /// The piece of a file being read for it: what the file must be if it was the last piece.
    pub reading: Option<Reading>,
    /// The program that answers it; a key of the runs.
    pub run: Option<Key>,
    /// The password being verified for it.
    pub verifying: Option<Credential>,
}

/// A piece of a file being read.
#[derive(Debug)]
pub struct Reading {
    /// The file.
    pub file: Rc<Descriptor>,
    /// Where the piece ends, when the response is complete with it; then the file must still be as
    /// `facts` say.
    pub end: Option<u64>,
    /// What the file was when the response began.
    pub facts: Facts,
    /// Where the piece begins.
    pub offset: u64,
}

/// How a use of a slot is named in tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Key {
    /// Which slot.
    pub slot: u32,
    /// Which use of it.
    pub reuse: u32,
}

/// All slots of a worker.
#[derive(Debug, Default)]
pub struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
    live: usize,
}

#[derive(Debug, Default)]
struct Slot {
    reuse: u32,
    live: Option<Live>,
}

impl Slots {
    /// Reserves a slot; [`Self::fill`] must follow.
    pub fn reserve(&mut self) -> Key {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        Key { slot, reuse: self.slots[slot as usize].reuse }
    }

    /// Puts a connection into the reserved slot.
    pub fn fill(&mut self, key: Key, live: Live) {
        let slot = &mut self.slots[key.slot as usize];
        assert!(slot.live.is_none() && slot.reuse == key.reuse, "the slot was reserved");
        slot.live = Some(live);
        self.live += 1;
    }

    /// The connection, unless that use of the slot is over.
    pub fn get(&mut self, key: Key) -> Option<&mut Live> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        slot.live.as_mut().filter(|_| slot.reuse == key.reuse)
    }

    /// Ends this use of the slot.
    pub fn remove(&mut self, key: Key) -> Option<Live> {
        let slot = self.slots.get_mut(key.slot as usize).filter(|slot| slot.reuse == key.reuse)?;
        let live = slot.live.take()?;
        slot.reuse = slot.reuse.wrapping_add(1);
        self.free.push(key.slot);
        self.live -= 1;
        Some(live)
    }

    /// Connections.
    pub fn count(&self) -> usize {
        self.live
    }

    /// The key of whoever lives in the slot now.
    pub fn key(&self, slot: u32) -> Option<Key> {
        let found = self.slots.get(slot as usize)?;
        found.live.as_ref().map(|_| Key { slot, reuse: found.reuse })
    }

    /// Keys of all connections.
    pub fn keys(&self) -> Vec<Key> {
        (0..self.slots.len() as u32).filter_map(|slot| self.key(slot)).collect()
    }
}
