//! Reading the private memory of another process through the kernel.
//!
//! Called by the pull algorithm, for memory whose owner said where it is. The kernel copies: an address that
//! is not mapped any more is an error and not a fault, so nothing here relies on what the owner does
//! meanwhile. Whose bytes they are is another matter: the caller must see afterwards that the owner still
//! lives, and has stayed in its call.

#![allow(unsafe_code, reason = "system calls")]

use std::io;

/// Reads as many bytes as `out` has from `address` of process `pid` on; several calls where the kernel stops
/// early.
pub(crate) fn read(pid: u32, address: u64, out: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        let to = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        let start = address.checked_add(done as u64).ok_or(io::ErrorKind::InvalidInput)?;
        let from = libc::iovec { iov_base: start as *mut libc::c_void, iov_len: rest.len() };
        // SAFETY: `to` is all of `rest`, which is borrowed for writing; the kernel checks the other side.
        let count =
            unsafe { libc::process_vm_readv(pid.cast_signed(), &raw const to, 1, &raw const from, 1, 0) };
        match usize::try_from(count) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => done += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_memory_can_be_read_and_what_is_not_mapped_is_an_error() {
        let source: Vec<u8> = (0..100_000_u32).map(|at| at as u8).collect();
        let mut out = vec![0; 99_000];
        let (pid, address) = (std::process::id(), source.as_ptr().addr() as u64);
        if let Err(error) = read(pid, address + 7, &mut out) {
            return println!("skipped: process_vm_readv is refused here: {error}");
        }
        assert_eq!(out, source[7..99_007]);
        assert!(read(pid, address, &mut []).is_ok());
        assert!(read(pid, 8, &mut out).is_err());
        assert!(read(pid, u64::MAX, &mut out).is_err());
    }
}
