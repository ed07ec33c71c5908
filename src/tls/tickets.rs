//! Session tickets: keys in memory that all processes share, and the tickets made with them.
//!
//! The supervisor makes the keys, in a page mapped before it forks, and is the only one to write
//! there; workers of all generations read. A sequence number that is odd during a write tells readers
//! to look again, so a worker never waits for the supervisor and never sees half a key. rustls's own
//! ticketer draws keys per process: after a fork no worker could resume another's sessions.
//!
//! ```text
//! ticket: key name 16 | nonce 12 | AES-256-GCM-SIV of rustls's session value | tag 16
//! ```
//!
//! The key is found by name, never by trial: an AEAD of this kind does not commit to its key, so a
//! ticket could be made that several keys accept. GCM-SIV forgives a nonce drawn twice. RFC 5077
//! section 4, RFC 8446 section 4.6.1, RFC 8452.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::{hkdf, rand};
use rustls::server::ProducesTickets;
use zeroize::Zeroizing;

/// How many 64-bit words of shared memory the keys need; zeros mean that there are no keys yet.
pub const WORDS: usize = 2 + KEYS_MAX * WORDS_PER_KEY;
/// How many keys may decrypt.
pub const KEYS_MAX: usize = 8;

const WORDS_PER_KEY: usize = (NAME + KEY) / 8;
const NAME: usize = 16;
const KEY: usize = 32;
const NONCE: usize = 12;
const TAG: usize = 16;
/// Longer tickets than this are not ours: a session value without client certificates has some 200 bytes.
const TICKET_MAX: usize = 4096;
/// How often a reader looks again before it does without a ticket: for a writer that died while writing.
const ATTEMPTS: u32 = 1000;

/// Word 0 counts writes; it is odd during one.
const SEQUENCE: usize = 0;
/// Word 1: when the current key took over, in seconds since 1970; 0 when there are none.
const SINCE: usize = 1;
/// Places of keys: the one that encrypts, then the one before it (1), then the one after it.
const CURRENT: usize = 0;
const NEXT: usize = 2;

/// Bound to every ticket: sessions must not pass between policies on client certificates, which
/// rustls does not check. There is one policy so far: none are asked for.
const POLICY: &[u8] = b"httpd 1, no client certificates";

/// Ticket keys in shared memory. Copies see the same keys.
#[derive(Clone, Copy)]
pub struct TicketKeys {
    words: &'static [AtomicU64],
}

/// A key and the name by which tickets refer to it.
#[derive(Clone)]
struct Key {
    name: [u8; NAME],
    key: Zeroizing<[u8; KEY]>,
}

/// Keys read from files: the first encrypts, all decrypt. There is at least one.
pub struct FileKeys(Vec<Key>);

impl FileKeys {
    /// Takes the contents of files. Each holds 48 or 80 random bytes, of which the first 16 are its name.
    ///
    /// # Errors
    /// The index of a file with another length, or of the first one too many; 0 where there is none.
    pub fn parse(files: &[Zeroizing<Vec<u8>>]) -> Result<Self, usize> {
        let parsed = files.iter().enumerate();
        let keys = parsed.map(|(index, bytes)| from_file(bytes).filter(|_| index < KEYS_MAX).ok_or(index));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        if keys.is_empty() { Err(0) } else { Ok(Self(keys)) }
    }
}

impl fmt::Debug for FileKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FileKeys").field(&self.0.len()).finish()
    }
}

