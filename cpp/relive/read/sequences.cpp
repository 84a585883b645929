#include "relive/read/sequences.hpp"

#include <algorithm>
#include <cstring>

#include "relive/index/bounds.hpp"
#include "relive/read/window_walk.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// ---- outputs

struct Derived {
  const char* name;
  const char* dtype;
  uint64_t num_bytes;  // of one row, or of the item
  Source source;
  bool has_time;
  int64_t size;  // of a second axis, 0: none
};

constexpr Derived kDerived[] = {
    {"discount", "<f4", 4, Source::kDiscount, true, 0},
    {"mask", "|b1", 1, Source::kMask, true, 0},
    {"loss_mask", "|b1", 1, Source::kLossMask, true, 0},
    {"terminated", "|b1", 1, Source::kTerminated, true, 0},
    {"truncated", "|b1", 1, Source::kTruncated, true, 0},
    {"episode_step", "<i8", 8, Source::kEpisodeStep, true, 0},
    {"first", "|b1", 1, Source::kFirst, true, 0},
    {"lane", "<i8", 8, Source::kLane, false, 0},
    {"policy_version", "<i8", 16, Source::kPolicyVersion, false, 2},
    {"staleness", "<i8", 8, Source::kStaleness, false, 0},
    {"num_steps", "<i8", 8, Source::kNumSteps, false, 0},
    {"offsets", "<i8", 8, Source::kOffsets, false, 0},
    {"priority", "<f4", 4, Source::kPriority, false, 0},
    {"/age", "<i8", 8, Source::kAge, false, 0},
};

// item_bytes: of the most rows that an item may have.
void set_time(const GatherPlan& plan, uint64_t row_bytes, Output* out) {
  if (!plan.is_ragged) out->shape.insert(out->shape.begin(), plan.num_rows);
  out->row_bytes = row_bytes;
  out->item_bytes = plan.num_rows * row_bytes;
}

Output column_output(const Region& r, const GatherPlan& plan, uint32_t column, Source source) {
  const ColumnLayout& layout = r.columns[column];
  Output out;
  out.name = source == Source::kNext ? std::string("next_") + layout.name : std::string(layout.name);
  out.dtype = layout.dtype;
  out.column = column;
  out.source = source;
  out.stack = layout.kind == ColumnKind::kState ? std::max(1u, r.header->indexes[plan.index].stack[column]) : 1;
  if (out.stack > 1) out.shape.push_back(out.stack);
  out.shape.insert(out.shape.end(), layout.dims, layout.dims + layout.num_dims);
  out.item_bytes = layout.num_bytes * out.stack;
  out.is_bulk = layout.area == Area::kBulk;
  const bool is_of_episode = layout.kind == ColumnKind::kEpisode && !r.header->indexes[plan.index].sequence.crosses();
  if (layout.kind != ColumnKind::kStart && !is_of_episode) set_time(plan, out.item_bytes, &out);
  return out;
}

Status find_output(const Region& r, const GatherPlan& plan, const std::string& name, Output* out) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    const bool is_next = column.kind == ColumnKind::kState && name == std::string("next_") + column.name;
    if (!is_next && name != column.name) continue;
    *out = column_output(r, plan, c, is_next ? Source::kNext : Source::kColumn);
    return {};
  }
  for (const Derived& derived : kDerived) {
    if (name != derived.name) continue;
    out->name = name;
    out->dtype = derived.dtype;
    out->source = derived.source;
    out->item_bytes = derived.num_bytes;
    if (derived.size != 0) out->shape.push_back(derived.size);
    if (derived.has_time) set_time(plan, derived.num_bytes, out);
    return {};
  }
  return Status(Code::kInvalidConfig)
      .with_text("what", "column")
      .with_text("expected", "a declared column, next_<state>, mask or another derived one")
      .with_text("got", name);
}

// ---- rows

uint32_t head_at(const Walk& at) { return load_head(at.record()); }

