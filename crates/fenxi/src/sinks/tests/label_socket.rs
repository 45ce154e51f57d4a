//! Labels to a Unix datagram socket, a line each: everything that another sink takes. The tests
//! list it after the program's sinks.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use config::kind::Kind;
use config::{Keyed, Section, Setting};
use crossbeam_channel::{Receiver, Sender, bounded};
use dataplane::{run::PAUSE, sink::Sink};
use flowmgr::record::{LabelRecord, Record};

use crate::exit::Failure;
use crate::metric::{Family, count};
use crate::sinks::{Report, SinkControl, SinkKind, Start};

config::section! {
    /// Labels for another program.
    pub struct Keys = One "labelsocket";

    /// the socket to which labels go
    path: Option<PathBuf> = restart "path", Kind::Text, "\"\"", "path, empty = none"
        => Setting::file;
}

/// Labels to a socket, where the configuration names one.
pub struct LabelSocket;

impl SinkKind for LabelSocket {
    fn sections(&self) -> &'static [&'static Section] {
        &[Keys::SECTION]
    }

    fn start(&self, start: &Start<'_>) -> Result<Option<Box<dyn SinkControl>>, Failure> {
        let Some(path) = start.config.section::<Keys>().path else {
            return Ok(None);
        };
        let socket = UnixDatagram::unbound().map_err(|it| Failure::io(it.to_string()))?;
        let (queue, labels): (_, Receiver<LabelRecord>) = bounded(1024);
        let tasks = start.names.clone();
        let worker = Worker(queue, Arc::default());
        let (end, counts) = (Mutex::new(Some(worker.clone())), worker.1.clone());
        let thread = spawn(move || {
            for label in labels {
                let task = &tasks[label.task.index()];
                let class = &task.classes[usize::from(label.decision.class)];
                let line = format!("{} {} {class}", label.flow.flow_id, task.name);
                let sent = socket.send_to(line.as_bytes(), &path);
                counts[usize::from(sent.is_err())].fetch_add(1, Relaxed);
            }
        });
        Ok(Some(Box::new(Control(end, thread, worker.1))))
    }
}

/// The queue, and labels by outcome: sent, failed, dropped.
#[derive(Clone)]
struct Worker(Sender<LabelRecord>, Arc<[AtomicU64; 3]>);

impl Sink for Worker {
    fn record(&mut self, record: &Record) {
        if let Record::Label(label) = record
            && self.0.try_send(*label).is_err()
        {
            self.1[2].fetch_add(1, Relaxed);
        }
    }
}

struct Control(Mutex<Option<Worker>>, JoinHandle<()>, Arc<[AtomicU64; 3]>);

impl SinkControl for Control {
    fn worker_half(&self) -> Option<Box<dyn Sink>> {
        Some(Box::new(self.0.lock().unwrap().clone()?))
    }

    fn report(&self) -> Report {
        let (name, help) = ("fenxi_label_socket_total", "Labels by what became of them.");
        let outcomes = ["sent", "failed", "dropped"].into_iter().zip(&*self.2);
        let samples = outcomes.map(|(outcome, labels)| count(&[outcome], labels.load(Relaxed)));
        let labels = Family::counter(name, "labels", &["outcome"], help, samples);
        Report { metrics: vec![labels], ..Report::default() }
    }

    /// A thread whose reader takes nothing is left behind.
    fn finish(&self, ended: Instant) -> Result<(), Failure> {
        self.0.lock().unwrap().take();
        while !self.1.is_finished() && ended.elapsed() < Duration::from_secs(1) {
            sleep(PAUSE);
        }
        Ok(())
    }
}
