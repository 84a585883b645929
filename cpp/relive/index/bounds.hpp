// The remover's tree of a bounded index: which item goes if there are more than max_items (rules R1 to R5).
//
// Owner:   a view of one index (index_view.hpp). Each item that can be drawn has a second leaf here, of the remover's
//          kind (kinds.hpp).
// Locking: functions that take a Held run under the table lock. A second leaf is changed by the item's life
//          (leaves.hpp) and by recovery alone.
// Cost:    O(1). next_to_go: O(log8 n), and the flush of the leaves that the critical section changed.
#pragma once

#include "relive/index/index_view.hpp"

namespace relive {

class Bounds final : public IndexView {
 public:
  using IndexView::IndexView;
  explicit Bounds(const IndexView& index) : IndexView(index) {}

  // The second leaf of a slot, 0 if the index is not bounded.
  double order(uint64_t slot) const { return is_bounded() ? orders().leaf(slot) : 0.0; }
  // Whether the remover sees the item of a slot. Call this on bounded indexes only.
  bool has_order(uint64_t slot) const { return orders().leaf(slot) != orders().identity(); }
  // Whether sampler and remover see the item of a slot at the same priority, if both look at priorities (rule R3).
  bool is_of_one_priority(uint64_t slot) const;
  // The priority of the item of a slot: in the remover's leaf as exact as it came, or else from the sampler's leaf. NaN
  // if neither tells, or if the item is used up. May be called at any time, also while the exponent changes.
  float priority(uint64_t slot) const;
  // The item that the remover chooses, kNoLeaf if there is none.
  static uint64_t next_to_go(Held& held, uint32_t index);

 private:
  friend class Leaves;
  friend class LeafRecovery;
  void clear_order(Held& held, uint64_t slot) const {
    if (!has_order(slot)) return;
    set_order(held, slot, orders().identity());
    RELIVE_FAIL_POINT(order_cleared);
  }
  // Recovery: gives items the masses of the priorities that their second leaves were made of (rule R3).
  void settle_priorities(Held& held, uint64_t begin, uint64_t end) const;
};

}  // namespace relive
