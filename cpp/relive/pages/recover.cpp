#include "relive/pages/recover.hpp"

#include <algorithm>
#include <optional>

#include "relive/index/exponent_change.hpp"
#include "relive/index/leaves.hpp"
#include "relive/index/recover_leaves.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/changed_rows.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/groups.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/max_items.hpp"
#include "relive/pages/pins.hpp"
#include "relive/pages/publish.hpp"
#include "relive/pages/records.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void bump_to_free(Held& held, uint64_t page) {
  Region& r = held.region;
  r.words[page].store(r.freed_word(r.words[page].load(kRelaxed)), std::memory_order_release);
  release_fence();
}

// Pass 1: pages that no lane names, and pages that were being freed.
void settle_pages(Held& held) {
  Region& r = held.region;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(kRelaxed);
    if (!Region::is_used(word)) continue;
    const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
    const bool is_empty = range.step_begin >= range.step_end;
    const bool is_open = Region::state_of(word) == PageState::kOpen;
    // A process that died during a move may have changed the page's frame and not its moves. The new word makes every
    // reader of the page read again.
    if (!is_open && RELIVE_RULE(D6_moves)) r.words[page].store(Region::moved_word(word), std::memory_order_release);
    if (is_open && is_named_by_its_lane(r, page)) continue;
    if (is_empty) unlink_empty_page(held, page);  // OPEN or CLOSED: a process may have died while it freed the page
    if (is_empty && !must_stay(r, page)) {
      bump_to_free(held, page);
    } else if (is_open) {
      close_page(held, page);
    }
  }
  release_fence();
}

// Pass 2: items that need an evicted row, judged by the pages as pass 1 left them.
void settle_items(Held& held) {
  Region& r = held.region;
  if (!RELIVE_RULE(F3_items)) return;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    r.pages[page].live = 0;  // rebuild_lists() or settle_leaves() counts it
    const int64_t first_there = first_row_there(r, page);
    for (const uint32_t i : r.row_indexes()) {
      const int64_t end = std::clamp<int64_t>(first_there + r.shape(i).before, 0, r.page_len);
      for (uint32_t offset = 0; offset < end; ++offset) Leaves::retire(held, i, r.slot_of(page, offset), kStateEnded);
    }
    const uint64_t next = r.pages[page].next.load(kRelaxed);
    if (next != 0 && r.alive(next) == kNoPage) end_items_at_end(held, page);
  }
}

// Returns the live rows as this index sees them, and stores the live pairs of each page.
template <class Has>
Living settle_leaves(Held& held, const LeafRecovery& leaves, ItemCounts* counted, Has has) {
  Region& r = held.region;
  Living all;
  SettledRows rows;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const bool is_used = Region::is_used(r.words[page].load(kRelaxed));
    const Range range = is_used ? Range::unpack(r.pages[page].range.load(kRelaxed)) : Range{};
    const bool has_tails = r.num_tails(page, 0, r.page_len) != 0;
    const uint64_t with_life = rows.with_life;
    for (uint32_t begin = 0, end = 0; begin < r.page_len; begin = end) {  // runs of rows that all are steps, or none
      const bool is_there = begin >= range.step_begin && begin < range.step_end;
      const bool is_step = is_there && !(has_tails && r.is_tail(page, begin));
      end = is_there ? range.step_end : begin < range.step_begin ? range.step_begin : r.page_len;
      end = std::min(is_there && has_tails ? begin + 1 : end, r.page_len);
      leaves.settle_run(held, r.slot_of(page, begin), end - begin, is_step, has, &rows);
      all.steps += is_step ? end - begin : 0;
    }
    if (is_used) r.pages[page].live = static_cast<uint32_t>(rows.with_life - with_life);
  }
  all.removed_steps = rows.removed;
  *counted = rows.counts;
  return all;
}

// The words that an index keeps for its items: KeepsJust is known at compile time, Keeps is not.
template <uint32_t kTraits>
struct KeepsJust {
  constexpr bool operator()(uint32_t traits) const { return (traits & kTraits) != 0; }
};
struct Keeps {
  uint32_t kept;
  bool operator()(uint32_t traits) const { return (kept & traits) != 0; }
};

