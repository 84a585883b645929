#include "relive/pages/pages.hpp"

#include <algorithm>
#include <cstring>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Masks the items of a page below new_begin: leaves to zero, counts corrected.
void mask_items(Region& r, uint64_t page, uint32_t old_begin, uint32_t new_begin, Dirty& dirty) {
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const uint32_t end = std::min(new_begin, r.item_end(page, i));
    int64_t gone = 0;
    for (uint32_t offset = old_begin; offset < end; ++offset) {
      if (r.is_tail(page, offset)) continue;
      const uint64_t slot = r.slot_of(page, offset);
      gone += r.is_drawable(i, r.times[i][slot].load(kRelaxed)) ? 1 : 0;
      if (r.trees[i].leaf(slot) == 0.0) continue;
      r.trees[i].set_leaf(slot, 0.0);
      dirty.add(r, i, slot);
      RELIVE_FAIL_POINT(evict_leaves);
    }
    if (gone > 0) r.header->index_state[i].live_items.fetch_sub(gone, kRelaxed);
  }
}

// Raises item_begin of the page after `page`, whose windows reached back into rows that are gone.
void carry_to_next(Region& r, uint64_t page, uint32_t begin, Dirty& dirty) {
  const uint64_t next = r.alive(r.pages[page].next.load(kRelaxed));
  if (next == kNoPage || (r.pages[next].flags.load(kRelaxed) & kHistoryFree) != 0) return;
  Range range = Range::unpack(r.pages[next].range.load(kRelaxed));
  if (begin <= range.item_begin) return;
  const uint32_t old_begin = range.item_begin;
  range.item_begin = begin;
  r.pages[next].range.store(range.pack(), std::memory_order_release);
  RELIVE_FAIL_POINT(evict_carry);
  mask_items(r, next, old_begin, begin, dirty);
}

void free_page(Region& r, uint64_t page) {
  RELIVE_FAIL_POINT(free_masked);
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t freed = r.freed_word(word);
  r.words[page].store(freed, std::memory_order_release);
  RELIVE_FAIL_POINT(free_word);
  // Nothing of the page may be written before its new generation is visible (rule D3; a release store alone does not
  // order the stores that follow it).
  if (RELIVE_RULE(D3_fence)) release_fence();
  RELIVE_FAIL_POINT(free_fence);
  ring_remove(r, static_cast<uint32_t>(page));
  const uint64_t free = r.header->num_free_frames.load(kRelaxed);
  r.free_frames[free].store(r.frames[page].load(kRelaxed), kRelaxed);
  r.header->num_free_frames.store(free + 1, kRelaxed);
  if (r.bulk) release_bulk(r, page);
  r.pages[page].live = 0;
  if (Region::state_of(freed) != PageState::kRetired) free_push_back(r, static_cast<uint32_t>(page));
  RELIVE_FAIL_POINT(free_listed);
}

// To the back of the ring. An OPEN page takes the page opened ahead of it along: were that one older, its rows would go
// while windows of this page still reach them. The later page is stamped first: a death in between leaves it younger.
void restamp(Region& r, uint64_t page) {
  const bool is_open = Region::state_of(r.words[page].load(kRelaxed)) == PageState::kOpen;
  const uint64_t ahead = is_open ? r.alive(r.pages[page].next.load(kRelaxed)) : kNoPage;
  const uint64_t order = r.header->next_order.fetch_add(2, kRelaxed);
  if (ahead != kNoPage) r.pages[ahead].order.store(order + 1, kRelaxed);
  r.pages[page].order.store(order, kRelaxed);
  ring_remove(r, static_cast<uint32_t>(page));
  ring_push_back(r, static_cast<uint32_t>(page));
  if (ahead == kNoPage) return;
  ring_remove(r, static_cast<uint32_t>(ahead));
  ring_push_back(r, static_cast<uint32_t>(ahead));
}

