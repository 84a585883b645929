// Copies of row bytes that a writer may overwrite at the same time: the reader looks at the page's word again
// afterwards.
//
// Locking: none. gcc's ThreadSanitizer ignores fences, so in its build the row bytes are read unobserved, and the
//          checks of generations are observed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#ifdef RELIVE_TSAN
#define RELIVE_ROW_COPY __attribute__((no_sanitize("thread"), noinline)) inline
#else
#define RELIVE_ROW_COPY inline
#endif

namespace relive {

RELIVE_ROW_COPY void copy_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
#ifdef RELIVE_TSAN
  for (size_t i = 0; i < num_bytes; ++i) to[i] = from[i];
#else
  std::memcpy(to, from, num_bytes);
#endif
}

RELIVE_ROW_COPY uint32_t load_head(const std::byte* record) {
  uint32_t head;
  copy_bytes(reinterpret_cast<std::byte*>(&head), record, sizeof head);
  return head;
}

}  // namespace relive
