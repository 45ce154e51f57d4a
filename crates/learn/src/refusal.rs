//! Why a candidate is refused.

use super::judge::Refused;

/// Why a candidate is refused or returned.
#[derive(Debug, Clone, PartialEq)]
pub struct Refusal {
    /// The outcome in metrics.
    pub name: &'static str,
    /// For people.
    pub why: String,
}

impl Refusal {
    /// A refusal of this name.
    pub fn new(name: &'static str, why: impl ToString) -> Refusal {
        Refusal { name, why: why.to_string() }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Refusal {
        Refusal::new(refused.name(), refused)
    }
}
