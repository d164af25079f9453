// An MLX array over memory that MLX did not allocate.
//
// MLX's own call for that copies on the CPU backend, whose allocator knows its own buffers only. So the array
// gets a small buffer of that allocator, and an offset that leads from there to the memory: MLX adds the
// two, and never looks at what lies between.
#include <mlx/c/array.h>
#include <mlx/mlx.h>

namespace mx = mlx::core;

namespace {

bool find(mlx_dtype type, mx::Dtype& found) {
  switch (type) {
    case MLX_FLOAT16:
      found = mx::float16;
      return true;
    case MLX_BFLOAT16:
      found = mx::bfloat16;
      return true;
    case MLX_FLOAT32:
      found = mx::float32;
      return true;
    default:
      return false;
  }
}

} // namespace

// Row-major memory of `dims` dimensions as an array that has been evaluated. MLX calls `release` with
// `owner` once, when the last array that shares the memory is gone. Where it gives an array without a
// context, there is none, and `release` is not called.
extern "C" mlx_array blockwire_mlx_adopt(
    void* memory,
    const int* shape,
    int dims,
    mlx_dtype type,
    void* owner,
    void (*release)(void*)) {
  mx::Dtype dtype = mx::float32;
  if (!find(type, dtype)) {
    return mlx_array{nullptr};
  }
  try {
    auto anchor = mx::allocator::malloc(sizeof(size_t));
    auto offset = static_cast<char*>(memory) - static_cast<char*>(anchor.raw_ptr());
    auto array = new mx::array(anchor, mx::Shape(shape, shape + dims), dtype, [](auto) {});
    array->set_data(
        anchor, array->size(), array->strides(), array->flags(), offset, [owner, release](auto buffer) {
          mx::allocator::free(buffer);
          release(owner);
        });
    return mlx_array{array};
  } catch (...) {
    return mlx_array{nullptr};
  }
}
