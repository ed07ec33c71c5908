//! What programs leave behind that were told to end: the rest of their group, and those who left it.
//!
//! All descendants of a program that lose their parent become children of the spawner (PR_SET_CHILD_SUBREAPER),
//! also those that made a session of their own, so nothing gets out of sight. Whose it was is told, in this
//! order, by its session and group, by UNIQUE_ID in the environment it was started with, and by its parent.
//! What is found is ended by its group, which nobody leaves by forking; all of a group is of one program, since who
//! joins another has to be of the same session. So only a process gets away that did all of these, new session, new
//! environment, and a parent that is gone, or who forks and leaves into a new session faster than it is looked. A
//! cgroup for each request would hold that one too; it takes a hierarchy that may be written to, which the
//! system service does not have, and a good part of the time a small program takes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use crate::sys::process::{self, Kill, Pid};
use crate::sys::user;

/// How often it is looked whether there are remains, from the first time to the last; what is in the middle of
/// a fork may be seen only the next time.
const AGAIN_FIRST: Duration = Duration::from_millis(5);
const AGAIN_LAST: Duration = Duration::from_secs(1);

/// Looks in a row that must find nothing, where there are orphans at all: in the midst of an exec a process has no
/// environment to be known by.
const MISSES_MAX: u32 = 3;

/// Afterwards it is said that they cannot be ended: they hang in the kernel.
const LOOKS_MAX: u32 = 30;

/// What a program may have left.
#[derive(Debug)]
pub struct Remain {
    /// The program: its session and group.
    leader: i32,
    /// Whether the group has not been found empty yet, after which its number may be another's.
    has_group: bool,
    unique: String,
    kill_at: Instant,
    look_at: Instant,
    again: Duration,
    looks: u32,
    /// Those of the last looks that found nothing.
    misses: u32,
    told: bool,
}

