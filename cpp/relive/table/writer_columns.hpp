// The layout of a table's columns, as a writer needs it: few cache lines for all columns.
//
// Owner:   a Writer owns one. It is computed when the writer opens and does not change.
// Locking: none.
// Cost:    O(columns + indexes) to compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "relive/words/region.hpp"

namespace relive {

struct ColumnCell {
  uint64_t offset, stride, num_bytes;
  uint32_t column;
  bool is_state, is_bulk;
  uint32_t float_bytes;  // of one number, if the column has floats or complex numbers; else 0

  // bulk: the page's frame of large columns, in a tiered table.
  std::byte* at(std::byte* frame, std::byte* bulk, uint32_t row) const {
    return (is_bulk ? bulk : frame) + offset + row * stride;
  }
  // Whether two values of the column are the same: of equal bytes, where -0.0 is 0.0.
  bool is_same(const std::byte* a, const std::byte* b) const {
    return std::memcmp(a, b, num_bytes) == 0 || (float_bytes != 0 && are_same_floats(a, b));
  }

 private:
  bool are_same_floats(const std::byte* a, const std::byte* b) const;
};

struct WriterColumns {
  static constexpr uint32_t kAnyLength = ~0u;

  explicit WriterColumns(const Region& r);

  std::vector<ColumnCell> cells;          // the columns that every row has, in their order
  std::vector<ColumnCell> state_cells;    // those of kind state
  std::vector<ColumnCell> episode_cells;  // those of kind episode
  std::vector<ColumnCell> start_cells;    // columns that only some rows have (StartValues); not among `cells`
  size_t episode_bytes = 0;               // of one value of each column of kind episode
  uint32_t longest_episode = kAnyLength;  // steps that every index allows an episode to have
};

}  // namespace relive
