#include "relive/read/records.hpp"

#include <algorithm>
#include <cstring>

#include "relive/read/rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The values that each row of a window has in addition to its columns.
struct RowValue {
  const char* name;
  const char* dtype;
  uint64_t num_bytes;
  Source source;
};

constexpr RowValue kRowValues[] = {
    {"mask", "|b1", 1, Source::kMask},
    {"lane", "<i8", 8, Source::kLane},
    {"episode_step", "<i8", 8, Source::kEpisodeStep},
    {"first", "|b1", 1, Source::kFirst},
    {"terminated", "|b1", 1, Source::kTerminated},
    {"truncated", "|b1", 1, Source::kTruncated},
    {"discount", "<f4", 4, Source::kDiscount},
    {"policy_version", "<i8", 8, Source::kPolicyVersion},
    {"staleness", "<i8", 8, Source::kStaleness},
};

Output output_of(const std::string& name, const char* dtype, Source source, uint64_t num_bytes) {
  Output out;
  out.name = name;
  out.dtype = dtype;
  out.source = source;
  out.item_bytes = num_bytes;
  return out;
}

Output column_output(const std::string& name, const ColumnLayout& column, uint32_t number, Source source) {
  Output out = output_of(name, column.dtype, source, column.num_bytes);
  out.shape.assign(column.dims, column.dims + column.num_dims);
  out.column = number;
  out.is_bulk = column.area == Area::kBulk;
  return out;
}

// An output with one value for each of the window's `length` rows.
Output with_rows(Output out, uint32_t window, uint32_t length) {
  out.window = window;
  out.item_bytes *= length;
  out.shape.insert(out.shape.begin(), length);
  return out;
}

// `rest`: the name without the window's name.
bool find_window_output(const Region& r, const Records& records, uint32_t window, const std::string& name,
                        const std::string& rest, Output* out) {
  const uint32_t length = records.shape(window).length;
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    if (rest != r.columns[c].name) continue;
    *out = with_rows(column_output(name, r.columns[c], c, Source::kColumn), window, length);
    return true;
  }
  for (const RowValue& value : kRowValues) {
    if (rest != value.name) continue;
    *out = with_rows(output_of(name, value.dtype, value.source, value.num_bytes), window, length);
    return true;
  }
  if (rest != "num_steps") return false;
  *out = output_of(name, "<i8", Source::kNumSteps, 8);
  out->window = window;
  return true;
}

// The values that each member of a group has once, in addition to columns; indexes of episodes have the same.
constexpr RowValue kMemberValues[] = {
    {"num_steps", "<i8", 8, Source::kNumSteps},
    {"lane", "<i8", 8, Source::kLane},
    {"policy_version", "<i8", 16, Source::kPolicyVersion},
    {"staleness", "<i8", 8, Source::kStaleness},
};

// Finds an output with one value for each member, or for each of its rows.
bool find_member_output(const Region& r, const Records& records, const std::string& name, Output* out) {
  bool found = false;
  for (const RowValue& value : kMemberValues) {
    if (name != value.name) continue;
    *out = output_of(name, value.dtype, value.source, value.num_bytes);
    if (value.source == Source::kPolicyVersion) out->shape = {2};
    out->is_of_member = found = true;
  }
  found = found || find_window_output(r, records, 0, name, name, out);
  if (!found) return false;
  const bool is_once = out->source == Source::kColumn && (r.columns[out->column].kind == ColumnKind::kEpisode ||
                                                          r.columns[out->column].kind == ColumnKind::kStart);
  if (is_once) {
    *out = column_output(name, r.columns[out->column], out->column, Source::kColumn);
    out->is_of_member = true;
  }
  out->num_windows = static_cast<uint32_t>(records.geometry->group_size);
  out->item_bytes *= out->num_windows;
  out->shape.insert(out->shape.begin(), out->num_windows);
  return true;
}

Status find_output(const Region& r, const Records& records, const std::string& name, Output* out) {
  if (name == "priority" || name == "/age") {
    const bool is_age = name == "/age";
    *out = output_of(name, is_age ? "<i8" : "<f4", is_age ? Source::kAge : Source::kPriority, is_age ? 8 : 4);
    return {};
  }
  if (records.are_groups()) {
    if (find_member_output(r, records, name, out)) return {};
    return Status(Code::kInvalidConfig)
        .with_text("what", "column of groups of episodes")
        .with_text("expected",
                   "a declared column, discount, mask, terminated, truncated, episode_step, first, num_steps, lane, "
                   "policy_version or staleness")
        .with_text("got", name);
  }
  for (uint32_t c = 0; c < records.geometry->num_columns; ++c) {
    if (name != records.columns[c].name) continue;
    *out = column_output(name, records.columns[c], c, Source::kItemColumn);
    return {};
  }
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
    const std::string before = records.shape(w).name[0] == 0 ? "" : std::string(records.shape(w).name) + "/";
    if (name.compare(0, before.size(), before) == 0 &&
        find_window_output(r, records, w, name, name.substr(before.size()), out))
      return {};
  }
  return Status(Code::kInvalidConfig)
      .with_text("what", "column of explicit items")
      .with_text("expected",
                 "an item's own column; or of a window a declared column, mask, num_steps, lane, episode_step, first, "
                 "terminated, truncated, discount, policy_version or staleness")
      .with_text("got", name);
}

