//! One run of a worker against a world, from birth to its end.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use httpd::config::Config;
use httpd::observe::names::{Counter, Counters};
use httpd::worker::start::Order;
use httpd::worker::{Life, Listener, Mailboxes, Setup, Worker};

use crate::checks;
use crate::clients::Client;
use crate::fake_ring::FakeRing;
use crate::faults::{Odds, Rng};
use crate::site;
use crate::variants;
use crate::world::{CHANNEL, LISTENERS, LOG, MAILBOXES, World};

/// What a run came to.
pub struct Report {
    pub world: Rc<RefCell<World>>,
    pub counters: Counters,
    pub failure: Option<String>,
}

impl Report {
    /// Lines of the trace, and their hash.
    pub fn digest(&self) -> Option<(u64, u64)> {
        self.world.try_borrow().ok().map(|world| world.trace.digest())
    }

    /// The last lines of the trace.
    pub fn tail(&self) -> String {
        self.world.try_borrow().map_or("(the panic hides the trace)".into(), |world| world.trace.tail())
    }
}

/// Less than in earnest: most files of the simulation are small.
const KERNEL_TLS_MIN: u64 = 16 << 10;

/// How a run goes.
pub struct Plan {
    pub config: Config,
    pub world: World,
    pub descriptors: usize,
    pub steps_max: u64,
}

/// A run by chance.
pub fn drawn(seed: u64, steps_max: u64) -> Plan {
    let mut rng = Rng::new(seed);
    let odds = if seed.is_multiple_of(16) { Odds::none() } else { Odds::drawn(&mut rng) };
    let config = site::config(&mut rng);
    let tree = site::tree(&mut rng, &odds);
    let mut world = World::new(rng.fork(), odds.clone(), tree);
    variants::furnish(&mut world, &mut rng);
    world.decodes = config.cache.memory >= 1 << 20;
    for _ in 0..rng.within(1, 12) {
        let after = rng.micros(0, 3_000_000);
        let client = Client::drawn(&mut rng, &odds);
        world.add_client(after, client);
    }
    if rng.chance(200) {
        let after = rng.micros(0, 4_000_000);
        world.order(after, *rng.pick(&[Order::Drain, Order::Stop]));
    }
    Plan { config, world, descriptors: *rng.pick(&[0, 2, 100]), steps_max }
}

/// Has the worker live its life. Panics are caught and reported like all else.
pub fn run(plan: Plan) -> Report {
    let world = Rc::new(RefCell::new(plan.world));
    let counters = Counters::new().expect("a page of memory");
    let lived = catch_unwind(AssertUnwindSafe(|| {
        live(&world, &plan.config, &counters, plan.descriptors, plan.steps_max)
    }));
    let failure = match lived {
        Ok(result) => result.err(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            Some(
                text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
                    .unwrap_or_default(),
            )
        }
    };
    Report { world, counters, failure }
}

fn live(
    world: &Rc<RefCell<World>>,
    config: &Config,
    counters: &Counters,
    descriptors: usize,
    steps_max: u64,
) -> Result<(), String> {
    let listener = |tls: bool| Listener {
        fd: LISTENERS[usize::from(tls)],
        tls,
        proxy_protocol: false,
        trusted: Rc::new([]),
    };
    let setup = Setup {
        config,
        listeners: vec![listener(false), listener(true)],
        channel: CHANNEL,
        mailboxes: Some(Mailboxes { fds: MAILBOXES.map(Some), epoch: 7 }),
        tls: Some(crate::tls::endpoint()),
        access_log: Some(LOG),
        counters: counters.clone(),
        descriptors,
        kernel_tls_min: KERNEL_TLS_MIN,
        secret: [7; 32],
    };
    let mut worker = Worker::new(FakeRing::new(Rc::clone(world)), setup);
    let mut steps = 0;
    loop {
        let life = worker.step().map_err(|error| error.to_string())?;
        checks::after_step(&mut worker)?;
        if life == Life::Over {
            break;
        }
        steps += 1;
        let mut world = world.borrow_mut();
        if steps > steps_max {
            return Err(format!("not over after {steps_max} steps"));
        }
        if let Some(at) = world.stopped_at
            && world.now > at + checks::STOPS_WITHIN
        {
            return Err(format!("told to stop at {at:?}, and not over at {:?}", world.now));
        }
        let over = checks::all_over(&world) || (world.stopped_at.is_none() && world.stalled);
        if over && world.stopped_at.is_none() {
            if !checks::all_over(&world) {
                return Err("nothing will ever happen any more, but clients wait".into());
            }
            world.order(std::time::Duration::ZERO, Order::Stop);
        }
        world.stalled = false;
    }
    drop(worker);
    let mut world = world.borrow_mut();
    checks::at_end(&mut world, descriptors)?;
    let lines = world.log.iter().filter(|&&byte| byte == b'\n').count() as u64;
    let (requests, lost) = (counters.get(Counter::Requests), counters.get(Counter::LogLinesLost));
    if lines + lost != requests {
        return Err(format!("{requests} requests, but {lines} lines in the log and {lost} lost"));
    }
    let classes =
        [Counter::Responses2xx, Counter::Responses3xx, Counter::Responses4xx, Counter::Responses5xx];
    for (class, counter) in classes.into_iter().enumerate() {
        let (timed, answered) = (counters.latency(class).count, counters.get(counter));
        if timed != answered {
            return Err(format!("{answered} responses {counter:?}, but {timed} were timed"));
        }
    }
    Ok(())
}
