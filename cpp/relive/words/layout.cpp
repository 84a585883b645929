#include "relive/words/layout.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "relive/words/bulk_layout.hpp"
#include "relive/words/config_check.hpp"
#include "relive/words/ranks.hpp"
#include "relive/words/record_view.hpp"
#include "relive/words/region.hpp"

namespace relive {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSlabBytes = 256 * kMiB;
constexpr uint64_t kSlabAlign = 2 * kMiB;
constexpr uint64_t kFrameAlign = 64;
// Rows that lie multiples of this apart share one set of a first-level cache, which has room for as many lines as it
// has ways. Lanes are written together, each at the same row of its own page: more lanes than ways would evict each
// other.
constexpr uint64_t kAliasBytes = 4096;
constexpr uint32_t kMostWays = 16;
constexpr uint64_t kGrowBytes = 32 * kMiB;
constexpr uint64_t kGrowCellBytes = kMiB / 16;  // most tables use few cells
constexpr uint64_t kMaxPageLen = 4096;
constexpr uint32_t kGroupValueBytes = 16;
constexpr long double kMaxRegionBytes = 0x1p62L;  // sums of offsets must fit 64 bits

uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// A column without its position.
ColumnLayout described(const ColumnConfig& from) {
  ColumnLayout to;
  std::memset(&to, 0, sizeof to);
  std::memcpy(to.name, from.name.data(), from.name.size());
  std::memcpy(to.dtype, from.dtype.data(), std::min<size_t>(from.dtype.size(), sizeof to.dtype - 1));
  to.num_bytes = from.item_bytes;
  to.num_dims = static_cast<uint32_t>(from.shape.size());
  for (size_t d = 0; d < from.shape.size(); ++d) {
    to.dims[d] = from.shape[d];
    to.num_bytes *= static_cast<uint64_t>(from.shape[d]);
  }
  to.kind = from.kind;
  to.block_rows = 1;
  return to;
}

// The order in which columns are packed: largest elements first, so that each column lies on its natural boundary.
std::vector<size_t> packing_order(const std::vector<ColumnConfig>& columns) {
  std::vector<size_t> order(columns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return columns[a].item_bytes > columns[b].item_bytes; });
  return order;
}

uint64_t aligned_at(uint64_t offset, const ColumnConfig& column) {
  return round_up(offset, std::clamp<uint64_t>(std::bit_floor(column.item_bytes), 1, 16));
}

// Whether large columns of kind start are stored in cells: only if every index knows at which rows its windows begin.
bool has_cells(const TableConfig& config) {
  const auto is_large = [](const ColumnConfig& column) {
    return column.kind == ColumnKind::kStart && described(column).num_bytes > kLargeColumn;
  };
  const auto knows = [](const IndexConfig& index) {
    return index.map == LeafMap::kImplicit && index.own_rows().knows_starts();
  };
  return !config.tier.is_tiered() && std::all_of(config.indexes.begin(), config.indexes.end(), knows) &&
         std::any_of(config.columns.begin(), config.columns.end(), is_large);
}

// Packed columns go into the record in packing_order(); large columns get areas of their own.
void place_columns(const TableConfig& config, Layout* out) {
  Geometry& g = out->geometry;
  out->columns.resize(config.columns.size());
  const bool are_sparse = has_cells(config);
  uint64_t record = are_sparse ? kCellWord + sizeof(uint32_t) : kRecordHead;
  for (size_t position : packing_order(config.columns)) {
    const ColumnConfig& from = config.columns[position];
    ColumnLayout& to = out->columns[position];
    to = described(from);
    to.area = is_bulk(config, from, to.num_bytes)             ? Area::kBulk
              : to.num_bytes <= kLargeColumn                  ? Area::kRecord
              : are_sparse && from.kind == ColumnKind::kStart ? Area::kCell
                                                              : Area::kLarge;
    if (to.area == Area::kCell) {
      to.offset = g.cells.stride;
      g.cells.stride += round_up(to.num_bytes, 64);
    }
    if (to.area == Area::kRecord) {
      record = aligned_at(record, from);
      to.offset = record;
      record += to.num_bytes;
    }
  }
  g.record_stride = round_up(record, 16);
  g.row_bytes = g.record_stride;
  choose_block(config, out);
  for (ColumnLayout& column : out->columns) {
    column.stride = column.area == Area::kRecord ? g.record_stride
                    : column.area == Area::kCell ? g.cells.stride
                    : column.area == Area::kBulk ? bulk_stride(out->bulk, column.num_bytes)
                                                 : round_up(column.num_bytes, 64);
    if (column.area == Area::kLarge || column.area == Area::kBulk) g.row_bytes += column.stride;
  }
}

