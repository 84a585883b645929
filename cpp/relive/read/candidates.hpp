// Candidates of a draw that does not take every item it meets: it has a condition (rule G10), or has none twice (G11).
//
// Some of them go together, a wave: they are aimed as far as groups of leaves, then looked at, then tested, and while
// memory brings what the next step of one wave needs the other waves are at work.
//
// Owner:   a wave lives for one call, on the stack. Locking: none; never under the table lock where a condition is asked.
// Cost:    about 20 ns a candidate whose memory is warm.
#pragma once

#include <optional>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/read/draw.hpp"
#include "relive/read/ranked.hpp"
#include "relive/read/where.hpp"

namespace relive {

inline constexpr size_t kWave = 64;

// What is known of an item before it is somebody's row: a Window is four times as large.
struct Candidate {
  uint64_t slot, word;
  double mass;
  bool is_there;
};

// None of what it is made of has a value of its own: a draw does not pay for what it does not use.
struct Wave {
  size_t num_points = 0;
  size_t num_items = 0;  // that they led to, in the same order
  double points[kWave];
  uint64_t drawn[kWave];
  Chosen places[kWave];  // of an index that is drawn from by ranks
  Candidate items[kWave];
  Subject subjects[kWave];
  bool passes[kWave];
};

class CandidateFilter final {
 public:
  // where: null where every item passes. total: of the masses; of an index drawn from by ranks it is not looked at.
  CandidateFilter(const Region& r, const DrawRequest& request, const Where* where, DrawScratch* scratch, double total);

  const Leaves& leaves() const { return leaves_; }
  double total() const { return total_; }
  const DrawRequest& request() const { return request_; }
  const RankedDraw& ranked() const { return *ranked_; }
  uint64_t num_leaves() const { return map_.num_leaves; }
  bool has_condition() const { return where_ != nullptr; }

  // Points number first, first + 1, ... of this draw, independent over the whole total.
  void aim(const CounterRng& rng, uint64_t first, size_t count, Wave* wave) const;
  void look(Wave* wave) const;
  // The same of leaves that are chosen already: wave->drawn, or wave->places.
  void look_at_chosen(Wave* wave) const;
  // The next of the best items from best[*at] on, but for those in `taken`, which is sorted.
  void look_in_order(const std::vector<uint64_t>& taken, size_t* at, const std::vector<Leaves::Node>& best,
                     Wave* wave) const;
  // One item more of the wave; what the condition reads of it is asked for.
  void add(uint64_t slot, uint64_t word, double mass, Wave* wave) const;
  void test(Wave* wave) const;
  // An item that passed, as what a row of the batch is of.
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
