//! The services of a live run: how they start, change with a reload, answer people, and end.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use config::checked::Named;
use config::{Config, Keyed, Section};
use dataplane::Error;
use dataplane::inline::FlowManager;
use dataplane::placement::Thread;
use dataplane::settings::{SettingsPort, SettingsSender, settings};
use dataplane::sink::Sink;
use flowmgr::{SERVICES_MAX, Service, Services, ServicesChange};
use policy::Label;
use rustix::thread::CapabilitySet;
use tracing::warn;

use super::folder::Folder;
use super::hand_out::HandOut;
use super::look;
use super::meaning::{Meaning, check_labels};
use super::memory::{Place, Rights as MemoryRights};
use super::rates::Rates;
use super::section::{Observe, ServiceKeys, services};
use crate::access::may_make;
use crate::exit::Failure;
use crate::protocol::{Body, Code, Reply, Request, ServiceRow};
use crate::sinks::{Commit, Report, Rights, SinkControl, SinkKind, Start};
use crate::unix_socket::{self, UnixSocket};

/// How long a reload waits for a flow worker to take other services; it does so between two
/// bursts.
const TAKEN_WITHIN: Duration = Duration::from_secs(1);
/// Who may connect to the socket: anyone. The kernel says who that is, and the rest is refused.
const SOCKET_MODE: u32 = 0o666;

/// The ports of the flow workers, by which services come to them.
pub type Ports = Vec<SettingsPort<ServicesChange>>;

/// The services of a run until its sinks start; `None` in a replay.
pub type Opened = Mutex<Option<Running>>;

/// The services of a run.
pub struct Running {
    /// By place.
    places: Vec<Option<Place>>,
    senders: Vec<SettingsSender<ServicesChange>>,
    workers: usize,
    rights: MemoryRights,
    meaning: Arc<Meaning>,
    /// `None`: memory has no names.
    folder: Option<Folder>,
    every_us: i64,
    max_flows: usize,
    hand_out: Option<HandOut>,
    rates: Rates,
}

/// Other services, prepared: what each worker is sent, and what this side keeps.
pub(super) struct Change {
    pub for_workers: Vec<ServicesChange>,
    pub places: Vec<(usize, Option<Place>)>,
}

/// A place that changes, and what each worker gets for it.
type Changed = (usize, Option<Place>, Vec<Option<Box<Service>>>);

/// Creates the memory of the services, and gives them to the flow managers; `labels` are by task.
///
/// # Errors
/// A folder, file or socket that cannot be made, or is another's; a user or label that there is
/// not.
pub fn open(
    config: &Config,
    labels: &[Arc<[Label]>],
    managers: &mut [(Thread, FlowManager)],
) -> Result<(Ports, Opened), Failure> {
    let observe: Observe = config.section();
    let rights = MemoryRights::new(config)?;
    let wanted = services(config);
    check_labels(&wanted, config, labels)?;
    let folder = rights.folder.as_deref();
    let folder = folder.map(|folder| Folder::open(folder, !wanted.is_empty())).transpose()?;
    let socket = observe.socket.as_deref();
    let socket = socket.map(|path| UnixSocket::bind("observe.socket", path, SOCKET_MODE));
    let hand_out = socket.transpose()?.map(|socket| HandOut::new(socket, rights.allowed()));
    let hand_out = hand_out.transpose().map_err(|error| {
        Failure::unavailable(format!("observe.socket: cannot serve it: {error}"))
    })?;
    let (senders, ports) = managers.iter().map(|_| settings()).unzip();
    let meaning = Arc::new(Meaning::new(config, labels));
    let running = Running::new(config, rights, meaning, managers);
    let mut running = Running { senders, folder, hand_out, ..running };
    if let Some(Change { for_workers, places }) = running.prepare(&wanted)? {
        for ((_, manager), mut change) in managers.iter_mut().zip(for_workers) {
            manager.change_services(&mut change);
        }
        running.keep(places);
    }
    Ok((ports, Mutex::new(Some(running))))
}

