//! `fenxi report`: past traffic.

use clap::Args;
use clap::builder::PossibleValuesParser;

use super::ConfigArgs;
#[cfg(feature = "history")]
use crate::exit::Failure;
use crate::report::{By, Query, Sort, TOP, TOP_MAX};

#[derive(Debug, Args)]
pub struct ReportArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// First hour, in local time: today, yesterday, 24h, 7d, 2026-11-26 or "2026-11-26 14:00"
    #[arg(long, value_name = "TIME", default_value = "yesterday")]
    pub since: String,
    /// End, written in the same way; today and yesterday mean their beginning
    #[arg(long, value_name = "TIME", default_value = "now")]
    pub until: String,
    /// What to sum up
    #[arg(long, value_name = "WHAT", default_value = By::Label.name(),
          value_parser = PossibleValuesParser::new(By::ALL.map(By::name)))]
    pub by: String,
    /// What comes first: the most of it, or the least name [default: bytes; name, by hour]
    #[arg(long, value_name = "WHAT",
          value_parser = PossibleValuesParser::new(Sort::ALL.map(Sort::name)))]
    pub sort: Option<String>,
    /// Maximum number of rows
    #[arg(short = 'n', long, value_name = "N", default_value_t = TOP,
          value_parser = top)]
    pub top: usize,
    /// Only this label, host (address or name) or service, for example host=laptop; each once at
    /// most, and all must hold
    #[arg(short, long = "filter", value_name = "WHAT=VALUE", value_parser = filter)]
    pub filters: Vec<(By, String)>,
    /// Print one JSON object
    #[arg(short, long)]
    pub json: bool,
}

#[cfg(feature = "history")]
impl ReportArgs {
    pub fn query(&self) -> Result<Query, Failure> {
        // clap has checked the words.
        let by = By::parse(&self.by).unwrap_or(By::Label);
        let sort = self.sort.as_deref().and_then(Sort::parse);
        let mut query = Query {
            since: self.since.clone(),
            until: self.until.clone(),
            by,
            sort: sort.unwrap_or(by.sort()),
            top: self.top,
            filters: Vec::new(),
        };
        for (by, value) in &self.filters {
            let added = query.filter(*by, value);
            added.map_err(|why| Failure::usage(format!("--filter: {why}")))?;
        }
        Ok(query)
    }
}

/// A number of rows.
pub fn top(text: &str) -> Result<usize, String> {
    let top = text.parse().ok().filter(|top| (1..=TOP_MAX).contains(top));
    top.ok_or_else(|| format!("expected a number from 1 to {TOP_MAX}"))
}

/// `host=192.168.1.20`.
fn filter(text: &str) -> Result<(By, String), String> {
    let (by, value) = text.split_once('=').unwrap_or((text, ""));
    // A word that is unknown is refused as hours are.
    let by = By::parse(by).unwrap_or(By::Hour);
    Query::new(by).filter(by, value)?;
    Ok((by, value.to_owned()))
}