// The largest power of the fanout at which a page is small: at most 1 MiB, and max_lanes pages at most an eighth of the
// capacity, since every lane may keep a page open. The reach of windows does not matter: they run over several pages.
uint32_t choose_page_len(const TableConfig& config, const Geometry& g, bool has_bulk) {
  // If no window reaches over one row, a page may have one row: its bulk is then spilled and freed by itself.
  uint64_t least = has_bulk && g.has_state == 0 && g.history + g.max_n_step <= 1 ? 1 : Tree::kFanout;
  if (config.indexes.front().chooses_pages()) return static_cast<uint32_t>(least);  // a short page keeps few dead rows
  uint64_t len = least;
  while (len * Tree::kFanout <= kMaxPageLen && len * Tree::kFanout * g.row_bytes <= kMiB &&
         len * Tree::kFanout * config.max_lanes <= config.capacity / 8)
    len *= Tree::kFanout;
  return static_cast<uint32_t>(len);
}

void place_frames(uint32_t max_lanes, Layout* out) {
  Geometry& g = out->geometry;
  uint64_t offset = round_up(g.page_len * g.record_stride, 64);
  for (ColumnLayout& column : out->columns) {
    if (column.area != Area::kLarge) continue;
    column.offset = offset;
    offset += g.page_len * column.stride;
  }
  g.frame_bytes = round_up(offset, kFrameAlign);
  if (max_lanes > kMostWays && g.frame_bytes % kAliasBytes == 0) g.frame_bytes += kFrameAlign;
  g.num_frames = g.num_pages + 1;  // one frame is spare, to move pages
  const uint64_t wanted = std::max<uint64_t>(1, kSlabBytes / g.frame_bytes);
  const uint64_t per_slab = std::min(std::bit_ceil(wanted), std::bit_ceil(g.num_frames));
  g.frames_per_slab_shift = static_cast<uint32_t>(std::bit_width(per_slab) - 1);
  g.slab_bytes = round_up(per_slab * g.frame_bytes, kSlabAlign);
  g.grow_frames = std::max<uint64_t>(1, kGrowBytes / g.frame_bytes);
}

// Numbers the records: the nodes of a record follow from the page length, its key from the number of slots.
Status number_records(const TableConfig& config, Geometry* g) {
  uint64_t num_leaves = g->num_slots;
  for (const IndexConfig& index : config.indexes)
    num_leaves += index.map == LeafMap::kExplicit ? index.num_records() : 0;
  g->slot_bits = std::max(8u, static_cast<uint32_t>(std::bit_width(num_leaves - 1)) + 4);
  if (config.slot_bits != 0) g->slot_bits = config.slot_bits;
  g->page_bits = g->slot_bits - g->page_shift;
  if (g->slot_bits > kLeafBits - 8)
    return invalid("capacity", "fewer slots and items than 2^39", static_cast<int64_t>(num_leaves));
  uint64_t next_leaf = uint64_t{1} << (g->slot_bits - 1);
  if (num_leaves > next_leaf)
    return invalid("capacity", "at most 8 times that of the save", static_cast<int64_t>(config.capacity));
  for (uint32_t i = 0; i < g->num_indexes; ++i) {
    const IndexConfig& index = config.indexes[i];
    if (index.map != LeafMap::kExplicit) continue;
    RecordGeometry& records = g->records[i];
    records.first_leaf = next_leaf;
    records.max_items = index.num_records();
    records.max_windows = index.group.is_set() ? index.group.size : index.num_windows;
    records.group_size = index.group.size;
    records.value_stride = index.group.is_set() ? kGroupValueBytes : 0;
    for (uint32_t w = 0; w < index.num_windows; ++w)
      records.max_rows = std::max(records.max_rows, index.windows[w].span(index.windows[w].length));
    records.pages_a_window = (records.max_rows + g->page_len - 2) / g->page_len + 1;
    if (records.max_items * records.nodes_a_record() >= ~uint32_t{0})  // the name of a node has 32 bits, 0 is none
      return invalid("max_items", "fewer than 2^32 times pages that their windows can touch",
                     static_cast<int64_t>(index.max_items));
    next_leaf += records.max_items;
  }
  return {};
}

