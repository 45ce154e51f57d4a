//! What a run does about each label of its model: the effective map of `mark.class` or `tag.dscp`.

use accel::Bundle;
use config::Config;
use config::checked::IoMode;
use policy::{Action, Label};

use crate::Error;
use crate::opening::bundle::{UNKNOWN, labels, thresholds};

/// Labels with what a run does about them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelMap {
    effect: LabelEffect,
    rows: Vec<(Label, Action)>,
    /// The key that gives labels their values.
    table: &'static str,
    /// The user gave labels values; otherwise the table is the built-in one.
    is_users: bool,
}

/// Where labels have an effect outside of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LabelEffect {
    /// Mode mark: in the marks of connections.
    Mark,
    /// Mode inline: in the DSCP of packets.
    Dscp,
    /// Nowhere: the traffic is a copy, or `tag.mode` is off.
    Nothing,
}

impl LabelEffect {
    /// Where the labels of a live run have an effect.
    pub fn from_config(config: &Config) -> LabelEffect {
        match config.io.mode {
            IoMode::Mark => LabelEffect::Mark,
            IoMode::Inline if config.tag.enabled => LabelEffect::Dscp,
            IoMode::Inline | IoMode::Tap => LabelEffect::Nothing,
        }
    }

    /// What a label has or lacks.
    pub fn noun(self) -> &'static str {
        match self {
            LabelEffect::Mark => "mark",
            LabelEffect::Dscp => "DSCP",
            LabelEffect::Nothing => "effect",
        }
    }

    fn has(self, action: &Action) -> bool {
        match self {
            LabelEffect::Mark => action.mark.is_some(),
            LabelEffect::Dscp => action.dscp.is_some(),
            LabelEffect::Nothing => true,
        }
    }
}

impl LabelMap {
    /// The map of a live run with this model.
    ///
    /// # Errors
    /// The configuration names a label or taxonomy that the model does not have.
    pub fn from_config(config: &Config, bundle: &Bundle) -> Result<LabelMap, Error> {
        let labels = labels(bundle);
        let actions = policy::actions(&config.rules(), &labels)
            .map_err(|error| Error::config(error.of_model(bundle.name()).to_string()))?;
        let effect = LabelEffect::from_config(config);
        let (table, is_users) = match effect {
            LabelEffect::Mark => {
                let mut rows = config.mark.class.iter();
                (config.mark.table(), rows.any(|row| row.required))
            }
            _ => {
                let mut rows = config.tag.dscp.iter();
                ("tag.dscp", rows.any(|row| row.required))
            }
        };
        Ok(LabelMap {
            effect,
            rows: labels.iter().cloned().zip(actions).collect(),
            table,
            is_users,
        })
    }

    /// Where labels have an effect.
    pub fn effect(&self) -> LabelEffect {
        self.effect
    }

    /// Each label with what is done about it, in the order of the model; the last is `unknown`.
    pub fn rows(&self) -> &[(Label, Action)] {
        &self.rows
    }

    /// Whether somebody asked for values other than the built-in ones.
    pub fn is_users(&self) -> bool {
        self.is_users
    }

    /// Names of the labels for which nothing is done, without [`UNKNOWN`], and how many labels
    /// there are besides.
    pub fn unmapped(&self) -> (Vec<&str>, usize) {
        let labels = self.rows.iter().filter(|(label, _)| label.name != UNKNOWN);
        let without = labels.clone().filter(|(_, action)| !self.effect.has(action));
        (without.map(|(label, _)| label.name.as_str()).collect(), labels.count())
    }

    /// Refuses a map that changes no packet or mark, although the run's mode says that it does.
    ///
    /// # Errors
    /// No label has a mark, or a DSCP.
    pub fn check(&self, model: &str) -> Result<(), Error> {
        if self.rows.iter().any(|(_, action)| self.effect.has(action)) {
            return Ok(());
        }
        let LabelMap { table, effect, .. } = self;
        let labels: Vec<Label> = self.rows.iter().map(|(label, _)| label.clone()).collect();
        let (what, instead) = match effect {
            LabelEffect::Dscp => ("tag a packet", ", or set tag.mode = \"off\""),
            _ => ("mark a connection", ", or set io.mode = \"tap\""),
        };
        Err(Error::config(format!(
            "{table}: no label of the model {model} has a {}, so fenxi would never {what}; give \
             labels or taxonomies values in \
             [{table}]{instead}; the model has {}",
            effect.noun(),
            policy::listed(&labels)
        )))
    }

