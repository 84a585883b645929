// broken_invariant(): reads the whole region and checks every invariant.
#include <algorithm>
#include <cmath>

#include "relive/index/leaf_checks.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/groups.hpp"
#include "relive/pages/item_starts.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/pins.hpp"
#include "relive/pages/publish.hpp"
#include "relive/pages/records.hpp"
#include "relive/pages/recover.hpp"
#include "relive/words/predicate.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

uint8_t* cleared(std::vector<uint8_t>& marks) {
  std::fill(marks.begin(), marks.end(), uint8_t{0});
  return marks.data();
}

Broken at_page(const char* what, uint64_t page) { return {what, page}; }

// Whether each row that the item of this row may need after it exists or is still to be written.
bool is_whole_behind(const Region& r, uint32_t i, uint64_t page, uint32_t offset) {
  int64_t left = int64_t{offset} + r.shape(i).after() - (int64_t{r.page_len} - 1);
  for (; left > 0; left -= r.page_len) {
    const uint64_t next = r.pages[page].next.load(kRelaxed);
    if (next == 0) return true;
    page = r.alive(next);
    if (page == kNoPage || Range::unpack(r.pages[page].range.load(kRelaxed)).step_begin > 0) return false;
  }
  return true;
}

// Compares the leaves of one page with the page's steps and leaf states.
Broken check_leaves(const Region& r, uint32_t i, uint64_t page, ItemCounts* counted) {
  const Leaves leaves(r, i);
  const bool is_used = Region::is_used(r.words[page].load(kRelaxed));
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const int64_t first_item = is_used ? first_row_there(r, page) + r.shape(i).before : 0;
  FilledRows filled(r, i);
  const SequenceConfig& sequence = leaves.config().sequence;
  RowAhead ahead(r, page);
  for (uint32_t offset = 0; offset < r.page_len; ++offset) {
    const uint64_t slot = r.slot_of(page, offset);
    const double mass = leaves.mass(slot);
    const uint16_t state = leaves.state(slot);
    const bool is_step = is_used && offset >= range.step_begin && offset < range.step_end && !r.is_tail(page, offset);
    const bool is_item = is_step && leaves.is_drawable(state);
    leaves.count_leaves(state, is_step, 1, counted);
    leaves.count_massless(slot, state, is_step, counted);
    if (mass != leaves.nothing() && (!std::isfinite(mass) || mass < 0.0))
      return at_page("a leaf is not a finite mass >= 0", page);
    if (mass != leaves.nothing() && !is_item) return at_page("a leaf that stands for no live item has mass", page);
    if (leaves.is_bounded() && Bounds(leaves).has_order(slot) != is_item)
      return at_page(is_item ? "an item that no remover can find" : "a remover's leaf of a slot without a live item",
                     page);
    if (is_item && !Bounds(leaves).is_of_one_priority(slot))
      return at_page("an item is drawn by another priority than it is removed by", page);
    if (leaves.is_timed() && DueTimes(leaves).has(Due::kWait, slot) != (is_step && Leaves::is_waiting(state)))
      return at_page("an item that waits has no start of its wait, or another one has it", page);
    if (const char* wrong = LeafChecks(leaves).wrong_freshness(slot, is_step, is_item)) return at_page(wrong, page);
    if (is_used && !is_step && state <= kMostUses) return at_page("an item stands where no step is", page);
    if (is_step && offset < first_item && leaves.has_life(state))
      return at_page("an item outlives a row it needs", page);
    // If the lane's end cut an episode off, the rows do not tell whether that episode has items.
    const bool is_told = is_step && sequence.is_set() && sequence.only_ended == 0 && state != kStatePending;
    const bool begins = is_told && begins_item(r, i, page, offset, ahead, false);
    if (is_told && !begins && leaves.has_life(state)) return at_page("an item stands where none begins", page);
    if (is_step && offset >= first_item && state == kStateEnded && begins == sequence.is_set() &&
        is_whole_behind(r, i, page, offset))
      return at_page("an item ended that had all it needs", page);
    const bool is_published = state == kStateAwaiting || state <= kMostUses;
    const bool is_lasting = has_condition(r, i) && leaves.config().where.asks_end == 0;
    if (is_step && is_published && is_lasting && !passes_condition(r, i, slot))
      return at_page("an item stands that its index's condition keeps out", page);
    const bool is_only_kept_out =
        state == kStateDropped && is_lasting && !leaves.is_bounded() && !leaves.is_timed() && !leaves.is_aged();
    if (is_step && is_only_kept_out && passes_condition(r, i, slot))
      return at_page("a condition kept out an item that passes it", page);
    if (!is_step || r.late_bytes == 0) continue;
    if ((is_published || state == kStateUnfilled) && filled.has_all_of(page, offset) != is_published)
      return at_page(is_published ? "an item is published, late columns of its rows are still to come"
                                  : "an item waits for late columns that its rows have",
                     page);
  }
  return {};
}

