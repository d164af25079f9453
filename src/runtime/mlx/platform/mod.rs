//! How memory that MLX did not allocate becomes one of its arrays, without a copy.

#[cfg_attr(target_os = "linux", path = "linux.rs")]
#[cfg_attr(target_os = "macos", path = "macos.rs")]
mod system;

use std::{any::Any, ffi::c_void, sync::Arc};

pub(super) use system::{ARITHMETIC, COMPUTE_DTYPE, adopt};

/// Keeps memory alive while arrays lie over it. MLX may drop it on any thread.
pub(super) type Owner = Arc<dyn Any + Send + Sync>;

/// An owner as MLX carries it.
fn into_payload(owner: Owner) -> *mut c_void {
    Box::into_raw(Box::new(owner)).cast()
}

/// What MLX calls with the payload, once.
unsafe extern "C" fn release(payload: *mut c_void) {
    // SAFETY: MLX gives back what `into_payload` made, once.
    drop(unsafe { Box::from_raw(payload.cast::<Owner>()) });
}
