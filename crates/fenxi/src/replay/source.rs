//! The source of a replay's packets: the captures themselves, or, with several flow workers, a
//! thread that reads them and spreads the frames by RSS hash.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;

use dataplane::Error;
use dataplane::clock::{Pace, PacedRx};
use dataplane::run::Run;
use flowmgr::Rss;
use packetio::batch::{self, BatchSender};
use packetio::{FaultRates, Rx, Sequence, SequenceSettings};

use crate::cli::ReplayArgs;
use crate::exit::Failure;

/// The port of each flow worker.
type Ports = Vec<Box<dyn Rx>>;

/// The captures of a replay, open.
pub struct Source {
    captures: Sequence,
    run: Arc<Run>,
    /// Bytes read so far.
    pub read: Arc<AtomicU64>,
    /// Size of all captures in bytes, if known.
    pub size: Option<u64>,
}

/// The thread that reads the captures for several flow workers; it ends with them.
pub struct Reader(JoinHandle<Result<(), Error>>);

impl Source {
    /// Opens the first capture and checks whether the others can be opened. A silent pipe ends with
    /// the run.
    ///
    /// # Errors
    /// 66: a file cannot be opened.
    pub fn open(args: &ReplayArgs, run: Arc<Run>) -> Result<Source, Failure> {
        let faults = args.faults;
        let settings = SequenceSettings {
            files: args.files.clone(),
            loops: args.loops,
            faults: faults.map_or(FaultRates::default(), |faults| FaultRates {
                loss: faults.loss,
                truncation: faults.truncate,
                corruption: faults.corrupt,
            }),
            seed: faults.map_or(0, |faults| faults.seed),
        };
        let read = Arc::new(AtomicU64::new(0));
        let size = Sequence::size(&settings);
        let captures = Sequence::open(settings, read.clone(), run.stop.clone());
        Ok(Source { captures: captures.map_err(Error::from)?, run, read, size })
    }

    /// The ports of `workers` flow workers, and the thread that fills them if there is more than
    /// one.
    pub fn spread(
        self,
        workers: usize,
        pace: Option<Pace>,
    ) -> Result<(Ports, Option<Reader>), Failure> {
        if workers == 1 {
            return Ok((vec![paced(self.captures, pace.as_ref())], None));
        }
        let (senders, ports): (Vec<_>, Vec<_>) = (0..workers).map(|_| batch::channel()).unzip();
        let reader = std::thread::Builder::new()
            .name("reader".to_owned())
            .spawn(move || self.read_for(senders))
            .map_err(|error| {
                Failure::unavailable(format!("cannot start the reader thread: {error}"))
            })?;
        let ports = ports.into_iter().map(|port| paced(port, pace.as_ref()));
        Ok((ports.collect(), Some(Reader(reader))))
    }

    fn read_for(mut self, senders: Vec<BatchSender>) -> Result<(), Error> {
        let (rss, queues) = (Rss::new(), senders.len());
        let steer = |frame: &packetio::Frame, bytes: &[u8]| {
            let hash = rss.hash(frame.link, bytes);
            (Rss::queue(hash, queues), hash)
        };
        Ok(batch::spread(&mut self.captures, senders, steer, &self.run.stop)?)
    }
}

impl Reader {
    pub fn join(self) -> Result<(), Failure> {
        let died = |_| Failure::software("the thread that reads the captures died");
        Ok(self.0.join().map_err(died)??)
    }
}

fn paced(port: impl Rx + 'static, pace: Option<&Pace>) -> Box<dyn Rx> {
    match pace {
        Some(pace) => Box::new(PacedRx::new(port, pace.clone())),
        None => Box::new(port),
    }
}
