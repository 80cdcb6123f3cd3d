//! The names of providers, as settings have them. `provider` has what is behind the names.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Makes the list of providers: of each its name in the code and in text, and where its memory is. Those for tests are there
/// with the feature `faults` alone, and are not shown to users.
macro_rules! providers {
    (
        users: {$($(#[doc = $doc:literal])* $name:ident is $text:literal on $place:ident;)*}
        tests: {$($(#[doc = $test_doc:literal])* $test:ident is $test_text:literal on $test_place:ident;)*}
    ) => {
        /// Where symmetric memory comes from, and how peers reach it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Provider {
            $($(#[doc = $doc])* $name,)*
            $($(#[doc = $test_doc])* #[doc(hidden)] #[cfg(feature = "faults")] $test,)*
        }

        impl Provider {
            /// Every provider.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Those for tests.
            const FOR_TESTS: &[Self] = &[$(#[cfg(feature = "faults")] Self::$test,)*];

            /// Its name in messages, variables and on the command line.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                    $(#[cfg(feature = "faults")] Self::$test => $test_text,)*
                }
            }

            /// Where its memory is.
            pub const fn place(self) -> Place {
                match self {
                    $(Self::$name => Place::$place,)*
                    $(#[cfg(feature = "faults")] Self::$test => Place::$test_place,)*
                }
            }
        }
    };
}

/// Where memory can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// In the memory of the host.
    Host,
    /// In the memory of a CUDA device.
    Device,
}

// The first of a place is what is used if nobody says anything.
providers! {
    users: {
        /// Shared memory of the host, which the processes of one machine map.
        Shm is "shm" on Host;
        /// The driver's virtual memory management: ranks of one host, or of one NVLink domain, map each other's memory.
        Vmm is "vmm" on Device;
        /// NCCL: memory in windows that are registered with all ranks, wherever they are. Those in reach map each other's
        /// memory; where some are not, NCCL carries the operations.
        Nccl is "nccl" on Device;
    }
    tests: {
        /// The process' heap, for threads.
        Heap is "heap" on Host;
        /// Parts of one slab per device.
        Slab is "slab" on Device;
    }
}

impl Provider {
    /// The providers of `place`. The first is what is used if nobody says anything.
    pub fn of(place: Place) -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(move |provider| provider.place() == place)
    }

    /// This one for memory in its own place; that of another place is what it is if nobody says anything.
    pub(crate) fn or_default_of(self, place: Place) -> Self {
        let default = || Self::of(place).next().unwrap_or(self);
        if self.place() == place { self } else { default() }
    }

    /// All names, as people read them.
    pub(super) fn names() -> String {
        let (last, others) = Self::ALL.split_last().unzip();
        let others: Vec<&str> = others.unwrap_or_default().iter().map(|provider| provider.name()).collect();
        format!("{} or {}", others.join(", "), last.map_or("none", |provider| provider.name()))
    }
}

impl Default for Provider {
    /// What devices have if nobody says anything.
    fn default() -> Self {
        Self::ALL[0].or_default_of(Place::Device)
    }
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Provider {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut all = Self::ALL.iter().chain(Self::FOR_TESTS).copied();
        all.find(|provider| provider.name() == text)
            .ok_or_else(|| Error::invalid("provider", format!("{text:?} is not {}", Self::names())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_have_names_and_places() {
        for provider in Provider::ALL {
            assert_eq!(provider.name().parse::<Provider>().unwrap(), *provider);
        }
        assert!("gpu".parse::<Provider>().unwrap_err().to_string().ends_with("is not shm, vmm or nccl"));
        let defaults = [Place::Host, Place::Device].map(|place| Provider::of(place).next().unwrap().name());
        assert_eq!(defaults, ["shm", "vmm"]);
        assert_eq!(Provider::default().place(), Place::Device);
    }

    #[test]
    fn a_provider_of_one_place_leaves_the_other_as_it_is() {
        for provider in Provider::ALL {
            for place in [Place::Host, Place::Device] {
                let chosen = provider.or_default_of(place);
                assert_eq!(chosen.place(), place);
                assert_eq!(chosen == *provider, provider.place() == place);
            }
        }
    }
}
