//! One module per command; most are a fixed list of steps.

pub(crate) mod lint;
pub(crate) mod peers;
pub(crate) mod test;
