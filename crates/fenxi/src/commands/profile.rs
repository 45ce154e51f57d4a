//! `fenxi profile`: measures how long a device takes for a batch, and recommends batching settings.

use std::fs;
use std::time::Duration;

use accel::Bundle;
use accel::profile::{Measured, ProfileFile, R_SQUARED_MIN, Recommendation, measure};
use serde_json::{Value, json};

use super::devices::config_for;
use crate::cli::ProfileArgs;
use crate::exit::{Failure, print, remark};
use crate::machine::Machine;
use config::Config;
use config::checked::Device;
use dataplane::bundle::open_named_bundle;
use dataplane::devices::for_model;
use dataplane::session::session;

/// The minimum of `analytics.timeout_ms`.
const TIMEOUT_MS_MIN: f64 = 0.1;

/// Measures the device, prints the result, and writes the profile to the file of `--out`.
pub fn profile(args: &ProfileArgs) -> Result<(), Failure> {
    let config = config_for(&args.config, &args.config.sets, args.device.as_deref())?;
    let bundle = open_named_bundle(&config, args.model.as_deref())?;
    let config = for_model(config, &bundle);
    let [device] = config.accel.devices.as_slice() else {
        return Err(Failure::software("profile measures one device at a time"));
    };
    let (file, measured) = measured(args, &config, &bundle, device)?;
    let found = Found {
        recommendation: measured.recommend(args.latency_goal_ms),
        measured: &measured,
        latency_goal: args.latency_goal_ms,
        file: &file,
    };
    let page = if args.json { format!("{}\n", found.json()?) } else { found.page() };
    print(&page)?;
    if file.r_squared < R_SQUARED_MIN {
        remark(&format!(
            "fenxi: device {}, model {}: R² is {:.2}, below {R_SQUARED_MIN}: a line explains too \
             little of these times; measure on a \
             quieter machine, for longer (--seconds), or at other sizes (--sizes)\n",
            file.device, file.model, file.r_squared
        ))?;
    }
    if !found.recommendation.meets_goal {
        remark(
            "fenxi: the device cannot meet the latency goal: two of its smallest batches take at \
             least that long\n",
        )?;
    }
    let Some(path) = &args.out else { return Ok(()) };
    let text = file.to_toml().map_err(|error| Failure::software(error.to_string()))?;
    fs::write(path, text).map_err(|error| Failure::creating(path, &error))?;
    remark(&format!("fenxi: profile written to {}\n", path.display()))
}

/// Opens and times the device; the file is complete.
fn measured(
    args: &ProfileArgs,
    config: &Config,
    bundle: &Bundle,
    asked: &Device,
) -> Result<(ProfileFile, Measured), Failure> {
    let mut sizes: Vec<usize> = args.sizes.iter().map(|&size| size as usize).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let library = asked.provider.library_version(config.accel.library.as_deref());
    let library = library.map_err(|error| Failure::unavailable(error.to_string()))?;
    let before_kib = resident_kib();
    let mut sized = asked.clone();
    sized.batch_sizes = sizes.clone();
    let mut device = session(config, bundle, &sized)?;
    let budget = Duration::from_secs_f64(args.seconds);
    let measured = measure(device.as_mut(), &sizes, &bundle.golden().inputs, budget)
        .map_err(|error| Failure::unavailable(error.to_string()))?;
    let machine = Machine::here(flowmgr::Pages::Plain);
    let mut file = ProfileFile::new(bundle, &measured);
    file.device = asked.name.clone();
    file.provider = asked.provider.name.to_owned();
    file.effective = device.effective().to_owned();
    file.library = library;
    file.machine = format!("{}, {} cores, Linux {}", machine.cpu, machine.cores, machine.kernel);
    file.memory_kib = resident_kib().saturating_sub(before_kib);
    Ok((file, measured))
}

/// Resident memory of this process, KiB; 0 if it is unknown.
fn resident_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    resident.and_then(|kib| kib.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

struct Found<'a> {
    file: &'a ProfileFile,
    measured: &'a Measured,
    latency_goal: Option<Duration>,
    recommendation: Recommendation,
}

impl Found<'_> {
    fn json(&self) -> Result<Value, Failure> {
        let file = serde_json::to_value(self.file);
        let mut object = file.map_err(|error| Failure::software(error.to_string()))?;
        object["deviation"] = json!(self.measured.deviation(self.file.profile()));
        object["knee"] = json!(self.measured.knee());
        object["latency_goal_ms"] = json!(self.latency_goal.map(|goal| goal.as_secs_f64() * 1e3));
        object["recommendation"] = json!({
            "batch_sizes": self.recommendation.batch_sizes,
            "timeout_ms": self.timeout_ms(),
            "largest": self.recommendation.largest,
            "meets_goal": self.recommendation.meets_goal,
        });
        Ok(object)
    }

    /// The timeout in milliseconds, as `analytics.timeout_ms` takes it.
    fn timeout_ms(&self) -> f64 {
        let ms = self.recommendation.timeout.as_secs_f64() * 1e3;
        // Rounded down to a microsecond, so that the goal is still met.
        ((ms * 1e3).floor() / 1e3).max(TIMEOUT_MS_MIN)
    }

    fn page(&self) -> String {
        let file = self.file;
        let mut page = format!(
            "{} on device {} ({})\n{}\n\n{:>6}  {:>11}  {:>8}  {:>9}  {:>7}\n",
            file.model,
            file.device,
            file.effective,
            file.machine,
            "batch",
            "median µs",
            "min µs",
            "class/s",
            "batches",
        );
        for point in self.measured.points() {
            page += &format!(
                "{:>6}  {:>11.1}  {:>8.1}  {:>9.0}  {:>7}\n",
                point.rows,
                point.median_us,
                point.min_us,
                point.throughput(),
                point.runs
            );
        }
        let (line, knee) = (file.profile(), self.measured.knee());
        let deviation = self.measured.deviation(line) * 100.0;
        page += &format!(
            "\nlatency  T0 + T1·b = {:.1} µs + {:.2} µs · b, no more than {deviation:.0} % off\n",
            line.t0_us, line.t1_us
        );
        page += &format!(
            "fit      R² {:.3}, batchiness {:.2} at {}\n",
            file.r_squared,
            file.batchiness,
            self.measured.points().last().map_or(1, |point| point.rows)
        );
        page += &format!("knee     batch of {}, {:.0} class/s\n", knee.rows, knee.throughput());
        page += &format!("memory   {:.1} MiB\n", file.memory_kib as f64 / 1024.0);
        let goal = self.latency_goal.map_or("without a latency goal".to_owned(), |goal| {
            format!("for a latency goal of {} ms", goal.as_secs_f64() * 1e3)
        });
        page += &format!(
            "\nrecommended {goal}:\n  analytics.batch_sizes = {:?}\n  analytics.timeout_ms = {}\n  \
             largest batch {}\n",
            self.recommendation.batch_sizes,
            self.timeout_ms(),
            self.recommendation.largest
        );
        page
    }
}
