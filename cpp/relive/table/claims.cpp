#include "relive/table/claims.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"
#include "relive/pages/eviction_order.hpp"
#include "relive/pages/pages.hpp"
#include "relive/read/shuffle.hpp"
#include "relive/table/credits.hpp"

namespace relive {
namespace {

// Whether pages count claims. They need not if the table has records: then no page goes early.
bool counts_claims(const Region& r, uint32_t index) { return !r.map(index).is_explicit && !r.has_records(); }

}  // namespace

void claim_use(Table& table, Held& held, uint32_t index, uint64_t slot, uint64_t word, std::vector<Claimed>* claimed) {
  Region& r = held.region;
  const Leaves leaves(r, index);
  // The mass as it is now: a new priority may have come since the draw.
  claimed->push_back({slot, word, leaves.mass(slot), Bounds(leaves).order(slot), exponent_of(leaves.config()), false});
  const bool is_of_row = !r.map(index).is_explicit;
  const uint64_t page = is_of_row ? r.page_of(slot) : 0;
  if (counts_claims(r, index)) note_claim(held, page);
  const bool is_last = Leaves::use(held, index, slot);
  claimed->back().is_last = is_last;
  if (is_last) r.credit(table.participant(), index).undecided.fetch_add(1, std::memory_order_relaxed);
  if (!is_last || !is_of_row) return;
  r.pages[page].live -= 1;
  note_loss(held, page);
}

void free_places(Table& table, uint32_t index, const std::vector<Claimed>& claimed) {
  const auto num_last = std::count_if(claimed.begin(), claimed.end(), [](const Claimed& c) { return c.is_last; });
  if (num_last == 0 || !table.is_of_this_process()) return;
  Region& r = table.region();
  r.credit(table.participant(), index).undecided.fetch_sub(num_last, std::memory_order_acq_rel);
  if (r.limiter(index).kind == LimiterConfig::kQueue) notify(&r.header->room_event);
}

void decide_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, bool is_read) {
  Region& r = table.region();
  if (claimed.empty() || !counts_claims(r, index)) return;
  Locked locked(table.door(), Deadline::after(kLeastLockWait_s).deaf());
  if (!locked.status().ok()) return;
  for (const Claimed& c : claimed) {
    if (!r.map(index).is_same(c.slot, c.word)) continue;
    forget_claim(locked.held(), r.page_of(c.slot));
    if (is_read) free_if_lifeless(locked.held(), r.page_of(c.slot));
  }
  locked.room_came();
}

void undo_claims(Table& table, uint32_t index, const std::vector<Claimed>& claimed, const Deadline& deadline) {
  if (claimed.empty()) return;
  RELIVE_FAIL_POINT(claim_undone);
  Region& r = table.region();
  Locked locked(table.door(), deadline.deaf());  // no signal stops it; without the lock the items stay used
  if (!locked.status().ok()) return free_places(table, index, claimed);
  const ItemMap& map = r.map(index);
  const bool has_counts = counts_claims(r, index);
  const double exponent = exponent_of(r.header->indexes[index]);
  for (const Claimed& c : claimed) {
    if (!map.is_same(c.slot, c.word)) continue;
    double mass = c.mass;
    if (c.exponent != exponent && has_exponent(r.header->indexes[index]) && RELIVE_RULE(H5_claim))
      raise_masses(c.exponent, exponent, &mass, 1);  // it has changed since the claim
    const bool is_back = Leaves::give_back(locked.held(), index, c.slot, mass, c.order);
    if (map.is_explicit) continue;
    const uint64_t page = r.page_of(c.slot);
    if (is_back) r.pages[page].live += 1;
    if (!has_counts) continue;
    forget_claim(locked.held(), page);
    free_if_lifeless(locked.held(), page);  // if all of its items have ended
  }
  free_places(table, index, claimed);  // under the lock: the items have their places again
}

Status commit_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims, bool is_read) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  free_places(table, index, claims);
  decide_claims(table, index, claims, is_read);
  commit_credit(table, index, num_items);
  return {};
}

Status give_back_batch(Table& table, uint32_t index, int64_t num_items, const std::vector<Claimed>& claims,
                       const Positions& positions) {
  Entered entered(table, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  if (!table.is_read_only()) undo_claims(table, index, claims, table.own_deadline());
  return_positions(table.region(), index, positions);
  return_credit(table, index, num_items);
  if (!claims.empty()) notify(&table.region().header->items_event);  // these items can be drawn again
  return {};
}

}  // namespace relive
