//! Threads that do jobs, no more at a time than there is memory for.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use super::codings::Encoders;
use super::job::{self, Done, Failure, Job, Workshop};

/// Memory of all jobs at a time. One job that takes more than there is runs alone.
const MEMORY_MAX: u64 = 512 << 20;

/// How long whoever waits for jobs goes without looking at anything else.
const TICK: Duration = Duration::from_millis(100);

/// Does all jobs in `threads` threads, in order. `each` is called in this thread with what came of one, or
/// with `None` when nothing came of any for a while; what breaks leaves the jobs that were not begun.
///
/// # Errors
/// When no thread can be made, or has no memory for its encoders.
pub fn run(
    workshop: &Workshop,
    jobs: &[Job],
    threads: usize,
    mut each: impl FnMut(Option<Done>) -> ControlFlow<()>,
) -> std::io::Result<()> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let memory = Memory { free: Mutex::new(MEMORY_MAX), freed: Condvar::new() };
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let (mut begun, mut refused) = (Vec::new(), None);
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            let sender = sender.clone();
            let (next, stop, memory) = (&next, &stop, &memory);
            let work = move || -> std::io::Result<()> {
                let mut encoders = Encoders::new()?;
                while !stop.load(Ordering::Relaxed)
                    && let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    // Whoever has all memory is alone.
                    let amount = if job.is_suspect { MEMORY_MAX } else { job::memory(job) };
                    let _lease = memory.lease(amount);
                    let done = workshop.work(job, &mut encoders);
                    // What cannot be written for one source cannot be written for another.
                    if matches!(done.failure, Some(Failure::Cache(_))) {
                        stop.store(true, Ordering::Relaxed);
                    }
                    // Nobody listens any more once the pass was broken off.
                    let _ = sender.send(done);
                }
                Ok(())
            };
            match thread::Builder::new().name("httpd compress".to_owned()).spawn_scoped(scope, work) {
                Ok(thread) => begun.push(thread),
                Err(error) => refused = Some(error),
            }
        }
        drop(sender);
        loop {
            let done = match receiver.recv_timeout(TICK) {
                Ok(done) => Some(done),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if each(done).is_break() {
                stop.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
        // What one that could not begin has left, another has done, if there was one.
        let ends = begun.into_iter().map(|thread| match thread.join() {
            Ok(end) => end,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ends.reduce(Result::or).unwrap_or_else(|| refused.map_or(Ok(()), Err))
    })
}

struct Memory {
    free: Mutex<u64>,
    freed: Condvar,
}

struct Lease<'a>(&'a Memory, u64);

impl Memory {
    fn lease(&self, amount: u64) -> Lease<'_> {
        let amount = amount.min(MEMORY_MAX);
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free =
            self.freed.wait_while(free, |free| *free < amount).unwrap_or_else(PoisonError::into_inner);
        *free -= amount;
        Lease(self, amount)
    }
}

impl Drop for Lease<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += self.1;
        self.0.freed.notify_all();
    }
}