// Evicts up to `count` steps of one page; returns how many it did.
uint64_t evict_from_page(Region& r, uint64_t page, uint64_t count, Dirty& dirty) {
  PageRecord& record = r.pages[page];
  Range range = Range::unpack(record.range.load(kRelaxed));
  const uint32_t begin = range.step_begin;
  const uint32_t old_item_begin = range.item_begin;
  uint64_t evicted = 0;
  while (range.step_begin < range.step_end && (evicted < count || r.is_tail(page, range.step_begin))) {
    evicted += r.is_tail(page, range.step_begin) ? 0 : 1;
    ++range.step_begin;
  }
  const Living gone = count_living(r, page, begin, range.step_begin);
  if (range.step_begin > begin) range.item_begin = std::max(range.item_begin, range.step_begin + r.geometry->history);
  if (RELIVE_RULE(D3_one_store)) {
    record.range.store(range.pack(), std::memory_order_release);
    RELIVE_FAIL_POINT(evict_range);
  } else {
    Range first = range;
    first.item_begin = old_item_begin;
    record.range.store(first.pack(), std::memory_order_release);
    RELIVE_FAIL_POINT(evict_range);
    record.range.store(range.pack(), std::memory_order_release);
  }
  mask_items(r, page, old_item_begin, range.item_begin, dirty);
  if (range.item_begin > r.page_len) carry_to_next(r, page, range.item_begin - r.page_len, dirty);
  r.header->live_steps.fetch_sub(evicted, kRelaxed);
  r.header->removed_steps.fetch_sub(gone.removed_steps, kRelaxed);
  record.live -= gone.pairs;
  r.header->counters.evicted.fetch_add(evicted, kRelaxed);
  RELIVE_FAIL_POINT(evict_counts);
  if (range.step_begin == range.step_end) {
    const uint64_t word = r.words[page].load(kRelaxed);
    if (Region::state_of(word) == PageState::kClosed && !is_pinned(r, page)) {
      RELIVE_FAIL_POINT(free_begin);
      carry_to_next(r, page, r.geometry->history, dirty);
      free_page(r, page);
    } else {
      restamp(r, page);  // a slow lane is never evicted under its owner; a pinned page waits at the back
    }
  }
  return evicted;
}

// A window of `page`'s neighbour that is still alive and reaches into it.
bool is_reached_from_neighbours(const Region& r, uint64_t page) {
  const uint64_t prev = r.alive(r.pages[page].prev.load(kRelaxed));
  const uint64_t next = r.alive(r.pages[page].next.load(kRelaxed));
  const Lane& lane = r.lanes[r.pages[page].lane_slot];
  const bool goes_on =
      lane.state.load(kRelaxed) == LaneState::kLive && lane.uid.load(kRelaxed) == r.pages[page].lane_uid;
  if (r.geometry->history > 0 && next == kNoPage && goes_on) return true;
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const uint32_t n_step = r.header->indexes[i].n_step;
    for (uint32_t offset = r.page_len - std::min(n_step, r.page_len); prev != kNoPage && offset < r.page_len;
         ++offset) {
      const Range range = Range::unpack(r.pages[prev].range.load(kRelaxed));
      const bool pending = offset >= range.item_begin && offset < range.step_end && offset >= r.item_end(prev, i);
      const uint16_t times = r.times[i][r.slot_of(prev, offset)].load(kRelaxed);
      if (pending || (offset >= range.item_begin && times == kTimesAwaiting) || r.is_live_item(i, prev, offset))
        return true;
    }
    // Rows after this page may still be items whose stacks reach back into it, published or not, even not yet written.
    for (uint32_t offset = 0; next != kNoPage && offset < r.geometry->history; ++offset) {
      if ((r.pages[next].flags.load(kRelaxed) & kHistoryFree) != 0) break;
      const Range range = Range::unpack(r.pages[next].range.load(kRelaxed));
      const uint16_t times = r.times[i][r.slot_of(next, offset)].load(kRelaxed);
      const bool used = times < kTimesAwaiting && !r.is_drawable(i, times);
      if (offset >= range.item_begin && times != kTimesRemoved && !used) return true;
    }
  }
  return false;
}

}  // namespace

void Dirty::flush(Region& r, uint32_t index) {
  r.trees[index].refresh(slots_[index].data(), count_[index]);
  count_[index] = 0;
}

void Dirty::flush_all(Region& r) {
  for (uint32_t i = 0; i < r.num_indexes; ++i)
    if (count_[i] > 0) flush(r, i);
}

Living count_living(const Region& r, uint64_t page, uint32_t begin, uint32_t end) {
  Living living;
  for (uint32_t offset = begin; offset < end; ++offset) {
    if (r.is_tail(page, offset)) continue;
    bool is_removed = false;
    for (uint32_t i = 0; i < r.num_indexes; ++i) {
      const uint16_t times = r.times[i][r.slot_of(page, offset)].load(kRelaxed);
      living.pairs += times == kTimesAwaiting || r.is_drawable(i, times) ? 1 : 0;
      is_removed |= times == kTimesRemoved;
    }
    living.steps += 1;
    living.removed_steps += is_removed ? 1 : 0;
  }
  return living;
}

