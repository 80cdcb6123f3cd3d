//! What the fill kernel writes, on the host: `bench.cu` has the same function, and the two are compared before anything
//! is measured.

/// The whole number, of at most 15, that `rank` has at `index` in `round`.
pub(super) fn value(index: u32, rank: u32, round: u32) -> i32 {
    let mut x = index.wrapping_mul(0x9E37_79B1)
        ^ rank.wrapping_mul(0x85EB_CA77).wrapping_add(round.wrapping_mul(0xC2B2_AE3D));
    x ^= x >> 15;
    x = x.wrapping_mul(0x2C1B_3C6D);
    x ^= x >> 12;
    x = x.wrapping_mul(0x297A_2D39);
    (((x >> 16) * 31) >> 16) as i32 - 15
}

/// The bits of a whole number of at most 8 bits as bf16, where it is exact.
pub(super) fn bits(value: i32) -> u16 {
    ((value as f32).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use symmem::bf16;

    #[test]
    fn values_are_small_and_all_of_them_occur() {
        let mut seen = [0; 31];
        for index in 0..31_000 {
            seen[usize::try_from(value(index, 3, 7) + 15).expect("at least -15")] += 1;
        }
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
    }

    #[test]
    fn neighbours_ranks_and_rounds_differ() {
        let row = |rank, round| (0..64).map(|index| value(index, rank, round)).collect::<Vec<_>>();
        let rows = [row(0, 0), row(1, 0), row(0, 1), row(7, 20)];
        for (at, row) in rows.iter().enumerate() {
            assert!(rows[..at].iter().all(|other| other != row));
            assert!(row.iter().collect::<std::collections::BTreeSet<_>>().len() > 10);
        }
    }

    #[test]
    fn sums_over_many_ranks_are_exact() {
        for sum in -255..=255 {
            assert_eq!(bf16::from_bits(bits(sum)).to_f32(), sum as f32);
        }
        assert_eq!(bits(0), 0);
    }
}