// The number of rows from `record` on, at most `most`, that come before the next row with the mark of an end. The steps
// of an episode are numbered, so the number of the last row shows whether an end comes before it.
uint32_t rows_to_end(const std::byte* record, uint64_t stride, uint32_t most) {
  if (most == 0) return 0;
  const auto head = [&](uint32_t row) { return load_head(record + row * stride); };
  const bool is_of_one_episode = (head(most - 1) & kStepMask) == (head(0) & kStepMask) + (most - 1);
  uint32_t row = is_of_one_episode ? most - 1 : 0;
  while (row < most && (head(row) & (kTerminatedBit | kTruncatedBit)) == 0) ++row;
  return row;
}

// Walks the steps of a window, up to `most` or to the end of the episode. The item's own row counts as a step, whatever
// its page says by now.
bool walk(const Region& r, const GatherPlan& plan, uint32_t most, Window& w, Runs* runs) {
  const bool has_state = r.geometry->has_state != 0;
  Walk steps(r, w, runs);
  w.episode_step = head_at(steps) & kStepMask;
  w.num_steps = 0;
  w.has_tail = false;
  while (true) {
    const uint32_t here = std::max(steps.num_steps(most - w.num_steps), w.num_steps == 0 ? 1u : 0u);
    const uint32_t before_end = has_state ? here : rows_to_end(steps.record(), r.geometry->record_stride, here);
    w.num_steps += std::min(here, before_end + 1);
    if (before_end < here || (w.num_steps == most && !(has_state && plan.needs_next))) return true;
    if (!steps.advance(here)) return false;
    const bool is_there = steps.is_there();
    w.has_tail = is_there && steps.is_tail();
    if (w.num_steps == most || w.has_tail) return true;
    if (!is_there) return !RELIVE_RULE(W1_whole);
  }
}

uint32_t lane_at(const Region& r, uint64_t page, uint32_t row) {
  return r.marks[r.slot_of(page, row)].lane.load(kRelaxed);
}

// The same over ends of episodes, up to the end of the lane. A window never includes a row of the next lane in the
// page.
bool walk_across(const Region& r, const GatherPlan& plan, uint32_t most, Window& w, Runs* runs) {
  const bool has_state = r.geometry->has_state != 0;
  const uint32_t lane = lane_at(r, r.page_of(w.slot), r.offset_of(w.slot));
  Walk steps(r, w, runs);
  w.num_steps = 0;
  bool is_behind_end = false;
  for (uint32_t row = 0;; ++row) {
    if (!steps.is_there()) {
      if (is_behind_end || !RELIVE_RULE(W1_whole)) break;
      return false;
    }
    if (steps.is_tail()) {
      if (is_behind_end) break;  // two tails: an abandoned episode, the lane ends before it
      is_behind_end = w.has_tail = has_state;
      if (!has_state) break;  // a tail without state columns: the same
    } else {
      if (is_behind_end && lane_at(r, steps.at.page, steps.row) != lane) break;
      const uint32_t head = head_at(steps);
      if (w.num_steps == 0) w.episode_step = head & kStepMask;
      ++w.num_steps;
      w.rows_after = row;
      w.has_tail = false;
      is_behind_end = !has_state && (head & (kTerminatedBit | kTruncatedBit)) != 0;
    }
    if (w.num_steps == most && (!plan.needs_next || !has_state)) break;
    if (steps.row + 1 == r.page_len && is_behind_end && steps.is_last_page()) break;
    if (!steps.advance()) return false;
    if (w.num_steps < most) continue;
    w.has_tail = steps.is_there() && steps.is_tail();  // may be a frozen cell, whose bit means nothing
    break;
  }
  return w.num_steps > 0;
}

