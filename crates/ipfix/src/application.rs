//! Labels as applications: a number for records, and a table of their names.
//!
//! The number is a hash of the name, so a label has the same number on every router, after every
//! restart and in every model, and a collector can use an old table.

use std::collections::BTreeSet;

/// The classification engine for user-defined applications (RFC 6759 §4.1).
const USER_DEFINED: u8 = 6;
/// Bits of a selector of that engine (RFC 6759 §4.3).
const SELECTOR_BITS: u32 = 24;
const SELECTOR_MASK: u32 = (1 << SELECTOR_BITS) - 1;
/// Maximum bytes of a name; longer ones are truncated.
pub const NAME_MAX: usize = 64;
/// The name of flows without a label; different from the model's class unknown.
pub const UNLABELLED: &str = "unlabelled";

/// An `applicationId`: a byte for the engine, three for the selector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ApplicationId([u8; 4]);

impl ApplicationId {
    /// For flows without a label.
    pub const UNLABELLED: ApplicationId = ApplicationId::from_selector(0);

    const fn from_selector(selector: u32) -> ApplicationId {
        let [_, high, middle, low] = selector.to_be_bytes();
        ApplicationId([USER_DEFINED, high, middle, low])
    }

    /// As sent.
    pub const fn bytes(self) -> [u8; 4] {
        self.0
    }
}

/// A label as records have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application<'a> {
    /// Its number.
    pub id: ApplicationId,
    /// Its name, at most [`NAME_MAX`] bytes.
    pub name: &'a str,
}

impl Application<'_> {
    /// Of flows without a label.
    pub const UNLABELLED: Application<'static> =
        Application { id: ApplicationId::UNLABELLED, name: UNLABELLED };
}

/// The labels of a model with their numbers.
#[derive(Clone, Debug)]
pub struct Applications {
    /// By class.
    ids: Vec<ApplicationId>,
    /// Names as sent.
    names: Vec<String>,
}

impl Applications {
    /// Numbers these labels, which are in the order of classes.
    pub fn new(labels: &[String]) -> Applications {
        let mut ids = vec![ApplicationId::UNLABELLED; labels.len()];
        // By name, so that collisions resolve the same way for any order of classes.
        let mut order: Vec<usize> = (0..labels.len()).collect();
        order.sort_by_key(|&class| &labels[class]);
        let mut taken = BTreeSet::from([0]);
        for class in order {
            let mut selector = hash(&labels[class]);
            while !taken.insert(selector) {
                selector = (selector + 1) & SELECTOR_MASK;
            }
            ids[class] = ApplicationId::from_selector(selector);
        }
        Applications { ids, names: labels.iter().map(|label| printable(label)).collect() }
    }

    /// A class; [`Application::UNLABELLED`] if there is none.
    pub fn get(&self, class: Option<u16>) -> Application<'_> {
        let found = class.and_then(|class| {
            let class = usize::from(class);
            Some(Application { id: *self.ids.get(class)?, name: self.names.get(class)? })
        });
        found.unwrap_or(Application::UNLABELLED)
    }

    /// All of them.
    pub(crate) fn table(&self) -> impl Iterator<Item = Application<'_>> {
        let labels = self.ids.iter().zip(&self.names);
        let labels = labels.map(|(&id, name)| Application { id, name });
        std::iter::once(Application::UNLABELLED).chain(labels)
    }
}

/// FNV-1a, 32 bits, folded to the bits of a selector as its authors recommend.
fn hash(name: &str) -> u32 {
    let hash = name
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> SELECTOR_BITS) ^ (hash & SELECTOR_MASK)
}

/// The name without characters that affect terminals, truncated to [`NAME_MAX`].
fn printable(name: &str) -> String {
    let mut text: String = name.chars().map(|c| if is_unsafe(c) { '?' } else { c }).collect();
    text.truncate(text.floor_char_boundary(NAME_MAX));
    text
}

/// Control characters, and those that change the direction of text (Unicode Bidi_Control).
fn is_unsafe(c: char) -> bool {
    let is_directional = matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    );
    c.is_control() || is_directional
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applications(labels: &[&str]) -> Applications {
        let labels: Vec<String> = labels.iter().map(|&label| label.to_owned()).collect();
        Applications::new(&labels)
    }

    fn id(applications: &Applications, class: u16) -> ApplicationId {
        applications.get(Some(class)).id
    }

    #[test]
    fn a_label_keeps_its_number_whatever_model_it_is_of() {
        let one = applications(&["TLS", "DNS", "unknown"]);
        let other = applications(&["DNS", "SSH", "HTTP", "TLS"]);
        assert_eq!(one.get(Some(0)), other.get(Some(3)));
        assert_eq!(one.get(Some(1)), other.get(Some(0)));
        assert_ne!(id(&one, 0), id(&one, 1));
        assert_eq!(id(&one, 0).bytes()[0], 6, "defined by the user");
        // These stand in dashboards of collectors: they never change.
        assert_eq!(id(&one, 0).bytes(), [6, 83, 252, 182]);
    }

    #[test]
    fn no_two_labels_have_one_number_and_none_has_that_of_no_label() {
        // Found by search: two names whose hashes agree in 24 bits.
        let (a, b) = collision();
        let (one, other) = (applications(&[&a, &b]), applications(&[&b, &a]));
        assert_ne!(id(&one, 0), id(&one, 1));
        assert_eq!([0, 1].map(|class| id(&one, class)), [1, 0].map(|class| id(&other, class)));
        assert_eq!(one.get(Some(2)), Application::UNLABELLED, "no such class");
        assert_eq!(one.get(None), Application::UNLABELLED);
    }

    fn collision() -> (String, String) {
        let mut seen = std::collections::BTreeMap::new();
        for number in 0_u32.. {
            let name = format!("label-{number}");
            if let Some(other) = seen.insert(hash(&name), name.clone()) {
                return (other, name);
            }
        }
        unreachable!("there are more names than hashes")
    }

    #[test]
    fn hostile_names_are_bounded_and_print_nothing_but_themselves() {
        let long = "ü".repeat(100);
        let names = applications(&["a\u{1b}[31mb\n\0", &long, "", "\u{202e}gpj"]);
        let names: Vec<&str> = names.table().map(|label| label.name).collect();
        assert_eq!(names[0], UNLABELLED);
        assert_eq!(names[1], "a?[31mb??");
        assert_eq!(names[2], "ü".repeat(32));
        assert_eq!((names[3], names[4]), ("", "?gpj"));
    }
}
