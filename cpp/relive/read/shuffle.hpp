// The draws of Shuffle: every leaf of an index once an epoch, in the order of a keyed permutation (rules O1, O2). A
// position is a number: position / number of leaves is its epoch, the remainder its place in the permutation of that
// epoch. A position without an item is skipped. The region stores only how many positions were taken; a process takes
// some by one atomic addition, and gives back the newest ones by one compare-and-exchange.
//
// Owns:    nothing.
// Locking: none.
// Cost:    some rounds of mixing and a cache miss for each leaf; for each item as many leaves as there are leaves to
//          one item.
#pragma once

#include <cstdint>

#include "relive/read/draw.hpp"
#include "relive/words/rng.hpp"

namespace relive {

// A permutation of the numbers below `count`: a Feistel network over the next power of two, applied until the result is
// below `count`.
class Permutation final {
 public:
  Permutation(uint64_t seed, uint32_t index, uint64_t epoch, uint64_t count);
  uint64_t at(uint64_t place) const;  // place: below `count`

 private:
  uint64_t once(uint64_t place) const;

  CounterRng rng_;
  uint64_t count_;
  uint32_t low_, high_;  // bits of the two halves
};

// Finds a leaf with an item for each row of scratch->missing, within the looks of one round: drawn[k] and points[k],
// which is `none` if no item was found yet. A row that found an item in an earlier round keeps that item while it is
// drawable.
void take_positions(const Region& r, uint32_t index, DrawScratch* scratch, double none);
// The positions that a draw took.
Positions positions_of(const DrawScratch& scratch);
// Gives back the positions of a draw, if no other draw has taken one after them. Else they are lost, as those of a dead
// process are (rule O1).
void return_positions(const Region& r, uint32_t index, const Positions& positions);

}  // namespace relive
