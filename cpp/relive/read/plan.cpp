// make_plan(): finds the outputs for a list of names.
#include <algorithm>
#include <cstring>

#include "relive/read/gather.hpp"
#include "relive/read/records.hpp"
#include "relive/read/sequences.hpp"

namespace relive {
namespace {

// Bytes of a window that are prefetched; the processor's own prefetcher loads the rest.
constexpr uint64_t kMostAhead = 512;

Output column_output(const Region& r, uint32_t index, uint32_t column, Source source) {
  const ColumnLayout& layout = r.columns[column];
  Output out;
  out.name = source == Source::kNext ? std::string("next_") + layout.name : std::string(layout.name);
  out.dtype = layout.dtype;
  out.column = column;
  out.source = source;
  out.stack = layout.kind == ColumnKind::kState ? std::max(1u, r.header->indexes[index].stack[column]) : 1;
  if (out.stack > 1) out.shape.push_back(out.stack);
  out.shape.insert(out.shape.end(), layout.dims, layout.dims + layout.num_dims);
  out.item_bytes = layout.num_bytes * out.stack;
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
};

Status find_output(const Region& r, uint32_t index, const std::string& name, Output* out) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (name == column.name) {
      const bool is_return =
          static_cast<int32_t>(c) == r.geometry->reward_column && r.header->indexes[index].n_step > 1;
      if (is_return &&
          (column.num_dims != 0 || (std::strcmp(column.dtype, "<f4") != 0 && std::strcmp(column.dtype, "<f8") != 0)))
        return Status(Code::kInvalidConfig)
            .with_text("what", "reward")
            .with_text("expected", "a float32 or float64 scalar, for n_step > 1")
            .with_text("got", std::string(column.dtype) + " of " + std::to_string(column.num_dims) + " dimensions");
      *out = column_output(r, index, c, is_return ? Source::kReward : Source::kColumn);
      return {};
    }
    if (column.kind == ColumnKind::kState && name == std::string("next_") + column.name) {
      *out = column_output(r, index, c, Source::kNext);
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

Status make_plan(const Region& r, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan) {
  if (index >= r.num_indexes)
    return Status(Code::kInvalidConfig)
        .with_text("what", "index")
        .with_int("got", index)
        .with_int("expected", r.num_indexes);
  plan->index = index;
  if (r.map(index).is_explicit) return make_record_plan(r, names, plan);
  plan->has_goals = r.header->indexes[index].hindsight.is_set();
  if (r.header->indexes[index].sequence.is_set() && !plan->has_goals) return make_sequence_plan(r, names, plan);
  plan->needs_walk = r.shape(index).spanned > 1;
  plan->after = r.shape(index).after();
  plan->record_span = kRecordHead;
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, index, name, &output));
    plan->before = std::max(plan->before, output.stack - 1);
    plan->needs_bulk |= output.is_bulk;
    plan->needs_end |= output.source == Source::kTruncated;
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
  const HindsightConfig& hindsight = r.header->indexes[index].hindsight;
  if (plan->has_goals &&
      (r.columns[hindsight.goal].area == Area::kBulk || r.columns[hindsight.achieved].area == Area::kBulk))
    return Status(Code::kInvalidConfig)
        .with_text("what", "goals of hindsight")
        .with_text("expected", "columns smaller than those that a tiered table keeps on disk")
        .with_text("got", r.columns[hindsight.goal].name);
  return {};
}

}  // namespace relive
