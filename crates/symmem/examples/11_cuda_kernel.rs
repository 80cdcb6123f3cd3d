//! A kernel of one's own on symmetric memory: each rank writes into its neighbour's memory and signals, all
//! on the device.
//!
//! Ranks are threads that share GPU 0. Without a GPU it says so and ends.

use std::time::Duration;

use symmem::cuda::{Device, Engine, Module, Stream};
use symmem::{Error, Result};

const SOURCE: &str = r#"
#include "symmem.cuh"

extern "C" __global__ void greet(symmem::Memory memory) {
    unsigned next = (memory.rank + 1) % memory.world, prev = (memory.rank + memory.world - 1) % memory.world;
    memory.peer<float>(next)[0] = 100.0f + memory.rank;
    symmem::put_signal(memory, next, 0, 1000000000);
    symmem::wait_signal(memory, prev, 0, 1000000000);
}
"#;

/// As `symmem::Memory` in the header.
#[repr(C)]
struct Memory {
    data: u64,
    pads: u64,
    rank: u32,
    world: u32,
}

fn main() -> Result<()> {
    // Both ranks are on one device, and their streams must not share a queue: one kernel waits for the other.
    // SAFETY: no other thread runs yet.
    unsafe {
        std::env::set_var("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1");
        std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    }
    match Device::count() {
        Err(error @ Error::NoCuda { .. }) => {
            println!("nothing to show: {error}");
            return Ok(());
        }
        other => other?,
    };
    let greetings = symmem::spawn(2, |group| {
        let device = Device::new(0)?;
        let engine = Engine::new(&group, &device)?;
        let stream = Stream::new(&device)?;
        let memory = device.alloc::<f32>(1)?.rendezvous(&engine)?;
        let greet = Module::compile(&device, "greet.cu", SOURCE)?.function("greet")?;
        group.barrier()?;
        let mut argument = Memory {
            data: memory.peer_ptrs_dev()?,
            pads: memory.pad_ptrs_dev()?,
            rank: group.rank() as u32,
            world: group.size() as u32,
        };
        // SAFETY: the kernel takes one `Memory`, and works on memory that lives until the stream is
        // synchronised.
        unsafe { greet.launch(&stream, 1, 1, &mut [(&raw mut argument).cast()])? };
        engine.sync(&stream, Duration::from_secs(5))?;
        memory.read(&stream)
    })?;
    println!("{greetings:?}");
    assert_eq!(greetings, [[101.0], [100.0]]);
    Ok(())
}
