//! The program as its users run it.

mod bench;
mod bench_compare;
mod bench_report;
mod collectives;
mod config;
mod doctor;
mod gpu;
mod pages;
mod peers;
mod program;
mod run;
mod store;
mod terms;
mod trace;
