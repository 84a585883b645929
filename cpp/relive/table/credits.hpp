// The credit of this handle's participant with an index's limiter: how many items it has drawn and not handed out yet
// (in_flight), and how many it has handed out (done) (rule G6).
//
// Owner:   a Credit lies in the region, one for each participant and index. If the participant dies, a sweep zeroes its
//          in_flight (rule E4).
// Locking: none; two atomic adds. A reader that sums credits reads in_flight before done, so it misses no item.
// Cost:    O(1).
#pragma once

#include "relive/table/table.hpp"

namespace relive {

inline void count_in_flight(Table& table, uint32_t index, int64_t n) {
  table.region().credit(table.participant(), index).in_flight.fetch_add(n, std::memory_order_acq_rel);
}

inline void commit_credit(Table& table, uint32_t index, int64_t n) {
  if (table.is_read_only()) return;
  Credit& credit = table.region().credit(table.participant(), index);
  credit.done.fetch_add(n, std::memory_order_relaxed);
  RELIVE_FAIL_POINT(sample_done_added);
  if (RELIVE_RULE(G6_in_flight)) credit.in_flight.fetch_sub(n, std::memory_order_acq_rel);
  RELIVE_FAIL_POINT(sample_in_flight);
}

inline void return_credit(Table& table, uint32_t index, int64_t n) {
  if (table.is_read_only() || !table.is_of_this_process()) return;  // in a forked child the credit is the parent's
  Region& r = table.region();
  r.credit(table.participant(), index).in_flight.fetch_sub(n, std::memory_order_acq_rel);
  if (paces_draws(r.limiter(index))) notify(&r.header->items_event);
}

}  // namespace relive
