//! The bytes of messages while they travel: borrowed by who waits for them, or given away.
//!
//! Used by `mail` only. What is given away may be of any type, and its `AsRef` or `AsMut` is the caller's
//! code: it may panic, take long, or use the mailbox. So it is asked for its bytes once, by the thread that
//! gives it away and before any lock; from then on the queues work on the bytes alone, and runs nobody's
//! code.

#![allow(unsafe_code, reason = "buffers that another thread fills")]

use std::any::Any;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The bytes of one operation.
pub(super) struct MailBuffer {
    start: *mut u8,
    len: usize,
    /// What the bytes are of, unless they are those of a thread that is inside a blocking call.
    owner: Option<GivenValue>,
}

// SAFETY: the bytes are used under the lock of the queues. Those that are borrowed are used by other threads
// of the rank only while the one who lent them is inside the call that borrowed them.
unsafe impl Send for MailBuffer {}

/// What was given away, where it stays until it is taken back or dropped. A pointer, because a `Box` that is
/// moved claims that nobody else points into it.
struct GivenValue(NonNull<dyn Any + Send>);

impl GivenValue {
    /// Puts `value` down, and says where it is.
    fn new<B: Send + 'static>(value: B) -> (Self, NonNull<B>) {
        // SAFETY: a box is not null.
        let place = unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(value))) };
        (Self(place), place)
    }

    fn into_box(self) -> Box<dyn Any + Send> {
        let this = ManuallyDrop::new(self);
        // SAFETY: made of a box, and not dropped any more.
        unsafe { Box::from_raw(this.0.as_ptr()) }
    }
}

impl Drop for GivenValue {
    fn drop(&mut self) {
        // SAFETY: made of a box, and dropped once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl MailBuffer {
    /// No bytes.
    pub(super) fn none() -> Self {
        Self { start: NonNull::dangling().as_ptr(), len: 0, owner: None }
    }

    /// What is to be sent. Asks `value` for its bytes.
    pub(super) fn outbound<B: AsRef<[u8]> + Send + 'static>(value: B) -> Self {
        let (owner, place) = GivenValue::new(value);
        // SAFETY: the value lies there until `owner` goes, and nobody else uses it: the borrow lasts as long.
        let bytes = unsafe { place.as_ref() }.as_ref();
        Self { start: bytes.as_ptr().cast_mut(), len: bytes.len(), owner: Some(owner) }
    }

    /// Where what comes is to be put. Asks `value` for its bytes.
    pub(super) fn inbound<B: AsMut<[u8]> + Send + 'static>(value: B) -> Self {
        let (owner, mut place) = GivenValue::new(value);
        // SAFETY: as above.
        let bytes = unsafe { place.as_mut() }.as_mut();
        Self { start: bytes.as_mut_ptr(), len: bytes.len(), owner: Some(owner) }
    }

    /// # Safety
    /// The value is gone, or its bytes are never used again, when the borrow of `bytes` ends. It is only
    /// read.
    pub(super) unsafe fn of(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr().cast_mut(), len: bytes.len(), owner: None }
    }

    /// # Safety
    /// As for [`MailBuffer::of`]; nobody else uses the bytes meanwhile.
    pub(super) unsafe fn of_mut(bytes: &mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len(), owner: None }
    }

    /// What is sent.
    pub(super) fn read(&self) -> &[u8] {
        // SAFETY: borrowed from the owner for as long as that is here, or valid by the duty of `of`.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Where what comes is put: only of what is [`MailBuffer::inbound`] or [`MailBuffer::of_mut`].
    pub(super) fn write(&mut self) -> &mut [u8] {
        // SAFETY: borrowed from the owner for writing, or valid and this value's alone by the duty of
        // `of_mut`.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// What was given away, if it was that.
    pub(super) fn take_back<B: 'static>(self) -> Option<B> {
        self.owner?.into_box().downcast::<B>().ok().map(|value| *value)
    }
}
