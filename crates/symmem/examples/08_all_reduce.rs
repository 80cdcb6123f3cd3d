//! Two layers of a tensor-parallel product: each rank holds a part of the weights, the partial results are
//! summed.

use symmem::{ReduceOp, Result};

const WIDTH: usize = 512;

fn main() -> Result<()> {
    let outputs = symmem::spawn(4, |group| {
        let part = WIDTH / group.size();
        let columns = group.rank() * part..(group.rank() + 1) * part;
        let input: Vec<f32> = (0..WIDTH).map(|i| (i % 7) as f32).collect();

        let mut partial = group.alloc::<f32>(WIDTH)?.rendezvous(&group)?;
        for (row, value) in partial.local_mut()?.iter_mut().enumerate() {
            // This rank's columns of a matrix that is 1 where row + column is even.
            *value =
                columns.clone().filter(|column| (row + column) % 2 == 0).map(|column| input[column]).sum();
        }
        partial.all_reduce(ReduceOp::Sum)?;
        let output = partial.local()?.to_vec();
        partial.close()?;
        Ok(output)
    })?;
    assert!(outputs.iter().all(|output| *output == outputs[0]), "all ranks have the same bits");
    println!("{:?} ...", &outputs[0][..4]);
    Ok(())
}
