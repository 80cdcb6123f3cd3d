//! One module per command; most are a fixed list of steps.

pub(crate) mod book;
pub(crate) mod compare;
pub(crate) mod endurance;
pub(crate) mod fences;
pub(crate) mod gpu_bundle;
pub(crate) mod kernels;
pub(crate) mod layers;
pub(crate) mod lint;
pub(crate) mod listings;
pub(crate) mod newcomer;
pub(crate) mod package;
pub(crate) mod peers;
pub(crate) mod test;
pub(crate) mod words;
