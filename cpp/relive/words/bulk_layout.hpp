// The bulk of a tiered table: the areas of its large columns, apart from the packed records, as plain values.
//
// A page's records stay in its frame of the region. Its bulk (the rows of every large column of that page) lies in a
// bulk frame in memory while the page is young, and at a position of the page file after the page was spilled:
//   in memory: address(row, column) = bulk base + frame * frame_bytes + column.offset + row * column.stride
//   on disk:   byte(row, column)    = position * frame_bytes + column.offset + row * column.stride
// Bulk is read in *units*: one row if a row fills whole blocks, else one block of rows. Staging memory and direct reads
// are divided into blocks: block_bytes is a multiple of 4 KiB, and the area of every column begins at a block.
//
// Owner:   these values own nothing. Locking: none, they never change. Cost: O(columns).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>

namespace relive {

struct ColumnConfig;
struct Layout;
struct TableConfig;
class Status;

inline constexpr uint32_t kMaxBulkColumns = 128;
inline constexpr uint64_t kDirectAlign = 4096;  // of files, memory and lengths of a read past the page cache

// The configuration of a tiered table. An empty directory: the table is not tiered.
struct TierConfig {
  std::string directory;          // of the page file
  uint64_t ram_bytes = 0;         // bulk frames and staging together
  double staging_fraction = 0.5;  // of ram_bytes
  uint32_t min_column_bytes = 0;  // a column of more bytes a row than this is bulk
  uint32_t num_io_threads = 8;

  bool is_tiered() const { return !directory.empty(); }
};

// Sizes and offsets of the bulk of one table. frame_bytes == 0: no column is large, so there is no bulk.
struct BulkGeometry {
  uint64_t frame_bytes;    // of one page's bulk
  uint64_t num_frames;     // in memory
  uint64_t num_positions;  // of the page file
  uint64_t block_bytes;
  uint64_t num_blocks;  // of staging memory
  uint64_t reserve;     // free bulk frames that the spill thread keeps
  uint32_t num_units;   // of one page
  uint32_t num_columns;
  uint32_t first_unit[kMaxBulkColumns];   // of each column; ~0 where it is not bulk
  uint32_t unit_blocks[kMaxBulkColumns];  // blocks of one unit
  uint64_t places_offset;                 // page -> the place of its bulk
  uint64_t links_offset;                  // page -> neighbours on the list of pages that can be spilled
  uint64_t positions_offset;              // position -> page + 1, 0 = free
  uint64_t free_offset;                   // a stack of free bulk frames
  uint64_t leaving_offset;                // bulk frame -> 1 while the frame is written out
  uint64_t state_offset;

  uint64_t unit_bytes(uint32_t column) const { return unit_blocks[column] * block_bytes; }
};
static_assert(std::is_trivially_copyable_v<BulkGeometry>);

// ---- layout: called by make_layout, in this order ----------------------------------------------------------------
bool is_bulk(const TableConfig& config, const ColumnConfig& column, uint64_t num_bytes);
void choose_block(const TableConfig& config, Layout* out);  // after the columns have their areas
uint64_t bulk_stride(const BulkGeometry& bulk, uint64_t num_bytes);
Status place_bulk(const TableConfig& config, Layout* out);  // after the page length is known
inline bool has_bulk(const BulkGeometry& bulk) { return bulk.frame_bytes != 0; }
void place_bulk_areas(const std::function<uint64_t(uint64_t)>& take, uint64_t num_pages, BulkGeometry* bulk);

}  // namespace relive
