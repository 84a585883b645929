#include "relive/pages/abandon.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/changed_rows.hpp"
#include "relive/pages/crossing.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Removes the item of a slot from one index. A step is counted as removed once, with the first index (rule H1).
void remove_item(Held& held, uint32_t index, uint64_t page, uint64_t slot, bool is_given_up) {
  Region& r = held.region;
  const bool was_removed = is_removed(r, slot);
  if (Leaves::retire(held, index, slot, kStateRemoved)) r.pages[page].live -= 1;
  if (is_given_up) Leaves::remove_ended(held, index, slot);
  note_loss(held, page);
  RELIVE_FAIL_POINT(abandon_item);
  if (!was_removed && is_removed(r, slot)) held.add(r.header->removed_steps, 1);
}

// Whether the window of an item runs over the end of its episode into the abandoned episode. `steps` steps of the lane,
// the item's own included, lie between the item and that episode.
bool runs_into_it(const Region& r, uint32_t index, uint64_t steps) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  return sequence.crosses() && steps < uint64_t{sequence.length} + sequence.bootstrap;
}

}  // namespace

void remove_items(Held& held, uint64_t page, uint32_t begin, uint32_t end) {
  const Region& r = held.region;
  for (uint32_t row = begin; row < end; ++row) {
    if (r.is_tail(page, row)) continue;  // a call that met its deadline made this row a tail
    for (const uint32_t i : r.row_indexes()) remove_item(held, i, page, r.slot_of(page, row), true);
  }
}

void renew_word(Held& held, uint64_t page) {
  const Region& r = held.region;
  if (!RELIVE_RULE(V2_word)) return;
  r.words[page].store(Region::moved_word(r.words[page].load(kRelaxed)), std::memory_order_release);
  RELIVE_FAIL_POINT(abandon_word);
  release_fence();
}

bool is_reached_over_ends(const Region& r) {
  return (r.has_records() && r.geometry->has_state == 0) || crosses_ends(r);
}

bool remove_in_front(Held& held, WalkBack* walk, uint32_t count, bool are_tails) {
  const Region& r = held.region;
  uint64_t reach = 0;
  for (const uint32_t i : r.row_indexes())
    if (r.header->indexes[i].sequence.crosses()) reach = std::max<uint64_t>(reach, r.shape(i).after());
  for (const uint32_t i : r.record_indexes()) reach = std::max<uint64_t>(reach, r.records[i].geometry->max_rows);
  uint64_t page = r.alive(walk->ref);
  for (; count > 0 && page != kNoPage && walk->rows <= reach; --count) {
    if (walk->row == 0) {
      walk->ref = r.pages[page].prev.load(kRelaxed);
      walk->row = r.page_len;
      page = r.alive(walk->ref);
      continue;
    }
    const uint32_t row = walk->row - 1;
    if (row < range_of(r, page).step_begin) return true;
    const uint64_t slot = r.slot_of(page, row);
    if (!r.is_tail(page, row)) {
      if (r.marks[slot].lane.load(kRelaxed) != walk->uid) return true;  // no window covers rows of two lanes
      if (are_tails && !end_records_behind(held, slot, walk->rows + 1)) return false;
      ++walk->steps;
      bool has_ended = false;
      for (const uint32_t i : r.row_indexes()) {
        if (are_tails || !runs_into_it(r, i, walk->steps)) continue;
        if (Leaves(r, i).state(slot) == kStatePending) continue;  // it still waits for rows, and its lane's end cuts it
        remove_item(held, i, page, slot, false);
        has_ended = true;
      }
      if (has_ended) renew_word(held, page);
    }
    walk->row = row;
    ++walk->rows;
  }
  return page == kNoPage || walk->rows > reach;
}

uint32_t rows_become_tails(Held& held, uint64_t page, uint32_t begin, uint32_t end) {
  Region& r = held.region;
  for (uint32_t row = begin; row < end; ++row) {
    if (r.is_tail(page, row)) continue;
    if (r.has_records() && !end_records_at(held, r.slot_of(page, row))) return row;
    const Living gone = count_living(r, page, row, row + 1);
    change_rows(held, page, [&] {
      r.set_tail(page, row);
      RELIVE_FAIL_POINT(abandon_tail);
    });
    held.subtract(r.header->live_steps, 1);
    held.subtract(r.header->removed_steps, gone.removed_steps);
  }
  return end;
}

}  // namespace relive
