//! Descriptors a worker owns.
//!
//! A descriptor may be named by an operation that is queued but not yet handed to the kernel, so it
//! must not be closed at the moment its owner drops it: its number could be taken by another file
//! before the kernel reads the queue. Dropping a [`Descriptor`] therefore only buries it; the ring
//! empties the [`Graveyard`] after each hand-over to the kernel.

use std::cell::RefCell;
use std::rc::Rc;

/// The number of an open descriptor, for naming it in an operation. Owns nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub struct Fd(pub i32);

/// Descriptors whose owners are gone, waiting to be closed by the ring.
#[derive(Clone, Default, Debug)]
pub struct Graveyard(Rc<RefCell<Vec<Fd>>>);

impl Graveyard {
    /// Moves the buried descriptors into `into`.
    pub fn exhume(&self, into: &mut Vec<Fd>) {
        into.append(&mut self.0.borrow_mut());
    }

    /// Whether nothing waits to be closed.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().is_empty()
    }
}

/// An open descriptor with one owner. Dropping it has the ring close it, soon.
#[derive(Debug)]
pub struct Descriptor {
    fd: Fd,
    graveyard: Graveyard,
}

impl Descriptor {
    /// Takes ownership of `fd`, which nobody else may close.
    pub fn new(fd: Fd, graveyard: &Graveyard) -> Self {
        Self { fd, graveyard: graveyard.clone() }
    }

    /// Its number.
    pub fn fd(&self) -> Fd {
        self.fd
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        self.graveyard.0.borrow_mut().push(self.fd);
    }
}
