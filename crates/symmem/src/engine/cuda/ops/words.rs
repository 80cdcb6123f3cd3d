//! Single words in the order of a stream: memset32 and stream_write_value32, with PyTorch's checks in
//! PyTorch's order.

#![allow(unsafe_code, reason = "kernel launches on device memory")]

use cudarc::driver::sys;

use crate::cuda::driver::check;
use crate::cuda::{DeviceSliceMut, Stream, queues};
use crate::engine::cuda::Region;
use crate::operation::Op;
use crate::{Error, Result};

/// Ranges as PyTorch's callers give them: numbers of any sign.
#[derive(Clone, Copy, Debug)]
struct WordRange {
    op: &'static str,
    len: usize,
    offset: i64,
    value: i64,
}

impl WordRange {
    fn wrong(&self, problem: String) -> Error {
        Error::invalid(self.op, problem)
    }

    fn check_offset(&self) -> Result<()> {
        if self.offset >= 0 {
            return Ok(());
        }
        Err(self.wrong(format!("offset must be greater than or equal to 0, not {}", self.offset)))
    }

    fn check_value(&self) -> Result<u32> {
        let wrong =
            |_| self.wrong(format!("val must be in the range of [0, 4294967295], not {}", self.value));
        u32::try_from(self.value).map_err(wrong)
    }

    /// The words of a memset: first one, value, number.
    fn many(&self, count: i64) -> Result<(usize, u32, usize)> {
        self.check_offset()?;
        if count <= 0 {
            return Err(self.wrong(format!("count must be a positive integer, not {count}")));
        }
        let value = self.check_value()?;
        let (offset, count) = (self.offset as u64, count as u64);
        if offset.checked_add(count).is_none_or(|end| end > self.len as u64) {
            let len = self.len;
            return Err(self.wrong(format!(
                "offset + count ({offset} + {count}) exceeded the numel of the input ({len})"
            )));
        }
        Ok((offset as usize, value, count as usize))
    }

    /// The word of a write: which one, and its value.
    fn one(&self) -> Result<(usize, u32)> {
        self.check_offset()?;
        let value = self.check_value()?;
        if self.offset as u64 >= self.len as u64 {
            let (offset, len) = (self.offset, self.len);
            return Err(self.wrong(format!("offset ({offset}) exceeded the numel of the input ({len})")));
        }
        Ok((self.offset as usize, value))
    }
}

impl DeviceSliceMut<'_, u32> {
    /// In the order of `stream`: sets `count` words from `offset` on to `value`. Can be captured.
    pub fn memset32(&mut self, offset: i64, value: i64, count: i64, stream: &Stream) -> Result<()> {
        let words = WordRange { op: "memset32", len: self.len(), offset, value };
        let (offset, value, count) = words.many(count)?;
        stream.check_memory(self.device())?;
        stream.keep_if_captured(&[self.place().owner])?;
        set(self.device_ptr() + offset as u64 * 4, value, count, stream)
    }

    /// In the order of `stream`: writes `value` to word `offset`, after a fence for the whole system. Cannot
    /// be captured; use [`DeviceSliceMut::memset32`] for that.
    pub fn stream_write_value32(&mut self, offset: i64, value: i64, stream: &Stream) -> Result<()> {
        let words = WordRange { op: "stream_write_value32", len: self.len(), offset, value };
        let (offset, value) = words.one()?;
        stream.check_memory(self.device())?;
        write(self.device_ptr() + offset as u64 * 4, value, stream)
    }
}

impl Region {
    /// In the order of `stream`: sets `count` words of this rank's memory from `offset` on to `value`. Can be
    /// captured.
    pub(crate) fn memset32(&self, offset: i64, value: i64, count: i64, stream: &Stream) -> Result<()> {
        let words = WordRange { op: "memset32", len: self.bytes / size_of::<u32>(), offset, value };
        let (offset, value, count) = words.many(count)?;
        let address = self.own_address() + offset as u64 * 4;
        self.engine.check(Op::Copy, None, stream)?;
        self.engine.beside(stream, &[self.owner(), None, None], |_| set(address, value, count, stream))
    }

    /// In the order of `stream`: writes `value` to word `offset` of this rank's memory, after a fence for the
    /// whole system. Cannot be captured.
    pub(crate) fn stream_write_value32(&self, offset: i64, value: i64, stream: &Stream) -> Result<()> {
        let words =
            WordRange { op: "stream_write_value32", len: self.bytes / size_of::<u32>(), offset, value };
        let (offset, value) = words.one()?;
        let address = self.own_address() + offset as u64 * 4;
        self.engine.check(Op::Copy, None, stream)?;
        self.engine.beside(stream, &[self.owner(), None, None], |_| write(address, value, stream))
    }
}

fn set(address: u64, value: u32, count: usize, stream: &Stream) -> Result<()> {
    let _bound = stream.device().bind()?;
    let _turn = queues::turn();
    // SAFETY: words of a live slice, as the callers checked; who made the slice keeps it mapped.
    check("cuMemsetD32Async", unsafe { sys::cuMemsetD32Async(address, value, count, stream.raw()) })
}

fn write(address: u64, value: u32, stream: &Stream) -> Result<()> {
    let _bound = stream.device().bind()?;
    if stream.capture_id()?.is_some() {
        return Err(Error::invalid(
            "stream_write_value32",
            "it cannot be captured into a graph. Hint: memset32 with a count of 1 can",
        ));
    }
    let _turn = queues::turn();
    // SAFETY: a word of a live slice, as the callers checked; flags 0: fenced.
    check("cuStreamWriteValue32", unsafe { sys::cuStreamWriteValue32_v2(stream.raw(), address, value, 0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(offset: i64, value: i64) -> WordRange {
        WordRange { op: "memset32", len: 100, offset, value }
    }

    #[test]
    fn the_first_wrong_argument_is_told() {
        let told = |words: WordRange, count: i64, text: &str| {
            let error = words.many(count).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        };
        told(words(-1, -1), 0, "offset must be greater than or equal to 0");
        told(words(0, -1), 0, "count must be a positive integer");
        told(words(0, 1), -1, "count must be a positive integer");
        told(words(0, -1), 1, "val must be in the range of");
        told(words(0, 1 << 32), 1, "val must be in the range of");
        told(words(0, 1), 101, "exceeded the numel of the input");
        told(words(100, 1), 1, "exceeded the numel of the input");
        told(words(i64::MAX, 1), i64::MAX, "exceeded the numel of the input");
        assert_eq!(words(0, 0xffff_ffff).many(100).unwrap(), (0, u32::MAX, 100));
        assert_eq!(words(99, 0).many(1).unwrap(), (99, 0, 1));
    }

    #[test]
    fn one_word_is_checked_the_same_way() {
        assert!(words(-1, 1 << 32).one().unwrap_err().to_string().contains("offset"));
        assert!(words(0, 1 << 32).one().unwrap_err().to_string().contains("val must be"));
        assert!(words(100, 1).one().unwrap_err().to_string().contains("numel"));
        assert_eq!(words(99, 7).one().unwrap(), (99, 7));
    }
}
