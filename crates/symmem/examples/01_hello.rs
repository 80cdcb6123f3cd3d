//! Four ranks look into each other's memory. Run: `cargo run --release -p symmem --example 01_hello`

use symmem::Result;

fn main() -> Result<()> {
    symmem::spawn(4, |group| {
        let mut x = group.alloc::<f32>(1 << 20)?; // local: no communication
        x.fill(group.rank() as f32)?;
        let mem = x.rendezvous(&group)?; // collective, once: now everybody maps everybody
        mem.barrier(0)?; // every wait has a deadline
        let theirs = mem.peer(group.next())?.read(42)?;
        println!("rank {} reads {theirs} from rank {}", group.rank(), group.next());
        mem.close()
    })?;
    Ok(())
}