    /// The labels for which nothing is done, in one line, where there are some.
    pub fn gap(&self) -> Option<String> {
        let (without, labels) = self.unmapped();
        (!without.is_empty()).then(|| {
            format!(
                "{} of {labels} labels have no {} in {}: {}",
                without.len(),
                self.effect.noun(),
                self.table,
                without.join(", ")
            )
        })
    }
}

/// Checks every label that the configuration names against the model's, and that a live run does
/// something about at least one of them where its mode promises that. `sinks_act`: sinks do
/// something about labels. Returns what is done about each.
///
/// # Errors
/// The model has no such label, or nothing would be done.
pub fn check_labels(config: &Config, bundle: &Bundle, sinks_act: bool) -> Result<LabelMap, Error> {
    let map = LabelMap::from_config(config, bundle)?;
    // Labels of connections, sets of nftables, labels of other tasks and marks of behaviours are
    // effects as well; who brings them about checks that each of their labels exists.
    let has_others = (1..config.tasks.len()).any(|task| !config.rules_of(task).is_empty())
        || !config.mark.behaviour.is_empty();
    if !sinks_act && !has_others {
        map.check(bundle.name())?;
    }
    thresholds(&config.of_task(0), bundle)?;
    Ok(map)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn map(model: &str, sets: &[&str]) -> Result<LabelMap, Error> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models"));
        let bundle = Bundle::open(&dir.join(model)).unwrap();
        let map = LabelMap::from_config(&config, &bundle)?;
        map.check(bundle.name())?;
        Ok(map)
    }

    const MARK: &str = "io.mode=mark";
    const INLINE: [&str; 2] = ["io.mode=inline", "io.interfaces=[\"a\", \"b\"]"];

    #[test]
    fn a_model_of_which_no_label_has_an_effect_is_refused() {
        let said = |sets: &[&str]| map("iot-family", sets).unwrap_err().to_string();
        let marks = said(&[MARK]);
        for part in [
            "mark.class: no label of the model iot-family has a mark, so fenxi would never mark a \
             connection; ",
            "Aria (scale), D-LinkCam (camera), ",
        ] {
            assert!(marks.contains(part), "{marks}");
        }
        assert!(said(&[MARK, "mark.as=dscp"]).starts_with("tag.dscp: no label "));
        assert!(said(&INLINE).contains("has a DSCP, so fenxi would never tag a packet"));
        let off = [&INLINE[..], &["tag.mode=off"]].concat();
        for sets in [&["io.mode=tap"][..], &off] {
            assert_eq!(map("iot-family", sets).unwrap().gap(), None, "{sets:?}");
        }
    }

    #[test]
    fn a_taxonomy_maps_its_labels_and_the_others_are_named() {
        let sets = [MARK, "mark.class={ camera = 0x1000000, D-LinkCam = 0x2000000 }"];
        let map = map("iot-family", &sets).unwrap();
        let bits = |name: &str| {
            let row = map.rows().iter().find(|(label, _)| label.name == name);
            row.unwrap().1.mark.map(|mark| mark.bits)
        };
        let shown = ["D-LinkCam", "D-LinkDayCam", "Aria"].map(bits);
        assert_eq!(shown, [Some(0x200_0000), Some(0x100_0000), None]);
        let gap = map.gap().unwrap();
        assert!(gap.starts_with("15 of 19 labels have no mark in mark.class: Aria, "), "{gap}");
        assert!(map.is_users() && !gap.contains("unknown"), "{gap}");
    }

    #[test]
    fn the_built_in_table_leaves_labels_out_and_says_which() {
        let map = map("protocol", &[MARK]).unwrap();
        let (without, labels) = map.unmapped();
        assert_eq!((without.len(), labels), (21, 29));
        assert!(!map.is_users());
    }
}
