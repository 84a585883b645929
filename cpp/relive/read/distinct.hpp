// Draws without replacement: no item twice in a batch (rule G11).
//
// One item after another, each in proportion to its share of what the batch does not have yet: independent points over
// the whole total, of which those that fall on what it has are drawn anew. Where the rest is too little of the total for
// points to find, a race over all leaves ends it: of exponential times, each with its leaf's mass for a rate, the first
// ones to come are such a draw.
//
// Owner:   BatchSlots belongs to a thread's scratch. Locking: none; what is chosen is looked at again (rule G2).
// Cost:    a look a point; the race 4 ns a leaf.
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
// Items that a batch of this index may ask for under a limiter, and what bounds them: a larger one could wait for ever.
struct MostDistinct {
  uint64_t num_items;
  const char* bound;
};
MostDistinct most_distinct(const Region& r, uint32_t index, const LimiterConfig& limiter);

// The slots of the items that a batch has.
class BatchSlots final {
 public:
  void begin(size_t num_items);
  bool has(uint64_t slot) const;
  bool add(uint64_t slot);  // false: it was there

 private:
  size_t place_of(uint64_t slot) const;

  std::vector<uint64_t> slots_;  // slot + 1, from a place that follows from it on; 0: none
};

// So many looks of one draw are made before the race; none for a batch that is large.
uint64_t looks_before_race(const Region& r, uint32_t index, size_t num_items);

// An item for each of rows[*found ..) of what scratch->has has not; scratch->looks.is_short where there are not so many.
// However little of the total an item is, it is found.
void race(const CandidateFilter& filter, const CounterRng& rng, const std::vector<uint32_t>& rows, size_t* found,
          DrawScratch* scratch);

}  // namespace relive
