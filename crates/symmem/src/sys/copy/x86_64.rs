//! The copies of x86-64, in inline assembly.
//!
//! Not `rep movsb`, and not `memcpy`, which uses it: on AMD's Zen 3 and 4 that is twenty times slower than
//! plain moves when the destination lies a few bytes further into its page than the source, which is how
//! page-aligned segments and large heap blocks lie.
//!
//! Where the length is not a multiple of a move, the last move overlaps the one before: some bytes are copied
//! twice, none is left to a loop over single bytes.
//!
//! Two cores write and read the lines of staging by turns, and processors differ in how such lines travel.
//! - AMD's: a line that the other core has only read is slow to write again. The write must first take the
//!   reader's copy away, and stores wait for that one by one. A line that the reader has *written* moves at
//!   once. So [`take`] writes back what it read (a factor of two to four on a Zen 4, for messages that fit
//!   the caches).
//! - Intel's: writing back is a second trip for nothing (a tenth more time on a Sapphire Rapids). It helps to
//!   have more lines under way. So [`give`] asks for them ahead (a sixth less time). And a line that is still
//!   in the other core's first-level cache is slow to write again: staging that rests until it has left it
//!   takes a quarter to a third less time (see [`lines_rest`]).
//!
//! Wide registers: assembly says of each register it writes that it does, by the widest name that it writes.
//! What is longer than two small registers is a call (`inline(never)`), as the registers that [`zero_upper`]
//! takes from its caller are those that a call may change: the caller pays nothing for it. Where it is
//! inlined all the same it is right too.

#![allow(unsafe_code, reason = "copies of memory that others write")]

use std::arch::asm;
use std::sync::OnceLock;

/// What a turn of the loops copies.
const BLOCK: usize = 128;
/// The shortest copy whose lines are asked for ahead. They are asked for 1 KB ahead, which in a shorter copy
/// is mostly behind its end.
const LEAST_AHEAD: usize = 4096;

/// Either direction.
///
/// # Safety
/// As for [`super::read`] or [`super::write`], whichever side is the shared one.
#[inline]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every move stays within `len` bytes of both pointers.
    unsafe {
        match len {
            0 => {}
            1 => move_1(src, dst),
            2 => move_2(src, dst),
            3 => both_ends::<2>(src, dst, len, move_2),
            4 => move_4(src, dst),
            5..8 => both_ends::<4>(src, dst, len, move_4),
            8 => move_8(src, dst),
            9..16 => both_ends::<8>(src, dst, len, move_8),
            16..=32 => both_ends::<16>(src, dst, len, move_16),
            33.. => long(src, dst, len),
        }
    }
}

/// Either direction, past the caches; ordered before every later store.
///
/// # Safety
/// As for [`copy`].
#[inline(never)]
pub(super) unsafe fn stream(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { stream_inline(src, dst, len, stream_blocks) }
}

/// [`copy`] to shared memory that a peer has used last.
///
/// # Safety
/// As for [`super::write`].
#[inline]
pub(crate) unsafe fn give(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty; whole blocks are copied only where the processor has AVX. Asking for lines
    // beyond the end touches nothing.
    unsafe {
        match len >= LEAST_AHEAD && has_avx() && !lines_go_back() {
            true => long_by(src, dst, len, given_blocks),
            false => copy(src, dst, len),
        }
    }
}

/// [`copy`] from shared memory that nobody else reads, with what was read of a long one written back where
/// lines go back.
///
/// # Safety
/// As for [`super::take_with`].
#[inline]
pub(super) unsafe fn take(src: *mut u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty; whole blocks are copied only where the processor has AVX.
    unsafe {
        match len > 2 * BLOCK && has_avx() && lines_go_back() {
            true => long_by(src, dst, len, taken_blocks),
            false => copy(src, dst, len),
        }
    }
}

/// # Safety
/// As for [`copy`], and for `blocks`, with a `len` of more than two blocks, on a processor with AVX.
#[inline(never)]
unsafe fn long_by(src: *const u8, dst: *mut u8, len: usize, blocks: Blocks) {
    // SAFETY: the caller's duty.
    unsafe {
        aligned_blocks(src, dst, len, blocks);
        zero_upper();
    }
}

/// [`stream`] from shared memory that nobody else reads, with what was read of a long one written back where
/// lines go back.
///
/// # Safety
/// As for [`super::take_with`].
#[inline(never)]
pub(super) unsafe fn stream_take(src: *mut u8, dst: *mut u8, len: usize) {
    let blocks = if lines_go_back() { streamed_taken_blocks } else { stream_blocks };
    // SAFETY: the caller's duty.
    unsafe { stream_inline(src, dst, len, blocks) }
}

