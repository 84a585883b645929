// The bulk of a page as readers see it, and the lists of bulk frames that the room pages/ keeps.
//
// Owner:   a Bulk is a view of areas of the region and of the tier's memory; the table's handle owns both.
// Locking: everything is written under the table lock. Readers use place() and frame() only: they read the page's word
//          first, then its place, and read the word again after the rows (rules D6, G4).
// Cost:    O(1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "relive/words/bulk_layout.hpp"

namespace relive {

enum class BulkKind : uint64_t { kNone = 0, kRam = 1, kDisk = 2 };

// A page's place: kind in the low bits, the number of a bulk frame or of a position above them.
struct BulkPlace {
  BulkKind kind;
  uint64_t number;

  static BulkPlace unpack(uint64_t word) { return {static_cast<BulkKind>(word & 3), word >> 2}; }
  uint64_t pack() const { return number << 2 | static_cast<uint64_t>(kind); }
};

// The list of CLOSED pages whose bulk is in memory, oldest first: the spill thread takes them from the front.
struct BulkLink {
  uint32_t prev, next;
  uint32_t is_listed;
};

struct BulkState {
  std::atomic<uint64_t> num_free_frames;
  std::atomic<uint64_t> next_position;  // of the page file, which is used as a ring
  std::atomic<uint64_t> pages_in_ram, pages_on_disk;
  uint32_t list_head, list_tail;
};

struct Bulk {
  const BulkGeometry* geometry = nullptr;  // null: whole rows lie in the frames, so there is no bulk
  std::byte* base = nullptr;               // of the bulk frames
  BulkState* state = nullptr;
  std::atomic<uint64_t>* places = nullptr;
  BulkLink* links = nullptr;
  std::atomic<uint32_t>* positions = nullptr;
  std::atomic<uint32_t>* free_frames = nullptr;
  std::atomic<uint32_t>* leaving = nullptr;

  explicit operator bool() const { return geometry != nullptr; }
  BulkPlace place(uint64_t page) const { return BulkPlace::unpack(places[page].load(std::memory_order_acquire)); }
  std::byte* frame(uint64_t number) const { return base + number * geometry->frame_bytes; }
};

}  // namespace relive
