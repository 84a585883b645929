#include "relive/pages/overdue.hpp"

#include <algorithm>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr uint32_t kDropsAHold = 256;  // rule C3

void drop(Held& held, uint32_t index, uint64_t leaf) {
  Region& r = held.region;
  Leaves::note_drop(held, index, leaf);
  if (r.map(index).is_explicit) {
    end_record(held, index, leaf, kStateDropped);
  } else {
    const uint64_t page = r.page_of(leaf);
    if (Leaves::retire(held, index, leaf, kStateDropped)) r.pages[page].live -= 1;
    if (r.pages[page].live == 0) free_if_lifeless(held, page);
  }
  RELIVE_FAIL_POINT(wait_dropped);
}

}  // namespace

bool drop_overdue(Held& held) {
  const Region& r = held.region;
  uint32_t left = kDropsAHold;
  for (const uint32_t i : r.timed_indexes()) {
    double since = 0.0;
    while (left > 0 && RELIVE_RULE(T2_overdue)) {
      const uint64_t leaf = Leaves::waits_longest(held, i, &since);
      if (leaf == Leaves::kNoLeaf || since + Leaves(r, i).config().max_wait_s > held.now_s()) break;
      drop(held, i, leaf);
      left -= std::min(left, r.map(i).is_explicit ? cost_of_end(r, i) : 1u);
    }
  }
  return left < kDropsAHold;
}

double next_due_s(const Region& r) {
  double due_s = std::numeric_limits<double>::infinity();
  if (!RELIVE_RULE(T2_overdue)) return due_s;
  for (const uint32_t i : r.timed_indexes())
    due_s = std::min(due_s, Leaves(r, i).waits_since() + Leaves(r, i).config().max_wait_s);
  return due_s;
}

}  // namespace relive
