//! The threads of all pipelines, and the core on which each runs.
//!
//! Only threads of the data path are counted here. The reader of captures, the writer of records
//! and the control thread are never pinned and use the remaining cores.

use std::ffi::CString;
use std::fmt;
use std::thread::JoinHandle;

use crate::Error;
use config::Config;
use config::layout::Layout;

/// CPUs on which the kernel starts no program (`isolcpus=`). They are not in a process's affinity
/// mask, but a process may ask for them.
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// A thread of the data path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Which of the pipelines side by side, from 0.
    pub instance: usize,
    /// The thread's work and its number, from 0 in each pipeline.
    pub role: Role,
}

/// The work of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A flow manager.
    Flow(usize),
    /// An analytics manager.
    Analytics(usize),
    /// A device's session, by its place in [`config::layout::Layout::sessions`].
    Session(usize),
}

impl Role {
    /// Number among the threads of its kind in its pipeline.
    pub fn number(self) -> usize {
        match self {
            Role::Flow(i) | Role::Analytics(i) | Role::Session(i) => i,
        }
    }
}

/// The name that the system shows; it takes 15 bytes.
impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thread { instance, role } = self;
        match role {
            Role::Flow(i) => write!(f, "flow-{instance}.{i}"),
            Role::Analytics(i) => write!(f, "analytics-{instance}.{i}"),
            Role::Session(i) => write!(f, "device-{instance}.{i}"),
        }
    }
}

/// Every thread: pipeline by pipeline its flow managers, its analytics managers, then the devices
/// that have a thread of their own. The order in which `pipeline.cores` is dealt out.
pub fn threads_of(config: &Config) -> Vec<Thread> {
    let layout = &config.pipeline.layout;
    let flow = (0..layout.flow_managers).map(Role::Flow);
    let analytics = (0..layout.analytics_managers).map(Role::Analytics);
    let own = config.device_threads();
    let roles: Vec<Role> =
        flow.chain(analytics).chain(own.into_iter().map(Role::Session)).collect();
    let instances = 0..config.pipeline.instances;
    instances
        .flat_map(|instance| roles.iter().map(move |&role| Thread { instance, role }))
        .collect()
}

/// The core of each thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cores {
    /// The threads, and the core of each; `None`: not pinned.
    placed: Vec<(Thread, Option<usize>)>,
    /// Why the threads were placed like this, for people.
    pub reason: String,
}

impl Cores {
    /// Deals out the cores of the configuration, or the CPUs that this process may use.
    ///
    /// Automatic: one core each, from the second on, if one is left for the threads that are not
    /// pinned. Otherwise no thread is pinned, because threads that poll on the same core would
    /// starve each other.
    pub fn from_config(config: &Config) -> Cores {
        Cores::deal(threads_of(config), &config.pipeline.cores, &usable())
    }

    /// The threads of pipelines whose work one thread does.
    pub fn of_one(layout: &Layout, instances: usize, reason: &str) -> Cores {
        let flow = (0..layout.flow_managers).map(Role::Flow);
        let analytics = (0..layout.analytics_managers).map(Role::Analytics);
        let roles: Vec<Role> = flow.chain(analytics).collect();
        let threads = (0..instances).flat_map(|instance| {
            let roles = roles.iter();
            roles.map(move |&role| (Thread { instance, role }, None))
        });
        Cores { placed: threads.collect(), reason: reason.to_owned() }
    }

    fn deal(threads: Vec<Thread>, named: &[usize], usable: &[usize]) -> Cores {
        let (wanted, there) = (threads.len(), usable.len());
        let (cores, reason) = if !named.is_empty() {
            (named.to_vec(), "as pipeline.cores says".to_owned())
        } else if wanted < there {
            let reason = format!("automatic: {wanted} threads, {there} CPUs");
            (usable[1..].to_vec(), reason)
        } else {
            let reason = format!(
                "not pinned: {wanted} threads and the rest of the program share {there} CPUs"
            );
            (Vec::new(), reason)
        };
        let cores = cores.into_iter().map(Some).chain(std::iter::repeat(None));
        Cores { placed: threads.into_iter().zip(cores).collect(), reason }
    }

    /// The core of a thread.
    pub fn of_thread(&self, thread: &Thread) -> Option<usize> {
        let (_, core) = self.placed.iter().find(|(placed, _)| placed == thread)?;
        *core
    }

    /// Keeps the calling thread, and those that it starts, off the cores of pinned threads, if
    /// other cores are left. A thread that loads a model must not hold up the threads that label
    /// with the model in use.
    pub fn keep_off(&self) {
        let others = self.others(&usable());
        if !others.is_empty() {
            let mut set = rustix::thread::CpuSet::new();
            others.into_iter().for_each(|cpu| set.set(cpu));
            // If the system refuses, the thread runs on the same cores as before.
            let _ = rustix::thread::sched_setaffinity(None, &set);
        }
    }

    /// The cores in `usable` to which no thread is pinned.
    fn others(&self, usable: &[usize]) -> Vec<usize> {
        let taken: Vec<usize> = self.placed.iter().filter_map(|(_, core)| *core).collect();
        let usable = usable.iter().copied();
        usable.filter(|cpu| !taken.contains(cpu)).collect()
    }

