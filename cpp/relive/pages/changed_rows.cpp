#include "relive/pages/changed_rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void renew_ticket(Held& held, uint64_t page) {
  const Region& r = held.region;
  if (!RELIVE_RULE(J3_ticket)) return;
  r.pages[page].ticket.store(r.header->next_ticket.fetch_add(1, kRelaxed), std::memory_order_release);
}

void begin_change(Held& held, uint64_t page) {
  held.region.header->changing_page.store(static_cast<uint32_t>(page + 1), std::memory_order_release);
  RELIVE_FAIL_POINT(change_noted);
}

void end_change(Held& held, uint64_t page) {
  RELIVE_FAIL_POINT(change_made);
  renew_ticket(held, page);
  RELIVE_FAIL_POINT(change_ticket);
  held.region.header->changing_page.store(0, std::memory_order_release);
}

void finish_changed_rows(Held& held) {
  const Region& r = held.region;
  const uint32_t noted = r.header->changing_page.load(kRelaxed);
  if (noted == 0) return;
  if (noted <= r.geometry->num_pages && RELIVE_RULE(J3_note)) renew_ticket(held, noted - 1);
  r.header->changing_page.store(0, std::memory_order_release);
}

}  // namespace relive
