//! One run of a module: an instance of its own, from the first call to the report. Whatever the module does,
//! it ends here.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use wasmtime::{Store, StoreContextMut, StoreLimitsBuilder, Trap, UpdateDeadline, WasmBacktrace};

use super::complaints::{Complaints, Shared};
use super::engine::TABLE_ELEMENTS_MAX;
use super::modules::{ENTRY, Program, describe};
use super::stop::{Announce, Stop, Watch};
use super::wasi::{Descriptors, Input, Output, Pipe, Preopened, State, Strings};
use crate::sys::wait;

/// What a run needs.
pub struct Run<'a> {
    /// The module.
    pub program: Arc<Program>,
    /// Its bounds.
    pub limits: Limits,
    /// Directories it is given.
    pub directories: &'a [Arc<Preopened>],
    /// Who runs, for the log.
    pub label: String,
    /// What all runs may log.
    pub complaints: Shared,
    /// Arguments, its name first.
    pub arguments: Strings,
    /// Its environment.
    pub variables: Strings,
    /// Standard input; `None`: empty.
    pub input: Option<OwnedFd>,
    /// Standard output.
    pub output: OwnedFd,
    /// Set to end it.
    pub ended: Arc<AtomicBool>,
    /// Says that it has begun, unless it ends at once.
    pub announce: Announce,
}

/// Bounds of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of linear memory.
    pub memory: u64,
    /// The module's own time.
    pub timeout: Duration,
    /// All time.
    pub wall: Duration,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// It was stopped.
    Stopped(Stop),
    /// It did what cannot be done, or could not even begin.
    Failed(String),
}

/// What is left of a run: to be reported, then to be closed.
pub struct Remains {
    /// How it ended.
    pub ending: Ending,
    /// The processor time it took.
    pub cpu: Duration,
    /// Whether it was said that it has begun.
    pub announced: bool,
    store: Store<State>,
}

impl Remains {
    /// Closes its output and cleans the instance's memory for the next; gives the buffer back. Nobody who was
    /// told of the end waits for either.
    pub fn close(mut self) -> Vec<u8> {
        self.store.data_mut().output.close()
    }
}

impl Run<'_> {
    /// Runs, with a buffer for output that was used before. All it has to say is in its pipe when it returns.
    pub fn go(self, buffer: Vec<u8>) -> Remains {
        let began = wait::thread_time();
        let program = Arc::clone(&self.program);
        let mut store = self.store(buffer);
        let ended = program
            .instantiate(&mut store)
            .and_then(|instance| instance.get_typed_func::<(), ()>(&mut store, ENTRY))
            .and_then(|entry| entry.call(&mut store, ()));
        let mut ending = ended.map_or_else(|error| ending(&error), |()| Ending::Exited(0));
        let state = store.data_mut();
        // What a module that failed had written is its answer up to there.
        let flushed = match ending {
            Ending::Exited(_) => state.output.flush(&mut state.watch),
            _ => state.output.flush_now(),
        };
        if let (Ending::Exited(_), Err(stop)) = (&ending, flushed) {
            ending = Ending::Stopped(stop);
        }
        state.complaints.finish();
        state.input = Input(None);
        let announced = state.watch.is_announced();
        Remains { ending, cpu: wait::thread_time().saturating_sub(began), announced, store }
    }

    fn store(self, buffer: Vec<u8>) -> Store<State> {
        let Limits { memory, timeout, wall } = self.limits;
        let limits = StoreLimitsBuilder::new()
            .memory_size(usize::try_from(memory).unwrap_or(usize::MAX))
            .table_elements(TABLE_ELEMENTS_MAX)
            .instances(1)
            .memories(1)
            .tables(1)
            .build();
        let state = State {
            limits,
            watch: Watch::new(timeout, wall, self.ended, self.announce),
            memory: None,
            arguments: self.arguments,
            variables: self.variables,
            input: Input(self.input.map(Pipe::from)),
            output: Output::new(Pipe::from(self.output), buffer),
            complaints: Complaints::new(self.label, self.complaints),
            descriptors: Descriptors::new(self.directories),
        };
        let mut store = Store::new(self.program.module().engine(), state);
        store.limiter(|state| &mut state.limits);
        store.epoch_deadline_callback(tick);
        store.set_epoch_deadline(1);
        store
    }
}

/// Runs in the midst of a module that computes, once for each tick of the engine.
fn tick(mut store: StoreContextMut<'_, State>) -> wasmtime::Result<UpdateDeadline> {
    let state = store.data_mut();
    state.watch.announce();
    state.watch.check()?;
    // A page that is made slowly is seen while it is made.
    state.output.flush_now()?;
    Ok(UpdateDeadline::Continue(1))
}

fn ending(error: &wasmtime::Error) -> Ending {
    match error.downcast_ref::<Stop>() {
        Some(Stop::Exit(code)) => return Ending::Exited(*code),
        Some(stop) => return Ending::Stopped(*stop),
        None => {}
    }
    let Some(trap) = error.downcast_ref::<Trap>() else { return Ending::Failed(describe(error).to_string()) };
    let frames = error.downcast_ref::<WasmBacktrace>().map(WasmBacktrace::frames).unwrap_or_default();
    let place = frames.first().and_then(|frame| frame.func_name());
    Ending::Failed(match place {
        Some(place) => format!("in `{place}`: {trap}"),
        None => trap.to_string(),
    })
}
