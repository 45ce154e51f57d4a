//! `fenxi-lab generate rules`: a set of rules as a file.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;

use super::{Asked, file, generate, v6};
use fenxi::exit::{Failure, remark};

/// Arguments of `generate rules`.
#[derive(Debug, Args)]
pub struct RulesArgs {
    /// The network whose rules are imitated: acl1 to acl5, fw1 to fw5, ipc1 to ipc4
    #[arg(long, value_name = "NAME", default_value = "acl1")]
    pub seed: String,
    /// Distinct rules
    #[arg(long, value_name = "N", default_value_t = 1000,
        value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub rules: u32,
    /// The same number gives the same rules
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub random: u64,
    /// Rules of IPv6 instead, below 2001:db8::/32
    #[arg(long)]
    pub ipv6: bool,
    /// Filter file of ClassBench to write
    #[arg(value_name = "OUT")]
    pub to: PathBuf,
}

/// Writes the set.
///
/// # Errors
/// There is no such profile, it gives fewer rules, or the file cannot be written.
pub fn run(args: &RulesArgs) -> Result<(), Failure> {
    let start = Instant::now();
    let rules =
        generate(&Asked { seed: &args.seed, rules: args.rules as usize, random: args.random })?;
    match args.ipv6 {
        true => {
            let rules: Vec<_> = rules.iter().map(v6::filter).collect();
            file::write::<_, Ipv6Addr>(&args.to, &rules)?;
        }
        false => file::write::<_, Ipv4Addr>(&args.to, &rules)?,
    }
    remark(&format!(
        "{} rules in the manner of {}, {:.3} s\n",
        rules.len(),
        args.seed,
        start.elapsed().as_secs_f64()
    ))
}