// Finds the burn-in, over ends of episodes back to the first step of the lane, and the rows that its stacks reach back
// to.
bool lead_across(const Region& r, const GatherPlan& plan, uint32_t burn_in, Window& w, Runs* runs) {
  uint64_t page = r.page_of(w.slot);
  const std::byte* base = w.base;
  const uint32_t lane = lane_at(r, page, r.offset_of(w.slot));
  uint32_t row = r.offset_of(w.slot), step = w.episode_step;
  w.lead = w.rows_before = 0;
  bool was_tail = false;
  for (uint32_t back = 1; w.lead < burn_in; ++back) {
    if (row == 0) {
      if (r.pages[page].prev.load(std::memory_order_acquire) == 0) break;
      Run prev;
      if (w.pages_before == plan.before / r.page_len + 1 || !follow(r, r.pages[page].prev, &prev)) return false;
      runs->push_back(prev);
      ++w.pages_before;
      page = prev.page;
      base = prev.base;
      row = r.page_len;
    }
    --row;
    if (r.is_tail(page, row)) {
      if (was_tail || r.geometry->has_state == 0) break;  // an abandoned episode: the lane begins after it
      was_tail = true;
      continue;
    }
    was_tail = false;
    if (step == 0 && lane_at(r, page, row) != lane) break;
    step = load_head(base + row * r.geometry->record_stride) & kStepMask;
    ++w.lead;
    w.rows_before = back;
  }
  const uint32_t frames = std::min(plan.stacked, step);
  const int64_t are_there = r.offset_of(w.slot) + int64_t{w.pages_before} * r.page_len;
  return add_pages_before(r, w, page, int64_t{w.rows_before} + frames - are_there, runs);
}

bool resolve_one(const Region& r, const GatherPlan& plan, Window& w, Runs* runs) {
  const SequenceConfig& sequence = r.header->indexes[plan.index].sequence;
  if (sequence.crosses())
    return walk_across(r, plan, sequence.length + sequence.bootstrap, w, runs) &&
           lead_across(r, plan, sequence.burn_in, w, runs);
  if (!walk(r, plan, sequence.length + sequence.bootstrap, w, runs)) return false;
  w.lead = w.rows_before = std::min(sequence.burn_in, w.episode_step);
  return add_before(r, w, std::min(plan.before, w.episode_step), runs);
}

}  // namespace

Status make_sequence_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan) {
  const SequenceConfig& sequence = r.header->indexes[plan->index].sequence;
  plan->num_rows = sequence.num_rows();
  plan->time_major = r.header->indexes[plan->index].time_major != 0;
  plan->after = r.shape(plan->index).after();
  plan->before = r.shape(plan->index).before == 0
                     ? 0
                     : sequence.burn_in * (sequence.crosses() && r.geometry->has_state != 0 ? 2 : 1);
  plan->record_span = kRecordHead;
  Output offsets;
  const bool names_offsets = std::find(names.begin(), names.end(), "offsets") != names.end();
  plan->is_ragged =
      names_offsets && find_output(r, *plan, "offsets", &offsets).ok() && offsets.source == Source::kOffsets;
  if (plan->is_ragged && plan->time_major)
    return Status(Code::kInvalidConfig)
        .with_text("what", "offsets")
        .with_text("expected", "items that have a row of each step behind the other, not the time axis first")
        .with_text("got", "time_major");
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, *plan, name, &output));
    plan->stacked = std::max(plan->stacked, output.stack - 1);
    plan->needs_next |= output.source == Source::kNext || output.source == Source::kTruncated;
    plan->needs_bulk |= output.is_bulk;
    plan->outputs.push_back(std::move(output));
  }
  plan->before += plan->stacked;
  return {};
}

void resolve_sequences(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                       Runs* runs) {
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    begin_window(w, *runs);
    if (w.ok) w.ok = resolve_one(r, plan, w, runs);
    if (w.ok && plan.is_ragged) w.ok = SequenceRows(r, plan, w, runs->data()).num_rows == w.room;
  }
}

}  // namespace relive
