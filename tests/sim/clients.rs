//! Clients of all tempers, each with a script. They check every byte that comes.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use crate::faults::{Odds, Rng};
use crate::net::Got;
use crate::reader::{Reader, Response};
use crate::requests::{self, Known, Request, Want};
use crate::site::{DRAIN, TIMEOUTS};
use crate::tls::Session;
use crate::variants;
use crate::world::World;

/// How a client goes about it.
#[derive(Clone, Debug)]
pub struct Style {
    pub temper: Temper,
    /// Bytes written at once, and the pause between two pieces.
    pub write_max: usize,
    pub write_pause: Duration,
    pub read_max: usize,
    pub read_pause: Duration,
    /// Requests sent before the first of them is answered.
    pub depth: usize,
    /// Ends its own side once everything is sent, and still reads.
    pub half_closes: bool,
    /// Asks now and then for what it has already, instead of what the script says.
    pub varies: bool,
    pub tls: bool,
    /// Closes when everything is answered, instead of waiting for the other side to.
    pub leaves: bool,
}

impl Default for Style {
    fn default() -> Self {
        Self {
            temper: Temper::Honest,
            write_max: usize::MAX,
            write_pause: Duration::ZERO,
            read_max: usize::MAX,
            read_pause: Duration::ZERO,
            depth: 1,
            half_closes: false,
            varies: false,
            tls: false,
            leaves: true,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Temper {
    /// Wants its answers.
    Honest,
    /// Breaks off after so many answers, or in the middle of the next.
    Aborts { after: usize },
    /// Says nothing.
    Silent,
    /// Sends a head so slowly that it does not end in time.
    Dawdles,
    /// Asks for much and reads nothing.
    ReadsNothing,
}

/// How a connection ended, as its client saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End {
    pub at: Duration,
    pub reset: bool,
    /// In the middle of an answer.
    pub cut: bool,
}

/// One client.
#[derive(Debug)]
pub struct Client {
    rng: Rng,
    style: Style,
    script: VecDeque<Request>,
    /// Sent, at least in part, and not answered.
    asked: VecDeque<(Request, Duration)>,
    /// The rest of the request being written.
    rest: Vec<u8>,
    reader: ReaderBox,
    tls: Option<Session>,
    socket: Option<usize>,
    began: Duration,
    not_before: Duration,
    answers: usize,
    /// Statuses of its answers.
    pub statuses: Vec<u16>,
    /// Codings of its answers.
    pub codings: Vec<Option<String>>,
    /// How its connection ended, when the other side ended it.
    pub end: Option<End>,
    last: Option<(&'static str, Known)>,
    closing: bool,
    finished: bool,
    pub over: bool,
    pub failure: Option<String>,
}

/// A reader that can be printed.
#[derive(Default)]
struct ReaderBox(Reader);

impl std::fmt::Debug for ReaderBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes of {:?}", self.0.part().len(), self.0.begun().map(|head| head.status))
    }
}

/// Later than any deadline of the worker's can make it: then a client that is not over never will be.
const PATIENCE: Duration = Duration::from_secs(400);

impl Client {
    /// A client by chance.
    pub fn drawn(rng: &mut Rng, odds: &Odds) -> Self {
        let mut rng = rng.fork();
        let temper = match rng.below(20) {
            0 => Temper::Silent,
            1 => Temper::Dawdles,
            2 => Temper::ReadsNothing,
            3 | 4 => Temper::Aborts { after: rng.below(4) },
            _ => Temper::Honest,
        };
        let slow = rng.chance(200);
        let style = Style {
            temper,
            write_max: *rng.pick(&[1, 5, 100, 5000]),
            write_pause: if slow { rng.micros(100, 20_000) } else { rng.micros(0, 50) },
            read_max: *rng.pick(if odds.holds_much() {
                &[4000, 64 << 10, 1 << 20]
            } else {
                &[20, 500, 8000]
            }),
            read_pause: if slow { rng.micros(100, 1_000) } else { rng.micros(0, 50) },
            depth: *rng.pick(&[1, 1, 2, 6]),
            half_closes: rng.chance(200),
            varies: true,
            tls: rng.chance(300) && matches!(temper, Temper::Honest | Temper::Aborts { .. }),
            leaves: rng.chance(800),
        };
        let count = rng.within(1, 8);
        let mut script: VecDeque<Request> = (0..count).map(|_| requests::draw(&mut rng, None)).collect();
        // Who ends its side is taken to be gone while a script runs.
        let half_closes = style.half_closes;
        script.retain(|request| !half_closes || !request.is_of_script());
        if rng.chance(150) || script.is_empty() {
            script.push_back(requests::draw_bad(&mut rng));
        }
        Self::new(rng, style, script)
    }

