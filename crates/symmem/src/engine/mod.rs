//! Engines: who works on a table of peer addresses. The host's engine is [`cpu`], that of CUDA devices is [`cuda`];
//! [`team`] lets several threads of a rank share its work.

pub(crate) mod cpu;
pub(crate) mod cuda;
pub(crate) mod team;
