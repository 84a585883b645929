// Candidates of a draw that rejects some items: it has a condition (rule G10), or draws without replacement (rule G11).
// Candidates pass in waves through three steps: aim (points to groups of leaves), look (leaves), test (the condition).
// While memory loads the data for the next step of one wave, the other waves work.
//
// Owns:    a Wave lives on the stack of one call; a CandidateFilter refers to the scratch of its thread.
// Locking: none. With a condition, the functions never run under the table lock.
// Cost:    about 20 ns for each candidate whose memory is in the cache.
#pragma once

#include <optional>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/read/draw.hpp"
#include "relive/read/ranked.hpp"
#include "relive/read/where.hpp"

namespace relive {

inline constexpr size_t kWave = 64;

// An item before it belongs to a row of the batch; a Window is four times as large.
struct Candidate {
  uint64_t slot, word;
  double mass;
  bool is_there;
};

// The members have no initial values, so a draw does not pay for the arrays that it does not use.
struct Wave {
  size_t num_points = 0;
  size_t num_items = 0;  // items that the points found, in the same order
  double points[kWave];
  uint64_t drawn[kWave];
  Chosen places[kWave];  // for an index that draws by rank
  Candidate items[kWave];
  Subject subjects[kWave];
  bool passes[kWave];
};

class CandidateFilter final {
 public:
  // where: null if every item passes. total: the sum of masses; not used by an index that draws by rank.
  CandidateFilter(const Region& r, const DrawRequest& request, const Where* where, DrawScratch* scratch, double total);

  const Leaves& leaves() const { return leaves_; }
  double total() const { return total_; }
  const DrawRequest& request() const { return request_; }
  const RankedDraw& ranked() const { return *ranked_; }
  uint64_t num_leaves() const { return map_.num_leaves; }
  bool has_condition() const { return where_ != nullptr; }

  // Generates points number first, first + 1, ... of this draw, independent over the whole total.
  void aim(const CounterRng& rng, uint64_t first, size_t count, Wave* wave) const;
  void look(Wave* wave) const;
  // The same for leaves that were chosen before: wave->drawn, or wave->places.
  void look_at_chosen(Wave* wave) const;
  // Fills the wave with the next of the best items, from best[*at] on, without those in `taken`, which is sorted.
  void look_in_order(const std::vector<uint64_t>& taken, size_t* at, const std::vector<Leaves::Node>& best,
                     Wave* wave) const;
  // Adds an item to the wave, and prefetches the values that the condition reads.
  void add(uint64_t slot, uint64_t word, double mass, Wave* wave) const;
  void test(Wave* wave) const;
  // Stores an item that passed as the item of a row of the batch.
  void keep(const Candidate& one, uint32_t row, double probability, DrawScratch* scratch) const;

 private:
  void measure(Wave* wave) const;

  const Region& r_;
  const DrawRequest& request_;
  const Where* const where_;
  const Leaves leaves_;
  const ItemMap map_;
  Runs* const runs_;
  double total_;
  std::optional<RankedDraw> ranked_;
};

}  // namespace relive
