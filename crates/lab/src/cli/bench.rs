//! `fenxi-lab bench`: the experiments.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::seconds;

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The experiment
    #[arg(value_enum, value_name = "NAME")]
    pub name: BenchName,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub json: bool,
    /// Approximate time to measure, without the set-up
    #[arg(long, value_name = "S", default_value_t = 30.0, value_parser = seconds)]
    pub seconds: f64,
    /// walk, scale: numbers of flows; flood: number of flows that collide
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: Vec<u32>,
    /// Entries of the flow table, a power of two; the default depends on the experiment
    #[arg(long, value_name = "N", value_parser = entries)]
    pub entries: Option<usize>,
    /// walk, headline, policy-walk, policy-adding: capture whose flows the mix is made of
    #[arg(long, value_name = "FILE")]
    pub capture: Option<PathBuf>,
    /// walk, analytics, engine, inference (several), latency, headline: model bundle instead of the
    /// shipped ones
    #[arg(long = "model", value_name = "DIR")]
    pub models: Vec<PathBuf>,
    /// headline: flow workers that answer series themselves, each on a core of its own; by default
    /// one flow worker and one analytics worker
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=64))]
    pub workers: Option<u8>,
    /// headline: links, which the workers share
    #[arg(long, value_name = "N", default_value_t = 1.0)]
    pub links: f64,
    /// latency: series per second
    #[arg(long, value_name = "N", default_value_t = 50_000,
        value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub rate: u32,
    /// latency: find the most series per second with a p99 of at most MS, beginning at --rate
    #[arg(long, value_name = "MS", value_parser = goal_ms)]
    pub goal_ms: Option<f64>,
    /// tasks: these graphs only, such as "chain of 2"
    #[arg(long = "graph", value_name = "NAME,...", value_delimiter = ',')]
    pub graphs: Vec<String>,
    /// policy, policy-updates, policy-walk, policy-adding: networks whose rules are imitated
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub seeds: Vec<String>,
    /// policy, policy-updates, policy-walk, policy-adding: rules of a set
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub sizes: Vec<u32>,
    /// inference: be the other process
    #[arg(long, value_enum, hide = true)]
    pub answers: Option<Waits>,
}

/// How a side of a socket waits for the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Waits {
    /// In a system call that returns once there are bytes
    Asleep,
    /// In a loop
    Polling,
}

/// An experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BenchName {
    /// Packets per second by burst size and table load (FENXI Fig. 6)
    Table,
    /// Packets per second by number of flows and of workers (FENXI Fig. 7)
    Scale,
    /// The packet path on one core: parse, hash, look up, count, tag
    Walk,
    /// An average 100 Gb/s link of the paper through both workers, a core each
    Headline,
    /// Look-up and update in the flow table alone
    Lookup,
    /// The engine against ONNX Runtime, by model, batch and instruction set
    Engine,
    /// Latency of one inference in this process, in the kernel (as root), and asked over a socket
    /// (LiteFlow Fig. 15)
    Inference,
    /// Adversarial traffic: floods and hash collisions
    Flood,
    /// Cost of flow expiry per poll
    Sweep,
    /// Throughput of the analytics manager, compared with a bare loop over the device
    Analytics,
    /// Time to label under Poisson arrivals
    Latency,
    /// Several tasks on one thread, by the policy that plans their batches (Batchy Table 2 and
    /// Fig. 9)
    Tasks,
    /// Figures of servers from shared memory, and by probes (Aquarius Fig. 13)
    Probes,
    /// Finding the rules of flows: the learned classifier beside TupleMerge, by number of rules
    Policy,
    /// Rules added and deleted while flows are looked up
    PolicyUpdates,
    /// The packet path with rules against none
    PolicyWalk,
    /// The packet path while rules are added
    PolicyAdding,
}

fn goal_ms(text: &str) -> Result<f64, String> {
    let ms = text.parse::<f64>().ok();
    ms.filter(|ms| (0.1..=1000.0).contains(ms))
        .ok_or_else(|| "expected ms from 0.1 to 1000".to_owned())
}

fn entries(text: &str) -> Result<usize, String> {
    let entries = text.parse::<usize>().ok();
    entries
        .filter(|entries| entries.is_power_of_two() && (1 << 10..=1 << 24).contains(entries))
        .ok_or_else(|| "expected a power of two, 2^10 to 2^24".to_owned())
}
