//! Engines: who works on a table of peer addresses. The host's engine is [`cpu`], that of CUDA devices is
//! [`cuda`].

pub(crate) mod cpu;
pub(crate) mod cuda;
