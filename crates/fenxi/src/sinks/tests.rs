//! A flow worker over frames in memory, with a sink that the program does not have.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::sync::Mutex;
use std::time::Duration;

use config::Sources;
use dataplane::analytics_worker::{self, AnalyticsWorker};
use dataplane::bundle::labels;
use dataplane::clock::Clock;
use dataplane::flow_worker::{FlowOutcome, FlowWorker, Hooks, Limits, Parts};
use dataplane::pipelines::{FlowOptions, Pipelines};
use dataplane::placement::Cores;
use dataplane::run::Run;
use dataplane::tasks::OpenTask;
use flowmgr::Effect;
use packetio::FrameBatch;

mod keys;
mod label_socket;

use super::*;
use crate::metric::Value;
use crate::servers::Memories;
use label_socket::LabelSocket;
use learn::SharedHeld;

#[path = "../../../../tests/common/packets.rs"]
#[allow(dead_code, reason = "each test uses its own part")]
mod packets;

const FLOWS: u16 = 20;
const EFFECT: Effect = Effect::PacketTime { delay_us: 1000 };

fn trace() -> FrameBatch {
    let flows = (0..FLOWS).flat_map(|flow| packets::conversation(false, 2000 + flow, 12));
    let mut trace = FrameBatch::new();
    for (frame, bytes) in packets::timed(packets::ETHERNET, flows) {
        trace.push(&frame, &bytes);
    }
    trace
}

/// Replays the trace through one flow worker and one analytics worker with a simulated device.
fn replay(config: &Config, mut pipelines: Pipelines, sinks: &Sinks) -> FlowOutcome {
    let run = Arc::new(Run::new(1, 0).0);
    let (_, manager) = pipelines.flow_managers.remove(0);
    let (_, analytics) = pipelines.analytics.remove(0);
    let analytics = AnalyticsWorker {
        manager: analytics,
        gathers: true,
        run: run.clone(),
        hooks: analytics_worker::Hooks::default(),
    };
    let worker = FlowWorker::new(Parts {
        rules: None,
        number: 0,
        manager,
        effect: EFFECT,
        ports: vec![Box::new(trace())],
        flows_belong_to_ports: false,
        egress: None,
        sinks: sinks.worker_halves(),
        clock: Clock::Packets,
        hooks: Hooks::default(),
        run,
        limits: Limits {
            burst: config.io.burst,
            handover: Duration::ZERO,
            give_up_after: Duration::MAX,
        },
    });
    std::thread::scope(|scope| {
        scope.spawn(|| analytics.run());
        worker.run()
    })
}

#[test]
fn another_sink_needs_its_file_and_a_place_in_the_list() {
    let dir = tempfile::tempdir().unwrap();
    let (socket, file) = (dir.path().join("labels"), dir.path().join("flows.jsonl"));
    let reader = UnixDatagram::bind(&socket).unwrap();
    // A model that labels each flow once.
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/app-id-k10");
    let sets = [
        "accel.devices=[\"simulated\"]".to_owned(),
        format!("model.path={model}"),
        format!("labelsocket.path={}", socket.display()),
    ];
    let own_kind: &'static dyn SinkKind = &LabelSocket;
    let kinds = [KINDS, &[own_kind]].concat();
    let own = own_kind.sections().iter().copied();
    let config = known(Sources::named(None, &sets)).and(own).load().unwrap().config;
    let tasks = OpenTask::open_all(&config, None).unwrap();
    let options = FlowOptions { effect: EFFECT, record_series: flowmgr::SeriesShare::NONE };
    let cores = Cores::from_config(&config);
    let pipelines = Pipelines::for_replay(&config, &tasks, &cores, options).unwrap();
    let sinks = Sinks::start_of(
        &kinds,
        &Start {
            config: &config,
            names: &pipelines.names.clone(),
            labels: &[labels(&tasks[0].bundle)],
            hosts: None,
            host_names: &crate::names::Opened::default(),
            records: Some(&file),
            record_socket: None,
            learn_socket: None,
            weight_sockets: &[],
            by_server: None,
            held: &SharedHeld::default(),
            servers: &Memories::default(),
            services: &Mutex::default(),
            record_series: false,
            recent: None,
            marks_by_kernel: None,
            replay: Some(ReplayStart { waits: true, stopped: None }),
        },
    )
    .unwrap();
    let labels = std::thread::spawn(move || {
        let mut labels = BTreeSet::new();
        while labels.len() < usize::from(FLOWS) {
            let mut line = [0; 100];
            let length = reader.recv(&mut line).unwrap();
            labels.insert(String::from_utf8(line[..length].to_vec()).unwrap());
        }
        labels
    });

    let outcome = replay(&config, pipelines, &sinks);
    assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
    sinks.finish(Instant::now()).unwrap();

    let recorded: BTreeSet<String> = std::fs::read_to_string(&file)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .filter(|record| record["type"] == "label")
        .map(|record| {
            format!("{} default {}", record["flow_id"], record["label"].as_str().unwrap())
        })
        .collect();
    assert_eq!(labels.join().unwrap(), recorded);
    let reports = sinks.reports();
    let metrics = reports.iter().flat_map(|report| &report.metrics);
    let own = metrics.filter(|it| it.metric.name == "fenxi_label_socket_total");
    let samples: Vec<_> = own.flat_map(|family| &family.samples).collect();
    assert_eq!(samples.len(), 3);
    assert_eq!(samples[0].value, Value::Count(FLOWS.into()));
}
