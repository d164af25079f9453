// Comes before every header and source of mlx-c. mlx-c declares its accessors of 16-bit floats on 64-bit ARM
// only, while mlx-rs calls them everywhere, and it calls std::format, which GCC has from version 13 on.
#pragma once
#define HAS_FLOAT16
#define HAS_BFLOAT16
#ifdef __cplusplus
#include <mlx/types/half_types.h>
using mlx::core::bfloat16_t;
using mlx::core::float16_t;
#if !__has_include(<format>)
#include <sstream>
#include <string>
#include <string_view>
namespace std {
// Enough of it for patterns whose only fields are "{}".
template <class... Args>
string format(string_view pattern, const Args&... args) {
  ostringstream out;
  auto next = [&](const auto& value) {
    auto field = pattern.find("{}");
    out << pattern.substr(0, field) << value;
    pattern.remove_prefix(field == string_view::npos ? pattern.size() : field + 2);
  };
  (next(args), ...);
  out << pattern;
  return out.str();
}
} // namespace std
#endif
#else
typedef __fp16 float16_t;
typedef unsigned short bfloat16_t;
#endif