    /// All threads with their cores, in the order of [`threads_of`].
    pub fn iter(&self) -> impl Iterator<Item = &(Thread, Option<usize>)> {
        self.placed.iter()
    }

    /// Refuses cores that this process may not use, before any thread starts.
    ///
    /// # Errors
    /// 78, with the core and those that it may use.
    pub fn check(&self) -> Result<(), Error> {
        let usable = usable();
        let cores = self.placed.iter().filter_map(|(_, core)| *core);
        let isolated = std::fs::read_to_string(ISOLATED).unwrap_or_default();
        let isolated = numbers(&isolated);
        let is_usable =
            |&core: &usize| usable.contains(&core) || isolated.contains(&core) && can_pin(core);
        match cores.into_iter().find(|core| !is_usable(core)) {
            Some(core) => Err(Error::config(format!(
                "pipeline.cores: this process may not use CPU {core}; it may use {}",
                ranges(&usable)
            ))),
            None => Ok(()),
        }
    }
}

/// Starts a thread of the data path under its name, pinned to its core.
///
/// # Errors
/// The system has no thread.
pub fn spawn<T: Send + 'static>(
    thread: &Thread,
    core: Option<usize>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, Error> {
    let started = std::thread::Builder::new().name(thread.to_string()).spawn(move || {
        pin(core);
        work()
    });
    started.map_err(|error| Error::unavailable(format!("no thread {thread}: {error}")))
}

/// Pins the calling thread. A core that [`Cores::check`] found usable can still be taken away; then
/// the system chooses where the thread runs.
pub fn pin(core: Option<usize>) {
    if let Some(core) = core {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// Sets the name of the calling thread that the system shows. If that fails, the thread keeps its
/// old name.
pub fn rename(name: &str) {
    if let Ok(name) = CString::new(name) {
        let _ = rustix::thread::set_name(&name);
    }
}

/// Whether a thread may be pinned to this core; tried with a new thread.
fn can_pin(core: usize) -> bool {
    let tried = std::thread::spawn(move || {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).is_ok()
    });
    tried.join().unwrap_or(false)
}

/// The CPUs that this process may use without asking for one, ascending.
pub fn usable() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect()
}

/// 0, 1, 2, 3, 6 for `0-3,6`, as the kernel lists CPUs.
pub fn numbers(text: &str) -> Vec<usize> {
    let parts = text.split(',').filter_map(|part| {
        let (first, last) = part.trim().split_once('-').unwrap_or((part.trim(), part.trim()));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    parts.flatten().collect()
}

/// `0-3, 6` for 0, 1, 2, 3, 6.
fn ranges(numbers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threads(count: usize) -> Vec<Thread> {
        (0..count).map(|i| Thread { instance: 0, role: Role::Flow(i) }).collect()
    }

    fn dealt(count: usize, named: &[usize], usable: &[usize]) -> Vec<Option<usize>> {
        let cores = Cores::deal(threads(count), named, usable);
        cores.iter().map(|(_, core)| *core).collect()
    }

    #[test]
    fn named_cores_are_dealt_out_in_order() {
        assert_eq!(dealt(2, &[7, 3, 9], &[0]), [Some(7), Some(3)]);
    }

    #[test]
    fn automatic_leaves_a_core_for_the_rest_or_pins_nothing() {
        assert_eq!(dealt(2, &[], &[4, 5, 6]), [Some(5), Some(6)]);
        assert_eq!(dealt(2, &[], &[4, 5]), [None, None]);
        assert_eq!(dealt(2, &[], &[]), [None, None]);
    }

    #[test]
    fn what_is_not_of_the_data_path_keeps_off_its_cores() {
        let cores = Cores::deal(threads(2), &[1, 2], &[0, 1, 2, 3]);
        assert_eq!(cores.others(&[0, 1, 2, 3]), [0, 3]);
        assert!(cores.others(&[1, 2]).is_empty());
        let not_pinned = Cores::deal(threads(2), &[], &[0, 1]);
        assert_eq!(not_pinned.others(&[0, 1]), [0, 1]);
        // A thread of its own, so that the test's may run where it did.
        std::thread::spawn(|| {
            let [first, ..] = usable()[..] else { return };
            let cores = Cores::deal(threads(1), &[first], &[first]);
            cores.keep_off();
            let now = usable();
            assert!(now.len() == 1 || !now.contains(&first), "{now:?}");
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_core_that_is_not_there_is_named() {
        let cores = Cores::deal(threads(1), &[4095], &[0]);
        let message = cores.check().unwrap_err().to_string();
        assert!(message.contains("CPU 4095"), "{message}");
        assert_eq!(ranges(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert!(numbers("\n").is_empty());
    }

    #[test]
    fn whether_a_core_can_be_had_is_tried() {
        assert!(can_pin(usable()[0]));
        assert!(!can_pin(1000), "no machine of ours has 1000 cores");
    }

    #[test]
    fn names_fit_into_what_the_system_shows() {
        let thread = Thread { instance: 63, role: Role::Analytics(63) };
        assert!(thread.to_string().len() <= 15, "{thread}");
    }
}
