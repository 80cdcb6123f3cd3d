//! One function for memory of the host and of GPUs: it is written over the trait `Symmetric`, and knows no
//! place.
//!
//! Ranks are threads. Those on a GPU share GPU 0; without one that part says so and ends.

use symmem::cuda::{Device, Engine, Stream};
use symmem::{Error, Group, ReduceOp, Result, Symmetric};

/// Collective. Everybody's elements become their mean; returns how far this rank's own were from it.
fn settle(memory: &mut impl Symmetric<Element = f32>, own: &[f32]) -> Result<f32> {
    memory.write(own)?;
    // Nobody may reduce before everybody has written.
    memory.barrier(0)?;
    memory.all_reduce(ReduceOp::Avg)?;
    memory.finish()?;
    let mean = memory.read()?;
    Ok(own.iter().zip(&mean).map(|(own, mean)| (own - mean).abs()).fold(0.0, f32::max))
}

fn own(group: &Group) -> Vec<f32> {
    vec![group.rank() as f32; 1024]
}

fn main() -> Result<()> {
    // On a GPU both ranks are on one device, and their streams must not share a queue: one kernel waits for
    // the other.
    // SAFETY: no other thread runs yet.
    unsafe {
        std::env::set_var("SYMMEM_ALLOW_OVERLAPPING_DEVICES", "1");
        std::env::set_var("CUDA_DEVICE_MAX_CONNECTIONS", "32");
    }
    let on_host = symmem::spawn(2, |group| {
        let mut memory = group.alloc(1024)?.rendezvous(&group)?;
        settle(&mut memory, &own(&group))
    })?;
    println!("host: {on_host:?}");
    assert_eq!(on_host, [0.5, 0.5]);

    if let Err(error @ Error::NoCuda { .. }) = Device::count() {
        println!("GPU: nothing to show: {error}");
        return Ok(());
    }
    let on_device = symmem::spawn(2, |group| {
        let device = Device::new(0)?;
        let (engine, stream) = (Engine::new(&group, &device)?, Stream::new(&device)?);
        let memory = engine.alloc(1024)?.rendezvous(&engine)?;
        settle(&mut memory.on(&stream), &own(&group))
    })?;
    println!("GPU: {on_device:?}");
    assert_eq!(on_device, [0.5, 0.5]);
    Ok(())
}
