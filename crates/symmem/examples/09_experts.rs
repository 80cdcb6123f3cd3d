//! A mixture of experts: every rank sends its rows to the experts that are to work on them, and gets them
//! back.

use symmem::Result;

const RANKS: usize = 4;
const EXPERTS: usize = 2;
const ROWS: usize = 6;
/// Elements of a row.
const WIDTH: usize = 3;
/// The experts like their rows in multiples of this.
const ALIGN: usize = 4;

/// The expert, of all ranks' together, that row `row` of rank `rank` goes to.
fn expert_of(rank: usize, row: usize) -> usize {
    (rank * 5 + row * 3) % (RANKS * EXPERTS)
}

fn main() -> Result<()> {
    let results = symmem::spawn(RANKS, |group| {
        // Rows sorted by expert: rank by rank, and the experts of each.
        let mut rows: Vec<usize> = (0..ROWS).collect();
        rows.sort_by_key(|row| expert_of(group.rank(), *row));
        let mut splits = [0; RANKS * EXPERTS];
        rows.iter().for_each(|row| splits[expert_of(group.rank(), *row)] += 1);

        let mut tokens = group.alloc::<f32>(ROWS * WIDTH)?.rendezvous(&group)?;
        for (to, row) in tokens.local_mut()?.chunks_exact_mut(WIDTH).zip(&rows) {
            to.fill((group.rank() * ROWS + row) as f32);
        }

        // Room for the worst case: every row of every rank, and padding for every expert.
        let capacity = (RANKS * ROWS + EXPERTS * ALIGN) * WIDTH;
        let mut work = group.alloc::<f32>(capacity)?.rendezvous(&group)?;
        let sent = tokens.all_to_all_2d(WIDTH, &splits, ALIGN, &mut work.local_mut()?)?;

        // Each expert works on its rows, whichever rank they came from.
        for expert in 0..EXPERTS {
            let chunks = expert * RANKS..(expert + 1) * RANKS;
            let rows: usize = sent.splits[chunks.clone()].iter().sum();
            let first = sent.offsets[chunks.start];
            let name = (group.rank() * EXPERTS + expert) as f32;
            work.local_mut()?[first * WIDTH..][..rows * WIDTH]
                .iter_mut()
                .for_each(|x| *x = *x * 100.0 + name);
        }

        // Back: every rank's rows, in the order in which it had sent them.
        let mut back = vec![0.0; ROWS * WIDTH];
        work.all_to_all_2d_offset(WIDTH, &sent.splits, &sent.offsets, &mut back)?;
        for (row, values) in rows.iter().zip(back.chunks_exact(WIDTH)) {
            let value = (group.rank() * ROWS + row) * 100 + expert_of(group.rank(), *row);
            assert_eq!(values, [value as f32; WIDTH]);
        }

        // Without experts: rank r sends r rows of one element to everybody.
        let mine = group.rank() * RANKS;
        let plain = tokens.all_to_all_v(1, &[mine / RANKS; RANKS], &mut back)?;
        assert_eq!(plain.splits, [0, 1, 2, 3]);
        assert_eq!(plain.offsets, [0, 0, 1, 3]);
        tokens.close()?;
        work.close()?;
        Ok(sent.splits.iter().sum::<usize>())
    })?;
    println!("rows that each rank's experts worked on: {results:?}");
    Ok(())
}
