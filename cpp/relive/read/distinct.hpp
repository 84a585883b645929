// Draws without replacement: a batch has no item twice (rule G11). The draw takes one item after another, each in
// proportion to its share of the mass that is not in the batch yet: points are independent over the whole total, and a
// point that falls on an item of the batch is drawn again. If the rest is too small a part of the total for points, a
// race ends the draw: each leaf runs for an exponential time with its mass as the rate, and the first leaves are the
// rest of the batch.
//
// Owns:    the scratch of a thread owns its BatchSlots.
// Locking: none; each chosen item is checked again (rule G2).
// Cost:    one look for each point; the race takes 4 ns a leaf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "relive/words/limiter.hpp"
#include "relive/words/region.hpp"

namespace relive {

class CounterRng;
struct DrawScratch;
class CandidateFilter;

inline bool is_distinct(const Region& r, uint32_t index) {
  return (r.header->indexes[index].traits & kIsDistinct) != 0;
}
// The most items that a batch of this index may request under a limiter, and the bound as words. A larger request could
// wait for ever.
struct MostDistinct {
  uint64_t num_items;
  const char* bound;
};
MostDistinct most_distinct(const Region& r, uint32_t index, const LimiterConfig& limiter);

// A set of the slots of the items that a batch has.
class BatchSlots final {
 public:
  void begin(size_t num_items);
  bool has(uint64_t slot) const;
  bool add(uint64_t slot);  // false: the slot was in the set

 private:
  size_t place_of(uint64_t slot) const;

  std::vector<uint64_t> slots_;  // slot + 1, in a hash table with linear probing; 0: empty
};

// The number of looks that one draw makes before the race; 0 for a large batch.
uint64_t looks_before_race(const Region& r, uint32_t index, size_t num_items);

// Finds an item that scratch->has does not contain for each of rows[*found ..), however small its mass is. Sets
// scratch->looks.is_short if there are too few such items.
void race(const CandidateFilter& filter, const CounterRng& rng, const std::vector<uint32_t>& rows, size_t* found,
          DrawScratch* scratch);

}  // namespace relive
