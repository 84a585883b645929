#include "relive/pages/recover.hpp"

#include "relive/pages/publish.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void zero_leaves(Region& r, uint64_t page) {
  for (uint32_t i = 0; i < r.num_indexes; ++i)
    for (uint32_t offset = 0; offset < r.page_len; ++offset) r.trees[i].set_leaf(r.slot_of(page, offset), 0.0);
}

void bump_to_free(Region& r, uint64_t page) {
  zero_leaves(r, page);
  r.words[page].store(r.freed_word(r.words[page].load(kRelaxed)), std::memory_order_release);
  release_fence();
}

bool is_named_by_its_lane(const Region& r, uint64_t page, uint64_t word) {
  const PageRecord& record = r.pages[page];
  if (record.lane_slot >= r.geometry->max_lanes) return false;
  const Lane& lane = r.lanes[record.lane_slot];
  const uint64_t ref = r.ref_of(page, word);
  return lane.state.load(kRelaxed) == LaneState::kLive && lane.uid.load(kRelaxed) == record.lane_uid &&
         (lane.open.load(kRelaxed) == ref || lane.ahead.load(kRelaxed) == ref);
}

// Pass 1: pages nobody names, and pages that were on their way out.
void settle_pages(Region& r) {
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(kRelaxed);
    if (!Region::is_used(word)) continue;
    const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
    const bool is_empty = range.step_begin >= range.step_end;
    const bool is_open = Region::state_of(word) == PageState::kOpen;
    // Who died while moving the page may have changed its frame and not yet its moves: whoever reads it reads again.
    if (!is_open && RELIVE_RULE(D6_moves)) {
      const uint64_t moves = ((word >> kStateBits) + 1) & ((uint64_t{1} << kMoveBits) - 1);
      r.words[page].store(Region::generation_of(word) << kGenerationShift | moves << kStateBits | (word & 3),
                          std::memory_order_release);
    }
    if (is_open && is_named_by_its_lane(r, page, word)) continue;
    if (is_empty && !is_pinned(r, page)) {
      bump_to_free(r, page);
    } else if (is_open) {
      close_page(r, page);
    }
  }
  release_fence();
}

// Pass 2: item_begin follows from the page before, as it is after pass 1.
void settle_item_begin(Region& r) {
  if (!RELIVE_RULE(F3_item_begin)) return;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    PageRecord& record = r.pages[page];
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    const uint64_t prev_ref = record.prev.load(kRelaxed);
    if (prev_ref == 0 || (record.flags.load(kRelaxed) & kHistoryFree) != 0) continue;
    Range range = Range::unpack(record.range.load(kRelaxed));
    const uint64_t prev = r.alive(prev_ref);
    uint32_t least = r.geometry->history;
    if (prev != kNoPage) {
      const uint32_t reach = Range::unpack(r.pages[prev].range.load(kRelaxed)).item_begin;
      least = reach > r.page_len ? reach - r.page_len : 0;
    }
    if (least <= range.item_begin) continue;
    range.item_begin = least;
    record.range.store(range.pack(), std::memory_order_release);
  }
}

// Pass 3: leaves that stand for no item. Counts what is live on the way.
void settle_leaves(Region& r) {
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    int64_t live_items = 0;
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      const bool is_used = Region::is_used(r.words[page].load(kRelaxed));
      const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
      const uint32_t end = is_used ? r.item_end(page, i) : 0;
      for (uint32_t offset = 0; offset < r.page_len; ++offset) {
        const uint64_t slot = r.slot_of(page, offset);
        const bool is_item = is_used && offset >= range.item_begin && offset < end && !r.is_tail(page, offset) &&
                             r.is_drawable(i, r.times[i][slot].load(kRelaxed));
        const double mass = r.trees[i].leaf(slot);
        live_items += is_item ? 1 : 0;
        if (mass != 0.0 && (!is_item || !std::isfinite(mass) || mass < 0.0)) r.trees[i].set_leaf(slot, 0.0);
      }
    }
    r.header->index_state[i].live_items.store(live_items, kRelaxed);
  }
}

// Steps and (step, index) pairs of one used page.
void count_page(Region& r, uint64_t page, uint64_t* live_steps, uint64_t* removed_steps) {
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const Living living = count_living(r, page, range.step_begin, range.step_end);
  r.pages[page].live = living.pairs;
  *live_steps += living.steps;
  *removed_steps += living.removed_steps;
}

