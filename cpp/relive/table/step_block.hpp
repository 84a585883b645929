// The rows that one call of a writer is given: pointers into the caller's arrays, and the shape of these arrays.
//
// Owner:   the caller owns the arrays. They are valid, and do not change, until the call returns.
// Locking: none.
// Cost:    a look at one value is two multiplications and a load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace relive {

// The values of one column: row t of lane m lies at base + t * row_stride + m * lane_stride.
struct Cells {
  const std::byte* base = nullptr;  // null: the caller gave no values
  int64_t row_stride = 0;
  int64_t lane_stride = 0;

  const std::byte* at(size_t row, size_t lane) const {
    return base + static_cast<int64_t>(row) * row_stride + static_cast<int64_t>(lane) * lane_stride;
  }
  // For a column of flags: false if the caller gave no values.
  bool flag_at(size_t row, size_t lane) const { return base != nullptr && *at(row, lane) != std::byte{0}; }
};

// T rows for each of M lanes. The caller has checked shapes and dtypes.
struct StepBlock {
  size_t num_rows = 0;             // T
  size_t num_lanes = 0;            // M
  const int32_t* lanes = nullptr;  // [M] numbers within the writer; null: 0 .. M - 1
  std::vector<Cells> columns;      // [num_columns], each given
  std::vector<Cells> next;         // [num_columns], given for all state columns or for none
  bool has_next = false;           // `next` has a value for each row
  bool has_last_state = false;     // state columns have T + 1 rows
  Cells terminated, truncated;     // uint8
  Cells discount;                  // float32; if not given: 1 - terminated
  Cells priority;                  // float32; optional

  int64_t lane_number(size_t m) const { return lanes == nullptr ? static_cast<int64_t>(m) : lanes[m]; }
  // Whether the row is the last of its episode.
  bool ends_at(size_t row, size_t m) const { return terminated.flag_at(row, m) || truncated.flag_at(row, m); }
  // Whether the block itself has the state after `row`. Within an extend this is the state of the next row, unless
  // `row` ends its episode: then the next row begins another episode.
  bool has_next_cell(size_t row, bool ends) const {
    if (has_next) return true;
    if (row + 1 == num_rows) return has_last_state;
    return !ends;
  }
};

}  // namespace relive
