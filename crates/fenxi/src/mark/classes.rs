//! Which bits each class of the model at hand gets.

use crate::config::checked::Mark;

/// A label of the configuration that the model does not have.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: mark.class: the model has no label \"{label}\"; it has {labels}")]
pub struct NoSuchLabel {
    label: String,
    labels: String,
    origin: String,
}

/// Bits by class, under a mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMarks {
    mask: u32,
    by_class: Box<[Option<u32>]>,
}

impl ClassMarks {
    /// The bits of `classes`, the labels in the order of the model's outputs. Labels that only the
    /// built-in map names may be absent from the model; those that the user named may not.
    ///
    /// # Errors
    /// The user named a label that the model does not have.
    pub fn new(config: &Mark, classes: &[String]) -> Result<ClassMarks, NoSuchLabel> {
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
            by_class: by_class.into(),
        })
    }

    /// The bits that are fenxi's to write.
    pub fn mask(&self) -> u32 {
        self.mask
    }

    /// The bits of a class; `None`: its connections stay as they are.
    pub fn of(&self, class: u16) -> Option<u32> {
        self.by_class.get(usize::from(class)).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::checked::MarkMapping;
    use crate::config::layers::Origin;

    fn config(label: &str, required: bool) -> Mark {
        let mapping = MarkMapping {
            label: label.to_owned(),
            mark: 0x300,
            required,
            origin: Origin::Set,
        };
        Mark {
            mask: 0xff00,
            class: vec![mapping],
            queue: 1,
        }
    }

    #[test]
    fn a_class_has_the_bits_of_its_label_and_others_have_none() {
        let classes = ["TLS".to_owned(), "DNS".to_owned()];
        let marks = ClassMarks::new(&config("DNS", true), &classes).unwrap();
        assert_eq!(
            [0, 1, 2, u16::MAX].map(|class| marks.of(class)),
            [None, Some(0x300), None, None]
        );
        assert_eq!(marks.mask(), 0xff00);
    }

    #[test]
    fn a_label_that_the_model_lacks_matters_only_to_who_asked_for_it() {
        let classes = ["TLS".to_owned()];
        assert_eq!(
            ClassMarks::new(&config("SSH", false), &classes)
                .unwrap()
                .of(0),
            None
        );
        let error = ClassMarks::new(&config("SSH", true), &classes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set: mark.class: the model has no label \"SSH\"; it has TLS"
        );
    }
}