// The items' own columns, packed as the columns of rows are, and after them in the list of columns.
void place_item_columns(const TableConfig& config, Layout* out) {
  for (size_t i = 0; i < config.item_columns.size(); ++i) {
    const std::vector<ColumnConfig>& columns = config.item_columns[i];
    RecordGeometry& records = out->geometry.records[i];
    if (columns.empty()) continue;
    const size_t first = out->columns.size();
    records.first_column = static_cast<uint32_t>(first);
    records.num_columns = static_cast<uint32_t>(columns.size());
    out->columns.resize(first + columns.size());
    uint64_t value = 0;
    for (size_t position : packing_order(columns)) {
      ColumnLayout& to = out->columns[first + position];
      to = described(columns[position]);
      to.offset = value = aligned_at(value, columns[position]);
      value += to.num_bytes;
    }
    records.value_stride = static_cast<uint32_t>(round_up(value, 16));
    for (size_t c = first; c < out->columns.size(); ++c) out->columns[c].stride = records.value_stride;
    out->geometry.num_item_columns += records.num_columns;
  }
}

template <class Take>
void place_records(const Take& take, uint64_t num_slots, uint32_t max_lanes, RecordGeometry* records) {
  records->words_offset = take(sizeof(uint64_t) * records->max_items);
  records->windows_offset = take(sizeof(ItemWindow) * records->max_items * records->max_windows);
  records->nodes_offset = take(sizeof(RecordNode) * records->max_items * records->nodes_a_record());
  records->heads_offset = take(sizeof(uint32_t) * num_slots);
  records->values_offset = take(records->value_stride * records->max_items);
  records->joined_offset = take(records->group_size == 0 ? 0 : sizeof(uint64_t) * max_lanes);
}

template <class Take>
void place_cells(const Take& take, uint64_t num_slots, CellGeometry* cells) {
  if (cells->stride == 0) return;
  cells->num_cells = num_slots;
  cells->grow_cells = std::max<uint64_t>(1, kGrowCellBytes / cells->stride);
  cells->state_offset = take(sizeof(CellState));
  cells->links_offset = take(sizeof(uint32_t) * num_slots);
  cells->free_offset = take(sizeof(uint32_t) * num_slots);
}

