//! A truth value as an element: any byte is one, which is not so for Rust's `bool`.

use bytemuck::{Pod, Zeroable};

/// A truth value in one byte, laid out like `bool`; any byte but 0 counts as true.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// False.
    pub const FALSE: Self = Self(0);
    /// True.
    pub const TRUE: Self = Self(1);

    /// Whether it is true.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}
