//! Raw frames over a Unix socket, through a flow worker and a simulated device, to labels and
//! records.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "the helpers of tests may panic as the tests do"
)]

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use config::Sources;
use crossbeam_channel::{Sender, unbounded};
use dataplane::analytics_worker::{self, AnalyticsWorker};
use dataplane::clock::Clock;
use dataplane::flow_worker::{FlowWorker, Hooks, Limits, Parts};
use dataplane::pipelines::{FlowOptions, Pipelines};
use dataplane::placement::Cores;
use dataplane::run::Run;
use dataplane::sink::Sink;
use dataplane::tasks::OpenTask;
use flowmgr::Effect;
use flowmgr::record::Record;
use packetio::StreamRx;

#[path = "../../../tests/common/packets.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod packets;

const FLOWS: u16 = 20;
const PACKETS: usize = 12;

struct Collect(Sender<Record>);

impl Sink for Collect {
    fn record(&mut self, record: &Record) {
        self.0.send(record.clone()).unwrap();
    }
}

#[test]
fn frames_over_a_unix_socket_get_labels_and_records() {
    let sets = ["accel.devices=[\"simulated\"]".to_owned()];
    let config = Sources::named(None, &sets).load().unwrap().config;
    let tasks = OpenTask::open_all(&config, None).unwrap();
    let options =
        FlowOptions { effect: Effect::Arrival, record_series: flowmgr::SeriesShare::NONE };
    let cores = Cores::from_config(&config);
    let mut pipelines = Pipelines::for_replay(&config, &tasks, &cores, options).unwrap();
    let (_, manager) = pipelines.flow_managers.remove(0);
    let (_, analytics) = pipelines.analytics.remove(0);

    let (mut frames, stream) = UnixStream::pair().unwrap();
    let (sender, records) = unbounded();
    let run = Arc::new(Run::new(1, 0).0);
    let worker = FlowWorker::new(Parts {
        number: 0,
        manager,
        effect: options.effect,
        ports: vec![Box::new(StreamRx::new("frames", stream).unwrap())],
        flows_belong_to_ports: false,
        egress: None,
        sinks: vec![Box::new(Collect(sender))],
        clock: Clock::live(),
        hooks: Hooks::default(),
        rules: None,
        run: run.clone(),
        limits: Limits {
            burst: config.io.burst,
            handover: Duration::ZERO,
            give_up_after: Duration::MAX,
        },
    });
    let analytics = AnalyticsWorker {
        manager: analytics,
        gathers: false,
        run,
        hooks: analytics_worker::Hooks::default(),
    };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| analytics.run());
        scope.spawn(move || {
            for flow in 0..FLOWS {
                for frame in packets::conversation(flow % 2 == 1, 2000 + flow, PACKETS) {
                    let length = u32::try_from(frame.len()).unwrap();
                    frames.write_all(&length.to_be_bytes()).unwrap();
                    frames.write_all(&frame).unwrap();
                }
            }
        });
        worker.run()
    });

    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    let packets = u64::from(FLOWS) * PACKETS as u64;
    assert_eq!(outcome.ports[0].rx.received, packets);
    assert_eq!(outcome.counters.verdicts.total(), packets);
    let (mut labels, mut flows, mut contradicting) = (0, 0, 0);
    for record in records {
        match record {
            Record::Label(_) => labels += 1,
            Record::Behaviour(_) | Record::Sample(_) => {}
            Record::Flow(flow) => {
                flows += 1;
                let decision = flow.decisions[0].expect("the port names it");
                contradicting += u16::from(decision.contradicts.is_some());
                assert_eq!(flow.counts.packets.iter().sum::<u64>(), PACKETS as u64);
            }
        }
    }
    // What the device answers contradicts the port of some flows, which are then labelled again.
    assert_eq!((labels, flows), (FLOWS + contradicting, FLOWS));
    assert!(contradicting > 0);
}