/// Whether a line moves faster to its next writer if its reader has written it. So it is on processors of
/// AMD, and on those of Hygon, which have AMD's design.
#[inline]
fn lines_go_back() -> bool {
    static IS_AMD: OnceLock<bool> = OnceLock::new();
    #[cfg(test)]
    if let Some(forced) = FORCED.get() {
        return forced;
    }
    *IS_AMD.get_or_init(|| {
        let vendor = std::arch::x86_64::__cpuid(0);
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_ne_bytes).concat();
        name == b"AuthenticAMD" || name == b"HygonGenuine"
    })
}

/// Whether lines of staging are faster written again when they have left the first-level caches. Measured on
/// a Sapphire Rapids, between 8 and 256 KB; where lines go back they had better be used again at once.
#[inline]
pub(crate) fn lines_rest() -> bool {
    !lines_go_back()
}

#[cfg(test)]
thread_local! {
    /// What [`lines_go_back`] says on this thread, whatever the processor.
    pub(super) static FORCED: std::cell::Cell<Option<bool>> = const { std::cell::Cell::new(None) };
}

/// # Safety
/// As for [`copy`].
#[inline(always)]
pub(super) unsafe fn stream_inline(src: *const u8, dst: *mut u8, len: usize, blocks: Blocks) {
    // SAFETY: `head` and `body` are at most `len`, and the rest of it follows; the body starts a cache line
    // of the destination, is in whole blocks, and runs only where the processor has AVX.
    unsafe {
        if len < 2 * BLOCK || !has_avx() {
            return copy(src, dst, len);
        }
        let head = dst.addr().wrapping_neg() % 64;
        let body = (len - head) / BLOCK * BLOCK;
        copy(src, dst, head);
        blocks(src.add(head), dst.add(head), body);
        let done = head + body;
        copy(src.add(done), dst.add(done), len - done);
        asm!("sfence", options(nostack, preserves_flags));
        zero_upper();
    }
}

#[inline(always)]
fn has_avx() -> bool {
    std::is_x86_feature_detected!("avx")
}

/// A move at the start, and one at the end.
///
/// # Safety
/// As for [`copy`], with a `len` of at least `SIZE`, which is what `step` moves.
#[inline(always)]
unsafe fn both_ends<const SIZE: usize>(src: *const u8, dst: *mut u8, len: usize, step: Move) {
    // SAFETY: the last move ends at `len`.
    unsafe {
        step(src, dst);
        step(src.add(len - SIZE), dst.add(len - SIZE));
    }
}

/// Moves a fixed number of bytes.
type Move = unsafe fn(*const u8, *mut u8);

/// Moves a number of blocks.
type Blocks = unsafe fn(*const u8, *mut u8, usize);

