// Whether a region may be bound to a header that was read: every size and offset lies within the file, and counts
// agree.
//
// This check comes before the header's checksum, because the checksum itself reads columns and metadata by these
// offsets. All sums are computed in 128 bits, where no product of the header's words overflows. Cost: O(columns +
// indexes).
#include <algorithm>
#include <cstring>

#include "relive/words/region.hpp"

namespace relive {
namespace {

using Wide = unsigned __int128;

bool is_in(Wide value, Wide least, Wide most) { return least <= value && value <= most; }

bool are_counts_sound(const Geometry& g) {
  return is_in(g.num_columns, 1, kMaxColumns) && is_in(g.num_item_columns, 0, kMaxColumns) &&
         is_in(g.num_indexes, 1, kMaxIndexes) && is_in(g.max_participants, 1, 65536) &&
         is_in(g.max_lanes, 1, 1u << 20) && g.shard < 4096 && is_in(g.page_shift, 0, 15) &&
         g.page_len == 1u << g.page_shift && g.tail_words == std::max(1u, g.page_len / 64) &&
         is_in(g.slot_bits, g.page_shift, kLeafBits - 1) && g.page_bits == g.slot_bits - g.page_shift &&
         is_in(g.num_pages, 1, uint64_t{1} << g.page_bits) && g.num_slots == g.num_pages << g.page_shift &&
         is_in(g.capacity, 1, g.num_slots) && g.history < g.num_slots && is_in(g.max_n_step, 1, g.num_slots) &&
         g.has_state <= 1 && g.reward_column >= -1 && g.reward_column < static_cast<int64_t>(g.num_columns);
}

bool are_slabs_sound(const Geometry& g, size_t num_bytes) {
  if (!is_in(g.frames_per_slab_shift, 0, 40) || !is_in(g.num_frames, 1, Wide{1} << 32) || g.slabs_offset % 64 != 0 ||
      g.grow_frames < 1)
    return false;
  const uint64_t last = g.num_frames - 1;
  const uint64_t mask = (uint64_t{1} << g.frames_per_slab_shift) - 1;
  return g.record_stride >= kRecordHead && Wide{g.record_stride} * g.page_len <= g.frame_bytes &&
         (Wide{g.frame_bytes} << g.frames_per_slab_shift) <= g.slab_bytes &&
         Wide{g.slabs_offset} + Wide{last >> g.frames_per_slab_shift} * g.slab_bytes +
                 Wide{(last & mask) + 1} * g.frame_bytes <=
             num_bytes;
}

// Start cells: as many as row slots, after the slabs.
bool are_cells_sound(const Geometry& g, size_t num_bytes) {
  const CellGeometry& cells = g.cells;
  if (cells.stride == 0) return true;
  return cells.num_cells == g.num_slots && cells.num_cells < kNoCell && cells.grow_cells >= 1 &&
         cells.stride % 64 == 0 && cells.cells_offset % 64 == 0 && cells.cells_offset > g.slabs_offset &&
         g.record_stride >= kCellWord + sizeof(uint32_t) &&
         Wide{cells.cells_offset} + Wide{cells.num_cells} * cells.stride <= num_bytes;
}

// Records: no more than keys have numbers for, above every row's slot, in areas that are large enough.
template <class Lies>
bool are_records_sound(const Geometry& g, const RecordGeometry& records, Wide first_leaf, const Lies& lies) {
  if (!is_in(records.max_items, 1, (Wide{1} << 31) + 1) ||
      !is_in(records.max_windows, 1, std::max(kMaxWindows, kMaxGroupSize)) || !is_in(records.max_rows, 1, kMaxWindow) ||
      records.first_leaf != first_leaf || first_leaf + records.max_items > Wide{1} << g.slot_bits ||
      records.pages_a_window != (records.max_rows + g.page_len - 2) / g.page_len + 1 ||
      Wide{records.first_column} + records.num_columns > g.num_columns + g.num_item_columns ||
      (records.group_size != 0 &&
       (records.group_size != records.max_windows || records.value_stride < sizeof(int64_t))))
    return false;
  const Wide num_nodes = Wide{records.max_items} * records.max_windows * records.pages_a_window;
  return num_nodes < ~uint32_t{0} && lies(records.words_offset, Wide{sizeof(uint64_t)} * records.max_items) &&
         lies(records.windows_offset, Wide{sizeof(ItemWindow)} * records.max_items * records.max_windows) &&
         lies(records.nodes_offset, sizeof(RecordNode) * num_nodes) &&
         lies(records.heads_offset, Wide{sizeof(uint32_t)} * g.num_slots) &&
         lies(records.values_offset, Wide{records.value_stride} * records.max_items) &&
         (records.group_size == 0 || lies(records.joined_offset, Wide{sizeof(uint64_t)} * g.max_lanes));
}

bool is_shape_sound(const Geometry& g, const ItemShape& shape) {
  return shape.before <= g.history && is_in(shape.spanned, 1, g.max_n_step) && shape.bootstrap == g.has_state &&
         Wide{shape.before} + shape.spanned <= kMaxWindow;
}

bool are_areas_sound(const Geometry& g) {
  const auto lies = [&g](uint64_t offset, Wide num_bytes) {
    return offset >= sizeof(Header) && offset % 64 == 0 && Wide{offset} + num_bytes <= g.slabs_offset;
  };
  bool sound = lies(g.columns_offset, Wide{sizeof(ColumnLayout)} * (g.num_columns + g.num_item_columns)) &&
               lies(g.participants_offset, Wide{sizeof(Participant)} * g.max_participants) &&
               lies(g.credits_offset, Wide{sizeof(Credit)} * g.max_participants * g.num_indexes) &&
               lies(g.lanes_offset, Wide{sizeof(Lane)} * g.max_lanes) &&
               lies(g.words_offset, Wide{sizeof(uint64_t)} * g.num_pages) &&
               lies(g.frames_offset, Wide{sizeof(uint32_t)} * g.num_pages) &&
               lies(g.pages_offset, Wide{sizeof(PageRecord)} * g.num_pages) &&
               lies(g.tails_offset, Wide{sizeof(uint64_t)} * g.num_pages * g.tail_words) &&
               lies(g.marks_offset, Wide{sizeof(Mark)} * g.num_slots) &&
               lies(g.free_frames_offset, Wide{sizeof(uint32_t)} * g.num_frames) &&
               lies(g.metadata_offset, g.metadata_bytes);
  if (g.cells.stride != 0)
    sound = sound && lies(g.cells.state_offset, sizeof(CellState)) &&
            lies(g.cells.links_offset, Wide{sizeof(uint32_t)} * g.cells.num_cells) &&
            lies(g.cells.free_offset, Wide{sizeof(uint32_t)} * g.cells.num_cells);
  Wide next_leaf = Wide{1} << (g.slot_bits - 1);  // the keys of records have the upper half of the slots
  sound = sound && g.num_slots <= next_leaf;
  for (uint32_t i = 0; i < g.num_indexes && sound; ++i) {
    const RecordGeometry& records = g.records[i];
    const bool has_records = records.max_items != 0;
    sound = has_records
                ? are_records_sound(g, records, next_leaf, lies)
                : is_shape_sound(g, g.shapes[i]) && lies(g.cursors_offset[i], Wide{sizeof(Cursor)} * g.max_lanes);
    const uint64_t num_leaves = has_records ? records.max_items : g.num_slots;
    sound = sound && lies(g.trees_offset[i], Tree::num_bytes(num_leaves)) &&
            lies(g.states_offset[i], Wide{sizeof(uint16_t)} * num_leaves) &&
            (g.waits_offset[i] == 0 || lies(g.waits_offset[i], Tree::num_bytes(num_leaves))) &&
            (g.ranks_offset[i] == 0 ||
             (num_leaves <= Ranks::kMostLeaves && lies(g.ranks_offset[i], Ranks::num_bytes(num_leaves)))) &&
            (g.orders_offset[i] == 0 ||
             lies(g.orders_offset[i], Wide{has_records ? 2u : 1u} * Tree::num_bytes(num_leaves))) &&
            (g.ages_offset[i] == 0 || lies(g.ages_offset[i], Tree::num_bytes(num_leaves))) &&
            (g.places_offset[i] == 0 || lies(g.places_offset[i], Tree::num_bytes(num_leaves))) &&
            (g.given_offset[i] == 0 || (!has_records && lies(g.given_offset[i], Wide{sizeof(uint32_t)} * num_leaves)));
    next_leaf += records.max_items;
  }
  return sound;
}

bool is_column_described(const ColumnLayout& column) {
  return column.num_dims <= kMaxDims && column.area <= Area::kCell && column.kind <= ColumnKind::kEpisode &&
         std::memchr(column.name, 0, sizeof column.name) != nullptr &&
         std::memchr(column.dtype, 0, sizeof column.dtype) != nullptr;
}

bool is_column_sound(const Geometry& g, const ColumnLayout& column) {
  if (column.area == Area::kCell)
    return Wide{column.offset} + column.num_bytes <= g.cells.stride && is_column_described(column);
  const bool lies = Wide{column.offset} + Wide{g.page_len - 1} * column.stride + column.num_bytes <= g.frame_bytes;
  return lies && is_column_described(column);
}

// The items' own columns lie within their record.
bool are_item_columns_sound(const Geometry& g, const ColumnLayout* columns) {
  for (uint32_t i = 0; i < g.num_indexes; ++i) {
    const RecordGeometry& records = g.records[i];
    for (uint32_t c = 0; c < records.num_columns; ++c) {
      const ColumnLayout& column = columns[records.first_column + c];
      if (Wide{column.offset} + column.num_bytes > records.value_stride || !is_column_described(column)) return false;
    }
  }
  return true;
}

}  // namespace

std::string unsound_part(const Geometry& g, const std::byte* memory, size_t num_bytes) {
  if (!are_counts_sound(g)) return "counts that do not agree";
  if (!are_slabs_sound(g, num_bytes)) return "frames that lie outside of the file";
  if (!are_cells_sound(g, num_bytes)) return "start cells that lie outside of the file";
  if (!are_areas_sound(g)) return "areas that lie outside of their place";
  const auto* indexes = reinterpret_cast<const Header*>(memory)->indexes;
  for (uint32_t i = 0; i < g.num_indexes; ++i) {
    const uint64_t num_leaves = g.records[i].max_items != 0 ? g.records[i].max_items : g.num_slots;
    const Wide end = Wide{g.trees_offset[i]} + Tree::num_bytes(num_leaves) + kVisitedBytes;
    if ((indexes[i].traits & kIsShuffled) && end > g.slabs_offset)
      return "a count of visited leaves outside of its place";
  }
  const auto* columns = reinterpret_cast<const ColumnLayout*>(memory + g.columns_offset);
  for (uint32_t c = 0; c < g.num_columns; ++c)
    if (!is_column_sound(g, columns[c])) return "a column that lies outside of its frame";
  if (!are_item_columns_sound(g, columns)) return "a column of items that lies outside of its record";
  return {};
}

}  // namespace relive
