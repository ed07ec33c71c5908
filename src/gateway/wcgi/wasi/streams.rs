//! The two pipes of a run. Output is gathered, since programs write in small pieces and every write(2) to a
//! pipe wakes the worker; it leaves when the buffer is full, when the module waits for something, when it has
//! computed for a tick, and at its end.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use super::super::stop::{Stop, Watch};
use super::abi::Errno;
use crate::sys::wait::{self, For};

/// Gathered at most; a quarter of what a pipe holds, so that a full buffer still finds room.
pub const GATHERED_MAX: usize = 16 << 10;

/// One end of a pipe, or a file in its place. Never blocks; waiting is done by poll(2), with a deadline.
#[derive(Debug)]
pub struct Pipe {
    file: File,
    nonblocking: bool,
}

impl From<OwnedFd> for Pipe {
    fn from(fd: OwnedFd) -> Self {
        Self { file: File::from(fd), nonblocking: false }
    }
}

impl Pipe {
    /// The flag belongs to this end of the pipe alone. A pipe that is never used is never asked.
    fn prepare(&mut self) {
        if !self.nonblocking {
            // Refused for no pipe or file; and then the deadlines of the worker remain.
            let _ = wait::set_blocking(&self.file, false);
            self.nonblocking = true;
        }
    }

    fn wait(&self, wanted: For, watch: &mut Watch) -> Result<(), Stop> {
        watch.aside(|most| {
            // What makes poll fail, the next read or write will say.
            wait::wait(&[(self.file.as_fd(), wanted)], Some(most)).map_or(true, |ready| ready == [true])
        })
    }
}

/// Standard input; absent: empty.
#[derive(Debug, Default)]
pub struct Input(pub Option<Pipe>);

impl Input {
    /// Reads some bytes, waiting for the first; 0 at the end. Before it waits, `prepare` is done.
    ///
    /// # Errors
    /// When the run is over.
    pub fn read(
        &mut self,
        into: &mut [u8],
        watch: &mut Watch,
        mut prepare: impl FnMut(&mut Watch) -> Result<(), Stop>,
    ) -> Result<Result<usize, Errno>, Stop> {
        let Some(pipe) = &mut self.0 else { return Ok(Ok(0)) };
        pipe.prepare();
        loop {
            match pipe.file.read(into) {
                Ok(count) => return Ok(Ok(count)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    prepare(watch)?;
                    pipe.wait(For::Reading, watch)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Err(error.into())),
            }
        }
    }
}

/// Standard output.
#[derive(Debug)]
pub struct Output {
    pipe: Option<Pipe>,
    gathered: Vec<u8>,
}

impl Output {
    /// Writes to a pipe, gathering in a buffer that was used before.
    pub fn new(pipe: Pipe, mut buffer: Vec<u8>) -> Self {
        buffer.clear();
        Self { pipe: Some(pipe), gathered: buffer }
    }

    /// Takes all of `bytes`.
    ///
    /// # Errors
    /// When the run is over.
    pub fn write(&mut self, bytes: &[u8], watch: &mut Watch) -> Result<(), Stop> {
        if self.gathered.len() + bytes.len() > GATHERED_MAX {
            self.flush(watch)?;
        }
        if bytes.len() >= GATHERED_MAX {
            return self.pass_on(bytes, watch);
        }
        self.gathered.extend_from_slice(bytes);
        Ok(())
    }

    /// Hands over what is gathered.
    ///
    /// # Errors
    /// When the run is over.
    pub fn flush(&mut self, watch: &mut Watch) -> Result<(), Stop> {
        if self.gathered.is_empty() {
            return Ok(());
        }
        let gathered = std::mem::take(&mut self.gathered);
        let result = self.pass_on(&gathered, watch);
        self.gathered = gathered;
        self.gathered.clear();
        result
    }

    /// The same, as much as finds room without waiting.
    ///
    /// # Errors
    /// When the run is over.
    pub fn flush_now(&mut self) -> Result<(), Stop> {
        let Some(pipe) = self.pipe.as_mut().filter(|_| !self.gathered.is_empty()) else { return Ok(()) };
        pipe.prepare();
        match pipe.file.write(&self.gathered) {
            Ok(count) => drop(self.gathered.drain(..count)),
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Err(Stop::Gone),
            Err(_) => {}
        }
        Ok(())
    }

    /// Closes the pipe, which is what the reader waits for. What is still gathered is lost.
    pub fn end(&mut self) {
        self.pipe = None;
    }

    /// The same, and gives the buffer back.
    pub fn close(&mut self) -> Vec<u8> {
        self.end();
        std::mem::take(&mut self.gathered)
    }

    fn pass_on(&mut self, mut bytes: &[u8], watch: &mut Watch) -> Result<(), Stop> {
        let Some(pipe) = &mut self.pipe else { return Ok(()) };
        pipe.prepare();
        while !bytes.is_empty() {
            match pipe.file.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => pipe.wait(For::Writing, watch)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // What it was promised cannot be kept: a reader that is gone, or worse.
                Err(_) => return Err(Stop::Gone),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn watch(wall: Duration) -> Watch {
        Watch::new(Duration::from_secs(3600), wall, Arc::new(AtomicBool::new(false)), Box::new(|| ()))
    }

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn small_pieces_leave_together() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let mut output = Output::new(Pipe::from(OwnedFd::from(writer)), b"left over".to_vec());
        let mut watch = watch(LONG);
        output.write(b"a", &mut watch).expect("gathered");
        output.write(b"b", &mut watch).expect("gathered");
        let fd = reader.as_fd();
        assert_eq!(wait::wait(&[(fd, For::Reading)], Some(Duration::ZERO)).expect("asked"), [false]);
        output.flush_now().expect("written");
        let big = vec![b'c'; GATHERED_MAX + 1];
        output.write(b"d", &mut watch).expect("gathered");
        output.write(&big, &mut watch).expect("written");
        output.flush(&mut watch).expect("written");
        output.close();
        let mut text = Vec::new();
        reader.read_to_end(&mut text).expect("read");
        assert_eq!(text, [b"abd", &big[..]].concat());
    }

    #[test]
    fn a_reader_that_is_gone_or_asleep_ends_the_run() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let mut output = Output::new(Pipe::from(OwnedFd::from(writer)), Vec::new());
        let mut short = watch(Duration::from_millis(30));
        assert_eq!(output.write(&vec![0; 1 << 20], &mut short), Err(Stop::Wall));
        drop(reader);
        assert_eq!(output.write(&vec![0; 1 << 20], &mut watch(LONG)), Err(Stop::Gone));
        output.gathered.push(0);
        assert_eq!(output.flush_now(), Err(Stop::Gone));
    }

    #[test]
    fn input_is_read_as_it_comes() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let mut input = Input(Some(Pipe::from(OwnedFd::from(reader))));
        let mut into = [0; 8];
        let mut prepared = 0;
        let mut read = |input: &mut Input, wall| {
            let prepare = |_: &mut Watch| {
                prepared += 1;
                Ok(())
            };
            input.read(&mut into, &mut watch(wall), prepare)
        };
        assert_eq!(read(&mut input, Duration::from_millis(30)), Err(Stop::Wall));
        writer.write_all(b"xy").expect("written");
        assert_eq!(read(&mut input, LONG), Ok(Ok(2)));
        drop(writer);
        assert_eq!(read(&mut input, LONG), Ok(Ok(0)));
        assert_eq!(read(&mut Input::default(), LONG), Ok(Ok(0)));
        assert_eq!(prepared, 1, "only before it waits");
    }
}
