//! The form in which [`Config`](super::Config) has its settings: a row for each, and everything about it in that row.

/// Makes a struct of settings. A row has the variable, the field and its type, how it is understood, what is built in (and what is said of it where it
/// has no text of its own), PyTorch's variable where there is one, and what it means (in README.md with some words more). After it come the functions
/// that set it, `pub fn name(given: Type) { value }`; with `-> Result<Self>` the block may fail. A setting is read as the field.
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $config:ident;
        $(
            $variable:literal sets $field:ident: $type:ty, by $kind:expr, or $default:expr $(=> $unset:literal)?
            $(, torch $torch:literal gives $given:expr)?; $meaning:literal $(+ $more:literal)?;
            $($(#[$doc:meta])* pub fn $name:ident $args:tt $(-> $out:ty)? $body:block)*
        )*
    ) => {
        $(#[$about])*
        pub struct $config {
            $(pub(crate) $field: Setting<$type>,)*
        }

        impl $config {
            /// What is built in, whatever the environment says.
            fn built_in() -> Self {
                Self { $($field: Setting::built_in($default),)* }
            }

            fn read() -> Result<Self> {
                let built_in = Self::built_in();
                Ok(Self { $($field: built_in.$field.read($variable, &$kind)?$(.or_torch($torch, $given))?,)* })
            }

            /// Each setting with its value and origin, for `symmem config`.
            pub fn rows(&self) -> Vec<ConfigRow> {
                vec![$(self.$field.row($variable, &$kind, concat!($($unset)?), $meaning),)*]
            }

            /// What README.md has of each setting: its row, its default in words, what it may be, and further words.
            #[cfg(test)]
            fn documented() -> Vec<(ConfigRow, [String; 3])> {
                let words = [$([
                    concat!($($unset)?).to_owned(),
                    { let kind: kind::Kind<$type> = $kind; kind.expects },
                    concat!($($more,)? $("; `", $torch, "=1` counts too")?).to_owned(),
                ],)*];
                Self::built_in().rows().into_iter().zip(words).collect()
            }

            $($($crate::config::table::settings! { @$field $kind; $(#[$doc])* fn $name $args $(-> $out)? $body })*)*
        }
    };
    (@$field:ident $kind:expr; $(#[$doc:meta])* fn $name:ident($($given:ident: $type:ty)?) $body:block) => {
        $(#[$doc])*
        pub fn $name(mut self, $($given: $type)?) -> Self {
            self.$field.set(&$kind, $body);
            self
        }
    };
    (@$field:ident $kind:expr; $(#[$doc:meta])* fn $name:ident($given:ident: $type:ty) -> $out:ty $body:block) => {
        $(#[$doc])*
        pub fn $name(mut self, $given: $type) -> $out {
            self.$field.set(&$kind, $body);
            Ok(self)
        }
    };
}

pub(super) use settings;
