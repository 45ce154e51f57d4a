//! From rules by label to the actions of a model's classes.

use crate::{Dscp, Mark};

/// What is done about a flow; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Action {
    /// Code point of the flow's packets; `None`: they leave as they came.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection; `None`: the connection stays as it is.
    pub mark: Option<Mark>,
}

/// What the user asks for the flows of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Name of the label.
    pub label: String,
    /// What is done; parts that are `None` are left to other rules of the same label.
    pub action: Action,
    /// Whether a model without this label is an error.
    pub required: bool,
    /// Where the rule stands, for errors.
    pub origin: String,
}

/// A rule for a label that the model does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: the model{} has no label \"{label}\"; it has {labels}", space_and(.model))]
pub struct NoSuchLabel {
    /// Where the rule stands.
    pub origin: String,
    /// Name of the model, where that is known.
    pub model: String,
    /// The label of the rule.
    pub label: String,
    /// The labels of the model, for people.
    pub labels: String,
}

impl NoSuchLabel {
    /// The same with the name of the model.
    pub fn of_model(self, name: &str) -> NoSuchLabel {
        NoSuchLabel {
            model: name.to_owned(),
            ..self
        }
    }
}

fn space_and(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" {name}"),
    }
}

/// The action of each of `labels`, which stand in the order of the model's classes. Of several rules for one label the
/// later goes over the earlier, part by part.
///
/// # Errors
/// A rule is required and no label has its name.
pub fn actions(rules: &[Rule], labels: &[String]) -> Result<Vec<Action>, NoSuchLabel> {
    let mut actions = vec![Action::default(); labels.len()];
    for rule in rules {
        let class = labels.iter().position(|label| *label == rule.label);
        match class {
            Some(class) => {
                let action = &mut actions[class];
                action.dscp = rule.action.dscp.or(action.dscp);
                action.mark = rule.action.mark.or(action.mark);
            }
            None if rule.required => {
                return Err(NoSuchLabel {
                    origin: rule.origin.clone(),
                    model: String::new(),
                    label: rule.label.clone(),
                    labels: labels.join(", "),
                });
            }
            None => {}
        }
    }
    Ok(actions)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(label: &str, action: Action, required: bool) -> Rule {
        Rule {
            label: label.to_owned(),
            action,
            required,
            origin: "c.toml:3: tag.dscp".to_owned(),
        }
    }

    fn dscp(code_point: u8) -> Action {
        Action {
            dscp: Dscp::new(code_point),
            mark: None,
        }
    }

    fn labels(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_class_gets_what_all_rules_of_its_label_say() {
        let mark = Mark {
            bits: 0x300,
            mask: 0xff00,
        };
        let marked = Action {
            dscp: None,
            mark: Some(mark),
        };
        let rules = [
            rule("DNS", dscp(8), true),
            rule("DNS", marked, true),
            rule("TLS", dscp(1), true),
            rule("TLS", dscp(2), true),
        ];
        let both = Action {
            mark: Some(mark),
            ..dscp(8)
        };
        assert_eq!(
            actions(&rules, &labels(&["TLS", "other", "DNS"])).unwrap(),
            [dscp(2), Action::default(), both]
        );
    }

    #[test]
    fn a_label_that_the_model_lacks_matters_only_to_who_asked_for_it() {
        let labels = labels(&["TLS", "DNS"]);
        let by_default = rule("SSH", dscp(1), false);
        assert_eq!(
            actions(&[by_default], &labels).unwrap(),
            [Action::default(); 2]
        );
        let error = actions(&[rule("SSH", dscp(1), true)], &labels).unwrap_err();
        assert_eq!(
            error.to_string(),
            "c.toml:3: tag.dscp: the model has no label \"SSH\"; it has TLS, DNS"
        );
        assert_eq!(
            error.of_model("m").to_string(),
            "c.toml:3: tag.dscp: the model m has no label \"SSH\"; it has TLS, DNS"
        );
    }
}
