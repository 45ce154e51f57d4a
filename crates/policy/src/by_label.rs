//! Maps rules by label to the actions of a model's classes.

use crate::{Dscp, Mark, Names};

/// What to do about a flow; nothing by default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Action {
    /// Code point of the flow's packets; `None`: unchanged.
    pub dscp: Option<Dscp>,
    /// Mark of the flow's connection; `None`: unchanged.
    pub mark: Option<Mark>,
}

impl Action {
    fn or(self, other: Action) -> Action {
        Action { dscp: self.dscp.or(other.dscp), mark: self.mark.or(other.mark) }
    }
}

/// A label of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Label {
    /// Its name.
    pub name: String,
    /// Its group, such as `web` or `camera`; empty for `unknown`.
    pub taxonomy: String,
    /// What it is a band of: `volume`, `duration`, `rate`; else empty.
    pub target: String,
}

impl Label {
    /// Whether this is its name or its taxonomy, or what a band is called whichever task has it:
    /// `volume.huge`.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.taxonomy == name || self.band().is_some_and(|it| it == name)
    }

    /// Its name with its target.
    pub fn band(&self) -> Option<String> {
        (!self.target.is_empty()).then(|| format!("{}.{}", self.target, self.name))
    }
}

/// A user's request for the flows of a label, or of all labels of a taxonomy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelRule<Asked = Action> {
    /// Name of a label or, if there is no such label, of a taxonomy.
    pub label: String,
    /// The action; parts that are `None` are left to other rules of the label.
    pub action: Asked,
    /// Whether a model without this label is an error.
    pub required: bool,
    /// Place of the rule, for errors.
    pub origin: String,
}

/// A rule for a label that the model does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{origin}: the model{} has no label \"{label}\", and no taxonomy of that name; it has {labels}",
    space_and(.model)
)]
pub struct NoSuchLabel {
    /// Place of the rule.
    pub origin: String,
    /// Name of the model, if known.
    pub model: String,
    /// The label of the rule.
    pub label: String,
    /// The model's labels, as text.
    pub labels: String,
}

impl NoSuchLabel {
    /// Adds the name of the model.
    pub fn of_model(self, name: &str) -> NoSuchLabel {
        NoSuchLabel { model: name.to_owned(), ..self }
    }
}

fn space_and(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" {name}"),
    }
}

/// The action of each of `labels`, as in [`by_class`]; later rules override earlier ones part by
/// part.
///
/// # Errors
/// As [`by_class`].
pub fn actions(rules: &[LabelRule], labels: &[Label]) -> Result<Vec<Action>, NoSuchLabel> {
    by_class(rules, labels, |new, old| new.or(old))
}

/// The request for each of `labels`, which are in the order of the model's classes. If several
/// rules name one label, `over` merges the later and the earlier request. Rules by label override
/// rules by taxonomy.
///
/// # Errors
/// A required rule names neither a label nor a taxonomy.
pub fn by_class<Asked: Copy + Default>(
    rules: &[LabelRule<Asked>],
    labels: &[Label],
    over: impl Fn(Asked, Asked) -> Asked,
) -> Result<Vec<Asked>, NoSuchLabel> {
    let mut by_name = vec![Asked::default(); labels.len()];
    let mut by_taxonomy = by_name.clone();
    for rule in rules {
        let is_named = |label: &Label| label.name == rule.label;
        if let Some(class) = labels.iter().position(is_named) {
            by_name[class] = over(rule.action, by_name[class]);
            continue;
        }
        let mut is_known = false;
        for (label, asked) in labels.iter().zip(&mut by_taxonomy) {
            if label.taxonomy == rule.label {
                *asked = over(rule.action, *asked);
                is_known = true;
            }
        }
        if rule.required && !is_known {
            return Err(NoSuchLabel {
                origin: rule.origin.clone(),
                model: String::new(),
                label: rule.label.clone(),
                labels: listed(labels),
            });
        }
    }
    let asked = by_name.into_iter().zip(by_taxonomy);
    Ok(asked.map(|(name, taxonomy)| over(name, taxonomy)).collect())
}

