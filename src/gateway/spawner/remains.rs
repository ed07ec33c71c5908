//! What programs leave behind that were told to end: the rest of their group, and those who left it.
//!
//! All descendants of a program that lose their parent become children of the spawner (PR_SET_CHILD_SUBREAPER),
//! also those that made a session of their own, so nothing gets out of sight. Whose it was is told, in this
//! order, by its session and group, by UNIQUE_ID in the environment it was started with, and by its parent.
//! Only a process that did all of these goes on: new session, new environment, and a parent that is gone. A
//! cgroup for each request would hold that one too; it takes a hierarchy that may be written to, which the
//! system service does not have, and a good part of the time a small program takes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use crate::sys::process::{self, Kill, Pid};
use crate::sys::user;

/// How often it is looked whether there are remains, from the first time to the last; what is in the middle of
/// a fork may be seen only the next time.
const AGAIN_FIRST: Duration = Duration::from_millis(5);
const AGAIN_LAST: Duration = Duration::from_secs(1);

/// Afterwards it is said that they cannot be ended: they hang in the kernel.
const LOOKS_MAX: u32 = 30;

/// What a program may have left.
#[derive(Debug)]
pub struct Remain {
    /// The program: its session and group.
    leader: i32,
    unique: String,
    kill_at: Instant,
    look_at: Instant,
    again: Duration,
    looks: u32,
    told: bool,
}

impl Remain {
    /// Of a program that has ended; what it left is killed then.
    pub fn new(leader: Pid, unique: String, kill_at: Instant) -> Self {
        let leader = leader.as_raw_nonzero().get();
        let look_at = Instant::now();
        Self { leader, unique, kill_at, look_at, again: AGAIN_FIRST, looks: 0, told: false }
    }
}

/// All remains that may be.
#[derive(Debug, Default)]
pub struct Remains(Vec<Remain>);

impl Remains {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds what is to be looked for.
    pub fn add(&mut self, remain: Remain) {
        self.0.push(remain);
    }

    /// When to look again.
    pub fn deadline(&self) -> Option<Instant> {
        self.0.iter().map(|remain| remain.look_at).min()
    }

    /// Looks for the remains that are due, and ends them. All share one look at the processes there are.
    pub fn sweep(&mut self, now: Instant, is_running: impl Fn(Pid) -> bool) {
        if self.0.iter().all(|remain| remain.look_at > now) {
            return;
        }
        let is_running = |number: i32| Pid::from_raw(number).is_some_and(&is_running);
        let own = process::own_pid().as_raw_nonzero().get();
        // Mostly there is nothing left, which one short file tells.
        let seen = if has_orphans(own, is_running) { all() } else { Vec::new() };
        let leaders: Vec<(i32, &str)> = self.0.iter().map(|one| (one.leader, one.unique.as_str())).collect();
        let found = belonging(&seen, own, &leaders, is_running, unique_id);
        let mut at = 0;
        self.0.retain_mut(|remain| {
            let mine: Vec<Pid> =
                found.iter().filter(|(index, _)| *index == at).map(|(_, pid)| *pid).collect();
            at += 1;
            remain.look_at > now || remain.look(&mine, now)
        });
    }
}

impl Remain {
    /// Ends what was found; whether it is to be looked for again.
    fn look(&mut self, found: &[Pid], now: Instant) -> bool {
        if found.is_empty() {
            return false;
        }
        self.looks += 1;
        if now >= self.kill_at {
            found.iter().for_each(|pid| process::end(*pid, Kill::Surely));
            if self.looks > LOOKS_MAX {
                let (count, unique) = (found.len(), &self.unique);
                tracing::error!("{count} processes of request {unique} cannot be killed");
                return false;
            }
        } else if !self.told {
            self.told = true;
            found.iter().for_each(|pid| process::end(*pid, Kill::Gently));
        }
        let until = if now < self.kill_at { self.kill_at } else { now + AGAIN_LAST };
        self.look_at = (now + self.again).min(until);
        self.again = (self.again * 2).min(AGAIN_LAST);
        true
    }
}

/// Ends what programs of a spawner that died have left: all whose UNIQUE_ID begins so.
pub fn end_abandoned(prefix: &str) {
    let own = process::own_pid().as_raw_nonzero().get();
    for seen in all() {
        let is_abandoned =
            seen.number != own && unique_id(seen.number).is_some_and(|id| id.starts_with(prefix));
        if let Some(pid) = Pid::from_raw(seen.number).filter(|_| is_abandoned) {
            tracing::warn!("process {} was left by a spawner that died: killed", seen.number);
            process::end(pid, Kill::Surely);
        }
    }
}

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Seen {
    number: i32,
    parent: i32,
    group: i32,
    session: i32,
}

