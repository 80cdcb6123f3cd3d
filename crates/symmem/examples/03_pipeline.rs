//! A producer hands blocks to a consumer through two buffers, with nothing but signals.
//!
//! The consumer reads the producer's memory; channel 0 says "block ready", channel 1 says "block consumed".

use symmem::Result;

const BLOCK: usize = 1 << 16;
const ROUNDS: u64 = 100;

fn main() -> Result<()> {
    let sums = symmem::spawn(2, |group| {
        let mut mem = group.alloc::<u64>(2 * BLOCK)?.rendezvous(&group)?;
        let mut block = vec![0; BLOCK];
        let mut sum = 0;
        for round in 0..ROUNDS {
            let start = (round % 2) as usize * BLOCK;
            if group.rank() == 0 {
                if round >= 2 {
                    mem.wait_signal(1, 1)?; // the block two rounds ago was consumed
                }
                mem.local_mut()?[start..start + BLOCK].fill(round);
                mem.put_signal(1, 0)?;
            } else {
                mem.wait_signal(0, 0)?;
                mem.get(0, start, &mut block)?;
                mem.put_signal(0, 1)?;
                assert!(block.iter().all(|value| *value == round));
                sum += block[0];
            }
        }
        if group.rank() == 0 {
            mem.wait_signal(1, 1)?;
            mem.wait_signal(1, 1)?;
        }
        mem.close()?;
        Ok(sum)
    })?;
    println!("the consumer added up {}", sums[1]);
    Ok(())
}