/// The same by task and class. A rule's label may have the name of its task before it
/// (`task.label`); otherwise it stands for the first task that knows it.
///
/// # Errors
/// As [`by_class`], where no task knows the label.
pub fn by_task<Asked: Copy + Default>(
    rules: &[LabelRule<Asked>],
    names: &Names,
    over: impl Fn(Asked, Asked) -> Asked,
) -> Result<Vec<Vec<Asked>>, NoSuchLabel> {
    let mut of_tasks = vec![Vec::new(); names.labels.len()];
    for rule in rules {
        match names.resolve(&rule.label, Label::is_called) {
            Some((task, label)) => {
                of_tasks[task].push(LabelRule { label: label.to_owned(), ..rule.clone() });
            }
            None if rule.required => {
                return Err(NoSuchLabel {
                    origin: rule.origin.clone(),
                    model: String::new(),
                    label: rule.label.clone(),
                    labels: names.instead_of(&rule.label),
                });
            }
            None => {}
        }
    }
    let tasks = of_tasks.iter().zip(&names.labels);
    tasks.map(|(rules, labels)| by_class(rules, labels, &over)).collect()
}

/// All labels with their taxonomies as text: `TLS (web), DNS (network), unknown`.
pub fn listed(labels: &[Label]) -> String {
    let shown = labels.iter().map(|label| match label.taxonomy.as_str() {
        "" => label.name.clone(),
        taxonomy => format!("{} ({taxonomy})", label.name),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(label: &str, action: Action, required: bool) -> LabelRule {
        LabelRule {
            label: label.to_owned(),
            action,
            required,
            origin: "c.toml:3: tag.dscp".to_owned(),
        }
    }

    fn dscp(code_point: u8) -> Action {
        Action { dscp: Dscp::new(code_point), mark: None }
    }

    /// Written as [`listed`] shows them.
    fn labels(names: &[&str]) -> Vec<Label> {
        let label = |text: &&str| {
            let (name, taxonomy) = text.split_once(' ').unwrap_or((text, ""));
            Label {
                name: name.to_owned(),
                taxonomy: taxonomy.trim_matches(['(', ')']).to_owned(),
                target: String::new(),
            }
        };
        names.iter().map(label).collect()
    }

    #[test]
    fn a_class_gets_what_all_rules_of_its_label_say() {
        let mark = Mark { bits: 0x300, mask: 0xff00 };
        let marked = Action { dscp: None, mark: Some(mark) };
        let rules = [
            rule("DNS", dscp(8), true),
            rule("DNS", marked, true),
            rule("TLS", dscp(1), true),
            rule("TLS", dscp(2), true),
        ];
        let both = Action { mark: Some(mark), ..dscp(8) };
        assert_eq!(
            actions(&rules, &labels(&["TLS", "other", "DNS"])).unwrap(),
            [dscp(2), Action::default(), both]
        );
    }

    #[test]
    fn a_label_that_the_model_lacks_matters_only_to_who_asked_for_it() {
        let labels = labels(&["TLS (web)", "DNS"]);
        let by_default = rule("SSH", dscp(1), false);
        assert_eq!(actions(&[by_default], &labels).unwrap(), [Action::default(); 2]);
        let error = actions(&[rule("SSH", dscp(1), true)], &labels).unwrap_err();
        assert_eq!(
            error.to_string(),
            "c.toml:3: tag.dscp: the model has no label \"SSH\", and no taxonomy of that name; it \
             has TLS (web), DNS"
        );
        assert_eq!(
            error.of_model("m").to_string(),
            "c.toml:3: tag.dscp: the model m has no label \"SSH\", and no taxonomy of that name; \
             it has TLS (web), DNS"
        );
    }

    #[test]
    fn a_taxonomy_stands_for_its_labels_that_no_rule_names() {
        let labels = labels(&["Tapo (camera)", "Ring (camera)", "Hue (light)", "light (bulb)"]);
        let action = |rules: &[LabelRule]| -> Vec<Option<u8>> {
            let actions = actions(rules, &labels).unwrap();
            let code_point = |action: &Action| action.dscp.map(Dscp::code_point);
            actions.iter().map(code_point).collect()
        };
        let camera = rule("camera", dscp(1), true);
        let ring = rule("Ring", dscp(2), true);
        // In either order.
        let expected = [Some(1), Some(2), None, None];
        assert_eq!(action(&[camera.clone(), ring.clone()]), expected);
        assert_eq!(action(&[ring, camera]), expected);
        // A label of the name goes over a taxonomy of the name.
        let light = rule("light", dscp(3), true);
        assert_eq!(action(&[light]), [None, None, None, Some(3)]);
    }
}
