// Rows as windows see them, and copying their bytes. Shared by resolve.cpp and gather.cpp.
#pragma once

#include <cstring>

#include "relive/gather.hpp"

// gcc's ThreadSanitizer ignores fences: row bytes are copied outside its sight there, the generation checks stay in it.
#ifdef RELIVE_TSAN
#define RELIVE_ROW_COPY __attribute__((no_sanitize("thread"), noinline)) inline
#else
#define RELIVE_ROW_COPY inline
#endif

namespace relive {

// A row seen from a window: frame and row inside it. Rows before the page lie in the page before, rows after it in
// the next one; a window never reaches further (page_len >= history + n_step).
struct Row {
  const std::byte* base;
  uint32_t offset;
};

inline Row row_at(const Window& w, int32_t offset, uint32_t page_len) {
  if (offset < 0) return {w.prev_base, static_cast<uint32_t>(offset + static_cast<int32_t>(page_len))};
  if (static_cast<uint32_t>(offset) < page_len) return {w.base, static_cast<uint32_t>(offset)};
  return {w.next_base, static_cast<uint32_t>(offset) - page_len};
}

RELIVE_ROW_COPY void copy_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
#ifdef RELIVE_TSAN
  for (size_t i = 0; i < num_bytes; ++i) to[i] = from[i];
#else
  std::memcpy(to, from, num_bytes);
#endif
}

// A size that stays the same over a batch: kWords whole words, the last one overlapping the one before it.
template <size_t kWord, size_t kWords>
RELIVE_ROW_COPY void copy_words(std::byte* to, const std::byte* from, size_t num_bytes) {
  for (size_t word = 0; word + 1 < kWords; ++word) copy_bytes(to + word * kWord, from + word * kWord, kWord);
  copy_bytes(to + num_bytes - kWord, from + num_bytes - kWord, kWord);
}

RELIVE_ROW_COPY RecordHeader load_header(const std::byte* base, uint64_t stride, uint32_t offset) {
  RecordHeader header;
  copy_bytes(reinterpret_cast<std::byte*>(&header), base + offset * stride, sizeof header);
  return header;
}

}  // namespace relive
