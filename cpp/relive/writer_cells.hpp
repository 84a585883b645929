// What the writer's files share: how a column's cell of a frame is found.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "relive/writer.hpp"

namespace relive {

inline constexpr size_t kRowsPerHold = 256;  // rule C3
inline constexpr size_t kLanesAhead = 4;     // lanes whose words and rows are asked for ahead of their turn

inline bool is_state(const Region& r, uint32_t column) { return r.columns[column].kind == ColumnKind::kState; }

inline std::byte* cell(const Region& r, std::byte* frame, uint32_t column, uint32_t row) {
  return frame + r.columns[column].offset + row * r.columns[column].stride;
}

// Steps that `lanes` open lanes need for one window each.
inline uint64_t needed_steps(const Geometry& g, uint64_t lanes) { return lanes * (g.history + g.max_n_step); }

}  // namespace relive
