#include "relive/pages/pins.hpp"

#include <algorithm>

#include "relive/pages/pages.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void kept_remove(Held& held, uint32_t page) {
  Region& r = held.region;
  const uint32_t prev = r.pages[page].ring_prev;
  const uint32_t next = r.pages[page].ring_next;
  if (prev == kNoPage) {
    r.header->kept_head.store(next, kRelaxed);
  } else {
    r.pages[prev].ring_next = next;
  }
  if (next != kNoPage) r.pages[next].ring_prev = prev;
}

bool is_kept(const Region& r, uint64_t page) {
  if (Region::state_of(r.words[page].load(kRelaxed)) != PageState::kClosed) return false;
  const Range range = Range::unpack(r.pages[page].range.load(kRelaxed));
  return range.step_begin == range.step_end;
}

}  // namespace

bool is_held(const Region& r) { return RELIVE_RULE(D7_pin_all) && r.header->num_pinning_all.load(kRelaxed) != 0; }

bool is_pinned(const Region& r, uint64_t page) {
  if (r.header->num_pins.load(kRelaxed) == 0) return false;
  const uint64_t ref = r.ref_of(page, r.words[page].load(kRelaxed));
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p)
    for (const auto& pin : r.participants[p].pins)
      if (pin.load(kRelaxed) == ref) return true;
  return false;
}

bool must_stay(const Region& r, uint64_t page) { return is_held(r) || is_pinned(r, page); }

uint32_t count_pinning_all(const Region& r) {
  uint32_t sum = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) sum += r.participants[p].pinning_all.load(kRelaxed);
  return sum;
}

// The sum rises first and falls last: a death between the two stores leaves the sum too high, never too low.
void pin_all_pages(Held& held, uint32_t participant) {
  Region& r = held.region;
  r.header->num_pinning_all.fetch_add(1, kRelaxed);
  RELIVE_FAIL_POINT(pins_counted);
  r.participants[participant].pinning_all.fetch_add(1, kRelaxed);
  RELIVE_FAIL_POINT(pins_raised);
}

void unpin_all_pages(Held& held, uint32_t participant, uint32_t count) {
  Region& r = held.region;
  std::atomic<uint32_t>& pinning_all = r.participants[participant].pinning_all;
  count = std::min(count, pinning_all.load(kRelaxed));
  pinning_all.fetch_sub(count, kRelaxed);
  RELIVE_FAIL_POINT(pins_lowered);
  r.header->num_pinning_all.fetch_sub(count, kRelaxed);
}

void kept_push(Held& held, uint32_t page) {
  Region& r = held.region;
  const uint32_t head = r.header->kept_head.load(kRelaxed);
  r.pages[page].ring_prev = kNoPage;
  r.pages[page].ring_next = head;
  if (head != kNoPage) r.pages[head].ring_prev = page;
  r.header->kept_head.store(page, kRelaxed);
}

void free_or_keep(Held& held, uint64_t page) {
  ring_remove(held, static_cast<uint32_t>(page));
  if (must_stay(held.region, page)) {
    kept_push(held, static_cast<uint32_t>(page));
  } else {
    free_page(held, page);
  }
}

bool free_kept(Held& held, uint32_t most) {
  const Region& r = held.region;
  if (is_held(r)) return false;
  for (uint32_t page = r.header->kept_head.load(kRelaxed); page != kNoPage;) {
    const uint32_t next = r.pages[page].ring_next;
    if (!is_pinned(r, page)) {
      if (most-- == 0) return true;
      kept_remove(held, page);
      RELIVE_FAIL_POINT(kept_removed);
      free_page(held, page);
    }
    page = next;
  }
  return false;
}

void unpin(Held& held, std::atomic<uint64_t>& pin) {
  Region& r = held.region;
  const uint64_t page = r.alive(pin.load(kRelaxed));
  pin.store(0, kRelaxed);
  r.header->num_pins.fetch_sub(1, kRelaxed);
  if (page == kNoPage || !is_kept(r, page) || must_stay(r, page)) return;
  kept_remove(held, static_cast<uint32_t>(page));
  free_page(held, page);
}

}  // namespace relive
