// Draws by the ranks of priorities: points to classes, classes to members. Among n items, rank i (0 is the best) has
// the weight of the sampler's law: (i + 1)^-exponent; or 1 for the k best items and 0 for all others. The items of a
// class (words/ranks.hpp) share the weight of the class's ranks equally:
//   p(item) = (sum(before + members) - sum(before)) / members / sum(n)
//
// Owns:    a RankedDraw serves one batch; the scratch of the thread owns its law.
// Locking: none. Each item that is found is checked for its class (rule U2). Exact under the table lock.
// Cost:    about 150 ns an item.
#pragma once

#include <memory>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/words/rank_law.hpp"
#include "relive/words/rng.hpp"

namespace relive {

struct DrawRequest;  // draw.hpp
struct DrawScratch;

// The laws that a thread has used, one for each exponent.
class RankLaws final {
 public:
  const RankLaw& of(double exponent);

 private:
  static constexpr size_t kMost = 16;  // 8 KiB each
  std::vector<std::unique_ptr<RankLaw>> laws_;
};

// The place where one point of a batch fell.
struct Chosen {
  Ranks::Class of;
  uint64_t position;  // in its class
  uint64_t slot;      // Leaves::kNoLeaf: no item
  double probability;
};

class RankedDraw final {
 public:
  // law: for the index's exponent; ignored if the sampler has none.
  RankedDraw(const Region& r, uint32_t index, const RankLaw* law);

  double total() const { return total_; }  // 0: there are no items
  // points in [0, total()); ascending points cost least.
  void choose(const double* points, size_t count, Chosen* chosen) const;
  // Calls each(item) for every drawable item, the best first. May miss some if other processes change the order at the
  // same time.
  template <class Each>
  void each(Each&& each) const {
    for (uint64_t rank = 0; rank < num_items_;) {
      Chosen one{leaves_.ranks().class_at(rank), 0, 0, 0.0};
      const uint64_t end = one.of.before + one.of.members;
      if (one.of.ordinal == 0 || end <= rank) return;
      one.probability = weight(one.of.before, end) / (static_cast<double>(one.of.members) * total_);
      if (!(one.probability > 0.0)) return;  // no later class has a probability either
      for (one.position = 0; one.position < one.of.members; ++one.position) {
        one.slot = leaves_.ranks().member(one.of, one.position);
        if (one.slot != Leaves::kNoLeaf) each(one);
      }
      rank = end;
    }
  }
  // The word of a chosen item's page or record, read before its leaf; 0 if the item is not of that class now.
  uint64_t look(const Chosen& one) const {
    if (one.slot == Leaves::kNoLeaf) return 0;
    const uint64_t word = map_.word(one.slot);
    RELIVE_FAIL_POINT(draw_word);
    const double leaf = leaves_.mass(one.slot);
    const bool is_of_it = Ranks::ordinal_of(leaf) == one.of.ordinal;
    const bool is_item = (is_of_it || !RELIVE_RULE(U2_class)) && Leaves::is_mass(leaf) && Region::is_used(word);
    RELIVE_PROMISE(!is_item || is_of_it, "an item was drawn with the probability of another class");
    return is_item ? word : 0;
  }

 private:
  double sum(uint64_t rank) const;
  double weight(uint64_t first, uint64_t end) const;
  uint64_t near(double point) const;
  uint64_t rank_at(double point) const;
  void place(double point, Chosen* one, double* low, double* high) const;

  const Region& r_;
  const Leaves leaves_;
  const ItemMap map_;
  const uint64_t num_items_;
  const RankLaw* law_;  // null: the k best items
  uint64_t num_best_ = 0;
  double total_ = 0.0;
};

// Part of a round of a draw: chooses and checks an item for each row of scratch->missing. Returns the number of points
// without an item.
uint64_t find_ranked(const Region& r, const DrawRequest& request, const CounterRng& rng, DrawScratch* scratch);

}  // namespace relive
