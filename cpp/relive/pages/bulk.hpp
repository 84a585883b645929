// Who may have which bulk frame and which position of the page file.
//
// Locking: everything here runs under the table lock.
// Cost:    O(1) each; take_positions looks at no more than kMostLooks positions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/words/bulk_view.hpp"

namespace relive {

class Held;
struct Region;

// ---- the region's part -------------------------------------------------------------------------------------------
// Binds the view to a fresh region and offers all frames. `memory`: num_frames x frame_bytes.
void bind_bulk(Region& r, const BulkGeometry* geometry, std::byte* memory);

// A bulk frame for a page that opens. False where none is free.
bool take_bulk(Held& held, uint64_t page);
// The page's bulk is nobody's any more. A frame that is being written out is given back by the spill thread.
void release_bulk(Held& held, uint64_t page);
// The page closed: it can be spilled from now on.
void offer_for_spill(Held& held, uint64_t page);

// One page on its way out.
struct Leaving {
  uint64_t page, word, frame, position;
};
// Takes up to `most` pages off the front of the list, with consecutive positions. Their frames are marked.
size_t pick_for_spill(Held& held, size_t most, Leaving* out);
// The bytes are on disk: place, moves, fence, then the frame is free (rule D6). A page that went meanwhile only gives
// back what it had; one that somebody holds stays in memory and is written again some day (rule D7). Returns whether the
// page is on disk now. Of several the last one first: those that stay keep their order.
bool finish_spill(Held& held, const Leaving& one);
// They are not: back to the front of the list, position free.
void undo_spill(Held& held, const Leaving& one);

// The first thing about bulk that does not hold, null if all does. frames, positions: a zero for each, to mark them in.
const char* broken_bulk(const Region& r, uint8_t* frames, uint8_t* positions);

}  // namespace relive
