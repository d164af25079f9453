//! A slice whose cells several threads fill, each its own.

use std::{marker::PhantomData, ops::Range};

/// A mutable slice, lent to many threads that promise to touch different cells.
#[derive(Debug)]
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: the only way to the cells is `range`, whose caller promises that no other thread uses them;
// what moves between threads is then a `T`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}
// SAFETY: as a `&mut [T]`, which is `Send` when `T` is.
unsafe impl<T: Send> Send for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Lends a slice out.
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The cells of a range.
    ///
    /// # Panics
    /// When the range is not inside the slice.
    ///
    /// # Safety
    /// While the result lives, nobody else uses a cell of the range.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the caller promises that ranges in use are disjoint")]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "cells {range:?}");
        // SAFETY: the range lies inside the slice that is borrowed for `'a`, as just checked; the
        // caller promises exclusive use.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }
}
