#include "relive/index/bounds.hpp"

#include <algorithm>
#include <limits>

#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kRemovals = ~uint64_t{1};  // a stream of random numbers that no participant has
constexpr auto kRelaxed = std::memory_order_relaxed;

// A leaf of the sampler, and the exponent that made it.
struct MadeLeaf {
  double leaf, exponent;
};

// While a change of the exponent is under way (rule H2), a leaf below 0 has its new value, negated. In phase 0 a leaf
// above 0 has its old value, in phase 1 its new one. The words are read again until none of them changed meanwhile.
MadeLeaf leaf_with_exponent(const Region& r, const IndexConfig& config, uint32_t index, const Tree& tree,
                            uint64_t slot) {
  const Raising& raising = r.header->raising;
  while (true) {
    const uint64_t changes = r.header->num_raised.load(std::memory_order_acquire);
    const bool is_mine = raising.index.load(std::memory_order_acquire) == index + 1;
    const uint32_t phase = raising.phase.load(std::memory_order_acquire);
    const double from = raising.from.load(kRelaxed), to = raising.to.load(kRelaxed), now = exponent_of(config);
    const double leaf = tree.leaf(slot);
    acquire_fence();
    if (r.header->num_raised.load(kRelaxed) != changes || raising.phase.load(kRelaxed) != phase ||
        (raising.index.load(kRelaxed) == index + 1) != is_mine)
      continue;
    if ((changes & 1) == 0 || !is_mine) return {leaf, now};
    if (leaf < 0.0) return {-leaf, to};
    return {leaf, phase == 0 ? from : to};
  }
}

}  // namespace

uint64_t Bounds::next_to_go(Held& held, uint32_t index) {
  flush(held, index);
  const Bounds bounds(held.region, index);
  const Tree& orders = bounds.orders();
  if (kind_of(bounds.config().removal).choice == Choice::kBest) return orders.best();
  const CounterRng rng(held.region.geometry->seed, kRemovals, index,
                       bounds.counts().tickets.load(std::memory_order_relaxed));
  const double point = rng.uniform(static_cast<uint64_t>(bounds.num_live())) * orders.total();
  uint64_t slot = kNoLeaf;
  orders.draw(&point, 1, &slot);
  constexpr double kFirst = 0.0;
  if (slot == kNoLeaf) orders.draw(&kFirst, 1, &slot);  // rounding led past the end
  return slot;
}

bool Bounds::is_of_one_priority(uint64_t slot) const {
  if (!is_bounded() || !has_priorities() || !draws_as_it_removes(config())) return true;
  return tree().leaf(slot) == sampling_leaf_of(config(), order(slot));
}

float Bounds::priority(uint64_t slot) const {
  if (!has_priorities() || !is_drawable(state(slot))) return std::numeric_limits<float>::quiet_NaN();
  if (is_bounded() && has_order(slot)) {
    const float exact = priority_of_removal(config(), order(slot));
    if (exact >= 0.0f) return exact;
  }
  const MadeLeaf made = leaf_with_exponent(r_, config(), index_, tree(), slot);
  return priority_of_sampling(config(), made.exponent, made.leaf);
}

void Bounds::settle_priorities(Held& held, uint64_t begin, uint64_t end) const {
  if (!has_priorities() || !draws_as_it_removes(config())) return;
  constexpr uint64_t kSome = 256;
  double removal[kSome], sampling[kSome];
  for (; begin < end; begin += std::min(kSome, end - begin)) {
    const uint64_t count = std::min(kSome, end - begin);
    for (uint64_t i = 0; i < count; ++i) removal[i] = orders().leaf(begin + i);
    sampling_leaves_of(config(), removal, count, sampling);
    for (uint64_t i = 0; i < count; ++i)
      if (tree().leaf(begin + i) != sampling[i]) tree(held).set_leaf(begin + i, sampling[i]);
  }
}

}  // namespace relive
