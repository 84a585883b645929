#include "relive/pages/overdue.hpp"

#include <algorithm>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr uint32_t kDropsAHold = 256;  // of an index (rule C3): beside what the hold itself may end

// Its rows stay: they may be items of other indexes, which are still to be filled.
void drop(Held& held, uint32_t index, uint64_t leaf) {
  Region& r = held.region;
  Leaves::begin_drop(held, index, leaf);
  if (r.map(index).is_explicit) {
    end_record(held, index, leaf, kStateDropped);
    RELIVE_FAIL_POINT(drop_ended);
    return Leaves::count_drop(held, index);
  }
  const uint64_t page = r.page_of(leaf);
  if (Leaves::retire(held, index, leaf, kStateDropped)) r.pages[page].live -= 1;
  RELIVE_FAIL_POINT(drop_ended);
  Leaves::count_drop(held, index);
  if (r.pages[page].live == 0) free_if_lifeless(held, page);
}

}  // namespace

bool drop_items_due(Held& held) {
  const Region& r = held.region;
  bool any = false;
  for (const uint32_t i : r.timed_indexes()) {
    const Leaves leaves(r, i);
    const uint32_t cost = r.map(i).is_explicit ? std::max(1u, cost_of_end(r, i)) : 1;
    Leaves::flush(held, i);
    for (uint32_t left = kDropsAHold; left > 0 && RELIVE_RULE(T2_overdue); left -= std::min(left, cost)) {
      if (!(leaves.next_due_s() <= held.now_s)) break;
      const uint64_t leaf = Leaves::longest_waiting(held, i);
      if (leaf == Leaves::kNoLeaf) break;
      drop(held, i, leaf);
      Leaves::flush(held, i);
      any = true;
    }
  }
  return any;
}

double next_due_s(const Region& r) {
  double due_s = std::numeric_limits<double>::infinity();
  if (!RELIVE_RULE(T2_overdue)) return due_s;
  for (const uint32_t i : r.timed_indexes()) due_s = std::min(due_s, Leaves(r, i).next_due_s());
  return due_s;
}

void mend_times(Held& held, bool all) {
  for (const uint32_t i : held.region.timed_indexes()) Leaves::mend_times(held, i, all);
}

}  // namespace relive
