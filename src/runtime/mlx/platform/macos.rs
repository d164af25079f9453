//! MLX on Metal: foreign memory becomes a buffer of the GPU where it starts and ends with a page. Where Metal
//! refuses, MLX copies, which whoever looks at the array's address sees.

use std::ptr::NonNull;

use blockwire::pool::Dtype;
use mlx_rs::Array;
use mlx_sys::mlx_array_new_data_managed_payload;

use super::{Owner, into_payload, release};

/// What the checkpoint has.
pub(crate) const COMPUTE_DTYPE: Option<Dtype> = None;

/// Name and version of the arithmetic: caches of other ones differ in their last bits.
pub(crate) const ARITHMETIC: &str = "mlx-metal/1";

/// A row of `elements` elements that lie at `memory`; none where MLX has no memory for it.
///
/// # Safety
/// The elements are mapped while `owner` lives, and aligned; nobody writes to what a graph reads
/// while it is evaluated, and nobody reads or writes what it writes. Where they are mapped for reads
/// only, no graph writes to them.
pub(crate) unsafe fn adopt(
    memory: NonNull<u8>,
    elements: i32,
    dtype: mlx_rs::Dtype,
    owner: Owner,
) -> Option<Array> {
    let payload = into_payload(owner);
    let (memory, dtype) = (memory.as_ptr().cast(), dtype.into());
    // SAFETY: the shape has one dimension. The caller vouches for the memory, and the owner goes along;
    // it may be released on any thread, as it is `Send` and `Sync`. Where MLX copies it releases at once;
    // where it fails it may not, and then the memory stays mapped.
    let array = unsafe {
        mlx_array_new_data_managed_payload(memory, &elements, 1, dtype, payload, Some(release))
    };
    // SAFETY: a new array that nobody else owns.
    (!array.ctx.is_null()).then(|| unsafe { Array::from_ptr(array) })
}
