// Counts and statistics of a table, and the check of its invariants.
//
// Owner:   TableStats has copies of the numbers; its names are constants.
// Locking: check() takes the table lock and reads everything. The other functions take no lock, and are exact if no
//          process changes the table meanwhile.
// Cost:    stats() O(indexes x participants + lanes); check() O(leaves + rows) in one critical section.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "relive/table/table.hpp"

namespace relive {

// The threads that wait for an index's limiter now.
struct WaitStats {
  int64_t num_samplers = 0, num_writers = 0;  // threads
  int64_t draw_size = 0, insert_size = 0;     // the largest of those that wait
  double sampler_wait_s = 0.0, writer_wait_s = 0.0;
  const char* samplers_need = "";  // min_size, low, items; empty: no thread waits (also below)
  const char* writers_need = "";   // high, queue, budget
  bool is_stuck = false;           // the two sizes could wait for each other for ever
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

uint64_t num_steps(const Table& table);  // without deleted steps
int64_t num_items(const Table& table, uint32_t index);
uint32_t policy_version(const Table& table);
Status stats(Table& table, TableStats* out);
// kCheckFailed: the first invariant that is broken.
Status check(Table& table);

}  // namespace relive