    /// A client that wants these answered, and takes its time for nothing.
    pub fn honest(script: Vec<Request>) -> Self {
        Self::new(Rng::new(1), Style::default(), script.into())
    }

    /// The same, but otherwise.
    pub fn with(mut self, change: impl FnOnce(&mut Style)) -> Self {
        change(&mut self.style);
        self
    }

    pub fn new(rng: Rng, style: Style, script: VecDeque<Request>) -> Self {
        let (reader, zero) = (ReaderBox::default(), Duration::ZERO);
        Self {
            rng,
            style,
            script,
            asked: VecDeque::new(),
            rest: Vec::new(),
            reader,
            tls: None,
            socket: None,
            began: zero,
            not_before: zero,
            answers: 0,
            statuses: Vec::new(),
            codings: Vec::new(),
            end: None,
            last: None,
            closing: false,
            finished: false,
            over: false,
            failure: None,
        }
    }

    /// Does the next thing; when it wants to act again, unless something happens to it before.
    pub fn act(&mut self, index: usize, world: &mut World) -> Option<Duration> {
        if self.over || self.failure.is_some() {
            return None;
        }
        let socket = match self.socket {
            Some(socket) => socket,
            None => {
                self.began = world.now;
                let tls = self.style.tls;
                self.tls = tls.then(|| Session::new(&world.tls));
                *self.socket.insert(world.connect(index, tls))
            }
        };
        if world.now < self.not_before {
            return Some(self.not_before - world.now);
        }
        if world.rng.chance(world.odds.break_down) {
            world.break_down(socket);
            self.over = true;
            return None;
        }
        let again = match self.style.temper {
            Temper::Silent => self.wait_for_close(world, socket, TIMEOUTS.idle),
            Temper::Dawdles => self.dawdle(world, socket),
            Temper::ReadsNothing if self.asked.is_empty() => self.ask_for_much(world, socket),
            Temper::ReadsNothing => self.wait_for_close(world, socket, TIMEOUTS.send * 2),
            Temper::Honest | Temper::Aborts { .. } => self.converse(world, socket),
        };
        if world.now > self.began + PATIENCE && !self.over && self.failure.is_none() {
            self.fail(format!("not over after {PATIENCE:?}: {self:?}"));
        }
        again.map(|after| after.max(Duration::from_micros(1)))
    }

    fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    fn converse(&mut self, world: &mut World, socket: usize) -> Option<Duration> {
        if matches!(self.style.temper, Temper::Aborts { after } if after <= self.answers && self.rng.chance(300))
        {
            if self.rng.chance(500) {
                world.break_down(socket);
            }
            // Otherwise it just goes: both ways closed, orderly.
            world.finish(socket);
            world.sockets[socket].break_down();
            world.wake(crate::world::Object::Socket(socket));
            self.over = true;
            return None;
        }
        let wrote = self.write(world, socket);
        let read = self.read(world, socket);
        if self.over || self.failure.is_some() {
            return None;
        }
        let everything_sent = self.script.is_empty() && self.rest.is_empty();
        let done =
            everything_sent && (self.style.half_closes || (self.style.leaves && self.asked.is_empty()));
        if done && !self.finished {
            self.finished = true;
            if let Some(tls) = &mut self.tls {
                tls.take_leave();
                tls.outgoing(&mut self.rest);
            }
        }
        if self.finished && self.rest.is_empty() && !world.sockets[socket].client_finished {
            world.finish(socket);
        }
        // Otherwise what happens to the socket wakes it; but not for ever.
        let pause = match (read, wrote) {
            (true, _) => self.style.read_pause,
            (false, true) => self.style.write_pause,
            _ => return Some(Duration::from_secs(5)),
        };
        self.not_before = world.now + pause;
        Some(pause)
    }

