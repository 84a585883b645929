// What is asked of the rows of a page all over: which are there, and which were deleted.
//
// Locking: under the table lock; of the page that a lane writes, its owner may ask at any time.
#pragma once

#include "relive/index/leaves.hpp"

namespace relive {

inline Range range_of(const Region& r, uint64_t page) {
  return Range::unpack(r.pages[page].range.load(std::memory_order_relaxed));
}

// Whether a step was deleted: no item begins at it any more, but windows of its neighbours may still hold it.
inline bool is_removed(const Region& r, uint64_t slot) {
  for (const uint32_t i : r.row_indexes())
    if (Leaves(r, i).state(slot) == kStateRemoved) return true;
  return false;
}

}  // namespace relive