impl TicketKeys {
    /// Uses the first [`WORDS`] of `words`: zeros, or what another copy has written.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn new(words: &'static [AtomicU64]) -> Self {
        Self { words: &words[..WORDS] }
    }

    /// Makes new keys when `every` has passed since the last time, or there are none. Says whether it
    /// did. Only the supervisor may call this.
    pub fn rotate(&self, now: SystemTime, every: Duration) -> bool {
        let now = seconds(now);
        let since = self.words[SINCE].load(Ordering::Relaxed);
        // A clock that was set back must not stop rotation for ever.
        let due = since == 0 || now < since || now - since >= every.as_secs().max(1);
        if !due {
            return false;
        }
        match self.read() {
            Some(keys) if keys.len() > NEXT => {
                self.write(now, &[keys[NEXT].clone(), keys[CURRENT].clone(), fresh()]);
            }
            _ => self.write(now, &[fresh(), fresh(), fresh()]),
        }
        true
    }

    /// Forgets all keys and makes new ones: tickets so far are worth nothing any more. Only the supervisor
    /// may call this.
    pub fn renew(&self, now: SystemTime) {
        self.write(seconds(now), &[fresh(), fresh(), fresh()]);
    }

    /// Uses keys from files instead. Only the supervisor may call this.
    pub fn replace(&self, now: SystemTime, files: &FileKeys) {
        self.write(seconds(now), &files.0);
    }

    /// The keys as bytes, for the next program when the binary is replaced; empty when there are none.
    pub fn export(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(WORDS * 8));
        if self.read().is_some() {
            for word in &self.words[SINCE..] {
                bytes.extend_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
        }
        bytes
    }

    /// Takes over what [`TicketKeys::export`] gave. Says whether it was that. Only the supervisor
    /// may call this.
    pub fn import(&self, bytes: &[u8]) -> bool {
        if bytes.len() != (WORDS - SINCE) * 8 {
            return false;
        }
        self.change(|words| {
            for (word, bytes) in words[SINCE..].iter().zip(bytes.chunks_exact(8)) {
                let bytes = bytes.try_into().expect("chunks of eight");
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
        });
        true
    }

    /// When the current key took over, or was read from its file; `None` without keys.
    pub fn since(&self) -> Option<SystemTime> {
        match self.words[SINCE].load(Ordering::Relaxed) {
            0 => None,
            since => Some(UNIX_EPOCH + Duration::from_secs(since)),
        }
    }

    fn write(&self, now: u64, keys: &[Key]) {
        self.change(|words| {
            words[SINCE].store(now, Ordering::Relaxed);
            let mut slots = words[SINCE + 1..].chunks_exact(WORDS_PER_KEY);
            for key in keys {
                let slot = slots.next().expect("there are no more keys than places");
                let bytes = key.name.chunks_exact(8).chain(key.key.chunks_exact(8));
                for (word, bytes) in slot.iter().zip(bytes) {
                    let bytes = bytes.try_into().expect("chunks of eight");
                    word.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
                }
            }
            for word in slots.flatten() {
                word.store(0, Ordering::Relaxed);
            }
        });
    }

    /// Runs a write so that readers notice it. There is one writer, and a number left odd by one
    /// that died is made odd again, not even.
    fn change(&self, write: impl FnOnce(&[AtomicU64])) {
        let before = self.words[SEQUENCE].load(Ordering::Relaxed) | 1;
        self.words[SEQUENCE].store(before, Ordering::Relaxed);
        fence(Ordering::Release);
        write(self.words);
        self.words[SEQUENCE].store(before.wrapping_add(1), Ordering::Release);
    }

    /// Runs a read until no write came between.
    fn consistent<T>(&self, read: impl Fn(&[AtomicU64]) -> T) -> Option<T> {
        for _ in 0..ATTEMPTS {
            let before = self.words[SEQUENCE].load(Ordering::Acquire);
            if before & 1 == 0 {
                let value = read(self.words);
                fence(Ordering::Acquire);
                if self.words[SEQUENCE].load(Ordering::Relaxed) == before {
                    return Some(value);
                }
            }
            std::hint::spin_loop();
        }
        None
    }

    /// All keys, the encrypting one first; `None` when there are none or they cannot be read.
    fn read(&self) -> Option<Vec<Key>> {
        let keys = self.consistent(|words| {
            let set = words[SINCE].load(Ordering::Relaxed) != 0;
            let slots = words[SINCE + 1..].chunks_exact(WORDS_PER_KEY).filter(|_| set);
            slots.map(load).filter(|key| key.key.iter().any(|byte| *byte != 0)).collect::<Vec<_>>()
        })?;
        (!keys.is_empty()).then_some(keys)
    }

    /// The key that encrypts.
    fn current(&self) -> Option<Key> {
        self.consistent(|words| {
            let set = words[SINCE].load(Ordering::Relaxed) != 0;
            set.then(|| load(&words[SINCE + 1..][..WORDS_PER_KEY]))
        })?
    }

    fn find(&self, name: &[u8; NAME]) -> Option<Key> {
        self.read()?.into_iter().find(|key| key.name == *name)
    }
}

impl fmt::Debug for TicketKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TicketKeys").field("since", &self.since()).finish_non_exhaustive()
    }
}

