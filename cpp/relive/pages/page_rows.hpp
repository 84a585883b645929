// Questions about the rows of a page that many files ask: which rows exist, and which steps were deleted.
//
// Owns:    nothing.
// Locking: under the table lock. The owner of a lane may ask about its open page at any time.
// Cost:    O(1); is_removed O(indexes).
#pragma once

#include "relive/index/leaves.hpp"

namespace relive {

inline Range range_of(const Region& r, uint64_t page) {
  return Range::unpack(r.pages[page].range.load(std::memory_order_relaxed));
}

// Whether a step was deleted: the step is no item any more, but windows of its neighbours may still contain its row.
inline bool is_removed(const Region& r, uint64_t slot) {
  for (const uint32_t i : r.row_indexes())
    if (Leaves(r, i).state(slot) == kStateRemoved) return true;
  return false;
}

}  // namespace relive