    fn write(&mut self, world: &mut World, socket: usize) -> bool {
        if let Some(tls) = &mut self.tls {
            tls.outgoing(&mut self.rest);
        }
        if self.rest.is_empty() {
            if self.closing || self.tls.as_ref().is_some_and(Session::is_handshaking) {
                return false;
            }
            if self.finished || self.asked.len() >= self.style.depth {
                return false;
            }
            let Some(mut request) = self.script.pop_front() else { return false };
            let plain = matches!(request.want, Want::File { known: None, range: None, .. }) && !request.ends;
            if self.style.varies && plain && self.rng.chance(150) {
                let other = requests::draw(&mut self.rng, self.last.as_ref());
                if !self.style.half_closes || !other.is_of_script() {
                    request = other;
                }
            }
            match &mut self.tls {
                None => self.rest = request.bytes.clone(),
                Some(tls) => {
                    tls.say(&request.bytes);
                    tls.outgoing(&mut self.rest);
                }
            }
            if request.ends {
                // RFC 9112 section 9.6: nothing follows what asked for the end.
                self.script.clear();
            }
            self.asked.push_back((request, world.now));
        }
        let length = self.rest.len().min(self.style.write_max);
        let wrote = world.write(socket, &self.rest[..length]);
        self.rest.drain(..wrote);
        wrote > 0
    }

    fn read(&mut self, world: &mut World, socket: usize) -> bool {
        match world.read(socket, self.style.read_max) {
            Got::Nothing => false,
            Got::Bytes(bytes) => {
                let said = match &mut self.tls {
                    None => Ok(bytes),
                    Some(tls) => tls.hear(&bytes),
                };
                match said {
                    Ok(said) => {
                        self.reader.0.feed(&said);
                        self.take_answers(world);
                    }
                    Err(what) => self.fail(what),
                }
                true
            }
            got => {
                // Over TLS, what ends without the alert was cut.
                if got == Got::End
                    && self.tls.as_ref().is_none_or(|tls| tls.told)
                    && let Some(response) = self.reader.0.finish()
                    && let Err(what) = self.take_answer(world, &response)
                {
                    self.fail(what);
                }
                self.over = true;
                self.end =
                    Some(End { at: world.now, reset: got == Got::Reset, cut: self.reader.0.is_within() });
                if let Err(what) = self.judge_end(world, socket, got == Got::Reset) {
                    self.fail(format!("{what}\n{self:?}"));
                }
                true
            }
        }
    }

    fn take_answers(&mut self, world: &World) {
        loop {
            let to_head = self.asked.front().is_some_and(|(request, _)| request.is_head);
            let response = match self.reader.0.next(to_head) {
                Ok(Some(response)) => response,
                Ok(None) => return,
                Err(what) => return self.fail(what),
            };
            if let Err(what) = self.take_answer(world, &response) {
                return self.fail(what);
            }
        }
    }

