// Images of pages: the rows of a page and all words that belong to rows, in one run of bytes that any region with the
// same columns can take in.
//
//   header | records | rows of each large column | marks | pending priorities of further indexes | start cells
//
// The rows lie as in a frame of a table without tiers, whatever the storage of this table is. A tiered table arranges
// its columns otherwise, so its rows are copied column by column; where other tables have start cells, an image of a
// tiered table has a cell for each step.
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

// How the rows of a region's pages lie in images. Borrows the region and the layout.
class ImageForm final {
 public:
  // plain: the layout without tiers; null: that of the region.
  explicit ImageForm(const Region& r, const Layout* plain = nullptr);
  bool is_regions() const { return plain_ == nullptr; }
  const Region& region() const { return r_; }
  const ColumnLayout& column(uint32_t c) const { return plain_ == nullptr ? r_.columns[c] : plain_->columns[c]; }
  uint64_t record_stride() const { return record_stride_; }
  uint64_t large_stride() const { return large_stride_; }  // bytes of a row in large columns
  uint64_t cell_stride() const { return cell_stride_; }    // 0: there are no start cells
  uint64_t image_bytes(uint64_t num_rows, uint64_t num_cells) const;
  uint64_t most_image_bytes() const { return image_bytes(r_.page_len, r_.page_len); }

 private:
  const Region& r_;
  const Layout* const plain_;
  uint64_t record_stride_, large_stride_, cell_stride_;
};

// A page of a region. bulk: its bulk frame, or a copy of it; null: the table has no bulk.
struct PagePlace {
  uint64_t page;
  std::byte* bulk = nullptr;
};

// Copies a page. Returns the bytes used, 0 if `room` is too small.
size_t copy_out(const ImageForm& form, const PagePlace& from, const ImageRows& rows, uint64_t ref, std::byte* to,
                size_t room);

// The start cells of an image that copy_out() has made.
uint32_t cells_of(const std::byte* image);

// The reason why an image of num_bytes bytes cannot be one of this form; null if it can.
const char* wrong_image(const ImageForm& form, const std::byte* image, size_t num_bytes);

// Copies an image that is sound into a page that has a frame. Takes start cells from *next_cell on.
void copy_in(Held& held, const ImageForm& form, const PagePlace& to, const std::byte* image, uint64_t* next_cell);

}  // namespace relive
