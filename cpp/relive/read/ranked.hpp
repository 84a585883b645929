// Draws by the ranks of priorities: points to classes, classes to members.
//
// Of n items rank i, counted from 0 at the best, weighs what the sampler's law says: (i + 1)^-exponent; or 1 of the k best
// and nothing of the others. The items of a class (words/ranks.hpp) share what its ranks weigh equally:
//   p(item) = (sum(before + members) - sum(before)) / members / sum(n)
//
// Owner:   a RankedDraw is made for one batch, its law lives in the scratch of its thread.
// Locking: none. Who is found is asked for its class (rule U2); exact under the table lock.
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

// The laws that a thread has drawn by, made once an exponent.
class RankLaws final {
 public:
  const RankLaw& of(double exponent);

 private:
  static constexpr size_t kMost = 16;  // 8 KiB each
  std::vector<std::unique_ptr<RankLaw>> laws_;
};

// Where one point of a batch fell.
struct Chosen {
  Ranks::Class of;
  uint64_t position;  // in its class
  uint64_t slot;      // Leaves::kNoLeaf: on nothing
  double probability;
};

class RankedDraw final {
 public:
  // law: of the index's exponent; not looked at where the sampler has none.
  RankedDraw(const Region& r, uint32_t index, const RankLaw* law);

  double total() const { return total_; }  // 0: of no items
  // points in [0, total()); costs least where they rise.
  void choose(const double* points, size_t count, Chosen* chosen) const;
  // Every item that may be drawn, the best first; some may be passed over where others change the order meanwhile.
  template <class Each>
  void each(Each&& each) const {
    for (uint64_t rank = 0; rank < num_items_;) {
      Chosen one{leaves_.ranks().class_at(rank), 0, 0, 0.0};
      const uint64_t end = one.of.before + one.of.members;
      if (one.of.ordinal == 0 || end <= rank) return;
      one.probability = weight(one.of.before, end) / (static_cast<double>(one.of.members) * total_);
      if (!(one.probability > 0.0)) return;  // nor has any that comes behind
      for (one.position = 0; one.position < one.of.members; ++one.position) {
        one.slot = leaves_.ranks().member(one.of, one.position);
        if (one.slot != Leaves::kNoLeaf) each(one);
      }
      rank = end;
    }
  }
  // The word of a chosen item's page (its record's), read before its leaf; 0 where it is not of that class now.
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
  const RankLaw* law_;  // null: the k best
  uint64_t num_best_ = 0;
  double total_ = 0.0;
};

// Of a round of a draw: the rows of scratch->missing, chosen and looked at. Returns how many fell on nothing.
uint64_t find_ranked(const Region& r, const DrawRequest& request, const CounterRng& rng, DrawScratch* scratch);

}  // namespace relive
