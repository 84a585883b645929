// What is done after a death: recover() rebuilds the DERIVED words, sweep() ends the lanes of the dead (rules E4, F).
//
// Locking: under the table lock. Idempotent: whoever dies in here, the next one starts again.
// Cost:    recover about 3 ns a leaf; sweep 0.5 us a live participant and the pages of each dead one's lanes.
#pragma once

#include <string>
#include <vector>

#include "relive/pages/parked.hpp"
#include "relive/words/sync.hpp"

namespace relive {

inline constexpr uint64_t kLifeByte = 64;     // lock byte 64 + i: participant i lives
inline constexpr uint64_t kAttachedByte = 0;  // shared: attached; exclusive: I am alone
inline constexpr uint64_t kAttachingByte = 1;

// Room to sort pages and to mark frames in: a handle reserves it when it attaches, since nothing is allocated under the
// lock. Owner: the handle; used under the lock.
struct RecoverScratch {
  std::vector<uint32_t> pages;
  std::vector<uint8_t> frames;

  void reserve(const Geometry& g) {
    pages.resize(g.num_pages);
    frames.resize(g.num_frames);
  }
};

// Rebuilds lists, counts and inner nodes from the PRIMARY words after a holder of the lock died.
void recover(Held& held, RecoverScratch& scratch);

// Ends lanes and credits of every participant whose life byte is free. `me` is never looked at. Returns how many.
uint32_t sweep(Held& held, const Storage& storage, uint32_t me);

// Ends lanes, credits and pins of one participant and frees its slot.
void end_participant(Held& held, uint32_t participant);

// The first invariant that does not hold, in words; empty if all do. Under the lock.
std::string broken_invariant(const Region& r);

}  // namespace relive
