// Whether the words of a save can be true: every id, row and link is in its bounds, and links form no ring. A load asks
// before recovery follows any of them.
//
// Owner:   nothing. Locking: none: the words are the loader's own copy.
// Cost:    O(pages) and O(records).
#pragma once

#include "relive/save/loader.hpp"

namespace relive {

// Each function names what cannot be true; null if all is sound.
const char* unsound_shape(const SavedState& state);
const char* unsound_pages(const Region& r, const SavedShape& shape, const uint64_t* words, const PageRecord* pages);
// next_uid: of the next lane, above the uids of all lanes.
const char* unsound_lanes(const SavedShape& shape, const Lane* lanes, uint64_t next_uid);
const char* unsound_records(const Region& r, uint32_t index, const uint64_t* words, const ItemWindow* windows);

}  // namespace relive
