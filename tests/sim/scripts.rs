//! Runners, a spawner and a module host, and scripts that exist in memory only. What a script does is in the name it
//! is asked by.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use httpd::gateway::messages::{Message, Refusal, ToRunner, ToWorker};
use httpd::gateway::start::Runner;
use httpd::sys::Errno;
use httpd::sys::process::Ended;

use crate::world::{Event, Object, World};

/// The other end of one of the worker's mailboxes.
#[derive(Debug)]
pub struct Peer {
    epoch: u64,
    /// The worker's, once it has said hello.
    worker: u64,
    /// What the worker is still to hear.
    pub says: VecDeque<Vec<u8>>,
    /// When it died, mostly to be born anew.
    pub deaths: Vec<Duration>,
    /// It died, and the mailbox has no other end any more.
    pub has_left: bool,
}

/// One script, and what it is still to do.
#[derive(Debug)]
pub struct Script {
    /// Who runs it.
    runner: Runner,
    id: u64,
    /// Whether the worker was told that it runs.
    announced: bool,
    input: Option<usize>,
    output: Option<usize>,
    variables: BTreeMap<String, String>,
    act: Act,
    read: Vec<u8>,
    input_ended: bool,
    prints: VecDeque<u8>,
    composed: bool,
    printed: usize,
    over: bool,
}

/// What scripts do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Act {
    /// Prints what it reads, when it has read all of it.
    Echo,
    /// Prints much, and reads nothing; with its length or without.
    Much { counted: bool },
    /// Prints, with its input closed from the beginning.
    Deaf,
    /// Says that it prints more than it does.
    Short,
    /// Prints more than it says.
    Long,
    /// Prints what is no head.
    Bad,
    /// Prints nothing.
    Nothing,
    /// Prints nothing, and does not end.
    Silent,
    /// Prints for ever.
    Forever,
    /// Is killed in the middle.
    Killed,
    /// Ends, but what it left running keeps its output.
    Background,
    /// The same, and that prints on and on.
    Floods,
    /// Closes its output and goes on.
    Lingers,
    /// Prints no document when it is asked by HEAD.
    Mute,
    /// Prints half of its document a second after the other.
    Pauses,
    /// Prints very much, and is said to run only a second later.
    Late,
    /// Prints a whole response.
    Unparsed,
    /// Sends the client elsewhere, within.
    Redirect,
    /// The same, for ever.
    Loop,
}

/// What `much` prints.
pub const MUCH: usize = 9_000;

/// What `late` prints.
pub const VERY_MUCH: usize = 1 << 20;

pub fn much() -> Vec<u8> {
    (0..MUCH).map(|index| b'a' + (index % 23) as u8).collect()
}

impl Peer {
    /// Each kind has epochs of its own.
    pub fn new(runner: Runner) -> Self {
        let epoch = 100 * (1 + runner as u64);
        Self { epoch, worker: 0, says: VecDeque::new(), deaths: Vec::new(), has_left: false }
    }
}

