// Images of pages: the rows of a page and all words that belong to rows, in one run of bytes that any region with the
// same columns can take in.
//
//   header | records | rows of each large column | marks | pending priorities of further indexes | start cells
//
// Owner:   the caller owns the bytes of an image.
// Locking: copy_out() takes no lock: the page must be CLOSED or pinned, and the caller compares its word and ticket
//          afterwards (rule J5). copy_in() writes a region that no other process has seen.
// Cost:    one pass over the rows and one for the sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "relive/words/held.hpp"

namespace relive {

// The head of an image. All numbers are little-endian.
struct ImageHead {
  uint32_t magic;
  uint32_t sum;        // CRC-32C of all bytes of the image after this word
  uint64_t num_bytes;  // of the image, head included; a multiple of 64
  uint64_t ref;        // of the page
  uint32_t num_rows;   // rows [0, num_rows) of the page
  uint32_t num_cells;  // start cells, in the order of their rows
  uint64_t reserved[4];
};
static_assert(sizeof(ImageHead) == 64);

inline constexpr uint32_t kImageMagic = 0x65676170;  // "page"

// The last row of a lane, whose head and own discount an end of the episode may still change.
struct LastRow {
  uint64_t slot;  // + 1; 0: there is none
  uint32_t head;
  uint32_t discount;  // bits of its mark's
};
static_assert(sizeof(LastRow) == 16);

// The rows of a page that an image shows.
struct ImageRows {
  uint32_t num_rows;      // rows [0, num_rows) are copied
  uint32_t num_steps;     // rows at or above it are no steps or tails yet: only their state cells mean anything
  LastRow last{0, 0, 0};  // a row that the image shows as it was at the cut, whatever it has become since
};

// The most bytes that an image of this table has.
uint64_t most_image_bytes(const Region& r);

// Copies a page. Returns the bytes used, 0 if `room` is too small.
size_t copy_out(const Region& r, uint64_t page, const ImageRows& rows, uint64_t ref, std::byte* to, size_t room);

// The start cells of an image that copy_out() has made.
uint32_t cells_of(const std::byte* image);

// The reason why an image of num_bytes bytes cannot be one of this region's; null if it can.
const char* wrong_image(const Region& r, const std::byte* image, size_t num_bytes);

// Copies an image that is sound into a page that has a frame. Takes start cells from *next_cell on.
void copy_in(Held& held, uint64_t page, const std::byte* image, uint64_t* next_cell);

}  // namespace relive
