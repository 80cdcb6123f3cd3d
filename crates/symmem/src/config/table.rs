//! The form in which [`Config`](super::Config) has its settings: a row for each, and everything about it in
//! that row.

/// Makes a struct of settings. A row has the variable, the field and its type, how it is understood, what is
/// built in (and what is said of it where it has no text of its own), PyTorch's variable where there is one,
/// and what it means (in docs/settings.md with some words more). A setting is read as the field.
///
/// The docs before a row are those of the function that sets it in code. With `as name` after the type that
/// takes a value of the type, and with `= Some(name: Type)` one from which that of the option is made; else
/// `from (given: Type) { value }` after the row says what it takes, and with `-> Result<Self>` the block may
/// fail. A row with none of these has no such function.
macro_rules! settings {
    (
        $(#[$about:meta])*
        pub struct $config:ident;
        $(
            $(#[$doc:meta])*
            $variable:literal sets $field:ident: $type:ty $(as $given:ident)? $(= Some($one:ident: $some:ty))?, by $kind:expr, or $default:expr $(=> $unset:literal)?
            $(, torch $torch:literal gives $torchs:expr)?; $meaning:literal $(+ $more:literal)?;
            $(from $args:tt $(-> $out:ty)? $body:block)?
        )*
    ) => {
        $(#[$about])*
        pub struct $config {
            $(pub(crate) $field: Setting<$type>,)*
        }

        impl $config {
            /// What the variables say that `env` has, else what is built in.
            fn read(env: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<Self> {
                Ok(Self { $($field: Setting::read($default, $variable, &$kind, env($variable))?$(.or_torch(env($torch), $torchs))?,)* })
            }

            /// Each setting with its value and origin, for `symmem config`.
            pub fn rows(&self) -> Vec<ConfigRow> {
                vec![$({
                    let value = self.$field.shown(&$kind, concat!($($unset)?));
                    ConfigRow { variable: $variable, value, origin: self.$field.origin, meaning: $meaning }
                },)*]
            }

            /// What docs/settings.md has of each setting: its row, its default in words, what it may be, and
            /// further words.
            #[cfg(test)]
            fn documented() -> Vec<(ConfigRow, [String; 3])> {
                let words = [$([
                    concat!($($unset)?).to_owned(),
                    { let kind: kind::SettingKind<$type> = $kind; kind.expects },
                    concat!($($more,)? $("; `", $torch, "=1` counts too")?).to_owned(),
                ],)*];
                let built_in = Self::read(|_| None).unwrap();
                built_in.rows().into_iter().zip(words).collect()
            }

            $($crate::config::table::settings! {
                @$field $kind; [$(#[$doc])*] $(($given: $type) { $given })? $(($one: $some) { Some($one.into()) })? $($args $(-> $out)? $body)?
            })*
        }
    };
    (@$field:ident $kind:expr; []) => {};
    (@$field:ident $kind:expr; [$($doc:tt)*] ($given:ident: $type:ty) $body:block) => {
        $($doc)*
        pub fn $field(mut self, $given: $type) -> Self {
            self.$field = Setting { value: ($kind.fit)($body), origin: Origin::Code };
            self
        }
    };
    (@$field:ident $kind:expr; [$($doc:tt)*] ($given:ident: $type:ty) -> $out:ty $body:block) => {
        $($doc)*
        pub fn $field(mut self, $given: $type) -> $out {
            self.$field = Setting { value: ($kind.fit)($body), origin: Origin::Code };
            Ok(self)
        }
    };
}

pub(super) use settings;
