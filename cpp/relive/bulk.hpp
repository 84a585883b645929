// Where the bulk of each page is, and who may have which bulk frame and which position of the page file.
//
// Owner:   a Bulk is a view over areas of the region and over the tier's memory; both belong to the table's handle.
// Locking: everything here runs under the table lock, but place() and address() that readers use: they read the page's
//          word first, then its place, and look at the word again when they have read (rules D6, G4).
// Cost:    O(1) each; take_positions looks at no more than kMostLooks positions.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "relive/bulk_layout.hpp"

namespace relive {

struct ColumnConfig;
struct Layout;
struct Region;
struct TableConfig;
class Dirty;
class Status;

enum class BulkKind : uint64_t { kNone = 0, kRam = 1, kDisk = 2 };

// A page's place: kind in the low bits, the number of a bulk frame or of a position above them.
struct BulkPlace {
  BulkKind kind;
  uint64_t number;

  static BulkPlace unpack(uint64_t word) { return {static_cast<BulkKind>(word & 3), word >> 2}; }
  uint64_t pack() const { return number << 2 | static_cast<uint64_t>(kind); }
};

// Pages whose bulk is in memory and which are CLOSED, oldest first: the spill thread takes them from the front.
struct BulkLink {
  uint32_t prev, next;
  uint32_t is_listed;
};

struct BulkState {
  std::atomic<uint64_t> num_free_frames;
  std::atomic<uint64_t> next_position;  // the ring's hand
  std::atomic<uint64_t> pages_in_ram, pages_on_disk;
  uint32_t list_head, list_tail;
};

struct Bulk {
  const BulkGeometry* geometry = nullptr;  // null: frames hold whole rows, there is no bulk
  std::byte* base = nullptr;               // of the bulk frames
  BulkState* state = nullptr;
  std::atomic<uint64_t>* places = nullptr;
  BulkLink* links = nullptr;
  std::atomic<uint32_t>* planned = nullptr;  // [2 x page] claimed, not gathered: not freed early; [2 x page + 1] pins
  std::atomic<uint32_t>* positions = nullptr;
  std::atomic<uint32_t>* free_frames = nullptr;
  std::atomic<uint32_t>* leaving = nullptr;

  explicit operator bool() const { return geometry != nullptr; }
  BulkPlace place(uint64_t page) const { return BulkPlace::unpack(places[page].load(std::memory_order_acquire)); }
  std::byte* frame(uint64_t number) const { return base + number * geometry->frame_bytes; }
  bool is_claimed(uint64_t page) const { return planned[2 * page].load(std::memory_order_relaxed) != 0; }
  bool is_pinned(uint64_t page) const { return planned[2 * page + 1].load(std::memory_order_relaxed) != 0; }
};

// ---- layout: called by make_layout, in this order ----------------------------------------------------------------
bool is_bulk(const TableConfig& config, const ColumnConfig& column, uint64_t num_bytes);
void choose_block(const TableConfig& config, Layout* out);  // after the columns have their areas
uint64_t bulk_stride(const BulkGeometry& bulk, uint64_t num_bytes);
Status place_bulk(const TableConfig& config, Layout* out);  // after the page length is known
inline bool has_bulk(const BulkGeometry& bulk) { return bulk.frame_bytes != 0; }
void place_bulk_areas(const std::function<uint64_t(uint64_t)>& take, uint64_t num_pages, BulkGeometry* bulk);

// ---- the region's part -------------------------------------------------------------------------------------------
// Binds the view to a fresh region and offers all frames. `memory`: num_frames x frame_bytes.
void bind_bulk(Region& r, const BulkGeometry* geometry, std::byte* memory);

// A bulk frame for a page that opens. False where none is free.
bool take_bulk(Region& r, uint64_t page);
// The page's bulk is nobody's any more. A frame that is being written out is given back by the spill thread.
void release_bulk(Region& r, uint64_t page);
// The page closed: it can be spilled from now on.
void offer_for_spill(Region& r, uint64_t page);

// One page on its way out.
struct Leaving {
  uint64_t page, word, frame, position;
};
// Takes up to `most` pages off the front of the list, with consecutive positions. Their frames are marked.
size_t pick_for_spill(Region& r, size_t most, Leaving* out);
// The bytes are on disk: place, moves, fence, then the frame is free (rule D6). A page that went meanwhile only gives
// back what it had. Returns whether the page was still there.
bool finish_spill(Region& r, const Leaving& one);
// They are not: back to the front of the list, position free.
void undo_spill(Region& r, const Leaving& one);

// One pin of a reader less; a page that only waited for it is freed.
void unhold_bulk(Region& r, uint64_t ref, Dirty& dirty);

// The first thing about bulk that does not hold, empty if all does.
const char* broken_bulk(const Region& r);

}  // namespace relive
