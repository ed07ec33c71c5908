//! What a worker and a runner, the spawner or the module host, tell each other, as bytes: one message is one packet
//! of a unix SEQPACKET socket. Pure: knows neither sockets nor programs.
//!
//! ```text
//! worker -> runner    Hello   Start + descriptors   End
//! runner -> worker    Hello   Started | Refused   Exited   Ran
//! ```
//!
//! Either side may die and be forked anew on the same socket, whose queues survive it. Therefore every
//! process has an **epoch**, a number no other process of this server ever had, and every message says from
//! which epoch it is and to which:
//!
//! * What is not meant for the receiver's own epoch is for its predecessor, and is dropped, descriptors too.
//!   Only `Hello` is for whoever reads it.
//! * A message from another epoch than before says that the peer is new: what its predecessor was asked or
//!   has asked for is dead. The worker answers 502; the runner ends the programs.
//! * Each side says `Hello` first of all; the runner answers a worker's `Hello` with its own, so that a new
//!   worker learns the epoch of an old runner.
//!
//! Descriptors travel with `Start` only: the write end of the pipe the answer goes to, then, where
//! [`Start::input`] says so, what the program reads as its standard input, a pipe or a file. Standard error
//! is the runner's own business: it logs the lines.
//!
//! Numbers are little-endian. A message that does not decode is a mistake of ours, not of a client.

use std::time::Duration;

use crate::sys::process::Ended;

/// The longest message. A packet has to fit into the send buffer of its socket as a whole, 208 KiB by
/// default (net.core.wmem_default); the longest single variable that exec takes is 128 KiB too.
pub const MESSAGE_BYTES_MAX: usize = 128 << 10;

/// Descriptors beside a message, at most.
pub const DESCRIPTORS_MAX: usize = 2;

/// Kind, from, to.
const HEAD_BYTES: usize = 1 + 8 + 8;

/// Id, site, mount, flags, and the counts of what follows.
const START_BYTES: usize = HEAD_BYTES + 8 + 2 + 2 + 1 + 4 + 2 + 2;

/// A message with its sender and its receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<T> {
    /// The epoch of the process that says it.
    pub from: u64,
    /// The epoch of the process it is said to; 0 with `Hello`, which is for any.
    pub to: u64,
    /// What is said.
    pub what: T,
}

/// What a worker says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToRunner<'a> {
    /// I am here, and know nothing of what was before me.
    Hello,
    /// Start a program.
    Start(Start<'a>),
    /// End a program, if it still runs; `Exited` follows all the same.
    End {
        /// The request.
        id: u64,
        /// Why, for the log.
        why: Why,
    },
}

/// A program to be started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Start<'a> {
    /// The worker's number for the request, never used twice by the same epoch.
    pub id: u64,
    /// Where the path is mounted.
    pub mount: MountId,
    /// Whether a descriptor for standard input comes along; without, it is empty.
    pub input: bool,
    /// The whole path of the request, normalised: the runner finds the program and sets SCRIPT_NAME,
    /// SCRIPT_FILENAME, PATH_INFO and PATH_TRANSLATED, and adds DOCUMENT_ROOT, PATH and the `env` of the mount.
    pub path: &'a [u8],
    /// Arguments (RFC 3875 section 4.4), mostly none; passed on where the mount has arguments.
    pub arguments: Strings<'a>,
    /// All other variables, `NAME=value` each; passed on as far as their names follow from requests.
    pub variables: Strings<'a>,
}

/// A mount, by its place in the configuration both sides were forked with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct MountId {
    /// Index in `Config::sites`.
    pub site: u16,
    /// Index in `Site::mounts`.
    pub mount: u16,
}

/// Strings that each end with a zero byte, as exec wants them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Strings<'a> {
    bytes: &'a [u8],
}

impl<'a> Strings<'a> {
    /// Each, without its zero byte.
    pub fn iter(self) -> impl Iterator<Item = &'a [u8]> {
        let bytes = self.bytes.strip_suffix(b"\0");
        bytes.into_iter().flat_map(|bytes| bytes.split(|byte| *byte == 0))
    }

    /// All of them with their zero bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }
}

/// Why a worker has a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// The client is gone.
    Gone,
    /// It was silent for longer than `timeout`.
    Idle,
    /// Its answer was none, or too long.
    Answer,
    /// The worker stops.
    Stop,
}

impl Why {
    const ALL: [Self; 4] = [Self::Gone, Self::Idle, Self::Answer, Self::Stop];

    /// For the log.
    pub fn text(self) -> &'static str {
        match self {
            Self::Gone => "the client is gone",
            Self::Idle => "it was silent for too long",
            Self::Answer => "its answer was bad",
            Self::Stop => "the worker stops",
        }
    }
}

