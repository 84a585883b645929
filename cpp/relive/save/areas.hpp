// The state of a table that a save keeps beside the images of its pages: every PRIMARY word that is no row, as a list of
// areas and a value of numbers. A save reads them, a load writes them: one list serves both.
//
// Owner:   the region owns the bytes of an area.
// Locking: under the table lock, or at the birth of a region.
// Cost:    O(indexes).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "relive/words/held.hpp"

namespace relive {

// The things of which an area has an entry each.
enum class EntryOf : uint32_t { kTable = 0, kPage = 1, kLane = 2, kRecord = 3 };

struct SavedArea {
  std::string name;
  uint32_t index;  // 0 where the area belongs to the table
  EntryOf per;
  std::byte* at;
  uint64_t entry_bytes;
  uint64_t num_entries;
  bool is_large;  // windows and values of records: they are copied before the cut, those that changed once more in it

  uint64_t num_bytes() const { return entry_bytes * num_entries; }
};

std::vector<SavedArea> saved_areas(const Region& r);

// One more area, which a reader need not know: uint32[members], the order of the members of the classes of an index that
// draws by ranks (Ranks::list_members). Recovery would build the classes in another order, and other items be drawn.
inline constexpr const char* kRankOrder = "rank order";

inline constexpr size_t kNumCounters = sizeof(Counters) / sizeof(std::atomic<uint64_t>);

// The numbers of one index.
struct SavedIndex {
  int64_t inserted, used, lacked, done;
  uint64_t next_item, tickets, timed_out, expired, base, filtered;
  double max_priority, max_mass, exponent;
  LimiterConfig limiter;
};

// The numbers of a table.
struct SavedNumbers {
  uint64_t next_order, next_ticket, next_uid, policy_version, num_raised;
  int64_t base_version;
  double now_s;  // the clock of T1 at the cut
  std::array<uint64_t, kNumCounters> counters;
  uint32_t num_indexes;
  SavedIndex indexes[kMaxIndexes];
};

SavedNumbers read_numbers(Held& held);
// The name of a number that cannot be true; null if there is none.
const char* wrong_number(const Region& r, const SavedNumbers& numbers);
// Writes numbers that are sound into a new region.
void write_numbers(Held& held, const SavedNumbers& numbers);

}  // namespace relive
