// The life of a page: FREE(g) -> OPEN(g) -> CLOSED(g) -> FREE(g + 1), and of the steps in it (rules D1 to D6).
//
// Locking: everything here runs under the table lock. Nothing here allocates, sleeps or calls the system (rule C4).
// Cost:    open_page O(P / 32) for clearing; evict_steps O(steps); free_page O(1).
#pragma once

#include <array>
#include <cstdint>

#include "relive/pages/bulk.hpp"
#include "relive/words/region.hpp"

namespace relive {

// Leaves touched in one critical section, whose ancestors are recomputed at its end. One a handle; used under the lock.
class Dirty final {
 public:
  static constexpr size_t kRoom = 1024;

  void add(Region& r, uint32_t index, uint64_t slot) {
    if (count_[index] == kRoom) flush(r, index);
    slots_[index][count_[index]++] = slot;
  }
  void flush(Region& r, uint32_t index);
  void flush_all(Region& r);

 private:
  std::array<std::array<uint64_t, kRoom>, kMaxIndexes> slots_;
  std::array<size_t, kMaxIndexes> count_{};
};

enum class OpenResult : uint32_t { kOk, kNoPage, kNoFrame, kNoBulk };

// Takes a free page and a frame for the lane; links it behind the lane's open page. With `ahead` the lane keeps its
// open page and names the new one as the page after it. kNoPage: the caller sweeps or calls relieve_pressure();
// kNoFrame: the caller commits more of the slabs outside the lock; kNoBulk: it waits for the spill thread.
OpenResult open_page(Region& r, uint32_t lane_slot, bool ahead, bool history_free, uint64_t* ref);

// OPEN -> CLOSED, with a ticket.
void close_page(Region& r, uint64_t page);

// Removes the oldest `count` steps of the table; pages that empty on the way are freed.
void evict_steps(Region& r, uint64_t count, Dirty& dirty);

// Pool pressure: evicts the oldest CLOSED page whole. False if there is none.
bool relieve_pressure(Region& r, Dirty& dirty);

// CLOSED -> FREE(g + 1) for a page that holds no live item and into which no live window of a neighbour reaches.
// Tries after deletions and used-up items; nothing happens where it must stay.
void free_if_lifeless(Region& r, uint64_t page, Dirty& dirty);

// An empty page of a lane that goes away.
void free_empty_page(Region& r, uint64_t page);

// Copies a CLOSED page to a free frame (rule D6). False where there is no free frame or the page is not CLOSED.
bool move_page(Region& r, uint64_t page);

// What the rows [begin, end) of a page hold: steps, of these removed ones, and (step, index) pairs live or pending.
struct Living {
  uint64_t steps = 0, removed_steps = 0;
  uint32_t pairs = 0;
};
Living count_living(const Region& r, uint64_t page, uint32_t begin, uint32_t end);

// DERIVED lists, also rebuilt by recover().
void ring_push_back(Region& r, uint32_t page);
void ring_remove(Region& r, uint32_t page);
void free_push_back(Region& r, uint32_t page);
bool is_pinned(const Region& r, uint64_t page);
// Clears one participant's pin; a page that only waited for it is freed.
void unpin(Region& r, std::atomic<uint64_t>& pin, Dirty& dirty);

}  // namespace relive
