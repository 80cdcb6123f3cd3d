//! The names that PyTorch has for where symmetric memory comes from, and what they are here.
//!
//! `context` asks for them. A name that is none of them is an error that lists them.

use pyo3::prelude::*;
use symmem::cuda::{PlaceKind, Provider};

use crate::error::invalid;

/// The only one for memory of the host.
pub(crate) const HOST: &str = "SHM";
/// What is used on devices if nobody says anything. The others have the names of their providers.
const DEFAULT: &str = "CUDA";

/// The providers of device memory, as PyTorch calls them.
fn on_devices() -> impl Iterator<Item = (String, Provider)> {
    let providers = Provider::of(PlaceKind::Device).enumerate();
    providers.map(|(at, provider)| match at {
        0 => (DEFAULT.to_owned(), provider),
        _ => (provider.name().to_ascii_uppercase(), provider),
    })
}

/// What a provider of device memory is called.
pub(crate) fn name(provider: Provider) -> String {
    let known = on_devices().find(|(_, known)| *known == provider);
    known.map_or_else(|| provider.name().to_ascii_uppercase(), |(name, _)| name)
}

/// The provider that `name` is, in small or capital letters; None for the host's. `asker` said it.
pub(crate) fn parse(asker: &str, name: &str) -> PyResult<Option<Provider>> {
    if name.eq_ignore_ascii_case(HOST) {
        return Ok(None);
    }
    let known = on_devices().find(|(known, _)| name.eq_ignore_ascii_case(known));
    let known = known.map(|(_, provider)| provider).ok_or_else(|| {
        let names: Vec<String> = on_devices().map(|(name, _)| name).chain([HOST.to_owned()]).collect();
        invalid(asker, format!("does not find allocation backend {name:?}; there are {}", names.join(", ")))
    });
    known.map(Some)
}