impl World {
    /// The worker says something to a runner; `pipes` came along.
    pub fn tell_runner(&mut self, runner: Runner, note: &[u8], pipes: &[usize]) -> Result<(), Errno> {
        if self.runners[runner as usize].has_left {
            return Err(Errno::PIPE);
        }
        if self.rng.chance(self.odds.mailbox_full) {
            return Err(Errno::AGAIN);
        }
        let message = Message::<ToRunner>::decode(note).expect("a message of the worker's");
        self.runners[runner as usize].worker = message.from;
        if message.what == ToRunner::Hello {
            self.runner_says(runner, ToWorker::Hello);
            return Ok(());
        }
        if message.to != self.runners[runner as usize].epoch {
            return Ok(());
        }
        match message.what {
            ToRunner::Hello => {}
            ToRunner::Start(start) => {
                pipes.iter().for_each(|pipe| self.pipes[*pipe].theirs_open += 1);
                let output = pipes[0];
                let input = start.input.then(|| pipes[1]);
                assert_eq!(pipes.len(), 1 + usize::from(start.input), "as many pipes as it says");
                let pairs = start.variables.iter().map(|pair| {
                    let text = String::from_utf8_lossy(pair).into_owned();
                    let (name, value) = text.split_once('=').expect("a pair");
                    (name.to_owned(), value.to_owned())
                });
                let name = start.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
                let is_module = start.path.starts_with(b"/wasm/");
                assert_eq!(is_module, runner == Runner::ModuleHost, "each is asked of who runs it");
                self.start((runner, start.id), name, input, output, pairs.collect());
            }
            ToRunner::End { id, .. } => {
                let is_it = |script: &Script| (script.runner, script.id) == (runner, id) && !script.over;
                let found = self.scripts.iter().position(is_it);
                if let Some(script) = found {
                    self.end_script(script, Ended::Killed(15), false);
                }
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        (runner, id): (Runner, u64),
        name: &[u8],
        input: Option<usize>,
        output: usize,
        variables: BTreeMap<String, String>,
    ) {
        let name = String::from_utf8_lossy(name).into_owned();
        let refused = match name.as_str() {
            "absent" => Some(Refusal::NotFound),
            "plain" => Some(Refusal::Forbidden),
            "busy" => Some(Refusal::Busy),
            "broken" => Some(Refusal::Broken),
            _ => None,
        };
        if let Some(why) = refused {
            [Some(output), input].into_iter().flatten().for_each(|pipe| self.let_go(pipe));
            return self.runner_says(runner, ToWorker::Refused { id, why });
        }
        let act = match name.as_str() {
            "echo" => Act::Echo,
            "much" => Act::Much { counted: false },
            "counted" => Act::Much { counted: true },
            "deaf" => Act::Deaf,
            "short" => Act::Short,
            "long" => Act::Long,
            "bad" => Act::Bad,
            "nothing" => Act::Nothing,
            "silent" => Act::Silent,
            "forever" => Act::Forever,
            "killed" => Act::Killed,
            "background" => Act::Background,
            "floods" => Act::Floods,
            "lingers" => Act::Lingers,
            "mute" => Act::Mute,
            "pauses" => Act::Pauses,
            "late" => Act::Late,
            "nph-raw" => Act::Unparsed,
            "redirect" => Act::Redirect,
            "loop" => Act::Loop,
            other => panic!("a script {other}"),
        };
        let (read, prints) = (Vec::new(), VecDeque::new());
        let input_ended = input.is_none();
        let announced = act == Act::Late || runner == Runner::Spawner;
        self.scripts.push(Script {
            runner,
            id,
            announced,
            input,
            output: Some(output),
            variables,
            act,
            read,
            input_ended,
            prints,
            composed: false,
            printed: 0,
            over: false,
        });
        let script = self.scripts.len() - 1;
        self.note(format_args!("script {script} ({name}) starts"));
        let started = ToWorker::Started { id, pid: 1000 + id as u32, nph: name.starts_with("nph-") };
        if act == Act::Late {
            self.later(Duration::from_secs(1), move |world| {
                let Script { printed, output, over, .. } = world.scripts[script];
                if over {
                    return;
                }
                let held = output.map_or(0, |output| world.pipes[output].bytes.len());
                assert_eq!(held, printed, "some was read of who is not said to run");
                world.runner_says(runner, started);
            });
        } else if announced {
            self.runner_says(runner, started);
        }
        let after = self.rng.micros(1, 3000);
        self.schedule(after, Event::Script(script));
    }

    /// A script does something.
    pub fn act_script(&mut self, index: usize) {
        if self.scripts[index].over {
            return;
        }
        let act = self.scripts[index].act;
        match act {
            Act::Deaf => {
                if let Some(input) = self.scripts[index].input.take() {
                    self.let_go(input);
                }
            }
            Act::Echo => self.read_input(index),
            _ => {}
        }
        let script = &mut self.scripts[index];
        if !script.composed && (act != Act::Echo || script.input_ended) {
            script.composed = true;
            let text = compose(script);
            script.prints.extend(text);
        }
        if act == Act::Forever && script.prints.is_empty() {
            script.prints.extend(much());
        }
        let composed = script.composed;
        let printed = self.print(index);
        let script = &self.scripts[index];
        if composed && script.prints.is_empty() && !matches!(act, Act::Silent | Act::Forever) {
            return self.finish_script(index);
        }
        self.announce(index);
        let after = if printed { self.rng.micros(1, 300) } else { self.rng.micros(100, 20_000) };
        let after = if act == Act::Silent { Duration::from_secs(5) } else { after };
        self.schedule(after, Event::Script(index));
    }

    /// A module host says that a module runs when somebody has to wait for it.
    fn announce(&mut self, index: usize) {
        let script = &mut self.scripts[index];
        if !std::mem::replace(&mut script.announced, true) {
            let (runner, id) = (script.runner, script.id);
            self.runner_says(runner, ToWorker::Started { id, pid: 1000 + id as u32, nph: false });
        }
    }

    fn read_input(&mut self, index: usize) {
        let Some(input) = self.scripts[index].input else { return };
        let length = self.rng.within(1, 9000);
        match self.pipes[input].read(length) {
            Ok(bytes) if bytes.is_empty() => self.scripts[index].input_ended = true,
            Ok(bytes) => {
                self.scripts[index].read.extend(bytes);
                self.wake_pipe(input);
            }
            Err(_) => {}
        }
    }

    /// Prints some; whether that went well.
    fn print(&mut self, index: usize) -> bool {
        let length = self.rng.within(1, 9000);
        let script = &mut self.scripts[index];
        let (Some(output), false) = (script.output, script.prints.is_empty()) else { return true };
        let piece: Vec<u8> = script.prints.iter().take(length).copied().collect();
        match self.pipes[output].write(&piece) {
            Ok(count) => {
                self.scripts[index].prints.drain(..count);
                self.scripts[index].printed += count;
                self.wake_pipe(output);
                true
            }
            Err(Errno::PIPE) => {
                // SIGPIPE, unless it has ended meanwhile.
                self.end_script(index, Ended::Killed(13), false);
                false
            }
            Err(_) => false,
        }
    }

    fn finish_script(&mut self, index: usize) {
        match self.scripts[index].act {
            Act::Killed => self.end_script(index, Ended::Killed(11), false),
            act @ (Act::Background | Act::Floods) => {
                // The pipe stays open for ever.
                if let Some(output) = self.scripts[index].output.take()
                    && act == Act::Floods
                {
                    self.pipes[output].flood();
                    self.wake_pipe(output);
                }
                self.end_script(index, Ended::Exited(0), false);
            }
            Act::Pauses => {
                self.announce(index);
                self.scripts[index].prints.extend(much());
                self.scripts[index].act = Act::Nothing;
                self.schedule(Duration::from_secs(1), Event::Script(index));
            }
            Act::Lingers => {
                if let Some(output) = self.scripts[index].output.take() {
                    self.let_go(output);
                }
                let after = self.rng.micros(1, 3_000_000);
                self.scripts[index].act = Act::Nothing;
                self.schedule(after, Event::Script(index));
            }
            _ => {
                let code = *self.rng.pick(&[0, 0, 1]);
                self.end_script(index, Ended::Exited(code), false);
            }
        }
    }

    fn end_script(&mut self, index: usize, how: Ended, overran: bool) {
        let script = &mut self.scripts[index];
        if std::mem::replace(&mut script.over, true) {
            return;
        }
        let (runner, id, cpu) = (script.runner, script.id, Duration::ZERO);
        let ended = match script.announced {
            true => ToWorker::Exited { id, how, cpu, overran },
            false => ToWorker::Ran { id, pid: 1000 + id as u32, how, cpu, overran },
        };
        let ends = [script.input.take(), script.output.take()];
        self.note(format_args!("script {index} ends: {how:?}"));
        let said_first = self.rng.chance(500);
        if said_first {
            self.runner_says(runner, ended);
        }
        ends.into_iter().flatten().for_each(|pipe| self.let_go(pipe));
        if !said_first {
            self.runner_says(runner, ended);
        }
    }

    /// A runner dies, and another is born on the same mailbox.
    pub fn runner_dies(&mut self, runner: Runner) {
        self.runner_ends(runner);
        self.runners[runner as usize].epoch += 1;
        // What it said before is still in the mailbox.
        self.runner_says(runner, ToWorker::Hello);
    }

    /// A runner dies that nobody forks anew: nobody else has its end of the mailbox.
    pub fn runner_leaves(&mut self, runner: Runner) {
        self.runner_ends(runner);
        self.runners[runner as usize].has_left = true;
        self.wake(Object::Mailbox(runner));
    }

    fn runner_ends(&mut self, runner: Runner) {
        self.note(format_args!("the {} dies", runner.name()));
        self.runners[runner as usize].deaths.push(self.now);
        for index in 0..self.scripts.len() {
            let script = &mut self.scripts[index];
            if script.runner == runner && !std::mem::replace(&mut script.over, true) {
                let ends = [script.input.take(), script.output.take()];
                ends.into_iter().flatten().for_each(|pipe| self.let_go(pipe));
            }
        }
    }

    fn let_go(&mut self, pipe: usize) {
        self.pipes[pipe].theirs_open -= 1;
        self.wake_pipe(pipe);
    }

    pub fn wake_pipe(&mut self, pipe: usize) {
        self.wake(Object::Pipe { pipe, ours: true });
    }

    /// An empty packet.
    pub fn runner_says_nothing(&mut self, runner: Runner) {
        self.runners[runner as usize].says.push_back(Vec::new());
        self.wake(Object::Mailbox(runner));
    }

    pub fn runner_says(&mut self, runner: Runner, what: ToWorker) {
        let peer = &mut self.runners[runner as usize];
        let mut bytes = Vec::new();
        Message { from: peer.epoch, to: peer.worker, what }.encode(&mut bytes);
        peer.says.push_back(bytes);
        self.wake(Object::Mailbox(runner));
    }
}

/// What a script prints, given what it has read.
fn compose(script: &Script) -> Vec<u8> {
    let head = |fields: &str, body: &[u8]| [fields.as_bytes(), b"\n\n", body].concat();
    let text = "Content-Type: text/plain";
    match script.act {
        Act::Echo => match script.variables.get("CONTENT_LENGTH").map(|length| length.parse::<usize>()) {
            Some(length) if length != Ok(script.read.len()) => {
                head("Status: 500\nContent-Type: text/plain", b"not what CONTENT_LENGTH says")
            }
            _ => head(text, &script.read),
        },
        Act::Much { counted: true } => {
            head(&format!("Status: 201\r\n{text}\r\nContent-Length: {MUCH}\r"), &much())
        }
        Act::Mute if script.variables.get("REQUEST_METHOD").is_some_and(|method| method == "HEAD") => {
            head(text, b"")
        }
        Act::Much { counted: false }
        | Act::Deaf
        | Act::Background
        | Act::Floods
        | Act::Lingers
        | Act::Mute
        | Act::Pauses
        | Act::Killed => head(text, &much()),
        Act::Late => head(text, &vec![b'l'; VERY_MUCH]),
        Act::Short => head(&format!("{text}\nContent-Length: {}", MUCH + 1), &much()),
        Act::Long => head(&format!("{text}\nContent-Length: {MUCH}"), &[&much(), &b"more"[..]].concat()),
        Act::Bad => b"no field\n\n".to_vec(),
        Act::Nothing | Act::Silent => Vec::new(),
        Act::Forever => head(text, b""),
        Act::Unparsed => b"HTTP/1.1 203 Own\r\nDate: now\r\nContent-Length: 3\r\n\r\nraw".to_vec(),
        Act::Redirect => head("Location: /steady.bin", b""),
        Act::Loop => head("Location: /cgi/loop", b""),
    }
}