void rebuild_lists(Region& r) {
  Header& h = *r.header;
  std::vector<uint32_t> used;
  std::vector<bool> taken(r.geometry->num_frames, false);
  uint64_t live_steps = 0, removed_steps = 0, next_order = 1, next_ticket = 1;
  h.num_free_pages.store(0, kRelaxed);
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(kRelaxed);
    if (Region::state_of(word) == PageState::kFree) {
      r.pages[page].live = 0;
      if (RELIVE_RULE(F5_free_list)) free_push_back(r, static_cast<uint32_t>(page));
    }
    if (!Region::is_used(word)) continue;
    used.push_back(static_cast<uint32_t>(page));
    taken[r.frames[page].load(kRelaxed)] = true;
    count_page(r, page, &live_steps, &removed_steps);
    next_order = std::max(next_order, r.pages[page].order.load(kRelaxed) + 1);
    next_ticket = std::max(next_ticket, r.pages[page].ticket + 1);
  }
  std::sort(used.begin(), used.end(),
            [&r](uint32_t a, uint32_t b) { return r.pages[a].order.load(kRelaxed) < r.pages[b].order.load(kRelaxed); });
  h.ring_head.store(kNoPage, kRelaxed);
  h.ring_tail.store(kNoPage, kRelaxed);
  for (uint32_t page : used) ring_push_back(r, page);
  uint64_t num_free = 0;
  for (uint64_t frame = h.frames_committed.load(kRelaxed); frame-- > 0;)
    if (!taken[frame]) r.free_frames[num_free++].store(static_cast<uint32_t>(frame), kRelaxed);
  h.num_free_frames.store(num_free, kRelaxed);
  h.live_steps.store(live_steps, kRelaxed);
  h.removed_steps.store(removed_steps, kRelaxed);
  h.next_order.store(std::max(h.next_order.load(kRelaxed), next_order), kRelaxed);
  h.next_ticket.store(std::max(h.next_ticket.load(kRelaxed), next_ticket), kRelaxed);
  uint32_t num_pins = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    for (const auto& pin : r.participants[p].pins) num_pins += pin.load(kRelaxed) != 0 ? 1 : 0;
  h.num_pins.store(num_pins, kRelaxed);
}

}  // namespace

void recover(Region& r) {
  RELIVE_FAIL_POINT(recover_begin);
  if (RELIVE_RULE(F2_pages)) settle_pages(r);
  RELIVE_FAIL_POINT(recover_pass1);
  settle_item_begin(r);
  RELIVE_FAIL_POINT(recover_pass2);
  if (RELIVE_RULE(F4_leaves)) settle_leaves(r);
  RELIVE_FAIL_POINT(recover_pass3);
  rebuild_lists(r);
  RELIVE_FAIL_POINT(recover_lists);
  if (RELIVE_RULE(F5_inner))
    for (uint32_t i = 0; i < r.num_indexes; ++i) r.trees[i].rebuild();
  RELIVE_FAIL_POINT(recover_inner);
  r.header->counters.recoveries.fetch_add(1, kRelaxed);
}

void end_participant(Region& r, uint32_t participant, Dirty& dirty) {
  RELIVE_FAIL_POINT(sweep_begin);
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) {
    if (r.lanes[lane].state.load(kRelaxed) != LaneState::kLive) continue;
    if (r.lanes[lane].owner.load(kRelaxed) != participant) continue;
    cut_lane(r, lane, dirty);
    RELIVE_FAIL_POINT(sweep_lane);
  }
  dirty.flush_all(r);
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    if (RELIVE_RULE(E4_credit)) r.credit(participant, i).in_flight.store(0, kRelaxed);
    r.credit(participant, i).reserved.store(0, kRelaxed);
    r.credit(participant, i).refused_draw.store(0, kRelaxed);
  }
  RELIVE_FAIL_POINT(sweep_credit);
  for (auto& pin : r.participants[participant].pins)
    if (pin.load(kRelaxed) != 0) unpin(r, pin, dirty);
  dirty.flush_all(r);
  r.participants[participant].live.store(0, std::memory_order_release);
  RELIVE_FAIL_POINT(sweep_live);
}

uint32_t sweep(Region& r, const Storage& storage, uint32_t me, Dirty& dirty) {
  uint32_t swept = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) {
    if (p == me || r.participants[p].live.load(kRelaxed) == 0) continue;
    if (RELIVE_RULE(E2_lock_byte) && !storage.is_byte_free(kLifeByte + p)) continue;
    end_participant(r, p, dirty);
    r.header->counters.swept.fetch_add(1, kRelaxed);
    ++swept;
  }
  return swept;
}

}  // namespace relive
