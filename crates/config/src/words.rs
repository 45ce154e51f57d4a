//! Enums whose variants are words of the configuration.

/// Declares an enum together with the word of each variant, so that the words stand in one place.
macro_rules! words {
    (
        $(#[$about:meta])*
        $vis:vis enum $Name:ident {
            $( $(#[$variant_about:meta])* $Variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        $vis enum $Name {
            $( $(#[$variant_about])* $Variant, )+
        }

        impl $Name {
            /// The words, in the order of the variants.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The variant that the user calls `name`.
            pub fn parse(name: &str) -> Option<$Name> {
                [$($Name::$Variant),+].into_iter().find(|word| word.name() == name)
            }

            /// The word as the user writes it.
            pub fn name(self) -> &'static str {
                match self {
                    $( $Name::$Variant => $word, )+
                }
            }
        }

        impl $crate::value::FromValue for $Name {
            fn from_value(value: &toml::Value) -> Option<$Name> {
                $Name::parse(value.as_str()?)
            }
        }
    };
}

pub(crate) use words;
