//! `fenxi model`, `fenxi devices`, `fenxi profile`: bundles, and what runs them.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::{ConfigArgs, seconds};

/// Inspect or check a model bundle, or try it on labelled flows.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Print the manifest of a bundle
    Info(InfoArgs),
    /// Run a bundle on its golden inputs and compare the outputs of cpu and native; with --against,
    /// compare it with another bundle
    Check(CheckArgs),
    /// Name labelled flows as a run would, and measure the speed
    Bench(BenchArgs),
    /// Write the network as the engine compiles it, for kernels and small devices
    Compile(CompileArgs),
    /// Run a bundle on its golden inputs in this process: what a live run starts for a model that
    /// is new
    #[command(hide = true)]
    Try(TryArgs),
}

#[derive(Debug, Args)]
pub struct TryArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Exit soon after this time, even if the model still runs
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub within_s: f64,
    /// ONNX Runtime library to use
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Bundle that this one was derived from, such as the fp32 model of an int8 one: reports the
    /// loss
    #[arg(short, long, value_name = "DIR")]
    pub against: Option<PathBuf>,
    /// Table of labelled flows (CSV, optionally gzipped) to compare on, in addition to the golden
    /// inputs
    #[arg(long, value_name = "FILE")]
    pub series: Vec<PathBuf>,
    /// Capture whose flows to compare on, in addition to the golden inputs
    #[arg(long, value_name = "FILE")]
    pub capture: Vec<PathBuf>,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct CompileArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// File to write
    #[arg(short, long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Folder of the bundle
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Table of labelled flows (CSV, optionally gzipped), 500,000 at most
    #[arg(short, long, value_name = "FILE")]
    pub labels: PathBuf,
    /// Column of the table that holds the labels
    #[arg(long, value_name = "NAME", default_value = "label")]
    pub column: String,
    /// Device to run the model on: a provider, or the name of a [device.NAME] table [default:
    /// native where it takes the model, otherwise cpu]
    #[arg(short, long, value_name = "NAME")]
    pub device: Option<String>,
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Write each flow's true label, name and confidence to this file (CSV)
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to try instead of the shipped one
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// ONNX Runtime library to use; overrides accel.library
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// Library of a plug-in provider; tried as the device "plugin"
    #[arg(long, value_name = "PATH")]
    pub plugin: Option<PathBuf>,
    /// Devices to try: providers or names of [device.NAME] tables [default: all]
    #[arg(short, long = "device", value_name = "NAME,...", value_delimiter = ',')]
    pub devices: Vec<String>,
    /// Give up on a device after this time; some compile a model for minutes
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub deadline_s: f64,
    /// Print one JSON object instead of a table
    #[arg(short, long)]
    pub json: bool,
    /// Try this device in this process and print the outcome: what the command starts for each
    /// device
    #[arg(long = "try", value_name = "NAME", hide = true)]
    pub trial: Option<String>,
}

#[derive(Debug, Args)]
pub struct ProfileArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Model bundle to measure instead of the shipped one
    #[arg(short, long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Device to measure: a provider, or the name of a [device.NAME] table [default: native where
    /// it takes the model, otherwise cpu]
    #[arg(short, long, value_name = "NAME")]
    pub device: Option<String>,
    /// Batch sizes to measure
    #[arg(long, value_name = "N,...", value_delimiter = ',',
        default_value = "1,2,4,8,16,32,64,128,256,512,1024",
        value_parser = clap::value_parser!(u32).range(1..=16_384))]
    pub sizes: Vec<u32>,
    /// Recommend settings for this latency goal from series to label
    #[arg(long, value_name = "D", value_parser = latency_goal)]
    pub latency_goal_ms: Option<Duration>,
    /// Write the profile to this file
    #[arg(short, long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(short, long)]
    pub json: bool,
    /// Approximate time to measure, not counting preparation
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
}

fn latency_goal(text: &str) -> Result<Duration, String> {
    let ms = text.parse::<f64>().ok();
    ms.filter(|ms| (0.001..=60_000.0).contains(ms))
        .map(|ms| Duration::from_secs_f64(ms / 1e3))
        .ok_or_else(|| "expected milliseconds from 0.001 to 60000".to_owned())
}
