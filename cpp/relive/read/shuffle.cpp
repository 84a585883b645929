#include "relive/read/shuffle.hpp"

#include <algorithm>
#include <bit>

#include "relive/index/leaves.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr uint64_t kShuffles = ~uint64_t{2};  // a stream of random numbers that no participant uses
constexpr uint32_t kRounds = 8;               // of the network: few leaves need more rounds than many
constexpr uint64_t kLooksARound = 16384;      // between two checks of the caller's deadline and signals

// Takes the next `count` positions for this draw by one atomic addition, without a lock (rule O1). Returns the first.
uint64_t claim_positions(std::atomic<uint64_t>& taken, uint64_t count) {
  if (RELIVE_RULE(O1_one_step)) return taken.fetch_add(count, std::memory_order_relaxed);
  const uint64_t first = taken.load(std::memory_order_relaxed);
  RELIVE_FAIL_POINT(shuffle_claimed);
  taken.store(first + count, std::memory_order_relaxed);
  return first;
}

}  // namespace

Permutation::Permutation(uint64_t seed, uint32_t index, uint64_t epoch, uint64_t count)
    : rng_(seed, kShuffles, index, epoch), count_(count) {
  const auto bits = std::max(2u, static_cast<uint32_t>(std::bit_width(count - 1)));
  low_ = bits / 2;
  high_ = bits - low_;
}

// Halves of different width change places in each round; after an even number of rounds each has its own width again.
uint64_t Permutation::once(uint64_t place) const {
  uint32_t right_bits = low_, left_bits = high_;
  uint64_t right = place & ((uint64_t{1} << low_) - 1), left = place >> low_;
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t mixed = rng_.bits(round << 48 | right) >> (64 - left_bits);
    const uint64_t next = left ^ mixed;
    left = right;
    right = next;
    std::swap(left_bits, right_bits);
  }
  return left << low_ | right;
}

uint64_t Permutation::at(uint64_t place) const {
  do place = once(place);
  while (place >= count_);
  return place;
}

Positions positions_of(const DrawScratch& scratch) {
  return scratch.is_one_run ? Positions{scratch.first_visit, scratch.end_visit} : Positions{};
}

void return_positions(const Region& r, uint32_t index, const Positions& positions) {
  if (positions.first == positions.end) return;
  uint64_t end = positions.end;
  r.visited[index]->compare_exchange_strong(end, positions.first, std::memory_order_relaxed);
}

void take_positions(const Region& r, uint32_t index, DrawScratch* scratch, double none) {
  const Leaves leaves(r, index);
  const size_t count = scratch->missing.size();
  const uint64_t num_leaves = r.map(index).num_leaves;
  std::vector<uint64_t>& shuffled = scratch->shuffled;
  shuffled.resize(std::max(shuffled.size(), scratch->windows.size()));
  size_t found = 0;
  // An item whose window changed during the read keeps its position: the row reads the same leaf again (rule O2).
  std::vector<uint32_t>& rows = scratch->missing;
  for (size_t k = 0; k < count; ++k) {
    const uint64_t before = shuffled[rows[k]];
    if (before == 0 || !leaves.has_mass(before - 1) || !RELIVE_RULE(O2_same_slot)) continue;
    std::swap(rows[k], rows[found++]);
  }
  for (size_t k = 0; k < found; ++k) {
    scratch->drawn[k] = shuffled[rows[k]] - 1;
    scratch->points[k] = 0.0;
  }
  for (uint64_t looks = 0; found < count && looks < kLooksARound && leaves.has_any();) {
    const uint64_t some = count - found;
    uint64_t position = claim_positions(*r.visited[index], some);
    RELIVE_FAIL_POINT(shuffle_claimed);
    if (scratch->first_visit == scratch->end_visit) scratch->first_visit = scratch->end_visit = position;
    scratch->is_one_run &= scratch->end_visit == position;
    scratch->end_visit = position + some;
    for (const uint64_t end = position + some; position < end;) {
      const Permutation order(r.geometry->seed, index, position / num_leaves, num_leaves);
      const uint64_t last = std::min(end, (position / num_leaves + 1) * num_leaves);
      for (; position < last; ++position) {
        const uint64_t slot = order.at(position % num_leaves);
        if (!leaves.has_mass(slot)) continue;
        shuffled[rows[found]] = slot + 1;
        scratch->drawn[found] = slot;
        scratch->points[found++] = 0.0;
      }
    }
    looks += some;
  }
  scratch->looks.num_unfilled = count - found;
  for (size_t k = found; k < count; ++k) {
    shuffled[rows[k]] = 0;
    scratch->drawn[k] = 0;
    scratch->points[k] = none;
  }
}

}  // namespace relive