void ring_push_back(Region& r, uint32_t page) {
  const uint32_t tail = r.header->ring_tail.load(kRelaxed);
  r.pages[page].ring_prev = tail;
  r.pages[page].ring_next = kNoPage;
  if (tail == kNoPage) {
    r.header->ring_head.store(page, kRelaxed);
  } else {
    r.pages[tail].ring_next = page;
  }
  r.header->ring_tail.store(page, kRelaxed);
}

void ring_remove(Region& r, uint32_t page) {
  const uint32_t prev = r.pages[page].ring_prev;
  const uint32_t next = r.pages[page].ring_next;
  if (prev == kNoPage) {
    r.header->ring_head.store(next, kRelaxed);
  } else {
    r.pages[prev].ring_next = next;
  }
  if (next == kNoPage) {
    r.header->ring_tail.store(prev, kRelaxed);
  } else {
    r.pages[next].ring_prev = prev;
  }
}

void free_push_back(Region& r, uint32_t page) {
  Header& h = *r.header;
  r.pages[page].free_next = kNoPage;
  if (h.num_free_pages.load(kRelaxed) == 0) {
    h.free_head.store(page, kRelaxed);
  } else {
    r.pages[h.free_tail.load(kRelaxed)].free_next = page;
  }
  h.free_tail.store(page, kRelaxed);
  h.num_free_pages.fetch_add(1, kRelaxed);
}

bool is_pinned(const Region& r, uint64_t page) {
  if (r.bulk && r.bulk.is_pinned(page)) return true;
  if (r.header->num_pins.load(kRelaxed) == 0) return false;
  const uint64_t ref = r.ref_of(page, r.words[page].load(kRelaxed));
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    for (const auto& pin : r.participants[p].pins)
      if (pin.load(kRelaxed) == ref) return true;
  return false;
}

void unpin(Region& r, std::atomic<uint64_t>& pin, Dirty& dirty) {
  const uint64_t page = r.alive(pin.load(kRelaxed));
  pin.store(0, kRelaxed);
  r.header->num_pins.fetch_sub(1, kRelaxed);
  if (page == kNoPage || is_pinned(r, page)) return;
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const bool is_closed = Region::state_of(r.words[page].load(kRelaxed)) == PageState::kClosed;
  if (is_closed && range.step_begin == range.step_end) evict_from_page(r, page, 0, dirty);
}

void unhold_bulk(Region& r, uint64_t ref, Dirty& dirty) {
  const uint64_t page = r.alive(ref);
  if (page == kNoPage || r.bulk.planned[2 * page + 1].fetch_sub(1, kRelaxed) != 1 || is_pinned(r, page)) return;
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const bool is_closed = Region::state_of(r.words[page].load(kRelaxed)) == PageState::kClosed;
  if (is_closed && range.step_begin == range.step_end) evict_from_page(r, page, 0, dirty);
}

OpenResult open_page(Region& r, uint32_t lane_slot, bool ahead, bool history_free, uint64_t* ref) {
  Header& h = *r.header;
  if (h.num_free_pages.load(kRelaxed) == 0) return OpenResult::kNoPage;
  const uint64_t free_frames = h.num_free_frames.load(kRelaxed);
  if (free_frames == 0) return OpenResult::kNoFrame;
  const uint32_t page = h.free_head.load(kRelaxed);
  if (r.bulk && !take_bulk(r, page)) return OpenResult::kNoBulk;
  PageRecord& record = r.pages[page];
  h.free_head.store(record.free_next, kRelaxed);
  h.num_free_pages.fetch_sub(1, kRelaxed);
  h.num_free_frames.store(free_frames - 1, kRelaxed);
  r.frames[page].store(r.free_frames[free_frames - 1].load(kRelaxed), std::memory_order_release);
  RELIVE_FAIL_POINT(open_popped);

  Lane& lane = r.lanes[lane_slot];
  const uint64_t prev_ref = lane.open.load(kRelaxed);
  const uint64_t prev = r.alive(prev_ref);
  uint32_t item_begin = 0;
  if (!history_free && prev_ref != 0) {
    item_begin = r.geometry->history;
    if (prev != kNoPage) {
      const uint32_t reach = Range::unpack(r.pages[prev].range.load(kRelaxed)).item_begin;
      item_begin = reach > r.page_len ? reach - r.page_len : 0;
    }
  }
  record.range.store(Range{0, 0, item_begin, item_begin}.pack(), kRelaxed);
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    record.item_end[i].store(static_cast<uint16_t>(item_begin), kRelaxed);
    std::atomic<uint16_t>* times = &r.times[i][r.slot_of(page, 0)];
    for (uint32_t offset = 0; offset < r.page_len; ++offset) times[offset].store(0, kRelaxed);  // others may be reading
  }
  for (uint32_t word = 0; word < r.geometry->tail_words; ++word)
    r.tails[page * uint64_t{r.geometry->tail_words} + word].store(0, kRelaxed);
  record.prev.store(prev_ref, kRelaxed);
  record.next.store(0, kRelaxed);
  record.lane_uid.store(lane.uid.load(kRelaxed), kRelaxed);
  record.lane_slot.store(lane_slot, kRelaxed);
  record.first_t = prev != kNoPage ? r.pages[prev].first_t + r.page_len : 0;
  record.flags.store(history_free ? kHistoryFree : 0, kRelaxed);
  record.live = 0;
  record.order.store(h.next_order.fetch_add(1, kRelaxed), kRelaxed);
  RELIVE_FAIL_POINT(open_fields);
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t opened = Region::generation_of(word) << kGenerationShift | static_cast<uint64_t>(PageState::kOpen);
  r.words[page].store(opened, std::memory_order_release);
  RELIVE_FAIL_POINT(open_word);
  *ref = r.ref_of(page, opened);
  if (prev != kNoPage) r.pages[prev].next.store(*ref, std::memory_order_release);
  RELIVE_FAIL_POINT(open_linked);
  (ahead ? lane.ahead : lane.open).store(*ref, std::memory_order_release);
  RELIVE_FAIL_POINT(open_lane);
  ring_push_back(r, page);
  RELIVE_FAIL_POINT(open_ring);
  return OpenResult::kOk;
}

