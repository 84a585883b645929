#include "relive/table/writer_columns.hpp"

#include <algorithm>

namespace relive {

WriterColumns::WriterColumns(const Region& r) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (column.kind == ColumnKind::kLate) continue;
    const bool is_state = column.kind == ColumnKind::kState;
    if (column.area == Area::kCell) {
      start_cells.push_back({column.offset, column.stride, column.num_bytes, c, false, false});
      continue;
    }
    cells.push_back({column.offset, column.stride, column.num_bytes, c, is_state, column.area == Area::kBulk});
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
