//! Engines: who works on a table of peer addresses. The host's engine is [`cpu`]; [`team`] lets
//! several threads of a rank share its work.

pub(crate) mod cpu;
pub(crate) mod team;