Status place_areas(const TableConfig& config, Layout* out) {
  Geometry& g = out->geometry;
  uint64_t offset = round_up(sizeof(Header), 4096);
  const auto take = [&offset](uint64_t num_bytes) {
    const uint64_t at = offset;
    offset = round_up(offset + num_bytes, 64);
    return at;
  };
  g.columns_offset = take(sizeof(ColumnLayout) * out->columns.size());
  g.participants_offset = take(sizeof(Participant) * g.max_participants);
  g.credits_offset = take(sizeof(Credit) * g.max_participants * g.num_indexes);
  g.lanes_offset = take(sizeof(Lane) * g.max_lanes);
  g.words_offset = take(sizeof(uint64_t) * g.num_pages);
  g.frames_offset = take(sizeof(uint32_t) * g.num_pages);
  g.pages_offset = take(sizeof(PageRecord) * g.num_pages);
  g.tails_offset = take(sizeof(uint64_t) * g.num_pages * g.tail_words);
  g.marks_offset = take(sizeof(Mark) * g.num_slots);
  g.free_frames_offset = take(sizeof(uint32_t) * g.num_frames);
  if (has_bulk(out->bulk)) place_bulk_areas(take, g.num_pages, &out->bulk);
  bool are_marks_taken = false;  // the first index of rows with priorities keeps pending ones in the marks
  for (uint32_t i = 0; i < g.num_indexes; ++i) {
    const bool has_records = g.records[i].max_items != 0;
    const uint64_t num_leaves = has_records ? g.records[i].max_items : g.num_slots;
    const bool is_shuffled = (config.indexes[i].traits & kIsShuffled) != 0;
    g.trees_offset[i] = take(Tree::num_bytes(num_leaves) + (is_shuffled ? kVisitedBytes : 0));
    g.states_offset[i] = take(sizeof(uint16_t) * num_leaves);
    g.cursors_offset[i] = take(has_records ? 0 : sizeof(Cursor) * g.max_lanes);
    if (!has_records && config.indexes[i].max_items != 0) g.orders_offset[i] = take(Tree::num_bytes(num_leaves));
    if (i == 0 && config.indexes[i].chooses_pages()) (void)take(Tree::num_bytes(g.num_pages));
    if (config.indexes[i].chooses_records()) g.orders_offset[i] = take(2 * Tree::num_bytes(num_leaves));
    if ((config.indexes[i].traits & kIsRanked) != 0) {
      if (num_leaves > Ranks::kMostLeaves)
        return invalid("capacity", "at most 2^31 slots where the sampler goes by ranks",
                       static_cast<int64_t>(config.capacity));
      g.ranks_offset[i] = take(Ranks::num_bytes(num_leaves));
    }
    if (config.indexes[i].max_wait_s != 0.0) g.waits_offset[i] = take(Tree::num_bytes(num_leaves));
    if (config.indexes[i].versions_kept != 0) g.ages_offset[i] = take(Tree::num_bytes(num_leaves));
    if ((config.indexes[i].traits & kIsLatest) != 0) g.places_offset[i] = take(Tree::num_bytes(num_leaves));
    if (has_records) place_records(take, g.num_slots, g.max_lanes, &g.records[i]);
    if (has_records || (config.indexes[i].traits & kHasPriorities) == 0) continue;
    if (are_marks_taken) g.given_offset[i] = take(sizeof(uint32_t) * g.num_slots);
    are_marks_taken = true;
  }
  place_cells(take, g.num_slots, &g.cells);
  g.metadata_bytes = config.metadata.size();
  g.metadata_offset = take(g.metadata_bytes);
  g.slabs_offset = round_up(offset, kSlabAlign);
  const uint64_t last = g.num_frames - 1;
  const uint64_t mask = (uint64_t{1} << g.frames_per_slab_shift) - 1;
  g.region_bytes =
      g.slabs_offset + (last >> g.frames_per_slab_shift) * g.slab_bytes + ((last & mask) + 1) * g.frame_bytes;
  if (g.cells.stride == 0) return {};
  g.cells.cells_offset = round_up(g.region_bytes, kSlabAlign);
  g.region_bytes = g.cells.cells_offset + g.cells.num_cells * g.cells.stride;
  return {};
}

}  // namespace