// No published or awaiting item needs a page after this one that is gone.
Broken check_reach(const Region& r, uint32_t i, uint64_t page) {
  const Leaves leaves(r, i);
  const uint64_t next = r.pages[page].next.load(kRelaxed);
  if (next == 0 || r.alive(next) != kNoPage) return {};
  int64_t left = r.shape(i).after();
  for (uint64_t at = page; left > 0 && at != kNoPage; left -= r.page_len) {
    const Range range = Range::unpack(r.pages[at].range.load(kRelaxed));
    const uint32_t first = r.page_len - static_cast<uint32_t>(std::min<int64_t>(left, r.page_len));
    for (uint32_t offset = std::max(first, range.step_begin); offset < range.step_end; ++offset)
      if (!r.is_tail(at, offset) && leaves.state(r.slot_of(at, offset)) != kStatePending &&
          leaves.has_life(leaves.state(r.slot_of(at, offset))))
        return at_page("an item outlives a page that its window runs over", at);
    at = r.alive(r.pages[at].prev.load(kRelaxed));
  }
  return {};
}

Broken check_page(const Region& r, uint64_t page, uint64_t* live_steps, uint64_t* removed_steps) {
  const PageRecord& record = r.pages[page];
  const Range range = Range::unpack(record.range.load(kRelaxed));
  if (Region::state_of(r.words[page].load(kRelaxed)) == PageState::kOpen && !is_named_by_its_lane(r, page))
    return at_page("no lane names an open page", page);
  if (range.step_begin > range.step_end || range.step_end > r.page_len) return at_page("range out of order", page);
  const Living living = count_living(r, page, range.step_begin, range.step_end);
  *live_steps += living.steps;
  *removed_steps += living.removed_steps;
  if (living.pairs != record.live) return at_page("live count differs from its steps", page);
  return {};
}

// No row before the cursor of a lane waits to be published.
Broken check_cursors(const Region& r, uint32_t lane_slot) {
  const Lane& lane = r.lanes[lane_slot];
  if (lane.state.load(kRelaxed) != LaneState::kLive && parked_page(r, lane_slot) == kNoPage) return {};
  for (const uint32_t i : r.row_indexes()) {
    const Leaves leaves(r, i);
    const uint64_t place = r.cursor(i, lane_slot).load(kRelaxed);
    const uint64_t here = r.alive(r.place_ref(place));
    if (here == kNoPage) continue;
    if (r.pages[here].lane_slot.load(kRelaxed) != lane_slot) return {"a cursor stands on another lane"};
    uint32_t end = r.place_offset(place);
    for (uint64_t page = here; page != kNoPage; page = r.alive(r.pages[page].prev.load(kRelaxed)), end = r.page_len) {
      const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
      for (uint32_t offset = range.step_begin; offset < std::min(end, range.step_end); ++offset)
        if (!r.is_tail(page, offset) && leaves.state(r.slot_of(page, offset)) == kStatePending)
          return at_page("a step waits to be published behind its lane's cursor", page);
    }
  }
  return {};
}

// No row after the cursor with a complete window waits to be published, as far back as the lane's pages are linked.
Broken check_complete(const Region& r, uint32_t lane_slot) {
  const Lane& lane = r.lanes[lane_slot];
  const uint64_t open = r.alive(lane.open.load(kRelaxed));
  const bool is_over = parked_page(r, lane_slot) != kNoPage;  // then no item waits for rows to come
  if (!is_over && (lane.state.load(kRelaxed) != LaneState::kLive || open == kNoPage)) return {};
  const uint64_t ahead = r.pages[open].next.load(kRelaxed);
  if (ahead != 0 && r.alive(ahead) == kNoPage) return at_page("the page after a lane's last one is gone", open);
  const uint32_t num_here = Range::unpack(r.pages[open].range.load(kRelaxed)).step_end;
  const int64_t num_rows = static_cast<int64_t>(r.pages[open].first_t) + num_here;
  if (const char* broken = broken_join(r, lane_slot); broken != nullptr) return {broken};
  for (const uint32_t i : r.row_indexes()) {
    const bool has_seam = r.shape(i).bootstrap != 0 && is_seam(r, lane, open, num_here);
    const int64_t ready = is_over ? num_rows : num_decided(r, i, lane_slot, num_rows, has_seam);
    for (uint64_t page = open; page != kNoPage; page = r.alive(r.pages[page].prev.load(kRelaxed))) {
      const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
      const auto first_t = static_cast<int64_t>(r.pages[page].first_t);
      for (uint32_t offset = range.step_begin; offset < range.step_end && first_t + offset < ready; ++offset)
        if (!r.is_tail(page, offset) && Leaves(r, i).state(r.slot_of(page, offset)) == kStatePending)
          return at_page("a step whose window is complete was not published", page);
    }
  }
  return {};
}