    fn take_answer(&mut self, world: &World, response: &Response) -> Result<(), String> {
        if self.closing {
            return Err(format!("a {} after the last answer", response.status));
        }
        let Some((request, sent_at)) = self.asked.pop_front() else {
            // Whatever comes unasked for can only be the refusal of something not sent.
            self.closing = response.says_close();
            return if response.status == 408 && self.closing {
                Ok(())
            } else {
                Err("an answer to nothing".into())
            };
        };
        self.answers += 1;
        self.statuses.push(response.status);
        self.codings.push(response.field("content-encoding").map(str::to_owned));
        self.closing = response.says_close();
        if request.ends && !self.closing && !matches!(request.want, Want::Status([400, 405])) {
            return Err(format!("a {} that should say close to {request:?}", response.status));
        }
        let timed_out = response.status == 408 && self.closing && world.now > sent_at + TIMEOUTS.head;
        if !timed_out {
            requests::judge(world, &request, sent_at, response).map_err(|what| {
                let said = String::from_utf8_lossy(&response.body[..response.body.len().min(600)]);
                format!("{what}; asked {request:?} at {sent_at:?}; {said:?}")
            })?;
        }
        if let (Want::File { path, .. }, 200, Some(etag), false) =
            (&request.want, response.status, response.field("etag"), request.is_head)
        {
            let body = match response.field("content-encoding") {
                Some(coding) => variants::decode(coding, &response.body)?,
                None => response.body.clone(),
            };
            let known = Known { etag: etag.into(), body: Rc::new(body) };
            // What takes a password is not asked for again without.
            self.last = Some((*path, known)).filter(|(path, _)| !path.starts_with("/private"));
        }
        Ok(())
    }

    /// Whether the connection may end here, and so.
    fn judge_end(&self, world: &World, socket: usize, reset: bool) -> Result<(), String> {
        let state = &world.sockets[socket];
        // Waiting for the drain to end, or for the client, has its limits.
        let drained = world.stopped_at.is_some_and(|at| world.now >= at + DRAIN);
        let slow = self.style.read_pause > Duration::from_micros(90)
            || self.style.write_pause > Duration::from_micros(90);
        let timed_out = world.now > self.began + TIMEOUTS.head && slow;
        if state.broken || drained || timed_out {
            return Ok(());
        }
        if self.asked.front().is_some_and(|(request, sent_at)| requests::may_be_cut(world, request, *sent_at))
        {
            return Ok(());
        }
        if self.reader.0.is_within() {
            return Err(format!("cut in the middle of an answer (reset: {reset})"));
        }
        let stopping = world.stopped_at.is_some();
        if reset && !self.closing && !stopping {
            return Err("reset without having been told".into());
        }
        if !self.asked.is_empty() && !self.closing && !stopping {
            return Err(format!("closed without answering {:?}", self.asked[0].0));
        }
        if self.tls.as_ref().is_some_and(|tls| !tls.told) && !reset {
            return Err("ended without the closing alert".into());
        }
        let idle = self.answers > 0 || self.asked.is_empty();
        if idle || stopping { Ok(()) } else { Err("closed without reason".into()) }
    }

    /// Reads only to see the end, which has to come within `limit` and a little.
    fn wait_for_close(&mut self, world: &mut World, socket: usize, limit: Duration) -> Option<Duration> {
        let late = self.began + limit + Duration::from_secs(10);
        if world.sockets[socket].server_closed || world.sockets[socket].broken {
            self.over = true;
            return None;
        }
        // Time counts from when it was accepted.
        if world.backlogs.iter().any(|backlog| backlog.contains(&socket)) {
            self.began = world.now;
        } else if world.now > late {
            self.fail(format!("still open {:?} after it began", world.now - self.began));
        }
        Some(Duration::from_secs(1))
    }

    fn dawdle(&mut self, world: &mut World, socket: usize) -> Option<Duration> {
        const HEAD: &[u8] =
            b"GET /a.txt HTTP/1.1\r\nHost: x\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        const PAUSE: Duration = Duration::from_millis(700);
        let due = self.began + PAUSE * self.answers as u32;
        if !world.sockets[socket].server_closed && self.answers < HEAD.len() && world.now >= due {
            world.write(socket, &HEAD[self.answers..=self.answers]);
            self.answers += 1;
        }
        let _ = world.read(socket, 100_000);
        self.wait_for_close(world, socket, TIMEOUTS.head).map(|_| PAUSE)
    }

    fn ask_for_much(&mut self, world: &mut World, socket: usize) -> Option<Duration> {
        let bytes = b"GET /steady.bin HTTP/1.1\r\nHost: x\r\n\r\n".repeat(20);
        world.write(socket, &bytes);
        let request = Request { bytes, is_head: false, want: Want::Status(&[200]), accepts: "", ends: false };
        self.asked.push_back((request, world.now));
        Some(Duration::from_secs(1))
    }
}
