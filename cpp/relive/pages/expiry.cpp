#include "relive/pages/expiry.hpp"

#include <algorithm>
#include <limits>

#include "relive/index/fresh_masses.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr uint32_t kMostDrops = 256;  // in one critical section (rule C3)

// An item that max_staleness drops may be used up. A used-up item is no item any more, and is not counted.
void drop(Held& held, uint32_t index, Due due, uint64_t leaf) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  if (due == Due::kWait || leaves.is_drawable(leaves.state(leaf))) DueTimes::note_drop(held, index, due, leaf);
  if (r.map(index).is_explicit) {
    end_record(held, index, leaf, kStateDropped);
  } else {
    const uint64_t page = r.page_of(leaf);
    if (Leaves::retire(held, index, leaf, kStateDropped)) r.pages[page].live -= 1;
    note_loss(held, page);
    if (r.pages[page].live == 0) free_if_lifeless(held, page);
  }
  RELIVE_FAIL_POINT(wait_dropped);
}

// Drops the items with `since + allowed` not after `now`, the earliest first, up to the rest of this critical section's
// bound.
void drop_due(Held& held, uint32_t index, Due due, double allowed, double now, uint32_t* left) {
  const Region& r = held.region;
  double since = 0.0;
  while (*left > 0) {
    const uint64_t leaf = DueTimes::first(held, index, due, &since);
    if (leaf == Leaves::kNoLeaf || (since >= 0.0 && since + allowed > now)) break;
    drop(held, index, due, leaf);
    *left -= std::min(*left, r.map(index).is_explicit ? cost_of_end(r, index) : 1u);
  }
}

double present_version(const Region& r) { return r.header->policy_version.load(std::memory_order_relaxed); }

}  // namespace

bool drop_overdue(Held& held) {
  const Region& r = held.region;
  uint32_t left = kMostDrops;
  if (RELIVE_RULE(Z2_expired))
    for (const uint32_t i : r.aged_indexes()) {
      const auto kept = static_cast<double>(Leaves(r, i).config().versions_kept);
      drop_due(held, i, Due::kAge, kept, present_version(r), &left);
    }
  if (RELIVE_RULE(T2_overdue))
    for (const uint32_t i : r.timed_indexes())
      if (Leaves(r, i).is_timed()) drop_due(held, i, Due::kWait, Leaves(r, i).config().max_wait_s, held.now_s(), &left);
  return left < kMostDrops;
}

bool has_expired(const Region& r) {
  if (!RELIVE_RULE(Z2_expired)) return false;
  for (const uint32_t i : r.aged_indexes()) {
    const double soonest = DueTimes(r, i).soonest(Due::kAge);
    if (soonest < 0.0 || soonest + static_cast<double>(Leaves(r, i).config().versions_kept) <= present_version(r))
      return true;
  }
  return false;
}

void keep_masses_near(Held& held) {
  for (const uint32_t i : held.region.fading_indexes())
    if (FreshMasses(held.region, i).are_all_faint() && RELIVE_RULE(Z3_base)) FreshMasses::move_base(held, i);
}

double next_due_s(const Region& r) {
  double due_s = std::numeric_limits<double>::infinity();
  if (!RELIVE_RULE(T2_overdue)) return due_s;
  for (const uint32_t i : r.timed_indexes())
    due_s = std::min(due_s, DueTimes(r, i).soonest(Due::kWait) + Leaves(r, i).config().max_wait_s);
  return due_s;
}

}  // namespace relive