/// What a runner says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ToWorker {
    /// I am here, and what was asked of my predecessor is dead.
    Hello,
    /// A program runs. It is the first word on a request, or `Refused` is the only one.
    Started {
        /// The request.
        id: u64,
        /// The program's process.
        pid: u32,
        /// Whether its output passes unparsed: its name begins with `nph-` (RFC 3875 section 5).
        nph: bool,
    },
    /// Nothing was started.
    Refused {
        /// The request.
        id: u64,
        /// Why.
        why: Refusal,
    },
    /// The program has ended. What it left in the pipe may still be read; processes it left behind may
    /// keep the pipe open, and are not waited for.
    Exited {
        /// The request.
        id: u64,
        /// How.
        how: Ended,
        /// The processor time it and the children it waited for took.
        cpu: Duration,
        /// Whether the runner ended it, because it ran for longer than `wall`.
        overran: bool,
    },
    /// `Started` and `Exited` in one, of what ended before anybody had to know that it runs. It says no more than
    /// both; one packet wakes the worker once.
    Ran {
        /// The request.
        id: u64,
        /// The program's process.
        pid: u32,
        /// How it ended.
        how: Ended,
        /// The processor time it took.
        cpu: Duration,
        /// Whether the runner ended it, because it ran for longer than `wall`.
        overran: bool,
    },
}

/// Why no program was started. Which status that is depends on nothing else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// There is none of that name.
    NotFound,
    /// What is there may not be run.
    Forbidden,
    /// There is no room for another process.
    Busy,
    /// It cannot be run: no interpreter, a foreign format, a user that may not.
    Broken,
}

impl Refusal {
    const ALL: [Self; 4] = [Self::NotFound, Self::Forbidden, Self::Busy, Self::Broken];

    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Self::NotFound => 404,
            Self::Forbidden => 403,
            Self::Busy => 503,
            Self::Broken => 500,
        }
    }
}

/// A variable cannot be sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The message would be too long: 431, or 414 where the target alone is.
    Long,
    /// It holds a zero byte, or its name an equals sign.
    Zero,
}

const HELLO: u8 = 1;
const START: u8 = 2;
const END: u8 = 3;
const STARTED: u8 = 4;
const REFUSED: u8 = 5;
const EXITED: u8 = 6;
const RAN: u8 = 7;

/// Writes a `Start` piece by piece into a buffer that can be used again.
///
/// Nothing is left to be taken back after a failure: the buffer is the caller's, to be cleared.
#[derive(Debug)]
pub struct StartWriter<'b> {
    into: &'b mut Vec<u8>,
    /// Where arguments end and variables begin, once they do.
    arguments_end: Option<usize>,
}

impl<'b> StartWriter<'b> {
    /// Begins, in an emptied buffer.
    ///
    /// # Errors
    /// When the path is too long.
    pub fn new(
        into: &'b mut Vec<u8>,
        (from, to): (u64, u64),
        id: u64,
        mount: MountId,
        input: bool,
        path: &[u8],
    ) -> Result<Self, Unfit> {
        into.clear();
        head(into, START, from, to);
        into.extend_from_slice(&id.to_le_bytes());
        into.extend_from_slice(&mount.site.to_le_bytes());
        into.extend_from_slice(&mount.mount.to_le_bytes());
        into.push(u8::from(input));
        into.extend_from_slice(&u32::try_from(path.len()).map_err(|_| Unfit::Long)?.to_le_bytes());
        // Room for where the arguments end.
        into.extend_from_slice(&[0; 4]);
        if START_BYTES + path.len() > MESSAGE_BYTES_MAX {
            return Err(Unfit::Long);
        }
        into.extend_from_slice(path);
        Ok(Self { into, arguments_end: None })
    }

    /// Adds an argument; before the first variable.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn argument(&mut self, text: &[u8]) -> Result<(), Unfit> {
        assert!(self.arguments_end.is_none(), "arguments come before variables");
        self.string(&[text])
    }

    /// Adds a variable.
    ///
    /// # Errors
    /// When it does not fit.
    pub fn variable(&mut self, name: &[u8], value: &[u8]) -> Result<(), Unfit> {
        if name.is_empty() || name.contains(&b'=') {
            return Err(Unfit::Zero);
        }
        self.arguments_end.get_or_insert(self.into.len());
        self.string(&[name, b"=", value])
    }

    /// The finished message.
    pub fn finish(self) -> &'b [u8] {
        let end = self.arguments_end.unwrap_or(self.into.len());
        // Bounded by the length of a message.
        let end = u32::try_from(end).unwrap_or(u32::MAX);
        self.into[START_BYTES - 4..START_BYTES].copy_from_slice(&end.to_le_bytes());
        self.into
    }

    fn string(&mut self, parts: &[&[u8]]) -> Result<(), Unfit> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.into.len() + length + 1 > MESSAGE_BYTES_MAX {
            return Err(Unfit::Long);
        }
        if parts.iter().any(|part| memchr::memchr(0, part).is_some()) {
            return Err(Unfit::Zero);
        }
        parts.iter().for_each(|part| self.into.extend_from_slice(part));
        self.into.push(0);
        Ok(())
    }
}

