//! Which bits each class of the model at hand gets.

use config::checked;

/// A label of the configuration that the model does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: mark.class: the model has no label \"{label}\"; it has {labels}")]
pub struct NoSuchLabel {
    label: String,
    labels: String,
    origin: String,
}

/// What is written to a connection: bits, and which of them are to be changed at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mark {
    /// The new bits, within the mask; not 0 where there is a mark.
    pub bits: u32,
    /// The bits that are fenxi's to write.
    pub mask: u32,
}

impl Mark {
    /// Both in one word; 0 for no mark.
    fn to_word(mark: Option<Mark>) -> u64 {
        mark.map_or(0, |mark| u64::from(mark.bits) << 32 | u64::from(mark.mask))
    }

    /// The mark in a word, if there is one.
    pub fn of_word(word: u64) -> Option<Mark> {
        (word != 0).then_some(Mark {
            bits: (word >> 32) as u32,
            mask: word as u32,
        })
    }
}

/// Bits by class, under a mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMarks {
    mask: u32,
    overwrites: bool,
    by_class: Box<[Option<u32>]>,
}

impl ClassMarks {
    /// The bits of `classes`, the labels in the order of the model's outputs. Labels that only the
    /// built-in map names may be absent from the model; those that the user named may not.
    ///
    /// # Errors
    /// The user named a label that the model does not have.
    pub fn new(config: &checked::Mark, classes: &[String]) -> Result<ClassMarks, NoSuchLabel> {
        let mut by_class = vec![None; classes.len()];
        for mapping in &config.class {
            match classes.iter().position(|class| *class == mapping.label) {
                Some(class) => by_class[class] = Some(mapping.mark),
                None if mapping.required => {
                    return Err(NoSuchLabel {
                        label: mapping.label.clone(),
                        labels: classes.join(", "),
                        origin: mapping.origin.to_string(),
                    });
                }
                None => {}
            }
        }
        Ok(ClassMarks {
            mask: config.mask,
            overwrites: config.overwrite,
            by_class: by_class.into(),
        })
    }

    /// Whether a connection that has a mark under the mask gets another one.
    pub fn overwrites(&self) -> bool {
        self.overwrites
    }

    /// The mark of each class as [`Mark::of_word`] reads it; without one its connections stay as they are.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        let mask = self.mask;
        let marks = self.by_class.iter();
        marks.map(move |bits| Mark::to_word(bits.map(|bits| Mark { bits, mask })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use config::checked::MarkMapping;
    use config::layers::Origin;

    fn config(label: &str, required: bool) -> checked::Mark {
        let mapping = MarkMapping {
            label: label.to_owned(),
            mark: 0x300,
            required,
            origin: Origin::Set,
        };
        checked::Mark {
            mask: 0xff00,
            overwrite: false,
            class: vec![mapping],
            queue: 1,
        }
    }

    #[test]
    fn a_class_has_the_bits_of_its_label_and_others_have_none() {
        let classes = ["TLS".to_owned(), "DNS".to_owned()];
        let marks = ClassMarks::new(&config("DNS", true), &classes).unwrap();
        let mark = Mark {
            bits: 0x300,
            mask: 0xff00,
        };
        let found: Vec<_> = marks.words().map(Mark::of_word).collect();
        assert_eq!(found, [None, Some(mark)]);
    }

    #[test]
    fn a_label_that_the_model_lacks_matters_only_to_who_asked_for_it() {
        let classes = ["TLS".to_owned()];
        let marks = ClassMarks::new(&config("SSH", false), &classes).unwrap();
        assert!(marks.words().eq([0]));
        let error = ClassMarks::new(&config("SSH", true), &classes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set: mark.class: the model has no label \"SSH\"; it has TLS"
        );
    }
}
