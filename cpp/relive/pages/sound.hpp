// Whether the words of a region, or of a save, can be true: every id, row and link is in its bounds, and links form no
// ring. A load, and the first process that attaches to a region after all others, ask before recovery follows any of
// them.
//
// Owner:   nothing.
// Locking: the words are the caller's alone.
// Cost:    O(pages) and O(records).
#pragma once

#include "relive/pages/recover.hpp"

namespace relive {

// The numbers that the names of rows and pages are made of.
struct NameShape {
  uint64_t num_pages = 0;
  uint32_t page_shift = 0;
  uint32_t slot_bits = 0;
  uint32_t max_lanes = 0;
  uint64_t shard = 0;

  uint32_t page_bits() const { return slot_bits - page_shift; }
};

// Each function names what cannot be true; null if all is sound.
const char* unsound_pages(const Region& r, const NameShape& shape, const uint64_t* words, const PageRecord* pages);
// next_uid: of the next lane, above the uids of all lanes.
const char* unsound_lanes(const NameShape& shape, const Lane* lanes, uint64_t next_uid);
const char* unsound_records(const Region& r, uint32_t index, const uint64_t* words, const ItemWindow* windows);
// All of these for a region that no process uses, and the frames of its pages.
const char* unsound_region(const Region& r, RecoverScratch& scratch);

}  // namespace relive
