//! The bytes of messages while they travel: borrowed by who waits for them, or given away.

use std::any::Any;

/// Bytes that were given away, of any type.
pub(super) trait Bytes: Any + Send {
    /// Empty for what is only written.
    fn read(&self) -> &[u8];
    /// Empty for what is only read.
    fn write(&mut self) -> &mut [u8];
}

/// What is sent.
pub(super) struct Outbound<B>(pub(super) B);
/// Where what comes is put.
pub(super) struct Inbound<B>(pub(super) B);

impl<B: AsRef<[u8]> + Send + 'static> Bytes for Outbound<B> {
    fn read(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn write(&mut self) -> &mut [u8] {
        &mut []
    }
}

impl<B: AsMut<[u8]> + Send + 'static> Bytes for Inbound<B> {
    fn read(&self) -> &[u8] {
        &[]
    }

    fn write(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }
}

/// The bytes of one operation.
pub(super) enum Buffer {
    /// Those of a thread that is inside a blocking call.
    Borrowed(*mut u8, usize),
    Given(Box<dyn Bytes>),
}

// SAFETY: borrowed bytes are used by other threads of the rank only while the one who lent them is inside the call that
// borrowed them, and under the desk's lock.
unsafe impl Send for Buffer {}

impl Buffer {
    /// No bytes.
    pub(super) fn none() -> Self {
        Self::Given(Box::new(Outbound([])))
    }

    /// # Safety
    /// The value is gone, or its bytes are never used again, when the borrow of `bytes` ends. It is only read.
    pub(super) unsafe fn of(bytes: &[u8]) -> Self {
        Self::Borrowed(bytes.as_ptr().cast_mut(), bytes.len())
    }

    /// # Safety
    /// As for [`Buffer::of`]; nobody else uses the bytes meanwhile.
    pub(super) unsafe fn of_mut(bytes: &mut [u8]) -> Self {
        Self::Borrowed(bytes.as_mut_ptr(), bytes.len())
    }

    /// What is sent.
    pub(super) fn read(&self) -> &[u8] {
        match self {
            // SAFETY: valid by the duty of `of`.
            Self::Borrowed(start, len) => unsafe { std::slice::from_raw_parts(*start, *len) },
            Self::Given(bytes) => bytes.read(),
        }
    }

    /// Where what comes is put.
    pub(super) fn write(&mut self) -> &mut [u8] {
        match self {
            // SAFETY: valid and this value's alone by the duty of `of_mut`.
            Self::Borrowed(start, len) => unsafe { std::slice::from_raw_parts_mut(*start, *len) },
            Self::Given(bytes) => bytes.write(),
        }
    }

    /// What was given away, if it was that.
    pub(super) fn take_back<W: Bytes>(self) -> Option<W> {
        match self {
            Self::Borrowed(..) => None,
            Self::Given(bytes) => (bytes as Box<dyn Any>).downcast::<W>().ok().map(|bytes| *bytes),
        }
    }
}
