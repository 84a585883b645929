// What a table can say of itself: counts, statistics, the invariants that must hold.
//
// Locking: check() takes the table lock and reads everything; the others take none and are exact where nobody writes.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "relive/table/table.hpp"

namespace relive {

// Who waits for an index's limiter now.
struct WaitStats {
  int64_t num_samplers = 0, num_writers = 0;  // threads
  int64_t draw_size = 0, insert_size = 0;     // the largest of each that waits
  double sampler_wait_s = 0.0, writer_wait_s = 0.0;
  const char* samplers_need = "";  // min_size, low, items; empty where none waits, as the next one
  const char* writers_need = "";   // high, queue, budget
  bool is_stuck = false;           // the two sizes could wait for each other for good
};

struct TableStats {
  uint64_t num_steps = 0, num_participants = 0, num_open_lanes = 0, num_free_pages = 0, num_pages = 0;
  uint64_t frames_committed = 0, frames_used = 0, bytes_committed = 0;
  std::vector<int64_t> live_items, pending, timed_out, crowded_out, expired, filtered, inserted, sampled, in_flight;
  std::vector<double> total_mass, max_priority;
  std::vector<WaitStats> waits;
  std::vector<LimiterConfig> limiters;
  std::vector<std::pair<const char*, uint64_t>> counters;
};

uint64_t num_steps(const Table& table);  // deleted ones not counted
int64_t num_items(const Table& table, uint32_t index);
uint32_t policy_version(const Table& table);
Status stats(Table& table, TableStats* out);
// kCheckFailed with the first invariant that does not hold.
Status check(Table& table);

}  // namespace relive
