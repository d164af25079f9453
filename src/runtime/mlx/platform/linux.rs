//! MLX's CPU backend. Its own call for foreign memory copies; `tools/mlx-linux/adopt.cpp` does not.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
    time::{SystemTime, UNIX_EPOCH},
};

use blockwire::pool::Dtype;
use mlx_rs::Array;
use mlx_sys::{mlx_array, mlx_dtype};

use super::{Owner, into_payload, release};

/// 16-bit floats are slow here, and their sums are rounded at each step.
pub(crate) const COMPUTE_DTYPE: Option<Dtype> = Some(Dtype::F32);

unsafe extern "C" {
    fn blockwire_mlx_adopt(
        memory: *mut c_void,
        shape: *const c_int,
        dims: c_int,
        dtype: mlx_dtype,
        owner: *mut c_void,
        release: unsafe extern "C" fn(*mut c_void),
    ) -> mlx_array;
}

/// Name and version of the arithmetic: caches of other ones differ in their last bits.
pub(crate) const ARITHMETIC: &str = "mlx-cpu/1";

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
    // it may be released on any thread, as it is `Send` and `Sync`.
    let array = unsafe { blockwire_mlx_adopt(memory, &elements, 1, dtype, payload, release) };
    if array.ctx.is_null() {
        // SAFETY: there is no array, and so nobody else who would.
        unsafe { release(payload) };
        return None;
    }
    // SAFETY: a new array that nobody else owns.
    Some(unsafe { Array::from_ptr(array) })
}

/// A clock of Darwin's, by which mlx-rs seeds random numbers. No other thing here defines it.
#[unsafe(no_mangle)]
extern "C" fn mach_approximate_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}