impl Message<ToRunner<'_>> {
    /// Appends a message that is no `Start`; that has [`StartWriter`].
    ///
    /// # Panics
    /// When it is a `Start`.
    pub fn encode(&self, into: &mut Vec<u8>) {
        match self.what {
            ToRunner::Hello => head(into, HELLO, self.from, self.to),
            ToRunner::Start(_) => panic!("a start is written piece by piece"),
            ToRunner::End { id, why } => {
                head(into, END, self.from, self.to);
                into.extend_from_slice(&id.to_le_bytes());
                into.push(index_of(&Why::ALL, &why));
            }
        }
    }
}

impl<'a> Message<ToRunner<'a>> {
    /// Reads one message; `None` where it is none of a worker's.
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let (kind, from, to) = (rest.u8()?, rest.u64()?, rest.u64()?);
        let what = match kind {
            HELLO => ToRunner::Hello,
            START => return Some(Self { from, to, what: ToRunner::Start(start(bytes, rest)?) }),
            END => ToRunner::End { id: rest.u64()?, why: *Why::ALL.get(usize::from(rest.u8()?))? },
            _ => return None,
        };
        rest.end(Self { from, to, what })
    }
}

fn start<'a>(whole: &'a [u8], mut rest: Reader<'a>) -> Option<Start<'a>> {
    let id = rest.u64()?;
    let mount = MountId { site: rest.u16()?, mount: rest.u16()? };
    let input = rest.bool()?;
    let path_length = usize::try_from(rest.u32()?).ok()?;
    let arguments_end = usize::try_from(rest.u32()?).ok()?;
    let path = rest.take(path_length)?;
    let begin = whole.len() - rest.0.len();
    let arguments = strings(whole.get(begin..arguments_end)?)?;
    let variables = strings(whole.get(arguments_end..)?)?;
    let named = |variable: &[u8]| memchr::memchr(b'=', variable).is_some_and(|at| at > 0);
    (!path.contains(&0) && variables.iter().all(named)).then_some(Start {
        id,
        mount,
        input,
        path,
        arguments,
        variables,
    })
}

fn strings(bytes: &[u8]) -> Option<Strings<'_>> {
    (bytes.is_empty() || bytes.ends_with(b"\0")).then_some(Strings { bytes })
}

impl Message<ToWorker> {
    /// Appends the message.
    pub fn encode(&self, into: &mut Vec<u8>) {
        let mut begin = |kind, id: u64| {
            head(into, kind, self.from, self.to);
            into.extend_from_slice(&id.to_le_bytes());
        };
        match self.what {
            ToWorker::Hello => head(into, HELLO, self.from, self.to),
            ToWorker::Started { id, pid, nph } => {
                begin(STARTED, id);
                into.extend_from_slice(&pid.to_le_bytes());
                into.push(u8::from(nph));
            }
            ToWorker::Refused { id, why } => {
                begin(REFUSED, id);
                into.push(index_of(&Refusal::ALL, &why));
            }
            ToWorker::Exited { id, how, cpu, overran } => {
                begin(EXITED, id);
                end(into, how, cpu, overran);
            }
            ToWorker::Ran { id, pid, how, cpu, overran } => {
                begin(RAN, id);
                into.extend_from_slice(&pid.to_le_bytes());
                end(into, how, cpu, overran);
            }
        }
    }

    /// Reads one message; `None` where it is none of a runner's.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut rest = Reader(bytes);
        let (kind, from, to) = (rest.u8()?, rest.u64()?, rest.u64()?);
        let what = match kind {
            HELLO => ToWorker::Hello,
            STARTED => ToWorker::Started { id: rest.u64()?, pid: rest.u32()?, nph: rest.bool()? },
            REFUSED => {
                ToWorker::Refused { id: rest.u64()?, why: *Refusal::ALL.get(usize::from(rest.u8()?))? }
            }
            EXITED => ToWorker::Exited {
                id: rest.u64()?,
                how: rest.ended()?,
                cpu: rest.time()?,
                overran: rest.bool()?,
            },
            RAN => ToWorker::Ran {
                id: rest.u64()?,
                pid: rest.u32()?,
                how: rest.ended()?,
                cpu: rest.time()?,
                overran: rest.bool()?,
            },
            _ => return None,
        };
        rest.end(Self { from, to, what })
    }
}

