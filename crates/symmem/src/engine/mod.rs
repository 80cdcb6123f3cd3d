//! Engines: who works on a table of peer addresses. The host's engine is [`cpu`].

pub(crate) mod cpu;
