//! The same program as four processes: each is this program, started again, and runs only the named call.

use symmem::Result;

fn main() -> Result<()> {
    let sums = symmem::spawn_processes("sum", 4, |group| {
        let mut x = group.alloc::<u64>(1000)?;
        x.fill(std::process::id().into())?;
        let mem = x.rendezvous(&group)?;
        mem.barrier(0)?;
        let mut sum = 0;
        for rank in 0..group.size() {
            sum += mem.peer(rank)?.to_vec()?.iter().sum::<u64>();
        }
        mem.close()?;
        Ok(sum)
    })?;
    assert!(sums.iter().all(|sum| *sum == sums[0]), "all ranks saw the same pids");
    println!("four processes agree on {}", sums[0]);
    Ok(())
}
