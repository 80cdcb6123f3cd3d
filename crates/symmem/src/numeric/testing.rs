//! Numbers for tests: reproducible random ones, and the ones that break arithmetic.

/// splitmix64.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }
}

/// Zeros, infinities, NaN of several payloads, subnormals, the ends of every format's range, and ties; both
/// signs.
pub(super) fn special_f32() -> impl Iterator<Item = f32> {
    let bits = [
        0,
        1,
        2,
        0x0000_8000,
        0x007f_ffff,
        0x0080_0000,
        0x3f80_0000,
        0x3f80_8000,
        0x3f81_8000,
        0x7f7f_7fff,
        0x7f7f_8000,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fa0_0000,
        0x7fc0_0000,
        0x7fc0_1234,
        0x7fff_ffff,
    ];
    let values =
        [65504.0, 65519.0, 65520.0, 65536.0, 6.1e-5, 5.96e-8, 2.98e-8, 2.981e-8, 1e-8, 448.0, 464.0, 61440.0];
    bits.into_iter().map(f32::from_bits).chain(values).flat_map(|value: f32| [value, -value])
}
