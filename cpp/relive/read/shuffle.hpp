// Draws without replacement: every leaf of an index once an epoch, in the order of a keyed permutation (rules O1, O2).
//
// A turn is a number that only rises: turn / number of leaves is its epoch, the rest its place there. The permutation of
// the epoch says which leaf that is; where no item is there the turn is over. All that the region keeps is how many turns
// were taken: who takes some adds to it in one step, from whatever process.
//
// Locking: none. Cost: some rounds of mixing and a miss of memory a leaf, and as many leaves an item as there are to one.
#pragma once

#include <cstdint>

#include "relive/read/draw.hpp"
#include "relive/words/rng.hpp"

namespace relive {

// A permutation of the numbers below `count`: a Feistel network over the next power of two, walked until it is below.
class Permutation final {
 public:
  Permutation(uint64_t seed, uint32_t index, uint64_t epoch, uint64_t count);
  uint64_t at(uint64_t place) const;  // of a place below `count`

 private:
  uint64_t once(uint64_t place) const;

  CounterRng rng_;
  uint64_t count_;
  uint32_t low_, high_;  // bits of the two halves
};

// A leaf with an item for each row of scratch->missing, as far as the looks of one round go: drawn[k], and points[k], which
// is `none` where there is none yet. A row whose turn fell on an item in an earlier round has it again while it is there.
void take_positions(const Region& r, uint32_t index, DrawScratch* scratch, double none);

}  // namespace relive