/// # Safety
/// As for [`copy`], for as many bytes as the name says. So for all below.
#[inline(always)]
unsafe fn move_1(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("mov {t}, [{s}]", "mov [{d}], {t}", s = in(reg) src, d = in(reg) dst, t = out(reg_byte) _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn move_2(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("movzx {t:e}, word ptr [{s}]", "mov [{d}], {t:x}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn move_4(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("mov {t:e}, [{s}]", "mov [{d}], {t:e}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn move_8(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("mov {t}, [{s}]", "mov [{d}], {t}", s = in(reg) src, d = in(reg) dst, t = out(reg) _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As above.
#[inline(always)]
unsafe fn move_16(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("movups {t}, [{s}]", "movups [{d}], {t}", s = in(reg) src, d = in(reg) dst, t = out(xmm_reg) _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As for [`copy`], with a `len` of at least 32.
#[inline(never)]
unsafe fn long(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the caller's duty.
    unsafe { long_inline(src, dst, len) }
}

/// # Safety
/// As for [`long`].
#[inline(always)]
pub(super) unsafe fn long_inline(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: every move stays within `len` bytes of both pointers; the wide ones need AVX, which is there.
    unsafe {
        if !has_avx() {
            for at in (0..len - 16).step_by(16) {
                move_16(src.add(at), dst.add(at));
            }
            return move_16(src.add(len - 16), dst.add(len - 16));
        }
        match len {
            0..=64 => both_ends::<32>(src, dst, len, move_32),
            65..=128 => both_ends::<64>(src, dst, len, move_64),
            129..=256 => both_ends::<BLOCK>(src, dst, len, move_block),
            257.. => aligned_blocks(src, dst, len, cached_blocks),
        }
        zero_upper();
    }
}

/// Ends what used wide registers: a processor that finds their upper parts in use is slow at narrow
/// instructions.
///
/// It clears bit 128 and those above of the first sixteen registers, and all of that is declared. Registers
/// 16 to 31 and the masks of AVX-512 stay as they are.
///
/// # Safety
/// The processor must have AVX.
#[inline(always)]
unsafe fn zero_upper() {
    // SAFETY: the caller's duty.
    unsafe {
        asm!(
            "vzeroupper",
            out("zmm0") _, out("zmm1") _, out("zmm2") _, out("zmm3") _,
            out("zmm4") _, out("zmm5") _, out("zmm6") _, out("zmm7") _,
            out("zmm8") _, out("zmm9") _, out("zmm10") _, out("zmm11") _,
            out("zmm12") _, out("zmm13") _, out("zmm14") _, out("zmm15") _,
            options(nostack, nomem, preserves_flags)
        );
    }
}

/// # Safety
/// As for [`copy`], for 32 bytes, on a processor with AVX; `vzeroupper` must follow. So for all below.
#[inline(always)]
unsafe fn move_32(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!("vmovdqu ymm0, [{s}]", "vmovdqu [{d}], ymm0", s = in(reg) src, d = in(reg) dst, out("ymm0") _,
            options(nostack, preserves_flags));
    }
}

/// # Safety
/// As above, for 64 bytes.
#[inline(always)]
unsafe fn move_64(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        asm!(
            "vmovdqu ymm0, [{s}]", "vmovdqu ymm1, [{s} + 32]",
            "vmovdqu [{d}], ymm0", "vmovdqu [{d} + 32], ymm1",
            s = in(reg) src, d = in(reg) dst, out("ymm0") _, out("ymm1") _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As above, for a block.
#[inline(always)]
unsafe fn move_block(src: *const u8, dst: *mut u8) {
    // SAFETY: the caller's duty.
    unsafe {
        move_64(src, dst);
        move_64(src.add(64), dst.add(64));
    }
}

/// Blocks that start a cache line of the destination, as stores across lines take twice the time.
///
/// # Safety
/// As above, with a `len` of more than two blocks.
#[inline(always)]
unsafe fn aligned_blocks(src: *const u8, dst: *mut u8, len: usize, blocks: Blocks) {
    // SAFETY: the first move ends at `head` or later; the blocks from there on end within `len`, as the last
    // block does.
    unsafe {
        let head = dst.addr().wrapping_neg() % 64;
        let body = (len - head) / BLOCK * BLOCK;
        if head > 0 {
            move_64(src, dst);
        }
        blocks(src.add(head), dst.add(head), body);
        if head + body < len {
            move_block(src.add(len - BLOCK), dst.add(len - BLOCK));
        }
    }
}

/// Defines a loop over blocks with the given store, and with what else is done with each.
macro_rules! blocks {
    ($name:ident, $store:literal $(, $else:literal)*) => {
        /// # Safety
        /// As above, with a `len` that is a multiple of a block and not 0, and a destination that is a
        /// multiple of 64.
        #[inline(always)]
        pub(super) unsafe fn $name(src: *const u8, dst: *mut u8, len: usize) {
            // SAFETY: the loop counts from 0 to `len` in steps of a block.
            unsafe {
                asm!(
                    "2:",
                    "vmovdqu ymm0, [{s} + {i}]",
                    "vmovdqu ymm1, [{s} + {i} + 32]",
                    "vmovdqu ymm2, [{s} + {i} + 64]",
                    "vmovdqu ymm3, [{s} + {i} + 96]",
                    concat!($store, " [{d} + {i}], ymm0"),
                    concat!($store, " [{d} + {i} + 32], ymm1"),
                    concat!($store, " [{d} + {i} + 64], ymm2"),
                    concat!($store, " [{d} + {i} + 96], ymm3"),
                    $($else,)*
                    "add {i}, 128",
                    "cmp {i}, {n}",
                    "jb 2b",
                    s = in(reg) src, d = in(reg) dst, n = in(reg) len, i = inout(reg) 0usize => _,
                    out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                    options(nostack)
                );
            }
        }
    };
}

blocks!(cached_blocks, "vmovdqa");
blocks!(stream_blocks, "vmovntdq");
// Lines of the destination are asked for, to be written, eight blocks ahead.
blocks!(given_blocks, "vmovdqa", "prefetchw [{d} + {i} + 1024]", "prefetchw [{d} + {i} + 1088]");
// A word of each line of the source is written back.
blocks!(taken_blocks, "vmovdqa", "vmovq [{s} + {i}], xmm0", "vmovq [{s} + {i} + 64], xmm2");
blocks!(streamed_taken_blocks, "vmovntdq", "vmovq [{s} + {i}], xmm0", "vmovq [{s} + {i} + 64], xmm2");