Status make_layout(const TableConfig& config, Layout* out) {
  RELIVE_RETURN_IF_ERROR(check_config(config));
  Geometry& g = out->geometry;
  std::memset(&g, 0, sizeof g);
  g.capacity = config.capacity;
  g.seed = config.seed;
  g.shard = config.shard;
  g.max_lanes = config.max_lanes;
  g.max_participants = config.max_participants;
  g.num_indexes = static_cast<uint32_t>(config.indexes.size());
  g.num_columns = static_cast<uint32_t>(config.columns.size());
  g.reward_column = -1;
  for (uint32_t c = 0; c < g.num_columns; ++c) {
    if (config.columns[c].name == "reward") g.reward_column = static_cast<int32_t>(c);
    if (config.columns[c].kind == ColumnKind::kState) g.has_state = 1;
  }
  g.max_n_step = 1;
  for (uint32_t i = 0; i < g.num_indexes; ++i) {
    if (config.indexes[i].group.is_set()) g.max_n_step = std::max(g.max_n_step, config.indexes[i].windows[0].length);
    if (config.indexes[i].map == LeafMap::kExplicit) continue;
    const SequenceConfig& sequence = config.indexes[i].sequence;
    ItemShape& shape = g.shapes[i];
    shape = {0, sequence.is_set() ? sequence.length + sequence.bootstrap : config.indexes[i].n_step, g.has_state};
    for (uint32_t c = 0; c < g.num_columns; ++c)
      shape.before = std::max(shape.before, std::max(config.indexes[i].stack[c], 1u) - 1);
    shape.before += sequence.burn_in;
    // These are rows: if windows cross ends, each of their steps may be the last of an episode, and be followed by a
    // tail.
    if (sequence.is_set() && sequence.crosses() && g.has_state != 0) {
      shape.before += sequence.burn_in;
      shape.spanned += shape.spanned - 1;
    }
    g.history = std::max(g.history, shape.before);
    g.max_n_step = std::max(g.max_n_step, shape.spanned);
  }
  if (g.history + g.max_n_step > kMaxWindow)
    return invalid("window", "stack - 1 + n_step (or its sequence) of at most 4096 steps", g.history + g.max_n_step);
  if (config.capacity < g.history + g.max_n_step)
    return Status(Code::kCapacityTooSmall)
        .with_int("capacity", static_cast<int64_t>(config.capacity))
        .with_int("needed", g.history + g.max_n_step)
        .with_int("lanes", 1);
  place_columns(config, out);
  g.page_len = config.page_len != 0 ? config.page_len : choose_page_len(config, g, out->bulk.block_bytes != 0);
  g.page_shift = static_cast<uint32_t>(std::bit_width(g.page_len) - 1);
  g.tail_words = std::max(1u, g.page_len / 64);
  g.num_pages =
      (config.capacity + config.capacity / 4 + g.page_len - 1) / g.page_len + 2 * uint64_t{config.max_lanes} + 2;
  g.num_slots = g.num_pages << g.page_shift;
  RELIVE_RETURN_IF_ERROR(number_records(config, &g));
  place_frames(config.max_lanes, out);
  if (g.cells.stride != 0 && g.num_slots >= kNoCell)
    return invalid("capacity", "fewer than 2^32 rows where start values are kept apart",
                   static_cast<int64_t>(config.capacity));
  const auto bytes_a_page =
      static_cast<long double>(g.frame_bytes) + static_cast<long double>(g.page_len) * g.cells.stride;
  if (static_cast<long double>(g.num_frames) * bytes_a_page > kMaxRegionBytes)
    return invalid("capacity", "fewer than 2^62 bytes of steps", static_cast<int64_t>(config.capacity));
  if (out->bulk.block_bytes != 0) RELIVE_RETURN_IF_ERROR(place_bulk(config, out));
  place_item_columns(config, out);
  return place_areas(config, out);
}

uint64_t layout_hash(const Geometry& geometry, const ColumnLayout* columns) {
  uint64_t hash = 1469598103934665603ull;
  const auto eat = [&hash](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) hash = (hash ^ ((value >> (8 * byte)) & 255)) * 1099511628211ull;
  };
  for (uint64_t value : {geometry.page_len + uint64_t{0}, geometry.frame_bytes, geometry.slab_bytes,
                         geometry.record_stride, geometry.marks_offset, geometry.slabs_offset,
                         uint64_t{geometry.frames_per_slab_shift}, geometry.cells.cells_offset, geometry.cells.stride})
    eat(value);
  for (uint32_t c = 0; c < geometry.num_columns; ++c) {
    const ColumnLayout& column = columns[c];
    for (const char* at = column.name; *at != 0; ++at) eat(static_cast<uint8_t>(*at));
    for (const char* at = column.dtype; *at != 0; ++at) eat(static_cast<uint8_t>(*at));
    eat(column.offset);
    eat(column.stride);
    eat(column.num_bytes);
    eat(static_cast<uint64_t>(column.kind));
  }
  return hash;
}

}  // namespace relive
