//! `fenxi check`: validates a configuration and draws its pipeline.

use std::fmt::Write as _;

use flowmgr::table_bytes;

use crate::cli::ConfigArgs;
use crate::config::Config;
use crate::config::checked::BatchPolicy;
use crate::exit::{Failure, print};
use crate::pipeline::{find_bundle, open_bundle};

/// Checks configuration and bundle, then prints who hands what to whom.
///
/// # Errors
/// Whatever a run would refuse before its first packet, but for the library and
/// the devices, which are not touched.
pub fn check(args: &ConfigArgs) -> Result<(), Failure> {
    let (config, _) = Config::load(args.config.as_deref(), &args.sets)?;
    let dir = find_bundle(&config, None)?;
    let bundle = open_bundle(&config, &dir)?;
    crate::pipeline::dscp_by_class(&config, &bundle)?;
    let model = format!(
        "{} {} ({} classes)",
        bundle.name(),
        bundle.version(),
        bundle.labels().len()
    );
    print(&draw(&config, &model))
}

fn draw(config: &Config, model: &str) -> String {
    let flow = &config.flow;
    let bytes = table_bytes(flow.max_flows, flow.buckets, flow.k);
    let devices: Vec<&str> = config
        .accel
        .devices
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    let cache = match &config.cache {
        Some(cache) => format!(
            "prefix {} of {}, {} entries",
            cache.prefix, flow.k, cache.entries
        ),
        None => "off".to_owned(),
    };
    let tag = match config.tag.enabled {
        true => format!("dscp, {} labels mapped", config.tag.dscp.len()),
        false => "off".to_owned(),
    };
    let mut page = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "pipeline {layout}, {instances} instance

  port                    bursts of {burst}
   │
  flow manager            {flows} flows, {buckets} buckets, {mib} MiB; tag: {tag}
   │        ▲
   │ ring   │ label words {slots} slots of k = {k} packets
   ▼        │
  analytics manager       {policy}; cache: {cache}
   │        ▲
   ▼        │
  device                  {devices}: {model}
",
        layout = config.pipeline.layout,
        instances = config.pipeline.instances,
        burst = config.io.burst,
        flows = flow.max_flows,
        buckets = flow.buckets,
        mib = bytes.div_ceil(1 << 20),
        slots = config.ring.slots,
        k = flow.k,
        policy = policy(config),
        devices = devices.join(", "),
    );
    page
}

fn policy(config: &Config) -> String {
    let analytics = &config.analytics;
    let (timeout, max_wait) = (analytics.timeout, analytics.max_wait);
    match analytics.policy {
        BatchPolicy::None => "none: fires when the device is free".to_owned(),
        BatchPolicy::Slo {
            latency_goal,
            delta,
        } => format!("slo, 99 of 100 labels within {latency_goal:?}, δ = {delta}"),
        BatchPolicy::Timeout => format!("timeout, T = {timeout:?}"),
        BatchPolicy::CarryOver => {
            format!(
                "carry-over, T = {timeout:?}, Φ = {}, max wait {max_wait:?}",
                analytics.phi
            )
        }
    }
}