fn load(words: &[AtomicU64]) -> Key {
    let mut key = Key { name: [0; NAME], key: Zeroizing::new([0; KEY]) };
    let bytes = key.name.chunks_exact_mut(8).chain(key.key.chunks_exact_mut(8));
    for (word, bytes) in words.iter().zip(bytes) {
        bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    key
}

fn fresh() -> Key {
    let mut key = Key { name: [0; NAME], key: Zeroizing::new([0; KEY]) };
    rand::fill(&mut key.name).expect("the system has randomness");
    rand::fill(&mut key.key[..]).expect("the system has randomness");
    key
}

/// The files have the lengths that other servers made customary: a name, and 32 or 64 bytes of keys.
/// Ours is derived from all of them, so a file may be shared, while tickets may not.
fn from_file(bytes: &[u8]) -> Option<Key> {
    let (name, secret) = bytes.split_first_chunk::<NAME>()?;
    if !matches!(secret.len(), 32 | 64) {
        return None;
    }
    let mut key = Key { name: *name, key: Zeroizing::new([0; KEY]) };
    let derived = hkdf::Salt::new(hkdf::HKDF_SHA256, b"").extract(secret);
    let info = [b"httpd ticket key".as_slice()];
    derived.expand(&info, hkdf::HKDF_SHA256).ok()?.fill(&mut key.key[..]).ok()?;
    Some(key)
}

fn seconds(time: SystemTime) -> u64 {
    // 0 means that there are no keys.
    time.duration_since(UNIX_EPOCH).map_or(1, |since| since.as_secs().max(1))
}

/// Makes and opens tickets for rustls.
#[derive(Debug)]
pub struct Ticketer {
    keys: TicketKeys,
    lifetime: Duration,
}

/// RFC 8446 section 4.6.1: never longer than seven days.
const LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

impl Ticketer {
    /// Tickets that clients may use for one rotation: a key lives for that long after its last ticket.
    pub fn new(keys: TicketKeys, rotation: Duration) -> Self {
        Self { keys, lifetime: rotation.min(LIFETIME_MAX) }
    }
}

impl ProducesTickets for Ticketer {
    fn enabled(&self) -> bool {
        true
    }

    fn lifetime(&self) -> u32 {
        u32::try_from(self.lifetime.as_secs()).expect("a week")
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        let key = self.keys.current()?;
        let length = NAME + NONCE + plain.len() + TAG;
        if length > TICKET_MAX {
            return None;
        }
        let mut nonce = [0; NONCE];
        rand::fill(&mut nonce).ok()?;
        let mut ticket = Vec::with_capacity(length);
        ticket.extend_from_slice(&key.name);
        ticket.extend_from_slice(&nonce);
        ticket.extend_from_slice(plain);
        let sealed = &mut ticket[NAME + NONCE..];
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = aead(&key)?.seal_in_place_separate_tag(nonce, aad(&key), sealed).ok()?;
        ticket.extend_from_slice(tag.as_ref());
        Some(ticket)
    }

    fn decrypt(&self, ticket: &[u8]) -> Option<Vec<u8>> {
        if ticket.len() > TICKET_MAX {
            return None;
        }
        let (name, rest) = ticket.split_first_chunk::<NAME>()?;
        let (nonce, sealed) = rest.split_first_chunk::<NONCE>()?;
        let (sealed, tag) = sealed.split_last_chunk::<TAG>()?;
        let key = self.keys.find(name)?;
        let mut plain = vec![0; sealed.len()];
        let nonce = Nonce::assume_unique_for_key(*nonce);
        aead(&key)?.open_separate_gather(nonce, aad(&key), sealed, tag, &mut plain).ok()?;
        Some(plain)
    }
}

fn aead(key: &Key) -> Option<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM_SIV, &key.key[..]).ok().map(LessSafeKey::new)
}

