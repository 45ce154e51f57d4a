//! Counters declared once: [`counters!`](crate::counters!) derives merging, copying and listing
//! from a struct's fields.

use std::time::Duration;

/// A counter, or a group of counters.
pub trait Counter {
    /// Adds what another thread counted.
    fn merge(&mut self, other: &Self);

    /// Becomes `other`, without allocating if there is room.
    fn copy_from(&mut self, other: &Self);

    /// Calls `each` with every number and its name, prefixed by `name`.
    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64));
}

impl Counter for u64 {
    fn merge(&mut self, other: &u64) {
        *self += other;
    }

    fn copy_from(&mut self, other: &u64) {
        *self = *other;
    }

    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        each(name, *self);
    }
}

impl Counter for bool {
    /// True if either is.
    fn merge(&mut self, other: &bool) {
        *self |= other;
    }

    fn copy_from(&mut self, other: &bool) {
        *self = *other;
    }

    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        each(name, u64::from(*self));
    }
}

impl Counter for Duration {
    fn merge(&mut self, other: &Duration) {
        *self += *other;
    }

    fn copy_from(&mut self, other: &Duration) {
        *self = *other;
    }

    /// In nanoseconds.
    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        each(&format!("{name}_ns"), self.as_nanos() as u64);
    }
}

impl<T: Counter, const N: usize> Counter for [T; N] {
    fn merge(&mut self, other: &Self) {
        for (sum, more) in self.iter_mut().zip(other) {
            sum.merge(more);
        }
    }

    fn copy_from(&mut self, other: &Self) {
        for (copy, from) in self.iter_mut().zip(other) {
            copy.copy_from(from);
        }
    }

    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        for (at, counter) in self.iter().enumerate() {
            counter.list(&format!("{name}.{at}"), each);
        }
    }
}

/// Counters by class, task and so on; the longer length counts.
impl<T: Counter + Default> Counter for Vec<T> {
    fn merge(&mut self, other: &Self) {
        self.resize_with(self.len().max(other.len()), T::default);
        for (sum, more) in self.iter_mut().zip(other) {
            sum.merge(more);
        }
    }

    fn copy_from(&mut self, other: &Self) {
        self.resize_with(other.len(), T::default);
        for (copy, from) in self.iter_mut().zip(other) {
            copy.copy_from(from);
        }
    }

    fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
        for (at, counter) in self.iter().enumerate() {
            counter.list(&format!("{name}.{at}"), each);
        }
    }
}

/// Declares structs of counters and implements `Counter` for them, field by field.
///
/// A field that is not a counter, or not added, names a module after `=` with functions `merge`,
/// `copy_from` and `list` as in the trait.
#[macro_export]
macro_rules! counters {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $($(#[$field_meta:meta])* $field_vis:vis $field:ident: $type:ty $(= $module:ident)?,)*
        }
    )*) => {$(
        $(#[$meta])*
        $vis struct $name {
            $($(#[$field_meta])* $field_vis $field: $type,)*
        }

        impl $crate::Counter for $name {
            fn merge(&mut self, other: &Self) {
                $($crate::counters!(@ merge $($module)?)(&mut self.$field, &other.$field);)*
            }

            fn copy_from(&mut self, other: &Self) {
                $($crate::counters!(@ copy_from $($module)?)(&mut self.$field, &other.$field);)*
            }

            fn list(&self, name: &str, each: &mut dyn FnMut(&str, u64)) {
                $({
                    let name = match name {
                        "" => stringify!($field).to_owned(),
                        name => format!("{name}.{}", stringify!($field)),
                    };
                    $crate::counters!(@ list $($module)?)(&self.$field, &name, each);
                })*
            }
        }
    )*};
    (@ $function:ident) => { $crate::Counter::$function };
    (@ $function:ident $module:ident) => { $module::$function };
}

#[cfg(test)]
mod tests {
    use super::*;

    mod largest {
        pub fn merge(sum: &mut u64, other: &u64) {
            *sum = (*sum).max(*other);
        }

        pub fn copy_from(copy: &mut u64, from: &u64) {
            *copy = *from;
        }

        pub use crate::Counter;
        pub fn list(counter: &u64, name: &str, each: &mut dyn FnMut(&str, u64)) {
            counter.list(name, each);
        }
    }

    counters! {
        /// Some.
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Inner {
            packets: u64,
            is_off: bool,
        }

        /// All.
        #[derive(Clone, Debug, Default, PartialEq)]
        struct Outer {
            inner: Inner,
            by_class: Vec<u64>,
            most: u64 = largest,
            busy: Duration,
            pair: [u64; 2],
        }
    }

    fn outer() -> Outer {
        Outer {
            inner: Inner { packets: 1, is_off: true },
            by_class: vec![2, 3],
            most: 4,
            busy: Duration::from_nanos(5),
            pair: [6, 7],
        }
    }

    #[test]
    fn fields_are_added_copied_and_listed() {
        let mut sum = outer();
        sum.merge(&outer());
        assert_eq!((sum.inner.packets, sum.most), (2, 4));
        let mut names = Vec::new();
        sum.list("", &mut |name, number| names.push(format!("{name}={number}")));
        let expected = "inner.packets=2 inner.is_off=1 by_class.0=4 by_class.1=6 most=4 busy_ns=10 \
            pair.0=12 pair.1=14";
        assert_eq!(names.join(" "), expected);
        sum.by_class.push(9);
        sum.copy_from(&outer());
        assert_eq!(sum, outer());
    }
}
