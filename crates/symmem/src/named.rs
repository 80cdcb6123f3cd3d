//! Enums whose variants have names: one table gives the variants, the lists of them, the names, and what
//! reads a name.
//!
//! For every room: it knows nothing but errors.

use crate::{Error, Result};

/// Makes an enum of one or more lists of variants with their names; each list is a constant of the enum, and
/// `NAMED` has all of them. It is shown by its name and read from it; `read as "what"` says what errors call
/// it. A variant `if "feature"` is there with that feature only.
macro_rules! named {
    (
        $(#[$about:meta])*
        $vis:vis enum $type:ident read as $what:literal {$(
            $(#[$list_doc:meta])*
            $list:ident: {$(
                $(#[$doc:meta])*
                $variant:ident = $name:literal $(if $feature:literal)?,
            )*}
        )+}
    ) => {
        $(#[$about])*
        $vis enum $type {
            $($($(#[$doc])* $(#[cfg(feature = $feature)])? $variant,)*)+
        }

        impl $type {
            $(
                $(#[$list_doc])*
                $vis const $list: [Self; <[&str]>::len(&[$($(#[cfg(feature = $feature)])? $name),*])] =
                    [$($(#[cfg(feature = $feature)])? Self::$variant),*];
            )+

            /// Every one, whatever list it is in.
            pub(crate) const NAMED: &'static [Self] = &[$($($(#[cfg(feature = $feature)])? Self::$variant,)*)+];

            /// Its name in tables, messages, traces and on the command line.
            $vis const fn name(self) -> &'static str {
                match self {
                    $($($(#[cfg(feature = $feature)])? Self::$variant => $name,)*)+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::Error;

            fn from_str(text: &str) -> $crate::Result<Self> {
                $crate::named::find_named(Self::NAMED, Self::name, text, $what)
            }
        }
    };
}

pub(crate) use named;

/// The one of `all` that is called `text`.
pub(crate) fn find_named<T: Copy>(
    all: &[T],
    name: fn(T) -> &'static str,
    text: &str,
    what: &str,
) -> Result<T> {
    all.iter().copied().find(|one| name(*one) == text).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|one| name(*one)).collect();
        Error::invalid(what.to_owned(), format!("{text:?} is none of {}", known.join(", ")))
    })
}
