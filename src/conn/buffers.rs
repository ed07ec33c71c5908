//! Memory for what is about to be sent, used again and again.
//!
//! A connection takes a buffer when it has something to say and loses it to the ring with the send;
//! the send's completion brings it back here. Idle connections hold none.

/// Room of a small buffer: some response heads, or one with a small body.
pub const SMALL: usize = 8 * 1024;
/// Room of a large buffer: a piece of a file, or as many TLS records with their overhead.
pub const LARGE: usize = 128 * 1024;
/// Buffers of each size kept when nobody needs them. More live only under load.
const KEPT_MAX: usize = 64;

/// Two shelves of buffers.
#[derive(Debug, Default)]
pub struct Buffers {
    small: Vec<Vec<u8>>,
    large: Vec<Vec<u8>>,
}

impl Buffers {
    /// An empty buffer with room for a response.
    pub fn small(&mut self) -> Vec<u8> {
        let mut buffer = self.used_small();
        buffer.clear();
        buffer
    }

    /// An empty buffer with room for a piece of a file.
    pub fn large(&mut self) -> Vec<u8> {
        let mut buffer = self.used_large();
        buffer.clear();
        buffer
    }

    /// A small buffer with whatever was in it last: for those who write over it and want memory that
    /// has been written to before.
    pub fn used_small(&mut self) -> Vec<u8> {
        self.small.pop().unwrap_or_else(|| Vec::with_capacity(SMALL))
    }

    /// The same, large.
    pub fn used_large(&mut self) -> Vec<u8> {
        self.large.pop().unwrap_or_else(|| Vec::with_capacity(LARGE))
    }

    /// Takes a buffer back. Those that grew beyond their shelf, and those too many, are freed.
    pub fn give(&mut self, buffer: Vec<u8>) {
        let shelf = match buffer.capacity() {
            SMALL..LARGE => &mut self.small,
            LARGE..=LARGE_GROWN => &mut self.large,
            _ => return,
        };
        if shelf.len() < KEPT_MAX {
            shelf.push(buffer);
        }
    }
}

/// Records of a full piece need some more room than the piece.
const LARGE_GROWN: usize = 2 * LARGE;
