// The queue of records that a remover chooses from: free records, and those that the remover does not see (rule R5).
//
// Owner:   a view of one index (index_view.hpp). Each record has a place in a tree of minima; the lowest place comes
//          first. The places from low to high: a free record; a record that was used up, by the ticket that it took
//          then; a record whose item waits, by how many records had been taken before it. An item that can be drawn has
//          no place: the remover sees it.
// Locking: functions that take a Held run under the table lock.
// Cost:    O(1). first_free and next_to_go: O(log8 n), and the flush of the leaves that the critical section changed.
#pragma once

#include "relive/index/index_view.hpp"

namespace relive {

class RecordQueue final : public IndexView {
 public:
  using IndexView::IndexView;
  explicit RecordQueue(const IndexView& index) : IndexView(index) {}

  // A free record, kNoLeaf if there is none.
  static uint64_t first_free(Held& held, uint32_t index);
  // The record whose item goes next, kNoLeaf if there is none: one that was used up; else one that has waited while
  // as many records were taken as there may be; else the one that the remover chooses; else the one that waited
  // longest.
  static uint64_t next_to_go(Held& held, uint32_t index);
  // The `number`-th record that was taken waits from now on. No effect in an index without a queue, as note_free().
  static void begin_wait(Held& held, uint32_t index, uint64_t record, uint64_t number) {
    const RecordQueue queue(held.region, index);
    if (queue.has_queue()) queue.set_place(held, record, static_cast<double>(number + 1));
  }
  // The record's word says that it is free, or retired.
  static void note_free(Held& held, uint32_t index, uint64_t record) {
    const RecordQueue queue(held.region, index);
    if (queue.has_queue()) queue.set_place(held, record, queue.is_free(record) ? kFreePlace : queue.no_place());
  }
  // A sentence, if the place of a record is wrong; else null.
  const char* wrong_place(uint64_t record, bool is_used) const;

 private:
  friend class Leaves;
  friend class LeafRecovery;
  static constexpr double kUsedUp = 0.5 * kFreePlace;
  double no_place() const { return places().identity(); }
  double used_up_place() const { return kUsedUp + static_cast<double>(next_standing(0.0f).ticket); }
  bool is_free(uint64_t record) const { return (r_.map(index_).word(record) & 3) == 0; }
  bool is_place(double place, uint64_t record, bool is_used) const;
  void leave(Held& held, uint64_t record) const { set_place(held, record, no_place()); }
  void note_used_up(Held& held, uint64_t record) const { set_place(held, record, used_up_place()); }
  // Recovery: gives a record the place of its state.
  void settle(Held& held, uint64_t record, bool is_used) const;
};

}  // namespace relive
