// Assigns bulk frames and positions of the page file to pages. Bulk is the large columns of a page in a tiered table.
//
// Owns:    nothing; the Tier owns the memory, and the region's Bulk is a view of it.
// Locking: every function runs under the table lock, except bind_bulk, which has the region alone.
// Cost:    O(1) each; pick_for_spill checks at most kMostLooks positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/words/bulk_view.hpp"

namespace relive {

class Held;
struct Region;

// Binds the view to a new region and makes all frames free. `memory`: num_frames x frame_bytes.
void bind_bulk(Region& r, const BulkGeometry* geometry, std::byte* memory);

// Gives a bulk frame to a page that opens. Returns false if no frame is free.
bool take_bulk(Held& held, uint64_t page);
// Takes the bulk from a page. The spill thread frees a frame that it is writing when the write ends.
void release_bulk(Held& held, uint64_t page);
// Puts a page that was just closed on the list of pages that can be spilled.
void offer_for_spill(Held& held, uint64_t page);

// A page that is being spilled.
struct Leaving {
  uint64_t page, word, frame, position;
};
// Takes up to `most` pages from the front of the list, assigns them consecutive positions, and marks their frames.
size_t pick_for_spill(Held& held, size_t most, Leaving* out);
// The bytes are on disk: stores the place, increments moves, fences, and frees the frame (rule D6). Returns whether the
// page is on disk now. A page that was freed during the write only gives back its frame and position. A page that is
// pinned stays in memory, and a later spill writes it again (rule D7). Call this for the last page first, so that the
// pages that stay keep their order.
bool finish_spill(Held& held, const Leaving& one);
// The write failed: puts the page back at the front of the list and frees the position.
void undo_spill(Held& held, const Leaving& one);

// The first broken invariant of bulk; null if none is broken. frames, positions: one zero for each, as marks.
const char* broken_bulk(const Region& r, uint8_t* frames, uint8_t* positions);

}  // namespace relive
