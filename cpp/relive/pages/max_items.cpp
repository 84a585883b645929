#include "relive/pages/max_items.hpp"

#include "relive/index/fresh_masses.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/pages.hpp"

namespace relive {

// The step stays: it may be an item of other indexes, and windows of neighbours may need its row.
void end_beyond_most(Held& held) {
  Region& r = held.region;
  for (const uint32_t i : r.bounded_indexes()) {
    const Leaves leaves(r, i);
    const auto most = static_cast<int64_t>(leaves.config().max_items);
    while (leaves.num_live() > most && RELIVE_RULE(R2_most)) {
      const uint64_t slot = Bounds::next_to_go(held, i);
      if (slot == Leaves::kNoLeaf) break;
      const uint64_t page = r.page_of(slot);
      if (Leaves::retire(held, i, slot, kStateDropped)) r.pages[page].live -= 1;
      note_loss(held, page);
      RELIVE_FAIL_POINT(order_dropped);
      if (r.pages[page].live == 0) free_if_lifeless(held, page);
    }
  }
}

void leave_beyond_last(Held& held) {
  const Region& r = held.region;
  for (const uint32_t i : r.latest_indexes()) {
    const auto last = static_cast<double>(r.header->indexes[i].latest);
    double place = 0.0;
    while (RELIVE_RULE(Z4_last)) {
      const uint64_t leaf = DueTimes::first(held, i, Due::kPlace, &place);
      const uint64_t arrivals = r.header->index_state[i].arrivals();
      if (leaf == Leaves::kNoLeaf || place + last > static_cast<double>(arrivals)) break;
      FreshMasses::leave_latest(held, i, leaf);
    }
  }
}

}  // namespace relive
