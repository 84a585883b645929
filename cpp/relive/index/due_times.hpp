// The times by which items go: since when an item waits (max_wait_s, rules T), the version of its oldest row
// (max_staleness, rules Z1 and Z2), and its place among the items that came last (Fresh(last=), rule Z4).
//
// Owner:   a view of one index (index_view.hpp). Each kind of time has a tree of minima, so the item that is due first
//          is its best leaf. The identity says that the item is not timed.
// Locking: functions that take a Held run under the table lock.
// Cost:    O(1). first: O(log8 n), and the flush of the leaves that the critical section changed.
#pragma once

#include "relive/index/index_view.hpp"

namespace relive {

class DueTimes final : public IndexView {
 public:
  using IndexView::IndexView;
  explicit DueTimes(const IndexView& index) : IndexView(index) {}

  // The least time of the index, infinity if no item has one.
  double soonest(Due due) const { return dues(due).total(); }
  bool has(Due due, uint64_t slot) const { return dues(due).leaf(slot) != dues(due).identity(); }
  // Whether a leaf of this state may have such a time. is_there: its step is there, or its record in use.
  bool may_be_due(Due due, uint16_t state, bool is_there) const {
    return is_there && (due == Due::kWait ? may_wait(state) : state <= kMostUses);
  }

  // The item waits from now on, if its index has max_wait_s and the item does not wait already (rule T1).
  static void begin_wait(Held& held, uint32_t index, uint64_t slot) {
    const DueTimes times(held.region, index);
    if (!times.is_timed() || times.has(Due::kWait, slot) || !RELIVE_RULE(T1_since)) return;
    times.set_due(held, Due::kWait, slot, held.now_s());
    RELIVE_FAIL_POINT(wait_begun);
  }
  // The item that is due first and its time, kNoLeaf if there is none.
  static uint64_t first(Held& held, uint32_t index, Due due, double* time) {
    flush(held, index);
    const DueTimes times(held.region, index);
    const uint64_t slot = times.dues(due).best();
    if (slot != kNoLeaf) *time = times.dues(due).leaf(slot);
    return slot;
  }
  // The item is about to go as kStateDropped, because it is overdue. Its time becomes the number of this drop, below 0:
  // if the process dies after it has stored the state, recovery finds the number that the count must have (rule T3).
  static void note_drop(Held& held, uint32_t index, Due due, uint64_t slot) {
    const DueTimes times(held.region, index);
    const uint64_t count = times.num_dropped(due).load(std::memory_order_relaxed) + 1;
    times.set_due(held, due, slot, -static_cast<double>(count));
    RELIVE_FAIL_POINT(wait_noted);
  }

 private:
  friend class Leaves;
  friend class LeafRecovery;
  std::atomic<uint64_t>& num_dropped(Due due) const {
    return due == Due::kWait ? counts().timed_out : counts().expired;
  }
  // Whether note_drop() was called for the item.
  bool is_dropping(Due due, uint64_t slot) const { return keeps(trait_of(due)) && dues(due).leaf(slot) < 0.0; }
  // Counts the drop of an item that is dropped. Harmless if called again: the number was noted before.
  void count_drop(Due due, uint64_t slot) const {
    if (!is_dropping(due, slot) || state(slot) != kStateDropped) return;
    num_dropped(due).store(static_cast<uint64_t>(-dues(due).leaf(slot)), std::memory_order_relaxed);
    RELIVE_FAIL_POINT(wait_counted);
  }
  void count_drops(uint64_t slot) const {
    for (const Due due : {Due::kWait, Due::kAge})
      if (keeps(trait_of(due))) count_drop(due, slot);
  }
  // The item has no such time any more.
  void end(Held& held, Due due, uint64_t slot) const {
    if (!has(due, slot)) return;
    count_drop(due, slot);
    set_due(held, due, slot, dues(due).identity());
    RELIVE_FAIL_POINT(wait_over);
  }
  void end_all(Held& held, uint64_t slot) const {
    for (const Due due : kDues)
      if (keeps(trait_of(due))) end(held, due, slot);
  }
};

}  // namespace relive
