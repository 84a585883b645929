#include "relive/words/config_check.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "relive/words/region.hpp"

namespace relive {
namespace {

constexpr uint64_t kMaxValueBytes = uint64_t{1} << 32;
constexpr uint64_t kMaxRowBytes = uint64_t{1} << 36;  // a page of rows: 2^48 bytes at most
constexpr uint64_t kMaxRecords = uint64_t{1} << 31;

// Adds the bytes of one value to the bytes of a row. The product of its sizes must not overflow.
Status check_column(const ColumnConfig& column, uint64_t* row_bytes, uint64_t* late_bytes) {
  if (column.name.empty() || column.name.size() > 127) return invalid("column name", "1 to 127 bytes", 0);
  if (column.shape.size() > kMaxDims)
    return invalid("dimensions of " + column.name, "at most 8", static_cast<int64_t>(column.shape.size()));
  uint64_t num_bytes = column.item_bytes;
  for (int64_t size : column.shape) {
    if (size < 1 || num_bytes > kMaxValueBytes / static_cast<uint64_t>(size))
      return invalid("shape of " + column.name, "sizes >= 1 and a value of at most 2^32 bytes", size);
    num_bytes *= static_cast<uint64_t>(size);
  }
  if (column.kind == ColumnKind::kLate) *late_bytes += num_bytes;
  if (*late_bytes > kMostLateBytes)
    return invalid("late columns", "at most 256 bytes a row", static_cast<int64_t>(*late_bytes));
  *row_bytes += num_bytes;
  if (*row_bytes > kMaxRowBytes)
    return invalid("columns", "at most 2^36 bytes a step", static_cast<int64_t>(*row_bytes));
  return {};
}

// The bounds of an index's items. An explicit item itself is checked when it is inserted.
Status check_map(const IndexConfig& index) {
  if (index.map == LeafMap::kImplicit) {
    if (index.num_windows != 0) return invalid("windows", "none where items are not explicit", index.num_windows);
    if (index.max_items <= kMaxRecords) return {};
    return invalid("max_items", "1 to 2^31, or 0 for any number", static_cast<int64_t>(index.max_items));
  }
  if (index.map != LeafMap::kExplicit) return invalid("map", "0 or 1", static_cast<int64_t>(index.map));
  if (index.n_step != 1 || std::any_of(index.stack, index.stack + kMaxColumns, [](uint32_t s) { return s > 1; }))
    return invalid("explicit items", "n_step 1 and no stacks: their windows are what they are inserted with",
                   index.n_step);
  if (index.max_items < 1 || index.max_items > kMaxRecords)
    return invalid("max_items", "1 to 2^31", static_cast<int64_t>(index.max_items));
  if (index.num_windows < 1 || index.num_windows > kMaxWindows) return invalid("windows", "1 to 32", index.num_windows);
  for (uint32_t w = 0; w < index.num_windows; ++w) {
    const WindowConfig& window = index.windows[w];
    if (std::memchr(window.name, 0, sizeof window.name) == nullptr || (window.name[0] == 0 && index.num_windows > 1))
      return invalid("name of a window", "1 to 47 bytes, or none of the only one", w);
    if (window.length < 1 || window.length > kMaxWindow)
      return invalid("length of a window", "1 to 4096", window.length);
    if (window.stride < 1 || window.stride > kMaxWindow)
      return invalid("stride of a window", "1 to 4096", window.stride);
    if (window.span(window.length) > kMaxWindow)
      return invalid("rows that a window spans", "at most 4096", window.span(window.length));
  }
  return {};
}

// Groups of episodes: one window of stride 1, which all members have, and the column by which groups form.
Status check_group(const TableConfig& config, const IndexConfig& index) {
  const GroupConfig& group = index.group;
  if (!group.is_set())
    return group.column == 0 ? Status() : invalid("group_by", "none without group_size", group.column);
  if (index.map != LeafMap::kExplicit || index.num_windows != 1 || index.windows[0].stride != 1)
    return invalid("groups", "explicit items with one window of stride 1", index.num_windows);
  if (group.too_long > TooLong::kRandom) return invalid("too_long", "0 to 3", static_cast<int64_t>(group.too_long));
  if (group.size > kMaxGroupSize) return invalid("group_size", "1 to 64", group.size);
  if (index.max_items > kMaxGroups) return invalid("max_groups", "1 to 4096", static_cast<int64_t>(index.max_items));
  if (index.initial == Initial::kGiven)
    return invalid("initial priority of groups", "none that is given with steps", 1);
  if (group.column >= config.columns.size()) return invalid("group_by", "a column", group.column);
  const ColumnConfig& column = config.columns[group.column];
  if (column.kind != ColumnKind::kEpisode || column.dtype != "<i8" || !column.shape.empty())
    return invalid("group_by", "a column of one int64 of kind episode", group.column);
  return {};
}

// The column from which a group's priority is computed: one float a row, or an episode.
Status check_group_weight(const TableConfig& config, const IndexConfig& index) {
  const GroupConfig& group = index.group;
  if (group.weight == GroupWeight::kNone)
    return group.weighed == 0 ? Status() : invalid("column of a group's priority", "none without one", group.weighed);
  if (group.weight > GroupWeight::kAnyVariance) return invalid("priority of groups", "0 to 4", int64_t(group.weight));
  if (!group.is_set()) return invalid("priority of groups", "none where items are no groups", int64_t(group.weight));
  if (group.weighed >= config.columns.size()) return invalid("column of a group's priority", "a column", group.weighed);
  const ColumnConfig& column = config.columns[group.weighed];
  const bool is_kept =
      column.kind == ColumnKind::kStep || column.kind == ColumnKind::kLate || column.kind == ColumnKind::kEpisode;
  if (!is_kept || (column.dtype != "<f4" && column.dtype != "<f8") || !column.shape.empty())
    return invalid("column of a group's priority", "one float of kind step or episode", group.weighed);
  return {};
}

// Goals that a drawn transition may get instead of its own. Such goals come from rows of its episode that a state
// follows.
Status check_hindsight(const TableConfig& config, const IndexConfig& index) {
  const HindsightConfig& hindsight = index.hindsight;
  const SequenceConfig& sequence = index.sequence;
  if (!hindsight.is_set()) return {};
  if (hindsight.goals > Goals::kEpisode) return invalid("strategy of hindsight", "0 to 3", int64_t(hindsight.goals));
  if (!(hindsight.share >= 0.0 && hindsight.share <= 1.0))
    return Status(Code::kInvalidConfig)
        .with_text("what", "share of hindsight")
        .with_text("expected", "0 to 1")
        .with_double("got", hindsight.share);
  if (!sequence.waits_for_end() || sequence.period != 1 || sequence.burn_in != 0 || sequence.bootstrap != 0)
    return invalid("hindsight", "an item at each step of an episode that has ended", sequence.period);
  for (uint32_t frames : index.stack)
    if (frames > 1) return invalid("stack of hindsight", "1", frames);
  if (hindsight.goal >= config.columns.size() || hindsight.achieved >= config.columns.size() ||
      hindsight.goal == hindsight.achieved)
    return invalid("goal and achieved", "two columns", hindsight.goal);
  const ColumnConfig &goal = config.columns[hindsight.goal], &achieved = config.columns[hindsight.achieved];
  if (achieved.kind != ColumnKind::kState || goal.kind == ColumnKind::kStart || goal.kind == ColumnKind::kLate)
    return invalid("goal and achieved", "a column that is read with each step, and one of kind state", hindsight.goal);
  if (goal.dtype != achieved.dtype || goal.shape != achieved.shape)
    return invalid("goal and achieved", "columns of one dtype and shape", hindsight.goal);
  return {};
}

// The items' own columns, of explicit indexes.
Status check_item_columns(const TableConfig& config) {
  size_t count = 0;
  for (size_t i = 0; i < config.item_columns.size(); ++i) {
    const std::vector<ColumnConfig>& columns = config.item_columns[i];
    if (columns.empty()) continue;
    if (i >= config.indexes.size() || config.indexes[i].map != LeafMap::kExplicit || config.indexes[i].group.is_set())
      return invalid("columns of items", "none where items are not explicit", static_cast<int64_t>(i));
    uint64_t item_bytes = 0, late_bytes = 0;
    for (const ColumnConfig& column : columns) RELIVE_RETURN_IF_ERROR(check_column(column, &item_bytes, &late_bytes));
    if (late_bytes != 0) return invalid("late columns of items", "none", static_cast<int64_t>(late_bytes));
    if (item_bytes > kMaxItemBytes)
      return invalid("columns of items", "at most 4096 bytes an item", static_cast<int64_t>(item_bytes));
    count += columns.size();
  }
  return count <= kMaxColumns ? Status() : invalid("columns of items", "at most 128", static_cast<int64_t>(count));
}

Status check_sequence(const IndexConfig& index) {
  const SequenceConfig& sequence = index.sequence;
  if (!sequence.is_set()) return {};
  if (index.map != LeafMap::kImplicit) return invalid("sequences", "an index whose items are not explicit", 1);
  if (index.n_step != 1) return invalid("n_step of sequences", "1", index.n_step);
  if (sequence.at_end > AtEnd::kCross) return invalid("at_end", "0 to 3", static_cast<int64_t>(sequence.at_end));
  if (sequence.crosses() && (sequence.period == 0 || sequence.only_ended != 0 || sequence.longest != 0))
    return invalid("windows that cross ends", "a period, and no limits of episodes", sequence.period);
  if (sequence.only_the_last > kOneAtRandom) return invalid("only_the_last", "0 to 2", sequence.only_the_last);
  if (sequence.draws_one() && (sequence.at_end != AtEnd::kPad || sequence.period != 0 || sequence.only_ended == 0))
    return invalid("one window at random", "episodes that have ended, padded", sequence.period);
  if (sequence.pad > PadSide::kLeft) return invalid("pad", "0 or 1", static_cast<int64_t>(sequence.pad));
  for (const uint32_t rows : {sequence.length, sequence.burn_in, sequence.bootstrap})
    if (rows > kMaxWindow) return invalid("length, burn_in and bootstrap", "at most 4096", rows);
  return {};
}

Status wrong_limit(const char* what, const char* expected, double got) {
  return Status(Code::kInvalidConfig).with_text("what", what).with_text("expected", expected).with_double("got", got);
}

}  // namespace

Status check_limiter(const IndexConfig& index, const LimiterConfig& limiter, uint64_t capacity) {
  const auto most = static_cast<double>(index.max_items != 0 ? index.max_items : capacity);
  const auto at_least = static_cast<double>(limiter.min_size);
  if (limiter.kind > LimiterConfig::kStalenessBudget) return wrong_limit("limiter", "0 to 3", limiter.kind);
  const bool has_fill = limiter.kind == LimiterConfig::kMinSize || limiter.kind == LimiterConfig::kSamplesPerInsert;
  if (has_fill && !(at_least >= 1.0 && at_least <= most))
    return wrong_limit("min_size", "1 to the most items of the index", at_least);
  if (limiter.kind == LimiterConfig::kSamplesPerInsert &&
      !(limiter.samples_per_insert > 0.0 && std::isfinite(limiter.samples_per_insert) &&
        std::isfinite(limiter.tolerance) && 2.0 * limiter.tolerance >= limiter.samples_per_insert + 1.0))
    return wrong_limit("tolerance", "at least (samples_per_insert + 1) / 2, both finite", limiter.tolerance);
  if (limiter.kind == LimiterConfig::kQueue && !(limiter.hi >= 1.0 && limiter.hi <= most))
    return wrong_limit("max_size", "1 to the most items of the index", limiter.hi);
  if (limiter.kind == LimiterConfig::kStalenessBudget && !(limiter.eta >= 0.0 && std::isfinite(limiter.eta)))
    return wrong_limit("eta", "a finite number >= 0", limiter.eta);
  if (limiter.kind == LimiterConfig::kStalenessBudget &&
      !(limiter.items_per_version >= 1.0 && std::isfinite(limiter.items_per_version)))
    return wrong_limit("items_per_version", "a whole number >= 1", limiter.items_per_version);
  const bool needs_uses = limiter.kind == LimiterConfig::kQueue || limiter.kind == LimiterConfig::kStalenessBudget;
  if (needs_uses && index.max_times_sampled == 0)
    return wrong_limit("max_times_sampled", "a number: this limiter counts items by whether they were drawn", 0.0);
  return {};
}

// max_staleness, and the options of Fresh.
Status check_freshness(const IndexConfig& index) {
  constexpr uint64_t kMost = uint64_t{1} << 52;  // leaves are doubles
  if (index.versions_kept > kMost)
    return invalid("max_staleness", "0 to 2^52 - 1 versions", static_cast<int64_t>(index.versions_kept - 1));
  if ((index.traits & kIsLatest) != 0 && (index.latest < 1 || index.latest > kMost))
    return invalid("last", "1 to 2^52 items", static_cast<int64_t>(index.latest));
  if ((index.traits & kFades) == 0 || (index.decay > 0.0 && index.decay <= 1.0)) return {};
  return Status(Code::kInvalidConfig)
      .with_text("what", "decay")
      .with_text("expected", "above 0 and at most 1")
      .with_double("got", index.decay);
}

Status check_config(const TableConfig& config) {
  if (config.columns.empty() || config.columns.size() > kMaxColumns)
    return invalid("columns", "1 to 128 columns", static_cast<int64_t>(config.columns.size()));
  if (config.indexes.empty() || config.indexes.size() > kMaxIndexes)
    return invalid("index", "1 to 8 indexes", static_cast<int64_t>(config.indexes.size()));
  if (config.capacity < 1 || config.capacity > (uint64_t{1} << 36))
    return invalid("capacity", "1 to 2^36 steps", static_cast<int64_t>(config.capacity));
  if (config.max_lanes < 1 || config.max_lanes > (1u << 20)) return invalid("max_lanes", "1 to 2^20", config.max_lanes);
  if (config.max_participants < 1 || config.max_participants > 65536)
    return invalid("max_participants", "1 to 65536", config.max_participants);
  if (config.shard >= 4096) return invalid("shard", "0 to 4095", static_cast<int64_t>(config.shard));
  uint64_t row_bytes = 0, late_bytes = 0;
  for (const ColumnConfig& column : config.columns)
    RELIVE_RETURN_IF_ERROR(check_column(column, &row_bytes, &late_bytes));
  for (const IndexConfig& index : config.indexes) {
    if (index.n_step < 1 || index.n_step > 1024) return invalid("n_step", "1 to 1024", index.n_step);
    if (index.max_times_sampled > kMostUses)
      return invalid("max_times_sampled", "at most 65529", index.max_times_sampled);
    if (index.initial == Initial::kNumber &&
        !(index.initial_number >= 0.0 && index.initial_number <= std::numeric_limits<float>::max()))
      return Status(Code::kInvalidConfig)
          .with_text("what", "initial priority")
          .with_text("expected", "a number >= 0 in the range of float32")
          .with_double("got", index.initial_number);
    RELIVE_RETURN_IF_ERROR(check_map(index));
    RELIVE_RETURN_IF_ERROR(check_group(config, index));
    RELIVE_RETURN_IF_ERROR(check_group_weight(config, index));
    RELIVE_RETURN_IF_ERROR(check_hindsight(config, index));
    if (!(index.max_wait_s >= 0.0 && index.max_wait_s <= kMaxWait_s))
      return Status(Code::kInvalidConfig)
          .with_text("what", "max_wait_s")
          .with_text("expected", "above 0 and at most 1e9 seconds, or 0 for ever")
          .with_double("got", index.max_wait_s);
    RELIVE_RETURN_IF_ERROR(check_freshness(index));
    RELIVE_RETURN_IF_ERROR(check_sequence(index));
    RELIVE_RETURN_IF_ERROR(check_limiter(index, index.limiter, config.capacity));
  }
  return check_item_columns(config);
}

}  // namespace relive