// A CLOSED page without rows; such a page is on the kept list and on no other.
bool is_over(const Region& r, uint64_t page) {
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  return Region::state_of(r.words[page].load(kRelaxed)) == PageState::kClosed && range.step_begin == range.step_end;
}

Broken check_lists(const Region& r, RecoverScratch& scratch) {
  const Header& h = *r.header;
  uint8_t* const seen = cleared(scratch.seen);
  uint64_t last_order = 0, count = 0;
  for (uint32_t page = h.ring_head.load(kRelaxed); page != kNoPage; page = r.pages[page].ring_next) {
    if (page >= r.geometry->num_pages || seen[page]++ != 0 || ++count > r.geometry->num_pages)
      return {"the age ring is broken"};
    if (!Region::is_used(r.words[page].load(kRelaxed))) return at_page("a free page is on the age ring", page);
    if (is_over(r, page)) return at_page("a closed page without steps was not freed", page);
    if (r.pages[page].order.load(kRelaxed) <= last_order) return at_page("the age ring is out of order", page);
    last_order = r.pages[page].order.load(kRelaxed);
  }
  for (uint32_t page = h.kept_head.load(kRelaxed); page != kNoPage; page = r.pages[page].ring_next) {
    if (page >= r.geometry->num_pages || seen[page]++ != 0) return {"the kept list is broken"};
    if (!is_over(r, page)) return at_page("a page is kept that is not over", page);
  }
  uint32_t page = h.free_head.load(kRelaxed);
  for (uint32_t left = h.num_free_pages.load(kRelaxed); left > 0; --left, page = r.pages[page].free_next) {
    if (page >= r.geometry->num_pages || seen[page]++ != 0) return {"the free list is broken"};
    if (Region::state_of(r.words[page].load(kRelaxed)) != PageState::kFree)
      return at_page("a used page is on the free list", page);
  }
  uint8_t* const frames = cleared(scratch.frames);
  for (uint64_t p = 0; p < r.geometry->num_pages; ++p) {
    const uint64_t word = r.words[p].load(kRelaxed);
    if (seen[p] == 0 && Region::state_of(word) != PageState::kRetired) return at_page("a page is on no list", p);
    if (Region::is_used(word) && frames[r.frames[p].load(kRelaxed)]++ != 0)
      return at_page("two pages share a frame", p);
  }
  const uint64_t num_free = h.num_free_frames.load(kRelaxed);
  for (uint64_t f = 0; f < num_free; ++f)
    if (frames[r.free_frames[f].load(kRelaxed)]++ != 0) return {"a frame is free and used, or free twice"};
  for (uint64_t f = 0; f < h.frames_committed.load(kRelaxed); ++f)
    if (frames[f] == 0) return {"a committed frame is lost"};
  return {};
}

}  // namespace

Broken broken_invariant(const Region& r, RecoverScratch& scratch) {
  const Header& h = *r.header;
  uint64_t live_steps = 0, removed_steps = 0;
  Broken broken;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    broken = check_page(r, page, &live_steps, &removed_steps);
    if (broken) return broken;
  }
  if (live_steps != h.live_steps.load(kRelaxed)) return {"live_steps differs from the steps in the pages"};
  if (h.raising.index.load(kRelaxed) != 0 || h.num_raised.load(kRelaxed) % 2 != 0)
    return {"a change of an exponent was not made to its end"};
  if (live_steps > r.geometry->capacity) return {"more live steps than capacity"};
  if (removed_steps != h.removed_steps.load(kRelaxed)) return {"removed_steps differs from the steps in the pages"};
  for (const uint32_t i : r.row_indexes()) {
    ItemCounts counted;
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      broken = check_leaves(r, i, page, &counted);
      if (!broken && Region::is_used(r.words[page].load(kRelaxed))) broken = check_reach(r, i, page);
      if (broken) return broken;
    }
    if (const char* wrong = LeafChecks(r, i).wrong_count(counted)) return {wrong};
    if (Leaves(r, i).is_bounded() && counted.live_items > static_cast<int64_t>(h.indexes[i].max_items))
      return {"an index has more than max_items"};
    broken = {LeafChecks(r, i).broken_node()};
    if (broken) return broken;
  }
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) {
    broken = check_cursors(r, lane);
    if (!broken) broken = check_complete(r, lane);
    if (broken) return broken;
  }
  if (count_pinning_all(r) != h.num_pinning_all.load(kRelaxed))
    return {"num_pinning_all differs from the sum over all participants"};
  broken = {broken_records(r)};
  if (!broken) broken = {broken_ranks(r)};
  for (const uint32_t i : r.record_indexes())
    if (!broken) broken = {broken_groups(r, i)};
  if (!broken) broken = {broken_bulk(r, cleared(scratch.bulk_frames), cleared(scratch.positions))};
  if (!broken && r.cells) broken = {broken_cells(r, scratch.cell_owners.data())};
  return broken ? broken : check_lists(r, scratch);
}

}  // namespace relive
