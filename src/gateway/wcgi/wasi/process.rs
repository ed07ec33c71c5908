//! What a run knows of itself and its surroundings: arguments, environment, time, chance. And what it has not:
//! signals and sockets.

use std::thread;
use std::time::{Duration, SystemTime};

use super::abi::{self, Errno, Guest, fdflags};
use super::{Answer, State, Strings};
use crate::sys::wait;

pub fn args_sizes_get(state: &mut State, guest: Guest<'_>, count: u32, size: u32) -> Answer {
    sizes(&state.arguments, guest, count, size)
}

pub fn args_get(state: &mut State, guest: Guest<'_>, list: u32, text: u32) -> Answer {
    strings(&state.arguments, guest, list, text)
}

pub fn environ_sizes_get(state: &mut State, guest: Guest<'_>, count: u32, size: u32) -> Answer {
    sizes(&state.variables, guest, count, size)
}

pub fn environ_get(state: &mut State, guest: Guest<'_>, list: u32, text: u32) -> Answer {
    strings(&state.variables, guest, list, text)
}

fn sizes(strings: &Strings, mut guest: Guest<'_>, count: u32, size: u32) -> Answer {
    guest.put_u32(count, strings.count)?;
    let length = u32::try_from(strings.bytes.len()).map_err(|_| Errno::OVERFLOW)?;
    Ok(guest.put_u32(size, length)?)
}

/// The strings themselves, and a pointer to each.
fn strings(strings: &Strings, mut guest: Guest<'_>, mut list: u32, text: u32) -> Answer {
    guest.put(text, &strings.bytes)?;
    let mut at = text;
    for string in strings.bytes.split_inclusive(|byte| *byte == 0) {
        guest.put_u32(list, at)?;
        // That all of it is inside the memory was checked above.
        at = at.wrapping_add(u32::try_from(string.len()).map_err(|_| Errno::OVERFLOW)?);
        list = list.checked_add(4).ok_or(Errno::FAULT)?;
    }
    Ok(())
}

const REALTIME: u32 = 0;
const MONOTONIC: u32 = 1;
const PROCESS_TIME: u32 = 2;
const THREAD_TIME: u32 = 3;

