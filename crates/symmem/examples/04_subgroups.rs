//! A 2 x 2 grid: one allocation, one group per row and one per column, each made by its members only.

use symmem::Result;

fn main() -> Result<()> {
    symmem::spawn(4, |group| {
        let (row, column) = (group.rank() / 2, group.rank() % 2);
        let rows = group.subgroup(&[2 * row, 2 * row + 1], "row")?;
        let columns = group.subgroup(&[column, column + 2], "column")?;

        let mut x = group.alloc::<u32>(1)?;
        x.fill(group.rank() as u32)?;
        let in_row = x.rendezvous(&rows)?; // the same memory, mapped by two groups
        let in_column = x.rendezvous(&columns)?;
        in_row.barrier(0)?;
        in_column.barrier(0)?;
        let beside = in_row.peer(rows.next())?.read(0)?;
        let below = in_column.peer(columns.next())?.read(0)?;
        println!("rank {}: beside it is {beside}, across the column is {below}", group.rank());
        assert_eq!((beside, below), ((group.rank() ^ 1) as u32, (group.rank() ^ 2) as u32));
        in_row.close()?;
        in_column.close()
    })?;
    Ok(())
}
