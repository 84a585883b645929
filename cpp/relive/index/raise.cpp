// The exponent of a sampler's priorities is changed: every mass anew, in one hold of the lock (rules H2 and H3).
#include <algorithm>
#include <cmath>

#include "relive/index/leaves.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kSome = 256;

}  // namespace

void Leaves::raise(Held& held, uint32_t index, double exponent) {
  Header& header = *held.region.header;
  Raising& raising = header.raising;
  raising.from.store(exponent_of(header.indexes[index]), kRelaxed);
  raising.to.store(exponent, kRelaxed);
  raising.phase.store(0, kRelaxed);
  header.num_raised.store(header.num_raised.load(kRelaxed) | 1, std::memory_order_release);
  // Behind this the change is made to its end, by whoever comes.
  if (RELIVE_RULE(H2_note)) raising.index.store(index + 1, std::memory_order_release);
  RELIVE_FAIL_POINT(raise_noted);
  Leaves(held.region, index).raise_leaves(held);
}

void Leaves::finish_raise(Held& held) {
  Header& header = *held.region.header;
  const uint32_t index = header.raising.index.load(std::memory_order_acquire);
  const double from = header.raising.from.load(kRelaxed), to = header.raising.to.load(kRelaxed);
  const bool is_sound = index != 0 && index <= held.region.num_indexes && has_exponent(header.indexes[index - 1]) &&
                        from > 0.0 && std::isfinite(from) && to >= 0.0 && std::isfinite(to);
  if (is_sound) Leaves(held.region, index - 1).raise_leaves(held);  // else check() says that it is not
  const uint64_t num_raised = header.num_raised.load(kRelaxed);
  header.num_raised.store(num_raised + (num_raised & 1), std::memory_order_release);  // of who died before the note
}

// Whether a leaf of 0 is an item all the same, of a priority of 0: it has a mass where the exponent is 0.
bool Leaves::has_no_priority(uint64_t slot) const {
  return Region::is_used(r_.map(index_).word(slot)) && is_drawable(state(slot));
}

// From whatever place a death left it at: a leaf below 0 is done, one above 0 is not.
void Leaves::raise_leaves(Held& held) const {
  Header& header = *held.region.header;
  Raising& raising = header.raising;
  Tree& tree = held.region.trees_[index_];
  const IndexConfig& config = this->config();
  const double from = raising.from.load(kRelaxed), to = raising.to.load(kRelaxed);
  const bool has_priority = is_bounded() && draws_as_it_removes(config);  // beside the leaf: as exact as it came
  double masses[kSome];
  uint64_t slots[kSome];
  for (uint64_t begin = 0; raising.phase.load(kRelaxed) == 0 && begin < tree.num_leaves(); begin += kSome) {
    const uint64_t end = std::min<uint64_t>(tree.num_leaves(), begin + kSome);
    size_t count = 0;
    for (uint64_t slot = begin; slot < end; ++slot) {
      masses[count] = tree.leaf(slot);
      slots[count] = slot;
      count += masses[count] > 0.0 || (masses[count] == 0.0 && to == 0.0 && has_no_priority(slot)) ? 1 : 0;
    }
    raise_masses(from, to, masses, count);
    for (size_t k = 0; k < count; ++k) {
      double mass = masses[k];
      if (has_priority && has_order(slots[k])) {
        const float priority = priority_of_removal(config, order(slots[k]));
        kind().masses_of(to, &priority, 1, &mass);
      }
      if (mass == 0.0) continue;  // 0 to the power 0 apart
      tree.set_leaf(slots[k], -mass);
      RELIVE_FAIL_POINT(raise_leaf);
    }
  }
  raising.phase.store(1, std::memory_order_release);
  RELIVE_FAIL_POINT(raise_raised);
  for (uint64_t slot = 0; slot < tree.num_leaves(); ++slot) {
    const double mass = tree.leaf(slot);
    if (!(mass < 0.0)) continue;
    tree.set_leaf(slot, -mass);
    RELIVE_FAIL_POINT(raise_turned);
  }
  const auto largest = static_cast<float>(counts().max_priority.load(kRelaxed));
  double most = 0.0;
  kind().masses_of(to, &largest, 1, &most);
  counts().max_mass.store(most, kRelaxed);
  std::atomic_ref<double>(const_cast<double&>(config.priority_exponent)).store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(raise_exponent);
  rebuild(held, index_);
  raising.index.store(0, std::memory_order_release);
  RELIVE_FAIL_POINT(raise_over);
  header.num_raised.store(header.num_raised.load(kRelaxed) + 1, std::memory_order_release);
}

}  // namespace relive
