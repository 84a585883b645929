#include "relive/index/bounds.hpp"

#include <algorithm>

#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kRemovals = ~uint64_t{1};  // a stream of random numbers that no participant has

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
