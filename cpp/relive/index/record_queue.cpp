#include "relive/index/record_queue.hpp"

#include "relive/index/bounds.hpp"

namespace relive {

uint64_t RecordQueue::first_free(Held& held, uint32_t index) {
  flush(held, index);
  const RecordQueue queue(held.region, index);
  return queue.places().total() == kFreePlace ? queue.places().best() : kNoLeaf;
}

uint64_t RecordQueue::next_to_go(Held& held, uint32_t index) {
  flush(held, index);
  const RecordQueue queue(held.region, index);
  const uint64_t first = queue.places().best();
  const auto num_taken = static_cast<double>(queue.counts().next_item.load(std::memory_order_relaxed));
  const bool is_due = queue.places().total() + static_cast<double>(queue.config().max_items) <= num_taken;
  if (first != kNoLeaf && is_due) return first;
  const uint64_t chosen = Bounds::next_to_go(held, index);
  return chosen != kNoLeaf ? chosen : first;
}

bool RecordQueue::is_place(double place, uint64_t record, bool is_used) const {
  if (!is_used) return place == (is_free(record) ? kFreePlace : no_place());
  const uint16_t state = this->state(record);
  if (is_drawable(state)) return place == no_place();
  return state <= kMostUses ? place > kUsedUp && place < 0.0 : place > 0.0 && place != no_place();
}

// A wrong place is one that a process began to change and did not live to finish.
void RecordQueue::settle(Held& held, uint64_t record, bool is_used) const {
  if (is_place(places().leaf(record), record, is_used)) return;
  double place = no_place();
  if (!is_used) {
    place = is_free(record) ? kFreePlace : no_place();
  } else if (!is_drawable(state(record))) {
    const uint64_t num_taken = counts().next_item.load(std::memory_order_relaxed);
    place = state(record) <= kMostUses ? used_up_place() : static_cast<double>(num_taken + 1);
  }
  set_place(held, record, place);
}

const char* RecordQueue::wrong_place(uint64_t record, bool is_used) const {
  if (!has_queue() || is_place(places().leaf(record), record, is_used)) return nullptr;
  return "a record's place in the queue does not follow from its state";
}

}  // namespace relive
