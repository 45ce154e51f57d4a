//! The page of past traffic.

use std::time::Duration;

use console::page::{self, decoded};
use console::report::{By, Query, Report, Sort};

use super::Plane;
use crate::cli::report_rows;
use crate::history::{Keys, report};

/// How long an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

impl Plane {
    /// The page for the part of its address behind `?`.
    pub async fn history_page(&self, asked: &str) -> String {
        match query(asked) {
            Ok(query) => {
                let report = self.report(&query).await;
                page::history(&query, &report)
            }
            Err(why) => page::history(&Query::new(By::Label), &Err(why)),
        }
    }

    /// One at a time, on a thread that may wait for the disk, whether the client waits or not.
    async fn report(&self, query: &Query) -> Result<Report, String> {
        let Some(path) = self.facts.config.section::<Keys>().path else {
            return Err("No history is kept: history.path is empty.".to_owned());
        };
        let Ok(turn) = self.reporting.clone().try_lock_owned() else {
            return Err("Another report is being made; try again.".to_owned());
        };
        let query = query.clone();
        let read = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            report(&path, &query, Some(ANSWER_WITHIN))
        });
        match read.await {
            Ok(report) => report.map_err(|failure| failure.to_string()),
            Err(_) => Err("The thread that reads the history died.".to_owned()),
        }
    }
}

/// `since=yesterday&by=host&label=TLS`: the words of `fenxi report`.
fn query(asked: &str) -> Result<Query, String> {
    let mut query = Query::new(By::Label);
    let mut sort = None;
    for part in asked.split('&').filter(|part| !part.is_empty()) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        let value = decoded(value);
        let wrong = || format!("{key}: {value:?} is not known here");
        match (key, By::parse(key)) {
            ("since", _) => query.since = value,
            ("until", _) => query.until = value,
            ("by", _) => query.by = By::parse(&value).ok_or_else(wrong)?,
            ("sort", _) => sort = Some(Sort::parse(&value).ok_or_else(wrong)?),
            ("top", _) => query.top = report_rows(&value)?,
            (_, Some(by)) => query.filter(by, &value)?,
            _ => return Err(wrong()),
        }
    }
    query.sort = sort.unwrap_or(query.by.sort());
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_words_of_the_command() {
        let asked = "since=7d&until=today&by=host&top=50&label=TLS&host=a%26b%3D%C3%A4+c";
        let query = query(asked).unwrap();
        assert_eq!((query.since.as_str(), query.until.as_str()), ("7d", "today"));
        assert_eq!((query.by, query.sort, query.top), (By::Host, Sort::Bytes, 50));
        let filters = [(By::Label, "TLS".to_owned()), (By::Host, "a&b=ä c".to_owned())];
        assert_eq!(query.filters, filters);
    }

    #[test]
    fn what_it_does_not_know_is_named() {
        for (asked, why) in [
            ("by=colour", "by: \"colour\" is not known here"),
            ("sort=", "sort: \"\" is not known here"),
            ("top=0", "expected a number from 1 to"),
            ("colour=red", "colour: \"red\" is not known here"),
            ("hour=3", "expected label=VALUE, host=VALUE or service=VALUE"),
            ("host", "expected label=VALUE, host=VALUE or service=VALUE"),
            ("host=", "expected label=VALUE, host=VALUE or service=VALUE"),
            ("host=a&label=b&host=a", "host is filtered twice; name one"),
        ] {
            assert!(query(asked).unwrap_err().starts_with(why), "{asked}");
        }
    }
}
