//! What `fenxi check --deep` finds, and how it says so.

use std::fmt::Write as _;

use serde::Serialize;
use serde_json::json;

use crate::exit::Failure;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It runs, and could run better.
    Warning,
    /// It does not run, or what comes out is wrong.
    Problem,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The kind of thing, one word.
    pub check: &'static str,
    /// Which one of its kind; empty where there is only one.
    pub subject: String,
    /// How bad it is.
    pub level: Level,
    /// What was seen, and what follows from it.
    pub cause: String,
    /// A command that mends it, to be pasted into a shell.
    pub remedy: Option<String>,
    /// Whether it is for want of permission.
    #[serde(skip)]
    pub is_permission: bool,
}

impl Finding {
    /// As it should be.
    pub fn ok(check: &'static str, subject: &str, cause: impl Into<String>) -> Finding {
        Finding {
            check,
            subject: subject.to_owned(),
            level: Level::Ok,
            cause: cause.into(),
            remedy: None,
            is_permission: false,
        }
    }

    /// It could be better.
    pub fn warning(check: &'static str, subject: &str, cause: impl Into<String>) -> Finding {
        let level = Level::Warning;
        Finding {
            level,
            ..Finding::ok(check, subject, cause)
        }
    }

    /// It is wrong.
    pub fn problem(check: &'static str, subject: &str, cause: impl Into<String>) -> Finding {
        let level = Level::Problem;
        Finding {
            level,
            ..Finding::ok(check, subject, cause)
        }
    }

    /// With the command that mends it.
    pub fn cure(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    /// With the command that mends it, where there is one.
    pub fn cure_if(mut self, remedy: Option<String>) -> Finding {
        self.remedy = remedy;
        self
    }

    /// For want of permission.
    pub fn for_permission(mut self) -> Finding {
        self.is_permission = true;
        self
    }
}

/// All that was found.
pub struct Report(pub Vec<Finding>);

impl Report {
    fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    /// `1 problem, 2 warnings, 9 ok`.
    fn sums(&self) -> String {
        let several = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let (problems, warnings) = (self.count(Level::Problem), self.count(Level::Warning));
        let (problems, warnings) = (several(problems, "problem"), several(warnings, "warning"));
        format!("{problems}, {warnings}, {} ok", self.count(Level::Ok))
    }

    /// For people: a line each, and below it the command that mends it.
    pub fn page(&self) -> String {
        let mut page = String::new();
        for finding in &self.0 {
            let level = match finding.level {
                Level::Ok => "ok",
                Level::Warning => "warning",
                Level::Problem => "problem",
            };
            let what = match finding.subject.as_str() {
                "" => finding.check.to_owned(),
                subject => format!("{} {subject}", finding.check),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(page, "{level:<8} {what}: {}", finding.cause);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(page, "{:<8} $ {remedy}", "");
            }
        }
        page + &self.sums() + "\n"
    }

    /// For machines: one object on a line.
    pub fn to_json(&self) -> String {
        let object = json!({
            "problems": self.count(Level::Problem),
            "warnings": self.count(Level::Warning),
            "ok": self.count(Level::Ok),
            "findings": self.0,
        });
        format!("{object}\n")
    }

    /// 77 where a permission is missing, 69 where there is another problem, none where there are warnings at most.
    pub fn failure(&self) -> Option<Failure> {
        let mut problems = self
            .0
            .iter()
            .filter(|finding| finding.level == Level::Problem)
            .peekable();
        problems.peek()?;
        let message = format!("check --deep: {}", self.sums());
        Some(match problems.any(|finding| finding.is_permission) {
            true => Failure::not_allowed(message),
            false => Failure::unavailable(message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_says_what_the_worst_is() {
        let ok = Finding::ok("clock", "", "tsc");
        let warning = Finding::warning("queues", "eth0", "one");
        let problem = Finding::problem("offloads", "eth0", "gro").cure("ethtool -K eth0 gro off");
        let denied = Finding::problem("capabilities", "CAP_NET_RAW", "missing").for_permission();
        let code = |findings: &[&Finding]| {
            let report = Report(findings.iter().map(|&finding| finding.clone()).collect());
            report.failure().map(|failure| failure.code())
        };
        assert_eq!(code(&[&ok, &warning]), None);
        assert_eq!(code(&[&ok, &problem]), Some(69));
        assert_eq!(code(&[&problem, &denied]), Some(77));
        let page = Report(vec![ok, problem]).page();
        let lines = [
            "ok       clock: tsc",
            "problem  offloads eth0: gro",
            "         $ ethtool -K eth0 gro off",
            "1 problem, 0 warnings, 1 ok",
        ];
        assert_eq!(page, lines.join("\n") + "\n");
    }
}
