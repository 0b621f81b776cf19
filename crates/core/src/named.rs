//! Enums of words: one table has the name of each value.

/// Gives an enum without fields `ALL`, `name` and `named`, from a table of its values and their names.
#[macro_export]
macro_rules! listed {
    ($type:ident { $($value:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All values, in the order of their table.
            pub const ALL: [$type; [$($name),+].len()] = [$($type::$value),+];

            /// The name in files, on the command line and in messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$value => $name),+
                }
            }

            /// The value that has this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}

/// Does what `listed` does, and the enum displays as its name, padded as a text is.
#[macro_export]
macro_rules! named {
    ($type:ident { $($value:ident = $name:literal),+ $(,)? }) => {
        $crate::listed!($type { $($value = $name),+ });

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
