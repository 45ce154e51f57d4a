//! The findings of `fenxi check --deep`, and their report.

use serde::Serialize;
use serde_json::json;

use crate::exit::Failure;
use crate::figures::counted;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Everything is as it should be.
    Ok,
    /// fenxi runs, but could run better.
    Warning,
    /// fenxi does not run, or its results are wrong.
    Problem,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Name of the check, one word.
    pub check: &'static str,
    /// What was checked, such as an interface; empty if there is only one.
    pub subject: String,
    pub level: Level,
    /// What was found, and its consequence.
    pub cause: String,
    /// A shell command that fixes it.
    pub remedy: Option<String>,
    #[serde(skip)]
    pub is_permission: bool,
}

impl Finding {
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

    pub fn warning(check: &'static str, subject: &str, cause: impl Into<String>) -> Finding {
        Finding::ok(check, subject, cause).at(Level::Warning)
    }

    pub fn problem(check: &'static str, subject: &str, cause: impl Into<String>) -> Finding {
        Finding::ok(check, subject, cause).at(Level::Problem)
    }

    fn at(mut self, level: Level) -> Finding {
        self.level = level;
        self
    }

    /// Adds the command that fixes it.
    pub fn cure(mut self, remedy: impl Into<String>) -> Finding {
        self.remedy = Some(remedy.into());
        self
    }

    pub fn cure_if(mut self, remedy: Option<String>) -> Finding {
        self.remedy = remedy;
        self
    }

    pub fn for_permission(mut self) -> Finding {
        self.is_permission = true;
        self
    }
}

/// Warnings about tasks, for the page of `fenxi check`, a line each.
pub fn lines(findings: &[Finding]) -> String {
    let amiss = findings.iter().filter(|it| it.level != Level::Ok);
    let line = |it: &Finding| {
        let what = match it.subject.as_str() {
            "" => format!("{}s", it.check),
            task => format!("{} of task {task}", it.check),
        };
        format!("\nwarning: {what}: {}\n", it.cause)
    };
    amiss.map(line).collect()
}

pub struct Report(pub Vec<Finding>);

impl Report {
    fn count(&self, level: Level) -> usize {
        self.0.iter().filter(|finding| finding.level == level).count()
    }

    fn sums(&self) -> String {
        let [problems, warnings, ok] =
            [Level::Problem, Level::Warning, Level::Ok].map(|level| self.count(level) as u64);
        let (problems, warnings) = (counted(problems, "problem"), counted(warnings, "warning"));
        format!("{problems}, {warnings}, {ok} ok")
    }

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
            page += &format!("{level:<8} {what}: {}\n", finding.cause);
            if let Some(remedy) = &finding.remedy {
                page += &format!("{:<8} $ {remedy}\n", "");
            }
        }
        page + &self.sums() + "\n"
    }

    pub fn to_json(&self, tasks: &[impl Serialize]) -> String {
        let object = json!({
            "problems": self.count(Level::Problem),
            "warnings": self.count(Level::Warning),
            "ok": self.count(Level::Ok),
            "tasks": tasks,
            "findings": self.0,
        });
        format!("{object}\n")
    }

    /// Exit code 77 if a permission is missing, 69 for other problems; `None` without problems.
    pub fn failure(&self) -> Option<Failure> {
        let is_problem = |finding: &&Finding| finding.level == Level::Problem;
        let mut problems = self.0.iter().filter(is_problem).peekable();
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
    fn a_line_names_the_task_or_all() {
        let findings = [
            Finding::warning("goal", "", "too many chains"),
            Finding::ok("goal", "a", "holds"),
            Finding::warning("goal", "b", "too short"),
        ];
        assert_eq!(
            lines(&findings),
            "\nwarning: goals: too many chains\n\nwarning: goal of task b: too short\n"
        );
    }

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
