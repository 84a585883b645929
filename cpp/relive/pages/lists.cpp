// The lists of pages: the age ring from the oldest used page to the youngest, and the free list in the order of
// freeing. Both are DERIVED: recovery rebuilds them.
#include "relive/pages/pages.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void ring_push_back(Held& held, uint32_t page) {
  Region& r = held.region;
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

void ring_remove(Held& held, uint32_t page) {
  Region& r = held.region;
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

void free_push_back(Held& held, uint32_t page) {
  Region& r = held.region;
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

}  // namespace relive
