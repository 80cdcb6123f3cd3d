//! The floating-point environment of a kernel: round to nearest, subnormals kept, whatever the thread has
//! set.
//!
//! A thread may have asked its processor to flush subnormals (numeric libraries offer that). A kernel on such
//! a thread would give other bits than on the other ranks, so kernels for floats run between `enter` and the
//! drop of its guard.

#![allow(unsafe_code, reason = "the processor's control word")]

/// The default environment until it is dropped, then the thread's own again.
pub(super) struct Environment {
    /// What to put back, if it had to be changed.
    own: Option<control::Word>,
}

impl Environment {
    #[inline]
    pub(super) fn enter() -> Self {
        let own = control::read();
        if control::is_default(own) {
            return Self { own: None };
        }
        control::write(control::DEFAULT);
        Self { own: Some(own) }
    }
}

impl Drop for Environment {
    #[inline]
    fn drop(&mut self) {
        if let Some(own) = self.own {
            control::write(own);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(super) mod control {
    use std::arch::asm;

    /// MXCSR.
    pub(in crate::numeric) type Word = u32;

    /// Exceptions masked, round to nearest, neither flush-to-zero nor denormals-are-zero.
    pub(super) const DEFAULT: Word = 0x1f80;

    /// The sticky exception flags.
    const FLAGS: Word = 0x3f;

    pub(super) fn is_default(word: Word) -> bool {
        word & !FLAGS == DEFAULT
    }

    #[inline]
    pub(in crate::numeric) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: stores the register to a local.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(in crate::numeric) fn write(word: Word) {
        // SAFETY: loads the register from a local; the word is the default or was read before, so it is
        // valid. What the thread computes between is the kernel, which is behind a call and works on memory,
        // so nothing moves across.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
pub(super) mod control {
    use std::arch::asm;

    /// FPCR.
    pub(in crate::numeric) type Word = u64;

    /// Round to nearest, nothing flushed, NaN passed on, no traps.
    pub(super) const DEFAULT: Word = 0;

    pub(super) fn is_default(word: Word) -> bool {
        word == DEFAULT
    }

    #[inline]
    pub(in crate::numeric) fn read() -> Word {
        let word: Word;
        // SAFETY: reads a register that user programs may read.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(in crate::numeric) fn write(word: Word) {
        // SAFETY: writes the default or what was read before. What the thread computes between is the kernel,
        // which is behind a call and works on memory, so nothing moves across.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
    }
}

/// Where there is nothing to look at.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(super) mod control {
    pub(in crate::numeric) type Word = ();

    pub(super) const DEFAULT: Word = ();

    pub(super) fn is_default(_word: Word) -> bool {
        true
    }

    pub(in crate::numeric) fn read() -> Word {}

    pub(in crate::numeric) fn write(_word: Word) {}
}