void close_page(Region& r, uint64_t page) {
  r.pages[page].ticket = r.header->next_ticket.fetch_add(1, kRelaxed);
  const uint64_t word = r.words[page].load(kRelaxed);
  r.words[page].store((word & ~uint64_t{3}) | static_cast<uint64_t>(PageState::kClosed), std::memory_order_release);
  if (r.bulk) offer_for_spill(r, page);
}

void evict_steps(Region& r, uint64_t count, Dirty& dirty) {
  while (count > 0 && r.header->live_steps.load(kRelaxed) > 0) {
    const uint32_t page = r.header->ring_head.load(kRelaxed);
    if (page == kNoPage) return;
    count -= evict_from_page(r, page, count, dirty);
  }
}

bool relieve_pressure(Region& r, Dirty& dirty) {
  for (uint32_t page = r.header->ring_head.load(kRelaxed); page != kNoPage; page = r.pages[page].ring_next) {
    if (Region::state_of(r.words[page].load(kRelaxed)) != PageState::kClosed || is_pinned(r, page)) continue;
    evict_from_page(r, page, ~uint64_t{0}, dirty);
    r.header->counters.pool_pressure.fetch_add(1, kRelaxed);
    return true;
  }
  return false;
}

void free_if_lifeless(Region& r, uint64_t page, Dirty& dirty) {
  const uint64_t word = r.words[page].load(kRelaxed);
  if (Region::state_of(word) != PageState::kClosed || r.pages[page].live != 0 || is_pinned(r, page)) return;
  if (r.bulk && r.bulk.is_claimed(page)) return;  // somebody has drawn of it for the last time and reads it yet
  if (is_reached_from_neighbours(r, page)) return;
  evict_from_page(r, page, ~uint64_t{0}, dirty);
  r.header->counters.early_freed.fetch_add(1, kRelaxed);
}

void free_empty_page(Region& r, uint64_t page) { free_page(r, page); }

bool move_page(Region& r, uint64_t page) {
  Header& h = *r.header;
  const uint64_t word = r.words[page].load(kRelaxed);
  const uint64_t free_frames = h.num_free_frames.load(kRelaxed);
  if (Region::state_of(word) != PageState::kClosed || free_frames == 0 || is_pinned(r, page)) return false;
  const uint32_t from = r.frames[page].load(kRelaxed);
  const uint32_t to = r.free_frames[free_frames - 1].load(kRelaxed);
  std::memcpy(r.frame_base(to), r.frame_base(from), r.geometry->frame_bytes);
  RELIVE_FAIL_POINT(move_copied);
  r.frames[page].store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(move_frame);
  const uint64_t moves = ((word >> kStateBits) + 1) & ((uint64_t{1} << kMoveBits) - 1);
  const uint64_t moved = Region::generation_of(word) << kGenerationShift | moves << kStateBits | (word & 3);
  if (RELIVE_RULE(D6_moves)) r.words[page].store(moved, std::memory_order_release);
  RELIVE_FAIL_POINT(move_word);
  release_fence();
  r.free_frames[free_frames - 1].store(from, kRelaxed);
  return true;
}

}  // namespace relive
