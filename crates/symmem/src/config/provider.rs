//! The names of providers, as settings have them. `provider` has what is behind the names.

use crate::named::named;

/// Where memory can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PlaceKind {
    /// In the memory of the host.
    Host,
    /// In the memory of a CUDA device.
    Device,
}

named! {
    /// Where symmetric memory comes from, and how peers reach it.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum Provider read as "provider" {
        /// Every provider. The first of a place is what is used if nobody says anything.
        ALL: {
            /// Shared memory of the host, which the processes of one machine map.
            Shm = "shm",
            /// The driver's virtual memory management: ranks of one host, or of one NVLink domain, map each
            /// other's memory.
            #[default]
            Vmm = "vmm",
            /// NCCL: memory in windows that are registered with all ranks, wherever they are. Those in reach
            /// map each other's memory; where some are not, NCCL carries the operations.
            Nccl = "nccl",
        }
        /// Those for tests, which are not shown to users.
        #[doc(hidden)]
        FOR_TESTS: {
            /// The process' heap, for threads.
            #[doc(hidden)]
            Heap = "heap" if "faults",
            /// Parts of one slab per device.
            #[doc(hidden)]
            Slab = "slab" if "faults",
        }
    }
}

impl Provider {
    /// Where its memory is.
    pub const fn place(self) -> PlaceKind {
        match self {
            Self::Shm => PlaceKind::Host,
            Self::Vmm | Self::Nccl => PlaceKind::Device,
            #[cfg(feature = "faults")]
            Self::Heap => PlaceKind::Host,
            #[cfg(feature = "faults")]
            Self::Slab => PlaceKind::Device,
        }
    }

    /// The providers of `place`. The first is what is used if nobody says anything.
    pub fn of(place: PlaceKind) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |provider| provider.place() == place)
    }

    /// This one for memory in its own place; that of another place is what it is if nobody says anything.
    pub(crate) fn or_default_of(self, place: PlaceKind) -> Self {
        if self.place() == place { self } else { Self::of(place).next().unwrap_or(self) }
    }

    /// All names, as people read them.
    pub(super) fn names() -> String {
        let [others @ .., last] = Self::ALL.map(Self::name);
        format!("{} or {last}", others.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_have_names_and_places() {
        for provider in Provider::ALL {
            assert_eq!(provider.name().parse::<Provider>().unwrap(), provider);
        }
        assert!("gpu".parse::<Provider>().unwrap_err().to_string().contains("is none of shm, vmm, nccl"));
        assert_eq!(Provider::names(), "shm, vmm or nccl");
        let defaults =
            [PlaceKind::Host, PlaceKind::Device].map(|place| Provider::of(place).next().unwrap().name());
        assert_eq!(defaults, ["shm", "vmm"]);
        assert_eq!(Provider::default().place(), PlaceKind::Device);
    }

    #[test]
    fn a_provider_of_one_place_leaves_the_other_as_it_is() {
        for provider in Provider::ALL {
            for place in [PlaceKind::Host, PlaceKind::Device] {
                let chosen = provider.or_default_of(place);
                assert_eq!(chosen.place(), place);
                assert_eq!(chosen == provider, provider.place() == place);
            }
        }
    }
}