impl Running {
    /// Without services yet, for these flow managers.
    pub(super) fn new(
        config: &Config,
        rights: MemoryRights,
        meaning: Arc<Meaning>,
        managers: &[(Thread, FlowManager)],
    ) -> Running {
        let observe: Observe = config.section();
        Running {
            places: (0..SERVICES_MAX).map(|_| None).collect(),
            senders: Vec::new(),
            workers: managers.len(),
            rights,
            meaning,
            folder: None,
            every_us: observe.interval.as_micros() as i64,
            max_flows: managers.first().map_or(0, |(_, manager)| manager.max_flows()),
            hand_out: None,
            rates: Rates::default(),
        }
    }

    /// The figures of one service, or of all by name.
    pub(super) fn rows(&self, service: Option<&str>) -> Vec<ServiceRow> {
        let is_wanted = |place: &&Place| service.is_none_or(|it| it == place.named.name);
        let mut rows: Vec<_> = self.in_use().filter(is_wanted).map(look::row).collect();
        rows.sort_by(|one, other| one.name.cmp(&other.name));
        rows
    }

    fn in_use(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().flatten()
    }

    /// Prepares other services; `None` if they are those in use.
    pub(super) fn prepare(&self, wanted: &[Named<ServiceKeys>]) -> Result<Option<Change>, Error> {
        let is_same = |place: &Place, named: &Named<ServiceKeys>| {
            (&place.named.name, &place.named.keys) == (&named.name, &named.keys)
        };
        let stays = |place: &Place| wanted.iter().any(|named| is_same(place, named));
        let new = wanted.iter().filter(|named| !self.in_use().any(|place| is_same(place, named)));
        let mut new: Vec<_> = new.collect();
        if let Some(folder) = self.folder.as_ref().filter(|_| !new.is_empty()) {
            folder.claim()?;
        }
        let mut changed: Vec<Changed> = Vec::new();
        for (number, place) in self.places.iter().enumerate() {
            let is_free = !place.as_ref().is_some_and(stays);
            let next = if is_free { new.pop() } else { None };
            match next {
                Some(named) => {
                    let (place, services) =
                        self.rights.create(named, &self.meaning, self.workers)?;
                    let services = services.into_iter().map(|it| Some(Box::new(it))).collect();
                    changed.push((number, Some(place), services));
                }
                None if is_free && place.is_some() => {
                    let none = (0..self.workers).map(|_| None).collect();
                    changed.push((number, None, none));
                }
                None => {}
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        let staying = self.places.iter().enumerate();
        let staying = staying.filter_map(|(at, place)| Some((at, place.as_ref()?)));
        let staying = staying.filter(|(_, place)| stays(place));
        let created = changed.iter().filter_map(|(at, place, _)| Some((*at, place.as_ref()?)));
        let networks: Vec<_> = staying
            .chain(created)
            .flat_map(|(at, place)| {
                let servers = place.named.keys.servers.iter();
                servers.map(move |network| (network.address(), network.bits(), at))
            })
            .collect();
        let mut for_workers = Vec::new();
        for worker in 0..self.workers {
            let part = match self.in_use().next() {
                Some(_) => None,
                None => Some(Services::new(self.max_flows).map_err(|error| {
                    Error::Unavailable(format!("no memory for the services of flows: {error}"))
                })?),
            };
            let places = changed.iter_mut().map(|(at, _, services)| (*at, services[worker].take()));
            let (places, networks) = (places.collect(), networks.iter().copied());
            for_workers.push(ServicesChange::new(part, places, networks, self.every_us));
        }
        let places = changed.into_iter().map(|(at, place, _)| (at, place)).collect();
        Ok(Some(Change { for_workers, places }))
    }

    /// Brings other services into use, on a thread that may wait.
    fn commit(&mut self, change: Change) {
        let senders = self.senders.iter().zip(change.for_workers);
        let sent: Vec<_> = senders.map(|(sender, change)| sender.send_now(change)).collect();
        let until = Instant::now() + TAKEN_WITHIN;
        for (sender, sent) in self.senders.iter().zip(sent) {
            // A worker that has ended needs none. What was in use is dropped here.
            let left = until.saturating_duration_since(Instant::now());
            if sent.is_ok_and(|is_sent| !is_sent || sender.taken_within(left).is_err()) {
                warn!("a flow worker has not taken other services in time; it keeps its own");
            }
        }
        self.keep(change.places);
    }

    pub(super) fn keep(&mut self, places: Vec<(usize, Option<Place>)>) {
        for (at, mut place) in places {
            if let Some(place) = &mut place
                && let Err(error) = place.name_files()
            {
                warn!("service.{}: its files have no names: {error}", place.named.name);
            }
            self.places[at] = place;
        }
    }
}

/// Services, where the configuration has tables `[service.NAME]`; and the answer where it has none.
pub struct Observing;

impl SinkKind for Observing {
    fn sections(&self) -> &'static [&'static Section] {
        &[Observe::SECTION, ServiceKeys::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let running = locked(start.services).take();
        Ok(running.map(|running| {
            Box::new(Control(Arc::new(Mutex::new(running)))) as Box<dyn SinkControl>
        }))
    }

    fn rights(&self, config: &Config, _: Option<&Path>) -> Rights {
        let observe: Observe = config.section();
        let gives_away = MemoryRights::new(config).is_ok_and(|rights| rights.give_away());
        let capabilities = match gives_away {
            true => CapabilitySet::CHOWN,
            false => CapabilitySet::empty(),
        };
        // A reload may bring the first service.
        let written = match &observe.socket {
            Some(socket) => vec![socket.clone()],
            None if observe.folder.is_dir() => vec![observe.folder.join("service")],
            None => Vec::new(),
        };
        Rights { capabilities, written, ..Rights::none() }
    }

    fn probe(&self, config: &Config, is_exempt: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        let observe: Observe = config.section();
        let rights = MemoryRights::new(config)?;
        if services(config).is_empty() {
            return Ok(());
        }
        if let Some(socket) = observe.socket.as_deref().filter(|path| !is_exempt(path)) {
            unix_socket::probe("observe.socket", socket)?;
        }
        let Some(folder) = rights.folder.filter(|path| !is_exempt(path)) else { return Ok(()) };
        let place = if folder.is_dir() { folder.join("service") } else { folder };
        may_make(&place).map_err(|error| Failure::creating(&place, &error))
    }

    fn check_labels(&self, config: &Config, labels: &[Arc<[Label]>]) -> Result<(), Error> {
        check_labels(&services(config), config, labels)
    }

    fn empty_report(&self) -> Report {
        Report { metrics: look::metrics(std::iter::empty()), ..Report::default() }
    }
}

struct Control(Arc<Mutex<Running>>);

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        None
    }

