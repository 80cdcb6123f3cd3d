//! What the fill kernel writes, on the host: `bench.cu` has the same function, and the two are compared
//! before anything is measured.

/// The value, in eighths, that `rank` has at `index` in `round`: 8 to 15, or that with a minus.
pub(super) fn eighths(index: u32, rank: u32, round: u32) -> i32 {
    const FACTOR: [u32; 4] = [0x297A_2D39, 0x85EB_CA6B, 0xC2B2_AE35, 0x27D4_EB2F];
    let seed = rank.wrapping_mul(0x85EB_CA77).wrapping_add(round.wrapping_mul(0xC2B2_AE3D));
    let mut x = (index / 8).wrapping_mul(0x9E37_79B1) ^ seed;
    x ^= x >> 15;
    x = x.wrapping_mul(0x2C1B_3C6D);
    x ^= x >> 13;
    let pair = x.wrapping_mul(FACTOR[index as usize / 2 % 4]);
    let half = pair >> (index % 2 * 16);
    let size = 8 + (half >> 4 & 7) as i32;
    if half & 0x8000 != 0 { -size } else { size }
}

/// The bits of at most 255 eighths as bf16, where they are exact.
pub(super) fn bits(eighths: i32) -> u16 {
    ((eighths as f32 / 8.0).to_bits() >> 16) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use symmem::bf16;

    #[test]
    fn all_values_occur_equally_often() {
        let mut seen = std::collections::BTreeMap::new();
        for index in 0..16_000 {
            *seen.entry(eighths(index, 3, 7)).or_insert(0) += 1;
        }
        let expected: Vec<_> = (-15..=-8).chain(8..=15).collect();
        assert_eq!(seen.keys().copied().collect::<Vec<_>>(), expected);
        assert!(seen.values().all(|count| (800..1200).contains(count)), "{seen:?}");
    }

    #[test]
    fn neighbours_ranks_and_rounds_differ() {
        let row = |rank, round| (0..64).map(|index| eighths(index, rank, round)).collect::<Vec<_>>();
        let rows = [row(0, 0), row(1, 0), row(0, 1), row(7, 20)];
        for (at, row) in rows.iter().enumerate() {
            assert!(rows[..at].iter().all(|other| other != row));
            assert!(row.iter().collect::<std::collections::BTreeSet<_>>().len() > 10);
        }
    }

    #[test]
    fn sums_over_many_ranks_are_exact() {
        for sum in -255..=255 {
            assert_eq!(bf16::from_bits(bits(sum)).to_f32(), sum as f32 / 8.0);
        }
        assert_eq!(bits(0), 0);
    }
}
