//! Started collectives as futures: gradients are summed while the runtime goes on with other tasks.

use symmem::{Group, ReduceOp, Result};

const LAYERS: usize = 4;
const PARAMETERS: usize = 100_000;

/// One step of training on this rank; the last layer's gradient.
async fn step(group: Group) -> Result<f32> {
    let mut sums = Vec::new();
    for layer in 0..LAYERS {
        // Backward pass of a layer; its gradient is on its way while the next layer is computed.
        let gradient = vec![(group.rank() + layer) as f32; PARAMETERS];
        sums.push(group.start().all_reduce(ReduceOp::Avg, gradient)?);
    }
    // Another task of the same thread gets its turn while this one waits for the ranks.
    let log = tokio::spawn(async { println!("{LAYERS} layers are on their way") });
    let mut last = 0.0;
    for sum in sums {
        last = sum.await?[0];
    }
    log.await.expect("printing does not panic");
    Ok(last)
}

fn main() -> Result<()> {
    let averages = symmem::spawn(4, |group| {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(step(group))
    })?;
    println!("average gradient of the last layer: {}", averages[0]);
    assert_eq!(averages, [4.5; 4]);
    Ok(())
}