impl Remain {
    /// Of a program that has ended; what it left is killed then.
    pub fn new(leader: Pid, unique: String, kill_at: Instant) -> Self {
        let leader = leader.as_raw_nonzero().get();
        let look_at = Instant::now();
        Self {
            leader,
            has_group: true,
            unique,
            kill_at,
            look_at,
            again: AGAIN_FIRST,
            looks: 0,
            misses: 0,
            told: false,
        }
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

    /// Looks for the remains that are due, and ends them. All share one look at the processes there are. What
    /// `is_running` is no remains, nor is anything it started.
    pub fn sweep(&mut self, now: Instant, is_running: impl Fn(Pid) -> bool) {
        if self.0.iter().all(|remain| remain.look_at > now) {
            return;
        }
        let is_running = |number: i32| Pid::from_raw(number).is_some_and(&is_running);
        let own = process::own_pid().as_raw_nonzero().get();
        self.0.iter_mut().filter(|one| one.look_at <= now).for_each(|one| {
            one.has_group = one.has_group && !is_running(one.leader) && is_group(one.leader);
        });
        let is_left = self.0.iter().any(|one| one.has_group);
        // Mostly there is nothing left, which one short file tells.
        let seen = if is_left || has_orphans(own, is_running) { all() } else { Vec::new() };
        let leaders: Vec<(i32, &str)> = self.0.iter().map(|one| (one.leader, one.unique.as_str())).collect();
        let found = belonging(&seen, own, &leaders, is_running, unique_id);
        let mut at = 0;
        self.0.retain_mut(|remain| {
            let mine: Vec<Seen> =
                found.iter().filter(|(index, _)| *index == at).map(|(_, one)| *one).collect();
            at += 1;
            let is_others = |one: &Seen| one.group == remain.leader && is_foreign(one, &seen, own);
            remain.has_group = remain.has_group && !seen.iter().any(is_others);
            remain.look_at > now || remain.look(&mine, seen.is_empty(), now)
        });
    }
}

impl Remain {
    /// Ends what was found; whether it is to be looked for again. Having found nothing `is_sure` where there are no
    /// orphans.
    fn look(&mut self, found: &[Seen], is_sure: bool, now: Instant) -> bool {
        if found.is_empty() && !self.has_group {
            self.misses += 1;
            self.look_at = now + AGAIN_FIRST * self.misses;
            return !is_sure && self.misses < MISSES_MAX;
        }
        self.misses = 0;
        // What forks and exits all the time is in its group and never seen.
        let groups = found.iter().map(|one| one.group).chain(self.has_group.then_some(self.leader));
        let groups: BTreeSet<i32> = groups.collect();
        let end = |how| {
            groups.iter().filter_map(|group| Pid::from_raw(*group)).for_each(|group| {
                process::end_group(group, how);
            });
        };
        self.looks += 1;
        if now >= self.kill_at {
            end(Kill::Surely);
            if self.looks > LOOKS_MAX {
                tracing::error!("what is left of request {} cannot be killed", self.unique);
                return false;
            }
        } else if !self.told {
            self.told = true;
            end(Kill::Gently);
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
) -> Vec<(usize, Seen)> {
    let leader_of = |one: &Seen| {
        // Once nothing of a program is left, its number may be that of another, whose session this is. Of several
        // programs that had it, it is the last's.
        let is_of = |leader: i32| (leader == one.session || leader == one.group) && !is_running(leader);
        leaders.iter().rposition(|(leader, _)| is_of(*leader))
    };
    let named = |one: &Seen| {
        let id = unique(one.number)?;
        leaders.iter().position(|(_, unique)| *unique == id)
    };
    let mut found = Vec::new();
    for one in seen {
        let chain = ancestors(one, seen, own);
        let Some(top) = chain.last().filter(|top| top.parent == own) else { continue };
        let index = match leader_of(one) {
            Some(index) => Some(index),
            // What a running program started is that program's.
            None if is_running(top.number) => None,
            None => chain.iter().find_map(|ancestor| leader_of(ancestor).or_else(|| named(ancestor))),
        };
        found.extend(index.map(|index| (index, *one)));
    }
    found
}

/// A process and its ancestors up to a child of ours, as far as they are seen: processes come and go while they are
/// read.
fn ancestors(one: &Seen, seen: &[Seen], own: i32) -> Vec<Seen> {
    let mut chain = vec![*one];
    // A loop there cannot be, but in what was read at different times.
    while let Some(last) = chain.last().filter(|last| last.parent != own && chain.len() < seen.len()) {
        let Some(parent) = seen.iter().find(|other| other.number == last.parent) else { break };
        chain.push(*parent);
    }
    chain
}

/// Whether a process is no descendant of ours: its ancestors lead to the first of all, and not past us.
fn is_foreign(one: &Seen, seen: &[Seen], own: i32) -> bool {
    ancestors(one, seen, own).last().is_some_and(|top| top.parent == 0)
}

fn is_group(number: i32) -> bool {
    Pid::from_raw(number).is_some_and(process::has_group)
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

    /// Process 1 is the spawner. Programs 10, 20 and 50 have ended; 30 runs, and another 50.
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
            // Of the program that runs and has the number of one that ended.
            seen(50, 1, 50, 50),
            seen(51, 1, 50, 50),
        ];
        let unique = |number| match number {
            13 => Some("a".to_owned()),
            21 | 31 => Some("b".to_owned()),
            _ => None,
        };
        let leaders = [(10, "a"), (20, "b"), (50, "c")];
        let found = belonging(&all, 1, &leaders, |number| [30, 50].contains(&number), unique);
        let found: Vec<_> = found.iter().map(|(index, one)| (*index, one.number)).collect();
        assert_eq!(found, [(0, 11), (0, 12), (0, 13), (0, 14), (1, 21)]);
        // Whose parent went while it was looked at, is nobody else's for that.
        let orphan = seen(15, 9, 10, 10);
        assert_eq!([all[1], all[9], orphan].map(|one| is_foreign(&one, &all, 1)), [false, true, false]);
    }
}
