//! Where MLX computes: a stream that goes with its model from thread to thread.
//!
//! Each thread has a stream of its own by default, with a thread of MLX's behind it on the CPU. This one is
//! made with the model, so that nothing new appears at the first batch.

use mlx_sys::{mlx_device, mlx_stream};

/// A stream on the default device.
#[derive(Debug)]
pub(super) struct EngineStream(mlx_stream);

// SAFETY: the stream was made to be used on any thread, as long as there is one user at a time. The model is
// that, whose methods that compute take it exclusively.
unsafe impl Send for EngineStream {}

impl EngineStream {
    /// A new one.
    pub(super) fn new() -> Self {
        // SAFETY: the device is filled before it is used, and freed after it.
        unsafe {
            let mut device: mlx_device = mlx_sys::mlx_device_new();
            mlx_sys::mlx_get_default_device(&mut device);
            let stream = mlx_sys::mlx_stream_new_thread_unsafe(device);
            mlx_sys::mlx_device_free(device);
            Self(stream)
        }
    }

    /// Graphs that this thread builds from now on are computed there.
    pub(super) fn enter(&mut self) {
        // SAFETY: the stream is alive, and MLX keeps a copy of what it says.
        unsafe { mlx_sys::mlx_set_default_stream(self.0) };
    }
}

impl Drop for EngineStream {
    fn drop(&mut self) {
        // SAFETY: it is ours, and nobody has it any more.
        unsafe { mlx_sys::mlx_stream_free(self.0) };
    }
}
