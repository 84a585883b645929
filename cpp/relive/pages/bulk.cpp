#include "relive/pages/bulk.hpp"

#include "relive/pages/pins.hpp"
#include "relive/words/held.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kMostLooks = 4096;  // positions checked in one critical section

void list_remove(Region& r, uint64_t page) {
  BulkState& state = *r.bulk.state;
  BulkLink& link = r.bulk.links[page];
  if (link.is_listed == 0) return;
  (link.prev == kNoPage ? state.list_head : r.bulk.links[link.prev].next) = link.next;
  (link.next == kNoPage ? state.list_tail : r.bulk.links[link.next].prev) = link.prev;
  link.is_listed = 0;
}

void list_push(Region& r, uint64_t page, bool at_front) {
  BulkState& state = *r.bulk.state;
  const auto id = static_cast<uint32_t>(page);
  BulkLink& link = r.bulk.links[page];
  link.is_listed = 1;
  link.prev = at_front ? kNoPage : state.list_tail;
  link.next = at_front ? state.list_head : kNoPage;
  (link.prev == kNoPage ? state.list_head : r.bulk.links[link.prev].next) = id;
  (link.next == kNoPage ? state.list_tail : r.bulk.links[link.next].prev) = id;
}

void push_free_frame(Region& r, uint64_t frame) {
  const uint64_t free = r.bulk.state->num_free_frames.load(kRelaxed);
  r.bulk.free_frames[free].store(static_cast<uint32_t>(frame), kRelaxed);
  r.bulk.state->num_free_frames.store(free + 1, std::memory_order_release);
}

// Moves the ring's hand to the next free position. Returns false if none of the next kMostLooks is free.
bool find_position(Region& r) {
  const uint64_t count = r.bulk.geometry->num_positions;
  uint64_t at = r.bulk.state->next_position.load(kRelaxed);
  for (uint64_t looks = 0; looks < kMostLooks; ++looks, at = at + 1 == count ? 0 : at + 1) {
    if (r.bulk.positions[at].load(kRelaxed) != 0) continue;
    r.bulk.state->next_position.store(at, kRelaxed);
    return true;
  }
  r.bulk.state->next_position.store(at, kRelaxed);
  return false;
}

}  // namespace

void bind_bulk(Region& r, const BulkGeometry* geometry, std::byte* memory) {
  Bulk& bulk = r.bulk;
  std::byte* const base = r.base;
  bulk.geometry = geometry;
  bulk.base = memory;
  bulk.state = reinterpret_cast<BulkState*>(base + geometry->state_offset);
  bulk.places = reinterpret_cast<std::atomic<uint64_t>*>(base + geometry->places_offset);
  bulk.links = reinterpret_cast<BulkLink*>(base + geometry->links_offset);
  bulk.positions = reinterpret_cast<std::atomic<uint32_t>*>(base + geometry->positions_offset);
  bulk.free_frames = reinterpret_cast<std::atomic<uint32_t>*>(base + geometry->free_offset);
  bulk.leaving = reinterpret_cast<std::atomic<uint32_t>*>(base + geometry->leaving_offset);
  bulk.state->list_head = bulk.state->list_tail = kNoPage;
  for (uint64_t frame = geometry->num_frames; frame-- > 0;) push_free_frame(r, frame);
}

bool take_bulk(Held& held, uint64_t page) {
  Region& r = held.region;
  BulkState& state = *r.bulk.state;
  const uint64_t free = state.num_free_frames.load(kRelaxed);
  if (free == 0) return false;
  const uint64_t frame = r.bulk.free_frames[free - 1].load(kRelaxed);
  state.num_free_frames.store(free - 1, kRelaxed);
  r.bulk.places[page].store(BulkPlace{BulkKind::kRam, frame}.pack(), std::memory_order_release);
  state.pages_in_ram.fetch_add(1, kRelaxed);
  return true;
}

void release_bulk(Held& held, uint64_t page) {
  Region& r = held.region;
  const BulkPlace place = r.bulk.place(page);
  list_remove(r, page);
  r.bulk.places[page].store(0, std::memory_order_release);
  if (place.kind == BulkKind::kRam) {
    r.bulk.state->pages_in_ram.fetch_sub(1, kRelaxed);
    if (r.bulk.leaving[place.number].load(kRelaxed) == 0) push_free_frame(r, place.number);
  } else if (place.kind == BulkKind::kDisk) {
    r.bulk.state->pages_on_disk.fetch_sub(1, kRelaxed);
    r.bulk.positions[place.number].store(0, kRelaxed);
  }
}