    fn report(&self) -> Report {
        let running = &mut *locked(&self.0);
        let rows: Vec<_> = running.in_use().map(look::row).collect();
        running.rates.note(&rows, Instant::now());
        let places = running.places.iter_mut().flatten();
        Report { metrics: look::metrics(places.zip(rows)), ..Report::default() }
    }

    fn tick(&self) {
        let running = &mut *locked(&self.0);
        running.senders.iter().for_each(SettingsSender::drop_late);
        let Some(hand_out) = &mut running.hand_out else { return };
        let places = &running.places;
        hand_out.serve(|name, worker| {
            let place = places.iter().flatten().find(|place| place.named.name == name);
            place?.memories.get(worker)?.file.as_ref().map(|file| file.as_fd())
        });
    }

    fn answer(&self, request: &Request) -> Option<Reply> {
        let Request::Services { service } = request else { return None };
        let running = locked(&self.0);
        let mut rows = running.rows(service.as_deref());
        rows.iter_mut().for_each(|row| running.rates.fill(row));
        Some(match (service, rows.is_empty()) {
            (Some(name), true) => Reply::refused(
                Code::Invalid,
                format!("there is no service {name}; add [service.{name}] to the configuration"),
            ),
            (None, true) => Reply::refused(
                Code::NotHere,
                "there are no services; docs/services.md says how to configure one",
            ),
            _ => Reply::ok(Body::Services(rows)),
        })
    }

    fn prepare(&self, _: &Config, next: &Config) -> Result<Option<Commit>, Error> {
        let wanted = services(next);
        let change = locked(&self.0).prepare(&wanted)?;
        let running = self.0.clone();
        Ok(change.map(|change| Box::new(move || locked(&running).commit(change)) as Commit))
    }

    /// The workers have ended, and with them the memory. The files go.
    fn finish(&self, _: Instant) -> Result<(), Failure> {
        let mut running = locked(&self.0);
        running.places.iter_mut().for_each(|place| *place = None);
        (running.hand_out, running.folder) = (None, None);
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