// Adds the runs of one window. Returns false if one of the pages is gone: the item has ended, or its record is being
// rewritten. looks_behind: if the last row is the last of its page, the next page is added as a run without rows, if it
// exists.
bool add_window(const Region& r, const WindowConfig& shape, uint32_t window, int64_t key, uint32_t num_rows,
                bool looks_behind, Runs* runs) {
  if (!r.is_row_key(key)) return false;
  const uint64_t page = r.page_of(r.key_slot(key));
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
  Run run{page, word, r.page_base(page)};
  uint32_t first = r.offset_of(r.key_slot(key));
  while (true) {
    const uint32_t fit = first < r.page_len ? (r.page_len - first + shape.stride - 1) / shape.stride : 0;
    run.first = first;
    run.count = static_cast<uint16_t>(std::min(num_rows, fit));
    run.window = static_cast<uint16_t>(window);
    runs->push_back(run);
    num_rows -= run.count;
    if (num_rows == 0) break;
    first += run.count * shape.stride - r.page_len;  // in the next page, which the stride may skip as a whole
    if (!follow(r, r.pages[run.page].next, &run)) return false;
  }
  const bool is_last_of_page = run.first + (run.count - 1) * shape.stride + 1 == r.page_len;
  if (!looks_behind || !is_last_of_page || !follow(r, r.pages[run.page].next, &run)) return true;
  run.first = run.count = 0;
  run.window = static_cast<uint16_t>(window);
  runs->push_back(run);
  return true;
}

bool resolve_one(const Region& r, const Records& records, bool looks_behind, Window& w, Runs* runs) {
  const ItemWindow* const windows = records.windows_of(w.slot);
  uint32_t rows = 0;
  for (uint32_t k = 0; k < records.geometry->max_windows; ++k) {
    const uint32_t num_rows = windows[k].num_rows.load(kRelaxed);
    if (num_rows == 0) continue;
    if (num_rows > records.shape(k).length ||
        !add_window(r, records.shape(k), k, windows[k].key.load(kRelaxed), num_rows, looks_behind, runs))
      return false;
    rows += num_rows;
  }
  w.num_steps = rows;
  w.pages_after = static_cast<uint16_t>(runs->size() - w.first_run);
  return rows > 0;
}

}  // namespace

Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan) {
  const Records& records = r.records[plan->index];
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) plan->max_rows += records.shape(w).length;
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, records, name, &output));
    plan->needs_end |= output.source == Source::kTruncated;
    plan->needs_bulk |= output.is_bulk;
    plan->outputs.push_back(std::move(output));
  }
  return {};
}

void ask_for_records(const Region& r, uint32_t index, const uint64_t* groups, size_t count, uint64_t group_size) {
  const Records& records = r.records[index];
  for (size_t k = 0; k < count; ++k) {
    const uint64_t record = groups[k] * group_size;
    __builtin_prefetch(records.words + record);
    __builtin_prefetch(records.windows_of(record));
  }
}

void locate_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count) {
  const Records& records = r.records[plan.index];
  for (size_t k = 0; k < count; ++k) {  // prefetches only; resolve_records() validates the values
    const Window& w = windows[which[k]];
    if (!w.ok) continue;
    if (records.geometry->num_columns != 0) __builtin_prefetch(records.values_of(w.slot));
    const int64_t key = records.windows_of(w.slot)->key.load(kRelaxed);
    if (!r.is_row_key(key)) continue;
    const uint64_t page = r.page_of(r.key_slot(key));
    __builtin_prefetch(&r.words[page]);
    __builtin_prefetch(r.page_base(page) + r.offset_of(r.key_slot(key)) * r.geometry->record_stride);
  }
}

void resolve_records(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                     Runs* runs) {
  const Records& records = r.records[plan.index];
  const bool looks_behind = plan.needs_end && r.geometry->has_state != 0;
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    w.pages_after = w.pages_before = 0;
    w.first_run = static_cast<uint32_t>(runs->size());
    if (w.ok) w.ok = resolve_one(r, records, looks_behind, w, runs);
  }
}

bool renew_runs(const Region& r, const Window* windows, const uint32_t* which, size_t count, Runs* runs,
                bool* is_gone) {
  bool any = false;
  for (size_t k = 0; k < count; ++k) {
    const Window& w = windows[which[k]];
    *is_gone |= !w.ok;
    for (uint32_t at = w.first_run; at < w.first_run + w.pages_after; ++at) {
      Run& run = (*runs)[at];
      const uint64_t word = r.words[run.page].load(std::memory_order_acquire);
      if (word >> kStateBits == run.word >> kStateBits) continue;
      *is_gone |= !Region::is_used(word) || Region::generation_of(word) != Region::generation_of(run.word);
      run.word = word;
      run.base = r.page_base(run.page);
      any = true;
    }
  }
  return any;
}

}  // namespace relive