// Pass 3: clears leaves that stand for no item and counts the live items. If one index has rows, the result says what
// lives of the rows, so rebuild_lists() does not read them again.
std::optional<Living> settle_leaves(Held& held) {
  Region& r = held.region;
  Living living;
  for (const uint32_t i : r.row_indexes()) {
    ItemCounts counted;
    const LeafRecovery leaves(r, i);
    if (leaves.keeps_just(0)) {
      living = settle_leaves(held, leaves, &counted, KeepsJust<0>{});
    } else if (leaves.keeps_just(kIsLatest)) {
      living = settle_leaves(held, leaves, &counted, KeepsJust<kIsLatest>{});
    } else if (leaves.keeps_just(kIsAged)) {
      living = settle_leaves(held, leaves, &counted, KeepsJust<kIsAged>{});
    } else if (leaves.keeps_just(kIsBounded)) {
      living = settle_leaves(held, leaves, &counted, KeepsJust<kIsBounded>{});
    } else if (leaves.keeps_just(kFades)) {
      living = settle_leaves(held, leaves, &counted, KeepsJust<kFades>{});
    } else {
      living = settle_leaves(held, leaves, &counted, Keeps{leaves.kept()});
    }
    LeafRecovery::store_counts(held, i, counted);
  }
  return r.row_indexes().size() == 1 ? std::optional(living) : std::nullopt;
}

// Counts the steps and the (step, index) pairs of one used page.
void count_page(Held& held, uint64_t page, uint64_t* live_steps, uint64_t* removed_steps) {
  Region& r = held.region;
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  const Living living = count_living(r, page, range.step_begin, range.step_end);
  r.pages[page].live = living.pairs;
  *live_steps += living.steps;
  *removed_steps += living.removed_steps;
}

void rebuild_lists(Held& held, const std::optional<Living>& living, RecoverScratch& scratch) {
  Region& r = held.region;
  Header& h = *r.header;
  RecoverScratch::UsedPage* const used = scratch.pages.data();
  uint8_t* const taken = scratch.frames.data();
  size_t num_used = 0;
  std::fill_n(taken, r.geometry->num_frames, uint8_t{0});
  uint64_t live_steps = 0, removed_steps = 0, next_order = 1, next_ticket = 1;
  h.num_free_pages.store(0, kRelaxed);
  h.kept_head.store(kNoPage, kRelaxed);
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(kRelaxed);
    if (Region::state_of(word) == PageState::kFree) {
      r.pages[page].live = 0;
      if (RELIVE_RULE(F5_free_list)) free_push_back(held, static_cast<uint32_t>(page));
    }
    if (!Region::is_used(word)) continue;
    const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
    if (Region::state_of(word) == PageState::kClosed && range.step_begin >= range.step_end) {
      kept_push(held, static_cast<uint32_t>(page));
    } else {
      used[num_used++] = {r.pages[page].order.load(kRelaxed), static_cast<uint32_t>(page)};
    }
    taken[r.frames[page].load(kRelaxed)] = 1;
    if (!living) count_page(held, page, &live_steps, &removed_steps);
    next_order = std::max(next_order, r.pages[page].order.load(kRelaxed) + 1);
    next_ticket = std::max(next_ticket, r.pages[page].ticket.load(kRelaxed) + 1);
  }
  std::sort(used, used + num_used, [](const auto& a, const auto& b) { return a.order < b.order; });
  h.ring_head.store(kNoPage, kRelaxed);
  h.ring_tail.store(kNoPage, kRelaxed);
  for (size_t k = 0; k < num_used; ++k) ring_push_back(held, used[k].page);
  uint64_t num_free = 0;
  for (uint64_t frame = h.frames_committed.load(kRelaxed); frame-- > 0;)
    if (taken[frame] == 0) r.free_frames[num_free++].store(static_cast<uint32_t>(frame), kRelaxed);
  h.num_free_frames.store(num_free, kRelaxed);
  h.live_steps.store(living ? living->steps : live_steps, kRelaxed);
  h.removed_steps.store(living ? living->removed_steps : removed_steps, kRelaxed);
  h.next_order.store(std::max(h.next_order.load(kRelaxed), next_order), kRelaxed);
  h.next_ticket.store(std::max(h.next_ticket.load(kRelaxed), next_ticket), kRelaxed);
}

// Counts pins of both kinds first, because the passes ask whether a page must stay.
void count_keepers(Held& held) {
  Region& r = held.region;
  uint32_t num_pins = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    for (const auto& pin : r.participants[p].pins) num_pins += pin.load(kRelaxed) != 0 ? 1 : 0;
  r.header->num_pins.store(num_pins, kRelaxed);
  r.header->num_pinning_all.store(count_pinning_all(r), kRelaxed);
}

}  // namespace

