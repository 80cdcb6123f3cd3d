//! The program as its users run it.

mod bench;
mod bench_compare;
mod bench_report;
mod collectives;
mod config;
mod doctor;
mod gpu;
mod inspect;
mod pages;
mod peers;
mod program;
mod run;
mod store;
mod terminal;
mod terms;
mod trace;
