//! Numbers that look random and are the same in each run.

/// A linear congruential generator (Knuth's MMIX).
#[derive(Clone, Copy, Debug)]
pub struct Random(u64);

impl Random {
    /// One that starts with `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`, which is not 0.
    pub const fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The high bits are the random ones.
        (self.0 >> 33) as usize % end
    }
}
