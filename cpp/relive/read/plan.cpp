// make_plan(): finds the outputs for a list of names.
#include <algorithm>
#include <cstring>

#include "relive/index/index_view.hpp"
#include "relive/read/gather.hpp"
#include "relive/read/records.hpp"
#include "relive/read/sequences.hpp"

namespace relive {
namespace {

// Bytes of a window that are prefetched; the processor's own prefetcher loads the rest.
constexpr uint64_t kMostAhead = 512;

// The configuration of steps: each row is a transition of one step, and discounts are as they were given.
constexpr IndexConfig kSteps = [] {
  IndexConfig config{};
  config.n_step = 1;
  config.gamma = 1.0;
  return config;
}();

Output column_output(const Region& r, const IndexConfig& config, uint32_t column, Source source) {
  const ColumnLayout& layout = r.columns[column];
  Output out;
  out.name = source == Source::kNext ? std::string("next_") + layout.name : std::string(layout.name);
  out.dtype = layout.dtype;
  out.column = column;
  out.source = source;
  out.stack = layout.kind == ColumnKind::kState ? std::max(1u, config.stack[column]) : 1;
  if (out.stack > 1) out.shape.push_back(out.stack);
  out.shape.insert(out.shape.end(), layout.dims, layout.dims + layout.num_dims);
  out.item_bytes = layout.num_bytes * out.stack;
  out.of_step = source == Source::kNext && layout.kind != ColumnKind::kState;
  out.is_bulk = layout.area == Area::kBulk;
  return out;
}

struct Derived {
  const char* name;
  const char* dtype;
  uint64_t item_bytes;
  Source source;
};

constexpr Derived kDerived[] = {
    {"discount", "<f4", 4, Source::kDiscount},
    {"terminated", "|b1", 1, Source::kTerminated},
    {"truncated", "|b1", 1, Source::kTruncated},
    {"episode_step", "<i8", 8, Source::kEpisodeStep},
    {"first", "|b1", 1, Source::kFirst},
    {"lane", "<i8", 8, Source::kLane},
    {"policy_version", "<i8", 8, Source::kPolicyVersion},
    {"staleness", "<i8", 8, Source::kStaleness},
    {"num_steps", "<i8", 8, Source::kNumSteps},
    {"has_next", "|b1", 1, Source::kHasNext},
    {"priority", "<f4", 4, Source::kPriority},
    {"/age", "<i8", 8, Source::kAge},
};

// Whether the row after a window may show this column: states are there, of a step column if a step is.
bool has_next_of(const Region& r, const ColumnLayout& column) {
  return column.kind == ColumnKind::kState || (column.kind == ColumnKind::kStep && r.geometry->has_state != 0);
}

Status find_output(const Region& r, const IndexConfig& config, const std::string& name, Output* out) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (name == column.name) {
      const bool is_return = static_cast<int32_t>(c) == r.geometry->reward_column && config.n_step > 1;
      if (is_return &&
          (column.num_dims != 0 || (std::strcmp(column.dtype, "<f4") != 0 && std::strcmp(column.dtype, "<f8") != 0)))
        return Status(Code::kInvalidConfig)
            .with_text("what", "reward")
            .with_text("expected", "a float32 or float64 scalar, for n_step > 1")
            .with_text("got", std::string(column.dtype) + " of " + std::to_string(column.num_dims) + " dimensions");
      *out = column_output(r, config, c, is_return ? Source::kReward : Source::kColumn);
      return {};
    }
    if (has_next_of(r, column) && name == std::string("next_") + column.name) {
      *out = column_output(r, config, c, Source::kNext);
      return {};
    }
  }
  for (const Derived& derived : kDerived) {
    if (name != derived.name) continue;
    out->name = name;
    out->dtype = derived.dtype;
    out->item_bytes = derived.item_bytes;
    out->source = derived.source;
    return {};
  }
  if (name == "relabelled") {  // of an index without hindsight: false for each item
    out->name = name;
    out->dtype = "|b1";
    out->item_bytes = 1;
    out->source = Source::kRelabelled;
    return {};
  }
  return Status(Code::kInvalidConfig)
      .with_text("what", "column")
      .with_text("expected", "a declared column, next_<state> or a derived one")
      .with_text("got", name);
}

}  // namespace

const IndexConfig& config_of(const Region& r, const GatherPlan& plan) {
  return plan.are_steps ? kSteps : r.header->indexes[plan.index];
}

uint64_t age_of(const Region& r, uint32_t index, uint64_t leaf, uint64_t word) {
  const ItemMap& map = r.map(index);
  if (map.is_explicit) return Region::generation_of(word) * map.num_leaves + leaf;
  const uint64_t order = r.pages[r.page_of(leaf)].order.load(std::memory_order_relaxed);
  return order << r.page_shift | r.offset_of(leaf);
}

Status make_plan(const Region& r, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan) {
  if (index > r.steps())
    return Status(Code::kInvalidConfig)
        .with_text("what", "index")
        .with_int("got", index)
        .with_int("expected", r.num_indexes);
  plan->index = index;
  plan->are_steps = index == r.steps();
  if (r.map(index).is_explicit) return make_record_plan(r, names, plan);
  const IndexConfig& config = config_of(r, *plan);
  plan->has_goals = config.hindsight.is_set();
  if (config.sequence.is_set() && !plan->has_goals) return make_sequence_plan(r, names, plan);
  plan->needs_walk = !plan->are_steps && r.shape(index).spanned > 1;
  plan->needs_end = plan->are_steps;  // the row after a step is looked at
  plan->after = plan->are_steps ? 1 : r.shape(index).after();
  plan->record_span = kRecordHead;
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, config, name, &output));
    plan->before = std::max(plan->before, output.stack - 1);
    plan->needs_bulk |= output.is_bulk;
    plan->needs_end |= output.source == Source::kTruncated;
    plan->needs_late |= output.source == Source::kColumn && r.columns[output.column].kind == ColumnKind::kLate;
    const ColumnLayout& column = r.columns[output.column];
    const bool is_packed =
        (output.source == Source::kColumn || output.source == Source::kNext) && column.area == Area::kRecord;
    const uint64_t rows_on = output.source == Source::kNext ? 1 : 0;
    if (is_packed && output.stack == 1) {
      const uint64_t end = rows_on * r.geometry->record_stride + column.offset + column.num_bytes;
      plan->record_span = std::max(plan->record_span, static_cast<uint32_t>(std::min(end, kMostAhead)));
    }
    plan->outputs.push_back(std::move(output));
  }
  const HindsightConfig& hindsight = config.hindsight;
  if (plan->has_goals &&
      (r.columns[hindsight.goal].area == Area::kBulk || r.columns[hindsight.achieved].area == Area::kBulk))
    return Status(Code::kInvalidConfig)
        .with_text("what", "goals of hindsight")
        .with_text("expected", "columns smaller than those that a tiered table keeps on disk")
        .with_text("got", r.columns[hindsight.goal].name);
  return {};
}

}  // namespace relive
