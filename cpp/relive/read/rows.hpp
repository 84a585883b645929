// Copies the bytes of rows and follows links between pages. Used by resolve.cpp, gather.cpp and records.cpp.
//
// Owns:    nothing.
// Locking: none; the caller checks the words again (rule G4).
// Cost:    the bytes at the speed of memory.
#pragma once

#include <algorithm>
#include <cstring>

#if defined(__AVX__)
#include <immintrin.h>
#endif

#include "relive/read/gather.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {

// Copies cells of a size that is constant over a batch: kWords whole words, of which the last overlaps the one before.
// kWords 0: any size.
template <size_t kWord, size_t kWords>
struct CellCopy {
  size_t num_bytes;

  RELIVE_ROW_COPY void operator()(std::byte* to, const std::byte* from) const {
    if constexpr (kWords == 0) return copy_bytes(to, from, num_bytes);
    for (size_t word = 0; word + 1 < kWords; ++word) copy_bytes(to + word * kWord, from + word * kWord, kWord);
    const size_t last = kWords > 1 ? num_bytes - kWord : 0;
    if constexpr (kWords > 0) copy_bytes(to + last, from + last, kWord);
  }
};

// Calls run(copy): copy(to, from) copies num_bytes bytes, by the instructions that suit this size.
template <class Run>
void with_copy(size_t num_bytes, Run&& run) {
  if (num_bytes == 1) return run(CellCopy<1, 1>{num_bytes});
  if (num_bytes == 4) return run(CellCopy<4, 1>{num_bytes});
  if (num_bytes == 8) return run(CellCopy<8, 1>{num_bytes});
  if (num_bytes > 4 && num_bytes < 8) return run(CellCopy<4, 2>{num_bytes});
  if (num_bytes > 8 && num_bytes < 16) return run(CellCopy<8, 2>{num_bytes});
  if (num_bytes >= 16 && num_bytes <= 32) return run(CellCopy<16, 2>{num_bytes});
  if (num_bytes > 32 && num_bytes <= 48) return run(CellCopy<16, 3>{num_bytes});
  if (num_bytes > 48 && num_bytes <= 64) return run(CellCopy<16, 4>{num_bytes});
  if (num_bytes > 64 && num_bytes <= 96) return run(CellCopy<32, 3>{num_bytes});
  if (num_bytes > 96 && num_bytes <= 128) return run(CellCopy<32, 4>{num_bytes});
  run(CellCopy<0, 0>{num_bytes});
}

// For batches that fit no cache: stores bypass the caches, which saves reading the overwritten lines (1.45 to 0.97 ms
// for 256 x 8 frames of 84 x 84). Call end_stream() before another thread learns of the bytes.
RELIVE_ROW_COPY void stream_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
#if defined(__AVX__) && !defined(RELIVE_TSAN)
  constexpr size_t kLine = 64, kAhead = 1024;
  const size_t head = std::min(num_bytes, -reinterpret_cast<uintptr_t>(to) & (kLine - 1));
  std::memcpy(to, from, head);
  size_t i = head;
  for (; i + kLine <= num_bytes; i += kLine) {
    __builtin_prefetch(from + i + kAhead);  // the processor's prefetcher stops at every 4 KiB
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  std::memcpy(to + i, from + i, num_bytes - i);
#else
  copy_bytes(to, from, num_bytes);
#endif
}

// Whether a column of a batch bypasses the caches.
inline bool is_streamed(const ColumnLayout& column, size_t item_bytes, size_t batch) {
  constexpr size_t kLeastRow = 2048;                // bytes: shorter rows are mostly partial lines
  constexpr size_t kLeastColumn = size_t{4} << 20;  // of a whole batch: more than caches keep for the reader
  return column.num_bytes >= kLeastRow && item_bytes * batch >= kLeastColumn;
}

inline void end_stream() {
#if defined(__AVX__) && !defined(RELIVE_TSAN)
  _mm_sfence();
#endif
}

// The page that a link names, as it is now. Returns false if the page is gone.
inline bool follow(const Region& r, const std::atomic<uint64_t>& link, Run* run) {
  const uint64_t ref = link.load(std::memory_order_acquire);
  if (ref == 0) return false;
  const uint64_t page = r.ref_page(ref);
  if (page >= r.geometry->num_pages) return false;
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word)) return false;
  if (RELIVE_RULE(A1_link_generation) && Region::generation_of(word) != r.ref_generation(ref)) return false;
  *run = {page, word, r.page_base(page)};
  return true;
}

}  // namespace relive