fn head(into: &mut Vec<u8>, kind: u8, from: u64, to: u64) {
    into.push(kind);
    into.extend_from_slice(&from.to_le_bytes());
    into.extend_from_slice(&to.to_le_bytes());
}

fn end(into: &mut Vec<u8>, how: Ended, cpu: Duration, overran: bool) {
    let (by_signal, number) = match how {
        Ended::Exited(code) => (false, code),
        Ended::Killed(signal) => (true, signal),
    };
    into.push(u8::from(by_signal));
    into.extend_from_slice(&number.to_le_bytes());
    into.extend_from_slice(&u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    into.push(u8::from(overran));
}

fn index_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let index = all.iter().position(|other| other == one);
    index.and_then(|index| u8::try_from(index).ok()).expect("the list names every one of a few")
}

/// Bytes that were not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn bool(&mut self) -> Option<bool> {
        match self.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn ended(&mut self) -> Option<Ended> {
        Some(match self.bool()? {
            false => Ended::Exited(self.i32()?),
            true => Ended::Killed(self.i32()?),
        })
    }

    fn time(&mut self) -> Option<Duration> {
        self.u64().map(Duration::from_nanos)
    }

    /// `message`, if nothing is left.
    fn end<T>(&self, message: T) -> Option<T> {
        self.0.is_empty().then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    const MOUNT: MountId = MountId { site: 7, mount: 513 };

    fn written(path: &[u8], arguments: &[&[u8]], variables: &[(&[u8], &[u8])]) -> Result<Vec<u8>, Unfit> {
        let mut buffer = b"left over".to_vec();
        let mut writer = StartWriter::new(&mut buffer, (3, 4), u64::MAX, MOUNT, true, path)?;
        for argument in arguments {
            writer.argument(argument)?;
        }
        for (name, value) in variables {
            writer.variable(name, value)?;
        }
        Ok(writer.finish().to_vec())
    }

    #[test]
    fn a_start_arrives_as_it_was_written() {
        let arguments: [&[u8]; 2] = [b"a", b""];
        let variables: [(&[u8], &[u8]); 3] = [(b"A", b"1=2"), (b"EMPTY", b""), (b"B\xff", b"\xfe\n")];
        let bytes = written(b"/cgi-bin/a", &arguments, &variables).expect("it fits");
        let message = Message::<ToRunner>::decode(&bytes).expect("it decodes");
        assert_eq!((message.from, message.to), (3, 4));
        let ToRunner::Start(start) = message.what else { panic!("a start: {message:?}") };
        assert_eq!((start.id, start.mount, start.input), (u64::MAX, MOUNT, true));
        assert_eq!(start.path, b"/cgi-bin/a");
        assert_eq!(start.arguments.iter().collect::<Vec<_>>(), arguments);
        let found: Vec<_> = start.variables.iter().collect();
        assert_eq!(found, [&b"A=1=2"[..], b"EMPTY=", b"B\xff=\xfe\n"]);

        let bytes = written(b"", &[], &[]).expect("it fits");
        let message = Message::<ToRunner>::decode(&bytes).expect("it decodes");
        let ToRunner::Start(start) = message.what else { panic!("a start: {message:?}") };
        assert_eq!((start.arguments.iter().count(), start.variables.iter().count()), (0, 0));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let check = |result: Result<Vec<u8>, Unfit>, expected: Option<Unfit>, label: &str| {
            assert_eq!(result.err(), expected, "{label}");
        };
        let room = MESSAGE_BYTES_MAX - START_BYTES;
        check(written(&vec![b'a'; room], &[], &[]), None, "the longest path");
        check(written(&vec![b'a'; room + 1], &[], &[]), Some(Unfit::Long), "one more");
        check(written(b"", &[], &[(b"A", &vec![b'a'; room - 3])]), None, "the longest variable");
        check(written(b"", &[], &[(b"A", &vec![b'a'; room - 2])]), Some(Unfit::Long), "one more");
        check(written(b"", &[], &[(b"A", b"\0")]), Some(Unfit::Zero), "a zero in a value");
        check(written(b"", &[], &[(b"A\0", b"")]), Some(Unfit::Zero), "a zero in a name");
        check(written(b"", &[], &[(b"A=", b"")]), Some(Unfit::Zero), "an equals sign in a name");
        check(written(b"", &[], &[(b"", b"x")]), Some(Unfit::Zero), "no name");
        check(written(b"", &[b"a\0b"], &[]), Some(Unfit::Zero), "a zero in an argument");
        assert_eq!(written(&vec![b'a'; room], &[], &[]).expect("it fits").len(), MESSAGE_BYTES_MAX);
    }

    #[test]
    fn short_messages_arrive_as_they_were_written() {
        let whys = Why::ALL.map(|why| ToRunner::End { id: 9, why });
        for what in whys.into_iter().chain([ToRunner::Hello]) {
            let message = Message { from: u64::MAX, to: 0, what };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Message::<ToRunner>::decode(&bytes), Some(message));
        }
        let exited = |how, overran| ToWorker::Exited { id: 1, how, cpu: Duration::new(7, 9), overran };
        let refused = Refusal::ALL.map(|why| ToWorker::Refused { id: 2, why });
        let others = [
            ToWorker::Hello,
            ToWorker::Started { id: 3, pid: u32::MAX, nph: true },
            ToWorker::Started { id: 3, pid: 1, nph: false },
            exited(Ended::Exited(255), false),
            exited(Ended::Killed(9), true),
            ToWorker::Ran { id: 4, pid: 7, how: Ended::Exited(0), cpu: Duration::new(1, 2), overran: false },
        ];
        for what in others.into_iter().chain(refused) {
            let message = Message { from: 5, to: 6, what };
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Message::<ToWorker>::decode(&bytes), Some(message));
            for end in 0..bytes.len() {
                assert_eq!(Message::<ToWorker>::decode(&bytes[..end]), None, "cut: {message:?} at {end}");
            }
            bytes.push(0);
            assert_eq!(Message::<ToWorker>::decode(&bytes), None, "too long: {message:?}");
        }
    }

    #[test]
    fn refusals_have_their_statuses() {
        assert_eq!(Refusal::ALL.map(Refusal::status), [404, 403, 503, 500]);
    }

    #[test]
    fn broken_starts_are_none() {
        let sound = written(b"/a", &[b"x"], &[(b"A", b"1")]).expect("it fits");
        let check = |at: usize, byte: u8, label: &str| {
            let mut bytes = sound.clone();
            assert_ne!(bytes[at], byte, "{label}: nothing is broken");
            bytes[at] = byte;
            assert_eq!(Message::<ToRunner>::decode(&bytes), None, "{label}");
        };
        let last = sound.len() - 1;
        check(0, 99, "an unknown kind");
        check(last, b'x', "a string without end");
        check(last - 2, b'+', "a variable without equals sign");
        check(START_BYTES, 0, "a zero in the path");
        check(START_BYTES - 1, 1, "arguments that end beyond the message");
        check(START_BYTES - 4, 0, "arguments that end before they begin");
        check(START_BYTES - 5, 1, "a path longer than the message");
        check(START_BYTES - 9, 2, "a flag that is neither");
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..200), kind in 0_u8..8) {
            let bytes = [&[kind], &bytes[..]].concat();
            if let Some(Message { what: ToRunner::Start(start), .. }) = Message::<ToRunner>::decode(&bytes) {
                prop_assert!(start.variables.iter().all(|variable| variable.contains(&b'=')));
            }
            let _ = Message::<ToWorker>::decode(&bytes);
        }

        #[test]
        fn any_start_survives(
            path in vec(1_u8.., 0..40),
            arguments in vec(vec(1_u8.., 0..9), 0..4),
            variables in vec((vec(b'A'..=b'Z', 1..9), vec(1_u8.., 0..20)), 0..9),
            flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let texts: Vec<&[u8]> = arguments.iter().map(Vec::as_slice).collect();
            let pairs: Vec<(&[u8], &[u8])> = variables.iter().map(|(name, value)| (&name[..], &value[..])).collect();
            let mut bytes = written(&path, &texts, &pairs).expect("it fits");
            let decoded = Message::<ToRunner>::decode(&bytes).expect("it decodes");
            let ToRunner::Start(start) = decoded.what else { panic!("a start") };
            prop_assert_eq!(start.path, &path[..]);
            prop_assert_eq!(start.arguments.iter().collect::<Vec<_>>(), texts);
            let joined: Vec<Vec<u8>> = pairs.iter().map(|(name, value)| [name, &b"="[..], value].concat()).collect();
            prop_assert_eq!(start.variables.iter().map(<[u8]>::to_vec).collect::<Vec<_>>(), joined);
            for (at, byte) in flips {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            // Whatever it says now, it is read without harm.
            let _ = Message::<ToRunner>::decode(&bytes);
        }
    }
}
