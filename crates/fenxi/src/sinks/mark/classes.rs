//! Which bits each class of the models at hand gets. Each task has bits of its own.

use policy::{Label, Mark, NoSuchLabel};

use config::checked;

use crate::sinks::netfilter::Places;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassMarks {
    /// Whether a connection that has a mark under the mask gets another one.
    pub overwrites: bool,
    by_task: Vec<Vec<Option<Mark>>>,
}

impl ClassMarks {
    /// The marks of `labels`, the first task's, in the order of the model's outputs. Labels that
    /// only the built-in map names may be absent from the model; labels that the user named may
    /// not.
    pub fn new(config: &checked::Mark, labels: &[Label]) -> Result<ClassMarks, NoSuchLabel> {
        let actions = policy::actions(&config.rules(), labels)?;
        Ok(ClassMarks {
            overwrites: config.overwrite,
            by_task: vec![actions.iter().map(|action| action.mark).collect()],
        })
    }

    pub fn and_of(
        mut self,
        task: &checked::Task,
        labels: &[Label],
    ) -> Result<ClassMarks, NoSuchLabel> {
        let actions = policy::actions(&task.mark_rules(), labels)?;
        let marks = actions.iter().map(|action| action.mark);
        self.by_task.push(marks.collect());
        Ok(self)
    }

    /// Where each task's classes are among [`ClassMarks::words`].
    pub fn places(&self) -> Places {
        Places::new(self.by_task.iter().map(Vec::len))
    }

    /// The mark of each class, task by task, as [`Mark::of_word`] reads it; without one its
    /// connections stay as they are.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.by_task.iter().flatten().map(|mark| Mark::to_word(*mark))
    }
}

#[cfg(test)]
mod tests {
    use flowmgr::TaskId;

    use super::*;
    use config::checked::{Mapping, MarkAs};
    use config::origin::Origin;

    fn label(name: &str) -> Label {
        Label { name: name.to_owned(), taxonomy: "web".to_owned(), target: String::new() }
    }

    fn config(label: &str, required: bool) -> checked::Mark {
        let mapping =
            Mapping { label: label.to_owned(), value: 0x300, required, origin: Origin::Set };
        checked::Mark {
            holds: MarkAs::Label,
            mask: 0xff00,
            overwrite: false,
            zone: 0,
            class: vec![mapping],
            queue: 1,
            behaviour: Vec::new(),
        }
    }

    #[test]
    fn a_class_has_the_bits_of_its_label_and_others_have_none() {
        let labels = ["TLS", "DNS"].map(label);
        let marks = ClassMarks::new(&config("DNS", true), &labels).unwrap();
        let mark = Mark { bits: 0x300, mask: 0xff00 };
        let found: Vec<_> = marks.words().map(Mark::of_word).collect();
        assert_eq!(found, [None, Some(mark)]);
    }

    #[test]
    fn a_label_that_the_model_lacks_matters_only_to_who_asked_for_it() {
        let labels = ["TLS"].map(label);
        let marks = ClassMarks::new(&config("SSH", false), &labels).unwrap();
        assert!(marks.words().eq([0]));
        let error = ClassMarks::new(&config("SSH", true), &labels).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--set: mark.class: the model has no label \"SSH\", and no taxonomy of that name; it \
             has TLS (web)"
        );
    }

    #[test]
    fn each_task_has_bits_and_places_of_its_own() {
        let sets = ["task.a.name=a", "task.b.mark={ camera = 0x10 }"].map(str::to_owned);
        let loaded = config::Config::load(None, &sets).unwrap();
        let first = ClassMarks::new(&config("DNS", true), &["TLS", "DNS"].map(label)).unwrap();
        let labels = ["camera", "plug", "unknown"].map(label);
        let marks = first.and_of(&loaded.tasks[1], &labels).unwrap();
        let words: Vec<_> = marks.words().map(Mark::of_word).collect();
        let mark = |bits, mask| Some(Mark { bits, mask });
        assert_eq!(words, [None, mark(0x300, 0xff00), mark(0x10, 0x10), None, None]);
        let places = marks.places();
        assert_eq!(places.of_class(TaskId(0), 1), Some(1));
        assert_eq!(places.of_class(TaskId(0), 2), None, "not a class of another task");
        assert_eq!((places.of_class(TaskId(1), 0), places.of_class(TaskId(1), 3)), (Some(2), None));
        assert_eq!(places.of_class(TaskId(2), 0), None);
    }
}
