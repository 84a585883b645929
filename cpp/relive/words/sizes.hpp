// Products and sums of sizes that callers give: of a batch, of a window, of an item. A size beyond the address space is
// no memory (std::bad_alloc), as any other size that cannot be had. Without the check a product wraps round to a small
// number, and rows would be written past the end.
//
// Owner:   nothing. Locking: none; never called under the table lock.
// Cost:    one multiplication.
#pragma once

#include <cstdint>
#include <limits>
#include <new>

namespace relive {

inline uint64_t checked_product(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product) || product > uint64_t{std::numeric_limits<int64_t>::max()} / 4)
    throw std::bad_alloc();
  return product;
}

// Adds two checked sizes.
inline uint64_t checked_sum(uint64_t a, uint64_t b) { return checked_product(1, a + b); }

}  // namespace relive
