//! One module per command; each is a fixed list of steps.

pub(crate) mod lint;
pub(crate) mod test;