/// Which processes belong to which of some programs, by index.
fn belonging(
    seen: &[Seen],
    own: i32,
    leaders: &[(i32, &str)],
    is_running: impl Fn(i32) -> bool,
    unique: impl Fn(i32) -> Option<String>,
) -> Vec<(usize, Pid)> {
    let leader_of =
        |one: &Seen| leaders.iter().position(|(leader, _)| *leader == one.session || *leader == one.group);
    let named = |one: &Seen| {
        let id = unique(one.number)?;
        leaders.iter().position(|(_, unique)| *unique == id)
    };
    let mut found = Vec::new();
    for one in seen {
        let mut chain = vec![*one];
        // Up to a child of ours; a loop cannot be, but processes come and go while they are read.
        while let Some(last) = chain.last().filter(|last| last.parent != own && chain.len() < seen.len()) {
            let Some(parent) = seen.iter().find(|other| other.number == last.parent) else { break };
            chain.push(*parent);
        }
        let Some(top) = chain.last().filter(|top| top.parent == own) else { continue };
        let index = match leader_of(one) {
            Some(index) => Some(index),
            // What a running program started is that program's.
            None if is_running(top.number) => None,
            None => chain.iter().find_map(|ancestor| leader_of(ancestor).or_else(|| named(ancestor))),
        };
        found.extend(index.and_then(|index| Some((index, Pid::from_raw(one.number)?))));
    }
    found
}

/// Whether this process has children it did not start. Unknown where the kernel does not list them.
fn has_orphans(own: i32, is_running: impl Fn(i32) -> bool) -> bool {
    let Ok(children) = fs::read_to_string(format!("/proc/{own}/task/{own}/children")) else { return true };
    children.split_ascii_whitespace().filter_map(|child| child.parse().ok()).any(|child| !is_running(child))
}

/// All processes there are, but the dead. Without /proc there are none to be seen.
fn all() -> Vec<Seen> {
    let Ok(names) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = names.filter_map(|name| name.ok()?.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(|number| parse(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)).collect()
}

/// `number (name) state parent group session …`; the name may hold anything, brackets too.
fn parse(stat: &str) -> Option<Seen> {
    let (number, rest) = stat.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?;
    let mut next = || words.next()?.parse().ok();
    let seen = Seen { number: number.parse().ok()?, parent: next()?, group: next()?, session: next()? };
    (!matches!(state, "Z" | "X")).then_some(seen)
}

fn unique_id(process: i32) -> Option<String> {
    let owner = fs::metadata(format!("/proc/{process}")).ok()?;
    let read = || fs::read(format!("/proc/{process}/environ"));
    // Its owner may read it; root without further rights may not.
    let environment = user::as_owner(owner.uid(), owner.gid(), read).ok()?;
    let value = environment.split(|byte| *byte == 0).find_map(|one| one.strip_prefix(b"UNIQUE_ID="))?;
    String::from_utf8(value.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_read() {
        let stat = "77 (a) b (c) S 5 6 7 0 -1 4194560";
        assert_eq!(parse(stat), Some(Seen { number: 77, parent: 5, group: 6, session: 7 }));
        assert_eq!(parse("77 (a) Z 5 6 7 0"), None, "the dead need no killing");
        assert_eq!(parse("77 (a)"), None);
        let own = std::process::id();
        assert!(all().iter().any(|seen| seen.number.unsigned_abs() == own));
    }

    /// Process 1 is the spawner. Programs 10 and 20 have ended, 30 runs.
    #[test]
    fn remains_are_told_from_others() {
        let seen = |number, parent, group, session| Seen { number, parent, group, session };
        let all = [
            seen(1, 0, 1, 1),
            seen(11, 1, 10, 10),
            seen(12, 11, 12, 10),
            seen(13, 1, 13, 13),
            seen(14, 13, 14, 14),
            seen(21, 1, 21, 21),
            seen(30, 1, 30, 30),
            seen(31, 30, 31, 31),
            seen(32, 1, 32, 32),
            seen(40, 0, 10, 10),
        ];
        let unique = |number| match number {
            13 => Some("a".to_owned()),
            21 | 31 => Some("b".to_owned()),
            _ => None,
        };
        let found = belonging(&all, 1, &[(10, "a"), (20, "b")], |number| number == 30, unique);
        let found: Vec<_> = found.iter().map(|(index, pid)| (*index, pid.as_raw_nonzero().get())).collect();
        assert_eq!(found, [(0, 11), (0, 12), (0, 13), (0, 14), (1, 21)]);
    }
}
