// Masses that follow from how fresh an item is (rules Z3, Z4). Fresh(last=): 1 for the items that came last, no mass
// for the others. Fresh(decay=): decay ^ (versions from a base to the item's own), so the base moves when it is too far
// away.
//
// Owner:   a view of one index (index_view.hpp). The base is a word of the index, twice the version, odd while it
//          moves.
// Locking: functions that take a Held run under the table lock. A draw reads base() before and after, and tries again
//          if it changed.
// Cost:    O(rows of the item), but move_base: O(n).
#pragma once

#include "relive/index/due_times.hpp"

namespace relive {

class FreshMasses final : public IndexView {
 public:
  using IndexView::IndexView;
  explicit FreshMasses(const IndexView& index) : IndexView(index) {}

  // The base where masses fade, 0 elsewhere.
  uint64_t base() const { return keeps(kFades) ? counts().base.load(std::memory_order_acquire) : 0; }
  // Whether every item that is left is so far below the base that masses begin to lose their ratios.
  bool are_all_faint() const;
  // Computes all masses again from another base: the version of a newcomer, or of the newest item (rule Z3).
  static void move_base(Held& held, uint32_t index);
  // So many items have come since this one that it is no longer drawn (rule Z4). It stays an item.
  static void leave_latest(Held& held, uint32_t index, uint64_t slot);
  // The mass of an item that can be drawn. of_version(): if masses fade, of an item of this version.
  double of(uint64_t slot) const;
  double of_version(uint32_t version) const;

 private:
  friend class Leaves;
  friend class LeafRecovery;
  double of_place(uint64_t slot) const { return DueTimes(*this).has(Due::kPlace, slot) ? 1.0 : nothing(); }
  // The same, or `mass` if masses do not follow from how fresh an item is.
  double of_or(uint64_t slot, double mass) const { return keeps(kIsLatest | kFades) ? of(slot) : mass; }
  // Moves the base to a newcomer's version, if that is too far from the present base.
  void follow(Held& held, uint32_t version) const;
  uint32_t newest_version() const;  // of the items that can be drawn
};

}  // namespace relive
