#include "relive/table/claims.hpp"

#include "relive/index/leaves.hpp"
#include "relive/pages/pages.hpp"
#include "relive/table/credits.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

void free_used_up(Table& table, uint32_t index, bool is_planned, const std::vector<Claimed>& claimed) {
  Region& r = table.region();
  Locked locked(table.door(), Deadline::after(kLeastLockWait_s).deaf());
  if (!locked.status().ok()) return;
  for (const Claimed& c : claimed) {
    if (!r.map(index).is_same(c.slot, c.word)) continue;
    if (is_planned) r.bulk.planned[r.page_of(c.slot)].fetch_sub(1, kRelaxed);
    free_if_lifeless(locked.held(), r.page_of(c.slot));
  }
  locked.room_came();
}

void undo_claims(Table& table, uint32_t index, bool is_planned, const std::vector<Claimed>& claimed,
                 const Deadline& deadline) {
  if (claimed.empty()) return;
  Region& r = table.region();
  Locked locked(table.door(), deadline.deaf());  // what was begun; where it is not to be had they count as used
  if (!locked.status().ok()) return;
  const ItemMap& map = r.map(index);
  const double exponent = exponent_of(r.header->indexes[index]);
  for (const Claimed& c : claimed) {
    if (!map.is_same(c.slot, c.word)) continue;
    const uint64_t page = r.page_of(c.slot);  // of a row's item
    if (r.bulk && is_planned && !map.is_explicit) r.bulk.planned[page].fetch_sub(1, kRelaxed);
    double mass = c.mass;
    if (c.exponent != exponent && has_exponent(r.header->indexes[index]) && RELIVE_RULE(H5_claim))
      raise_masses(c.exponent, exponent, &mass, 1);  // changed meanwhile
    const bool is_back = Leaves::give_back(locked.held(), index, c.slot, mass, c.order);
    if (is_back && !map.is_explicit) r.pages[page].live += 1;
  }
}

Status commit_batch(Table& table, uint32_t index, int64_t num_items, bool is_planned,
                    const std::vector<Claimed>& claims) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (!claims.empty() && !table.region().has_records()) free_used_up(table, index, is_planned, claims);
  commit_credit(table, index, num_items);
  return {};
}

Status give_back_batch(Table& table, uint32_t index, int64_t num_items, bool is_planned,
                       const std::vector<Claimed>& claims) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (!table.is_read_only()) undo_claims(table, index, is_planned, claims, table.own_deadline());
  return_credit(table, index, num_items);
  if (!claims.empty()) notify(&table.region().header->items_event);  // what can be drawn again
  return {};
}

}  // namespace relive