/// The time of a clock. A run has its thread to itself, so its process is the thread.
fn now(clock: u32) -> Result<Duration, Errno> {
    match clock {
        REALTIME => Ok(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()),
        MONOTONIC => Ok(wait::monotonic()),
        PROCESS_TIME | THREAD_TIME => Ok(wait::thread_time()),
        _ => Err(Errno::INVAL),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub fn clock_res_get(_: &mut State, mut guest: Guest<'_>, clock: u32, out: u32) -> Answer {
    now(clock)?;
    Ok(guest.put_u64(out, 1)?)
}

pub fn clock_time_get(_: &mut State, mut guest: Guest<'_>, clock: u32, _: u64, out: u32) -> Answer {
    Ok(guest.put_u64(out, nanoseconds(now(clock)?))?)
}

pub fn random_get(_: &mut State, mut guest: Guest<'_>, at: u32, length: u32) -> Answer {
    aws_lc_rs::rand::fill(guest.bytes(at, length)?).map_err(|_| Errno::IO)?;
    Ok(())
}

pub fn sched_yield(_: &mut State, _: Guest<'_>) -> Answer {
    thread::yield_now();
    Ok(())
}

/// Waits for the first of several things. Streams and files are always said to be ready: a read of standard
/// input waits by itself, and nothing else ever does. So only clocks are waited for, and only if there is
/// nothing else.
pub fn poll_oneoff(
    state: &mut State,
    mut guest: Guest<'_>,
    subscriptions: u32,
    events: u32,
    count: u32,
    out: u32,
) -> Answer {
    /// More than any program has descriptors; bounds what one call can take.
    const SUBSCRIPTIONS_MAX: u32 = 1024;
    if count == 0 || count > SUBSCRIPTIONS_MAX {
        return Err(Errno::INVAL.into());
    }
    let mut wanted = Vec::new();
    for index in 0..count {
        let at = subscriptions.checked_add(index * 48).ok_or(Errno::FAULT)?;
        wanted.push(subscription(guest.array(at)?)?);
    }
    let others = wanted.iter().any(|(_, wanted)| !matches!(wanted, Wanted::Time(_)));
    let first = wanted.iter().filter_map(|(_, wanted)| match wanted {
        Wanted::Time(left) => Some(*left),
        _ => None,
    });
    let slept = match first.min() {
        Some(first) if !others => {
            state.output.flush(&mut state.watch)?;
            sleep(state, first)?;
            first
        }
        _ => Duration::ZERO,
    };
    let (mut at, mut happened) = (events, 0);
    for (userdata, wanted) in wanted {
        let event = match wanted {
            Wanted::Time(left) if left <= slept => abi::event(userdata, 0, 0, 0),
            Wanted::Time(_) => continue,
            Wanted::Ready { tag, fd } => {
                let known = state.descriptors.is_open(fd);
                abi::event(userdata, if known { 0 } else { Errno::BADF.0 }, tag, u64::from(known))
            }
        };
        guest.put(at, &event)?;
        at = at.checked_add(32).ok_or(Errno::FAULT)?;
        happened += 1;
    }
    Ok(guest.put_u32(out, happened)?)
}

/// One thing that is waited for.
enum Wanted {
    /// A clock, after this long.
    Time(Duration),
    /// A descriptor.
    Ready { tag: u8, fd: u32 },
}

fn subscription(bytes: [u8; 48]) -> Result<(u64, Wanted), Errno> {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let half = |at: usize| (word(at) & u64::from(u32::MAX)) as u32;
    let wanted = match bytes[8] {
        0 => {
            let time = Duration::from_nanos(word(24));
            let absolute = bytes[40] & 1 != 0;
            Wanted::Time(if absolute { time.saturating_sub(now(half(16))?) } else { time })
        }
        tag @ (1 | 2) => Wanted::Ready { tag, fd: half(16) },
        _ => return Err(Errno::INVAL),
    };
    Ok((word(0), wanted))
}

/// Sleeping is the module's own time. What would outlast it is cut short, and then refused.
fn sleep(state: &mut State, long: Duration) -> Answer {
    /// An end that was ordered is seen after at most this long.
    const NAP: Duration = Duration::from_millis(100);
    // What it has printed is passed on only once it is said to run.
    state.watch.announce();
    let mut left = long;
    while !left.is_zero() {
        let nap = left.min(NAP).min(state.watch.left());
        thread::sleep(nap);
        state.watch.check()?;
        left = left.saturating_sub(nap);
    }
    Ok(())
}

pub fn proc_raise(_: &mut State, _: Guest<'_>, _signal: u32) -> Answer {
    Err(Errno::NOSYS.into())
}

pub fn sock_accept(_: &mut State, _: Guest<'_>, _fd: u32, _flags: u32, _out: u32) -> Answer {
    Err(Errno::NOTSUP.into())
}

#[allow(clippy::too_many_arguments)]
pub fn sock_recv(_: &mut State, _: Guest<'_>, _: u32, _: u32, _: u32, _: u32, _: u32, _: u32) -> Answer {
    Err(Errno::NOTSUP.into())
}

pub fn sock_send(_: &mut State, _: Guest<'_>, _: u32, _: u32, _: u32, _: u32, _: u32) -> Answer {
    Err(Errno::NOTSUP.into())
}

pub fn sock_shutdown(_: &mut State, _: Guest<'_>, _fd: u32, _how: u32) -> Answer {
    Err(Errno::NOTSUP.into())
}

/// Of the flags of descriptors only these can be asked for; the rest would promise more than is kept.
pub const FLAGS: u16 = fdflags::APPEND | fdflags::NONBLOCK;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_laid_out_as_c_wants_them() {
        let mut list = Strings::default();
        list.push(&[b"A", b"=", b"1"]);
        list.push(&[b"B="]);
        let mut memory = [0xff; 32];
        assert!(sizes(&list, Guest(&mut memory), 0, 4).is_ok());
        assert_eq!(memory[..8], [2, 0, 0, 0, 7, 0, 0, 0]);
        assert!(strings(&list, Guest(&mut memory), 8, 20).is_ok());
        assert_eq!(memory[8..16], [20, 0, 0, 0, 24, 0, 0, 0]);
        assert_eq!(&memory[20..27], b"A=1\0B=\0");
        assert!(strings(&list, Guest(&mut memory), 8, 26).is_err(), "beyond the memory");
    }

    #[test]
    fn subscriptions_are_read() {
        let mut bytes = [0; 48];
        bytes[0] = 9;
        bytes[24] = 5;
        bytes[16] = 1;
        let check = |bytes: [u8; 48], expected: &str| {
            let found = match subscription(bytes) {
                Ok((userdata, Wanted::Time(left))) => format!("{userdata} after {left:?}"),
                Ok((userdata, Wanted::Ready { tag, fd })) => format!("{userdata} {tag} of {fd}"),
                Err(errno) => format!("{errno:?}"),
            };
            assert_eq!(found, expected);
        };
        check(bytes, "9 after 5ns");
        let mut past = bytes;
        past[40] = 1;
        check(past, "9 after 0ns");
        let mut ready = bytes;
        ready[8] = 2;
        check(ready, "9 2 of 1");
        ready[8] = 3;
        check(ready, "Errno(28)");
    }
}
