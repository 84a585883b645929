#include "relive/table/writer_columns.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace relive {
namespace {

uint32_t float_bytes_of(const ColumnLayout& column) {
  const char kind = column.dtype[1];
  const auto size = static_cast<uint32_t>(std::atoi(column.dtype + 2));
  return kind == 'f' ? size : kind == 'c' ? size / 2 : 0;
}

// Whether a float, in the byte order of the machine, is 0.0 or -0.0.
bool is_zero(const std::byte* number, uint32_t num_bytes) {
  for (uint32_t k = 0; k + 1 < num_bytes; ++k)
    if (number[k] != std::byte{0}) return false;
  return (number[num_bytes - 1] & std::byte{0x7f}) == std::byte{0};
}

}  // namespace

bool ColumnCell::are_same_floats(const std::byte* a, const std::byte* b) const {
  for (uint64_t at = 0; at < num_bytes; at += float_bytes) {
    const bool are_zero = is_zero(a + at, float_bytes) && is_zero(b + at, float_bytes);
    if (!are_zero && std::memcmp(a + at, b + at, float_bytes) != 0) return false;
  }
  return true;
}

WriterColumns::WriterColumns(const Region& r) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (column.kind == ColumnKind::kLate) continue;
    const bool is_state = column.kind == ColumnKind::kState;
    if (column.area == Area::kCell) {
      start_cells.push_back({column.offset, column.stride, column.num_bytes, c, false, false, 0});
      continue;
    }
    cells.push_back({column.offset, column.stride, column.num_bytes, c, is_state, column.area == Area::kBulk,
                     float_bytes_of(column)});
    if (is_state) state_cells.push_back(cells.back());
    if (column.kind != ColumnKind::kEpisode) continue;
    episode_cells.push_back(cells.back());
    episode_bytes += column.num_bytes;
  }
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const IndexConfig& index = r.header->indexes[i];
    const bool is_group = index.group.is_set() && index.group.too_long == TooLong::kRefuse;
    const uint32_t longest = is_group ? index.windows[0].length : index.sequence.longest;
    if (longest != 0) longest_episode = std::min(longest_episode, longest);
  }
}

}  // namespace relive