void recover(Held& held, RecoverScratch& scratch) {
  Region& r = held.region;
  RELIVE_FAIL_POINT(recover_begin);
  finish_exponent_change(held);
  finish_changed_rows(held);
  count_keepers(held);
  if (RELIVE_RULE(F2_pages)) settle_pages(held);
  RELIVE_FAIL_POINT(recover_pass1);
  settle_items(held);
  RELIVE_FAIL_POINT(recover_pass2);
  std::optional<Living> living;
  if (RELIVE_RULE(F4_leaves)) living = settle_leaves(held);
  RELIVE_FAIL_POINT(recover_pass3);
  recover_records(held);
  if (RELIVE_RULE(Y2_full)) recover_groups(held);
  rebuild_lists(held, living, scratch);
  if (r.cells) recover_cells(held, scratch.cells.data());
  RELIVE_FAIL_POINT(recover_lists);
  if (RELIVE_RULE(F5_lanes))
    for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) settle_lane(held, lane);
  if (RELIVE_RULE(L5_recover)) publish_all_filled(held);
  RELIVE_FAIL_POINT(recover_lanes);
  if (RELIVE_RULE(F5_inner))
    for (uint32_t i = 0; i < r.num_indexes; ++i) Leaves::rebuild(held, i);
  if (r.chooses_pages() && RELIVE_RULE(D8_recover)) rank_all(held);
  RELIVE_FAIL_POINT(recover_inner);
  keep_to_most(held);
  Leaves::flush_all(held);
  r.header->counters.recoveries.fetch_add(1, kRelaxed);
}

bool end_participant(Held& held, uint32_t participant, uint32_t* num_cut) {
  Region& r = held.region;
  RELIVE_FAIL_POINT(sweep_begin);
  if (!publish_rest(held)) {  // left by a completer that died between two critical sections
    Leaves::flush_all(held);
    return false;
  }
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) {
    if (r.lanes[lane].state.load(kRelaxed) != LaneState::kLive) continue;
    if (r.lanes[lane].owner.load(kRelaxed) != participant) continue;
    if (*num_cut >= lanes_per_section()) {
      Leaves::flush_all(held);  // this critical section may go on to draw, or check the sums
      return false;
    }
    cut_lane(held, lane);
    ++*num_cut;
    RELIVE_FAIL_POINT(sweep_lane);
  }
  Leaves::flush_all(held);
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    if (RELIVE_RULE(E4_credit)) r.credit(participant, i).in_flight.store(0, kRelaxed);
    r.credit(participant, i).reserved.store(0, kRelaxed);
    r.credit(participant, i).undecided.store(0, kRelaxed);
    r.credit(participant, i).refused_draw.store(0, kRelaxed);
    r.credit(participant, i).sampler_wait.count.store(0, kRelaxed);
    r.credit(participant, i).writer_wait.count.store(0, kRelaxed);
  }
  RELIVE_FAIL_POINT(sweep_credit);
  for (auto& pin : r.participants[participant].pins)
    if (pin.load(kRelaxed) != 0) unpin(held, pin);
  if (RELIVE_RULE(E4_pinning_all)) unpin_all_pages(held, participant, ~0u);
  RELIVE_FAIL_POINT(sweep_pinning_all);
  (void)free_kept(held, kKeptPerSection);
  Leaves::flush_all(held);
  r.participants[participant].live.store(0, std::memory_order_release);
  RELIVE_FAIL_POINT(sweep_live);
  return true;
}

Swept sweep(Held& held, const Storage& storage, uint32_t me, uint32_t* num_cut) {
  const Region& r = held.region;
  const uint32_t cut_before = *num_cut;
  Swept swept;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) {
    if (p == me || r.participants[p].live.load(kRelaxed) == 0) continue;
    if (RELIVE_RULE(E2_lock_byte) && !storage.is_byte_free(kLifeByte + p)) continue;
    swept.is_done = end_participant(held, p, num_cut);
    if (!swept.is_done) break;
    r.header->counters.swept.fetch_add(1, kRelaxed);
    swept.any = true;
  }
  swept.any |= *num_cut > cut_before;
  if (swept.any) {  // this critical section may go on to check
    keep_to_most(held);
    Leaves::flush_all(held);
  }
  return swept;
}

}  // namespace relive