fn aad(key: &Key) -> Aad<[u8; NAME + POLICY.len()]> {
    let mut aad = [0; NAME + POLICY.len()];
    aad[..NAME].copy_from_slice(&key.name);
    aad[NAME..].copy_from_slice(POLICY);
    Aad::from(aad)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(8 * 3600);

    fn page() -> &'static [AtomicU64] {
        Box::leak((0..WORDS).map(|_| AtomicU64::new(0)).collect())
    }

    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_700_000_000 + hours * 3600)
    }

    #[test]
    fn a_ticket_opens_in_every_process_until_its_key_is_gone() {
        let keys = TicketKeys::new(page());
        assert!(Ticketer::new(keys, EVERY).encrypt(b"session").is_none(), "no keys yet");
        assert!(keys.rotate(at(0), EVERY));
        assert!(!keys.rotate(at(7), EVERY));
        let (here, there) = (Ticketer::new(keys, EVERY), Ticketer::new(keys, EVERY));
        let ticket = here.encrypt(b"session").unwrap();
        assert_ne!(ticket, here.encrypt(b"session").unwrap(), "nonces differ");
        let opens = || there.decrypt(&ticket).as_deref() == Some(b"session");
        assert!(opens());
        assert!(keys.rotate(at(8), EVERY));
        assert!(opens(), "the previous key opens");
        assert!(keys.rotate(at(16), EVERY));
        assert!(!opens(), "the one before is forgotten");
    }

    #[test]
    fn the_next_key_already_opens() {
        let (ours, theirs) = (TicketKeys::new(page()), TicketKeys::new(page()));
        ours.rotate(at(0), EVERY);
        assert!(theirs.import(&ours.export()));
        theirs.rotate(at(8), EVERY);
        let ticket = Ticketer::new(theirs, EVERY).encrypt(b"session").unwrap();
        assert_eq!(Ticketer::new(ours, EVERY).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
    }

    #[test]
    fn keys_survive_a_new_program() {
        let (old, new) = (TicketKeys::new(page()), TicketKeys::new(page()));
        assert!(old.export().is_empty());
        assert!(!new.import(&[]) && !new.import(&[0; 7]));
        old.rotate(at(0), EVERY);
        let ticket = Ticketer::new(old, EVERY).encrypt(b"session").unwrap();
        assert!(new.import(&old.export()));
        assert_eq!(new.since(), old.since());
        assert_eq!(Ticketer::new(new, EVERY).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        assert!(!new.rotate(at(7), EVERY), "the age is taken over, too");
    }

    #[test]
    fn a_clock_set_back_does_not_stop_rotation() {
        let keys = TicketKeys::new(page());
        keys.rotate(at(100), EVERY);
        assert!(keys.rotate(at(1), EVERY));
    }

    #[test]
    fn hostile_tickets_are_refused() {
        let keys = TicketKeys::new(page());
        keys.rotate(at(0), EVERY);
        let ticketer = Ticketer::new(keys, EVERY);
        let ticket = ticketer.encrypt(&[7; 200]).unwrap();
        for length in 0..ticket.len() {
            assert!(ticketer.decrypt(&ticket[..length]).is_none(), "cut at {length}");
        }
        for at in 0..ticket.len() {
            let mut changed = ticket.clone();
            changed[at] ^= 1;
            assert!(ticketer.decrypt(&changed).is_none(), "changed at {at}");
        }
        assert!(ticketer.decrypt(&[ticket, vec![0]].concat()).is_none());
        assert!(ticketer.decrypt(&[0; TICKET_MAX + 1]).is_none());
        assert!(ticketer.encrypt(&[0; TICKET_MAX]).is_none());
    }

    #[test]
    fn files_give_the_same_keys_on_all_hosts() {
        let file = |byte: u8, length| Zeroizing::new(vec![byte; length]);
        let (here, there) = (TicketKeys::new(page()), TicketKeys::new(page()));
        here.replace(at(0), &FileKeys::parse(&[file(1, 48), file(2, 80)]).unwrap());
        there.replace(at(9), &FileKeys::parse(&[file(2, 80), file(1, 48)]).unwrap());
        for (from, to) in [(here, there), (there, here)] {
            let ticket = Ticketer::new(from, EVERY).encrypt(b"session").unwrap();
            assert_eq!(Ticketer::new(to, EVERY).decrypt(&ticket).as_deref(), Some(&b"session"[..]));
        }
        let refused = |files: &[_]| FileKeys::parse(files).expect_err("a mistake");
        assert_eq!(refused(&[file(1, 48), file(2, 47)]), 1);
        assert_eq!(refused(&vec![file(1, 48); KEYS_MAX + 1]), KEYS_MAX);
        assert_eq!(refused(&[]), 0);
    }

    #[test]
    fn renewal_forgets_all_keys() {
        let keys = TicketKeys::new(page());
        let ticketer = Ticketer::new(keys, EVERY);
        let files: Vec<_> = (1..=3).map(|byte| Zeroizing::new(vec![byte; 48])).collect();
        for _ in 0..2 {
            keys.replace(at(0), &FileKeys::parse(&files).unwrap());
            let before = ticketer.encrypt(b"session").unwrap();
            keys.renew(at(1));
            assert!(ticketer.decrypt(&before).is_none());
            let after = ticketer.encrypt(b"session").unwrap();
            assert_eq!(ticketer.decrypt(&after).as_deref(), Some(&b"session"[..]));
            assert!(!keys.rotate(at(8), EVERY) && keys.rotate(at(9), EVERY), "as old as the renewal");
        }
    }

    #[test]
    fn a_reader_never_sees_half_a_key() {
        let keys = TicketKeys::new(page());
        keys.write(1, &[Key { name: [0; NAME], key: Zeroizing::new([1; KEY]) }]);
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                for _ in 0..20_000 {
                    if let Some(key) = keys.current() {
                        assert!(key.key.iter().all(|byte| *byte == key.key[0]), "torn");
                        assert!(key.name.iter().all(|byte| *byte == key.key[0] - 1), "torn");
                    }
                }
            });
            let mut byte = 1;
            while !reader.is_finished() {
                byte = byte % 200 + 1;
                keys.write(1, &[Key { name: [byte - 1; NAME], key: Zeroizing::new([byte; KEY]) }]);
            }
        });
    }

    #[test]
    fn a_writer_that_died_only_costs_tickets() {
        let words = page();
        let keys = TicketKeys::new(words);
        keys.rotate(at(0), EVERY);
        words[SEQUENCE].fetch_add(1, Ordering::Relaxed);
        assert!(Ticketer::new(keys, EVERY).encrypt(b"session").is_none());
        keys.rotate(at(8), EVERY);
        assert!(Ticketer::new(keys, EVERY).encrypt(b"session").is_some());
    }
}
