//! Chance, from a seed: the numbers, and what may go wrong how often. Each kind of mishap is switched
//! off altogether in about half of all seeds, so that some runs isolate a single one.

use std::time::Duration;

/// Pseudo-random numbers (splitmix64): short, fast, and the same everywhere.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A number of the inclusive range.
    pub fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// True so many times of a thousand.
    pub fn chance(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.next() % 1000 < u64::from(per_mille)
    }

    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    pub fn micros(&mut self, low: usize, high: usize) -> Duration {
        Duration::from_micros(self.within(low, high) as u64)
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// Numbers of its own, independent of how many are drawn here later.
    pub fn fork(&mut self) -> Self {
        Self(self.next())
    }
}

/// What may go wrong, each per mille.
#[derive(Clone, Debug, Default)]
pub struct Odds {
    /// A completion comes late.
    pub late: u32,
    /// Completions of one turn change places.
    pub reorder: u32,
    /// A turn ends with nothing, as after a signal.
    pub spurious: u32,
    pub short_receive: u32,
    pub short_send: u32,
    pub short_read: u32,
    pub short_append: u32,
    /// A receive finds no buffer though there are some.
    pub no_buffer: u32,
    /// An accept fails for want of descriptors.
    pub accept_fails: u32,
    /// An accept meets a client that has gone again, or a signal.
    pub accept_aborts: u32,
    /// An accept ends with a good connection.
    pub accept_ends: u32,
    pub cold_open: u32,
    pub cold_read: u32,
    pub cold_pages: u32,
    /// An open through the ring races with a rename: EAGAIN.
    pub racing_open: u32,
    /// An open fails for want of descriptors.
    pub open_fails: u32,
    /// The kernel does not take over TLS.
    pub no_kernel_tls: u32,
    /// The network breaks a connection, per act of a client.
    pub break_down: u32,
    /// Closing with unread input destroys what is under way to the client.
    pub reset_destroys: u32,
    /// A file is mutated, per act of a client.
    pub mutation: u32,
    /// A mutation happens to the file itself instead of replacing it.
    pub in_place: u32,
    /// A runner's mailbox is full.
    pub mailbox_full: u32,
    /// A runner dies, per act of a client.
    pub runner_dies: u32,
    /// Something happens to compressed variants, per act of a client.
    pub variants: u32,
    /// How finely the file system keeps time.
    pub granularity: Duration,
    /// Leases there are, and bytes of each.
    pub leases: usize,
    pub lease_bytes: usize,
    /// Bytes a socket holds towards the client.
    pub socket_bytes: usize,
}

impl Odds {
    /// Nothing goes wrong.
    pub fn none() -> Self {
        let granularity = Duration::from_nanos(1);
        Self { granularity, leases: 64, lease_bytes: 4096, socket_bytes: 64 * 1024, ..Self::default() }
    }

    /// Whether sockets are large enough for large files.
    pub fn holds_much(&self) -> bool {
        self.socket_bytes >= 9000
    }

    /// Some of it, by chance.
    pub fn drawn(rng: &mut Rng) -> Self {
        let mut odds = |high: usize| if rng.chance(500) { 0 } else { rng.within(1, high) as u32 };
        let mut drawn = Self {
            late: odds(600),
            reorder: odds(800),
            spurious: odds(200),
            short_receive: odds(700),
            short_send: odds(700),
            short_read: odds(500),
            short_append: odds(300),
            no_buffer: odds(300),
            accept_fails: odds(200),
            accept_aborts: odds(300),
            accept_ends: odds(300),
            cold_open: odds(900),
            cold_read: odds(900),
            cold_pages: odds(900),
            racing_open: odds(100),
            open_fails: odds(60),
            no_kernel_tls: odds(1000).max(300),
            break_down: odds(6),
            reset_destroys: odds(1000),
            mutation: odds(60),
            mailbox_full: odds(500),
            runner_dies: odds(20),
            in_place: odds(1000),
            variants: odds(60),
            ..Self::none()
        };
        drawn.granularity = *rng.pick(&[1, 4_000_000, 1_000_000_000].map(Duration::from_nanos));
        drawn.leases = *rng.pick(&[1, 2, 3, 8, 64]);
        drawn.lease_bytes = *rng.pick(&[5, 64, 1024, 4096]);
        drawn.socket_bytes = *rng.pick(&[50, 400, 1500, 9000, 64 * 1024, 1 << 20]);
        drawn
    }
}
