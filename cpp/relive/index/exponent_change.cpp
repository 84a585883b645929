#include "relive/index/exponent_change.hpp"

#include <algorithm>
#include <cmath>

#include "relive/index/bounds.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kSome = 256;

// One change, which goes on from wherever a death left it: a leaf below 0 is done, a leaf above 0 is not.
class ExponentChange final : public IndexView {
 public:
  ExponentChange(Held& held, uint32_t index)
      : IndexView(held.region, index),
        held_(held),
        raising_(held.region.header->raising),
        from_(raising_.from.load(kRelaxed)),
        to_(raising_.to.load(kRelaxed)) {}

  void finish() {
    if (raising_.phase.load(kRelaxed) == 0) raise_all();
    raising_.phase.store(1, std::memory_order_release);
    RELIVE_FAIL_POINT(raise_raised);
    drop_signs();
    raise_maximum();
    std::atomic_ref<double>(const_cast<double&>(config().priority_exponent)).store(to_, std::memory_order_release);
    RELIVE_FAIL_POINT(raise_exponent);
    rebuild(held_, index_);
    if (to_ == 0.0) count_masses();
    raising_.index.store(0, std::memory_order_release);
    RELIVE_FAIL_POINT(raise_over);
    std::atomic<uint64_t>& num_raised = held_.region.header->num_raised;
    num_raised.store(num_raised.load(kRelaxed) + 1, std::memory_order_release);
  }

 private:
  // Whether a leaf of 0 is an item all the same, of priority 0: such an item has a mass where the exponent is 0.
  bool has_no_priority(uint64_t slot) const {
    return Region::is_used(r_.map(index_).word(slot)) && is_drawable(state(slot));
  }

  void raise_all() {
    const Bounds bounds(*this);
    const bool has_priority =
        is_bounded() && draws_as_it_removes(config());  // in the remover's leaf, as exact as it came
    Tree& tree = this->tree(held_);
    double masses[kSome];
    uint64_t slots[kSome];
    for (uint64_t begin = 0; begin < tree.num_leaves(); begin += kSome) {
      const uint64_t end = std::min<uint64_t>(tree.num_leaves(), begin + kSome);
      size_t count = 0;
      for (uint64_t slot = begin; slot < end; ++slot) {
        masses[count] = tree.leaf(slot);
        slots[count] = slot;
        count += masses[count] > 0.0 || (masses[count] == 0.0 && to_ == 0.0 && has_no_priority(slot)) ? 1 : 0;
      }
      raise_masses(from_, to_, masses, count);
      for (size_t k = 0; k < count; ++k) {
        double mass = masses[k];
        if (has_priority && bounds.has_order(slots[k])) {
          const float priority = priority_of_removal(config(), bounds.order(slots[k]));
          kind().masses_of(to_, &priority, 1, &mass);
        }
        if (mass == 0.0) continue;  // a priority of 0 has no mass, unless the exponent is 0
        tree.set_leaf(slots[k], -mass);
        RELIVE_FAIL_POINT(raise_leaf);
      }
    }
  }

  void drop_signs() {
    Tree& tree = this->tree(held_);
    for (uint64_t slot = 0; slot < tree.num_leaves(); ++slot) {
      const double mass = tree.leaf(slot);
      if (!(mass < 0.0)) continue;
      tree.set_leaf(slot, -mass);
      RELIVE_FAIL_POINT(raise_switched);
    }
  }

  // With an exponent of 0 every item has a mass: those of priority 0 had none before (rule P4).
  void count_masses() {
    ItemCounts counted;
    for (uint64_t slot = 0; slot < tree().num_leaves(); ++slot) {
      const bool is_there = Region::is_used(r_.map(index_).word(slot));
      count_leaves(state(slot), is_there, 1, &counted);
      count_massless(slot, state(slot), is_there, &counted);
    }
    counts().unused.store(counted.unused, kRelaxed);
    counts().massless.store(counted.massless, kRelaxed);
  }

  void raise_maximum() {
    const auto largest = static_cast<float>(counts().max_priority.load(kRelaxed));
    double most = 0.0;
    kind().masses_of(to_, &largest, 1, &most);
    counts().max_mass.store(most, kRelaxed);
  }

  Held& held_;
  Raising& raising_;
  const double from_, to_;
};

}  // namespace

void change_exponent(Held& held, uint32_t index, double exponent) {
  Header& header = *held.region.header;
  Raising& raising = header.raising;
  raising.from.store(exponent_of(header.indexes[index]), kRelaxed);
  raising.to.store(exponent, kRelaxed);
  raising.phase.store(0, kRelaxed);
  header.num_raised.store(header.num_raised.load(kRelaxed) | 1, std::memory_order_release);
  // From this store on the change is made to its end, by recovery if this process dies.
  if (RELIVE_RULE(H2_note)) raising.index.store(index + 1, std::memory_order_release);
  RELIVE_FAIL_POINT(raise_noted);
  ExponentChange(held, index).finish();
}

void finish_exponent_change(Held& held) {
  Header& header = *held.region.header;
  const uint32_t index = header.raising.index.load(std::memory_order_acquire);
  const double from = header.raising.from.load(kRelaxed), to = header.raising.to.load(kRelaxed);
  const bool is_sound = index != 0 && index <= held.region.num_indexes && has_exponent(header.indexes[index - 1]) &&
                        from > 0.0 && std::isfinite(from) && to >= 0.0 && std::isfinite(to);
  if (is_sound) ExponentChange(held, index - 1).finish();  // else check() says that the note is not sound
  const uint64_t num_raised = header.num_raised.load(kRelaxed);
  header.num_raised.store(num_raised + (num_raised & 1),
                          std::memory_order_release);  // if a process died before its note
}

}  // namespace relive