void offer_for_spill(Held& held, uint64_t page) {
  Region& r = held.region;
  if (r.bulk.place(page).kind == BulkKind::kRam && r.bulk.links[page].is_listed == 0) list_push(r, page, false);
}

size_t pick_for_spill(Held& held, size_t most, Leaving* out) {
  Region& r = held.region;
  Bulk& bulk = r.bulk;
  size_t count = 0;
  if (bulk.state->list_head == kNoPage || !find_position(r)) return 0;
  uint64_t position = bulk.state->next_position.load(kRelaxed);
  for (uint32_t page = bulk.state->list_head; page != kNoPage && count < most;) {
    const uint32_t next = bulk.links[page].next;
    if (position >= bulk.geometry->num_positions || bulk.positions[position].load(kRelaxed) != 0) break;
    if (!must_stay(r, page)) {
      const uint64_t frame = bulk.place(page).number;
      list_remove(r, page);
      bulk.leaving[frame].store(1, kRelaxed);
      bulk.positions[position].store(page + 1, kRelaxed);
      out[count++] = {page, r.words[page].load(kRelaxed), frame, position++};
    }
    page = next;
  }
  bulk.state->next_position.store(position < bulk.geometry->num_positions ? position : 0, kRelaxed);
  return count;
}

bool finish_spill(Held& held, const Leaving& one) {
  Region& r = held.region;
  const uint64_t word = r.words[one.page].load(kRelaxed);
  const bool is_there = Region::generation_of(word) == Region::generation_of(one.word) && Region::is_used(word);
  if (is_there && must_stay(r, one.page)) {
    undo_spill(held, one);
    return false;
  }
  if (is_there) {
    r.bulk.places[one.page].store(BulkPlace{BulkKind::kDisk, one.position}.pack(), std::memory_order_release);
    if (RELIVE_RULE(D6_moves)) r.words[one.page].store(Region::moved_word(word), std::memory_order_release);
    release_fence();
    r.bulk.state->pages_in_ram.fetch_sub(1, kRelaxed);
    r.bulk.state->pages_on_disk.fetch_add(1, kRelaxed);
  } else {
    r.bulk.positions[one.position].store(0, kRelaxed);
  }
  r.bulk.leaving[one.frame].store(0, kRelaxed);
  push_free_frame(r, one.frame);
  return is_there;
}

void undo_spill(Held& held, const Leaving& one) {
  Region& r = held.region;
  const uint64_t word = r.words[one.page].load(kRelaxed);
  const bool is_there = Region::generation_of(word) == Region::generation_of(one.word) && Region::is_used(word);
  r.bulk.positions[one.position].store(0, kRelaxed);
  r.bulk.leaving[one.frame].store(0, kRelaxed);
  if (is_there) {
    list_push(r, one.page, true);
  } else {
    push_free_frame(r, one.frame);
  }
}

const char* broken_bulk(const Region& r, uint8_t* frames, uint8_t* positions) {
  const Bulk& bulk = r.bulk;
  if (!bulk) return nullptr;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(kRelaxed);
    const BulkPlace place = bulk.place(page);
    if (!Region::is_used(word)) {
      if (place.kind != BulkKind::kNone) return "a free page has bulk";
      continue;
    }
    if (place.kind == BulkKind::kNone) return "a used page has no bulk";
    if (place.kind == BulkKind::kDisk && Region::state_of(word) == PageState::kOpen) return "an open page is on disk";
    if (place.kind == BulkKind::kDisk && positions[place.number]++ != 0) return "two pages share a position";
    if (place.kind == BulkKind::kDisk && bulk.positions[place.number].load(kRelaxed) != page + 1)
      return "a position does not know its page";
    if (place.kind == BulkKind::kRam && frames[place.number]++ != 0) return "two pages share a bulk frame";
    const bool is_leaving = place.kind == BulkKind::kRam && bulk.leaving[place.number].load(kRelaxed) != 0;
    const bool can_leave = place.kind == BulkKind::kRam && Region::state_of(word) == PageState::kClosed && !is_leaving;
    if (can_leave != (bulk.links[page].is_listed != 0)) return "a page that could be spilled is on no list";
  }
  for (uint64_t f = 0; f < bulk.state->num_free_frames.load(kRelaxed); ++f)
    if (frames[bulk.free_frames[f].load(kRelaxed)]++ != 0) return "a bulk frame is free and used, or free twice";
  for (uint64_t frame = 0; frame < bulk.geometry->num_frames; ++frame)
    if (frames[frame] == 0 && bulk.leaving[frame].load(kRelaxed) == 0) return "a bulk frame is lost";
  return nullptr;
}

}  // namespace relive
