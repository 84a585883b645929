#include "relive/index/fresh_masses.hpp"

#include <algorithm>
#include <cmath>

#include "relive/index/versions.hpp"
#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

constexpr double kFarthest = 512.0;                          // from the base, in powers of two of the mass
constexpr double kLeastPower = -1000.0, kMostPower = 900.0;  // 2^60 leaves of the largest mass have a finite sum

double log2_a_version(const IndexConfig& config) { return -std::log2(config.decay); }

}  // namespace

double FreshMasses::of(uint64_t slot) const {
  return keeps(kIsLatest) ? of_place(slot) : of_version(oldest_version(r_, index_, slot));
}

double FreshMasses::of_version(uint32_t version) const {
  const auto base = static_cast<double>(counts().base.load(kRelaxed) >> 1);
  const double power = (version - base) * log2_a_version(config());
  return std::exp2(std::clamp(power, kLeastPower, kMostPower));
}

void FreshMasses::follow(Held& held, uint32_t version) const {
  const uint64_t base = counts().base.load(kRelaxed) >> 1;
  if (version > base && static_cast<double>(version - base) * log2_a_version(config()) > kFarthest &&
      RELIVE_RULE(Z3_base)) {
    counts().base.store(uint64_t{version} << 1 | 1, std::memory_order_release);
    move_base(held, index_);
  }
}

// Newcomers move the base up (follow). It moves down when the newest items are gone and all others are faint: a learner
// whose version was set back makes such items.
bool FreshMasses::are_all_faint() const {
  const double sum = total();
  return is_mass(sum) && sum < std::exp2(-kFarthest);
}

uint32_t FreshMasses::newest_version() const {
  uint32_t newest = 0;
  for (uint64_t slot = 0; slot < tree().num_leaves(); ++slot)
    if (tree().leaf(slot) != nothing()) newest = std::max(newest, oldest_version(r_, index_, slot));
  return newest;
}

void FreshMasses::move_base(Held& held, uint32_t index) {
  const FreshMasses masses(held.region, index);
  std::atomic<uint64_t>& base = masses.counts().base;
  if ((base.load(kRelaxed) & 1) == 0)  // else follow() has stored a newcomer's version
    base.store(uint64_t{masses.newest_version()} << 1 | 1, std::memory_order_release);
  release_fence();
  RELIVE_FAIL_POINT(base_begun);
  Tree& tree = masses.tree(held);
  for (uint64_t slot = 0; slot < tree.num_leaves(); ++slot)
    if (tree.leaf(slot) != masses.nothing()) {
      tree.set_leaf(slot, masses.of(slot));
      RELIVE_FAIL_POINT(base_leaf);
    }
  rebuild(held, index);
}

void FreshMasses::leave_latest(Held& held, uint32_t index, uint64_t slot) {
  const FreshMasses masses(held.region, index);
  masses.set_due(held, Due::kPlace, slot, masses.dues(Due::kPlace).identity());
  RELIVE_FAIL_POINT(latest_left);
  const uint16_t state = masses.state(slot);
  if (masses.is_drawable(state)) masses.note_mass(held, state, masses.has_mass(slot), false);
  masses.clear_mass(held, slot);
}

}  // namespace relive
