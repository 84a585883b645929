#include "relive/read/records.hpp"

#include <algorithm>
#include <cstring>

#include "relive/read/rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// What a window has for each of its rows, beside their columns.
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
  return out;
}

// One of a window's rows each: so many of them.
Output with_rows(Output out, uint32_t window, uint32_t length) {
  out.window = window;
  out.item_bytes *= length;
  out.shape.insert(out.shape.begin(), length);
  return out;
}

// `rest`: the name without its window's.
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

// What a member of a group has one value of, beside columns: as of episodes alone.
constexpr RowValue kMemberValues[] = {
    {"num_steps", "<i8", 8, Source::kNumSteps},
    {"lane", "<i8", 8, Source::kLane},
    {"policy_version", "<i8", 16, Source::kPolicyVersion},
    {"staleness", "<i8", 8, Source::kStaleness},
};

// One value of each member, or of each of its rows.
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
  if (records.are_groups()) {
    if (find_member_output(r, records, name, out)) return {};
    return Status(Code::kInvalidConfig)
        .with_text("what", "column of groups of episodes")
        .with_text(
            "expected",
            "a declared column, discount, mask, terminated, episode_step, first, num_steps, lane, policy_version "
            "or staleness")
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
                 "terminated, discount, policy_version or staleness")
      .with_text("got", name);
}

// The rows of one window. False where one of their pages is gone: the item has ended, or its record is being rewritten.
bool add_window(const Region& r, const WindowConfig& shape, uint32_t window, int64_t key, uint32_t num_rows,
                Runs* runs) {
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
    if (num_rows == 0) return true;
    first += run.count * shape.stride - r.page_len;  // in the next page, all of which the stride may pass over
    if (!follow(r, r.pages[run.page].next, &run)) return false;
  }
}

bool resolve_one(const Region& r, const Records& records, Window& w, Runs* runs) {
  const ItemWindow* const windows = records.windows_of(w.slot);
  uint32_t rows = 0;
  for (uint32_t k = 0; k < records.geometry->max_windows; ++k) {
    const uint32_t num_rows = windows[k].num_rows.load(kRelaxed);
    if (num_rows == 0) continue;
    if (num_rows > records.shape(k).length ||
        !add_window(r, records.shape(k), k, windows[k].key.load(kRelaxed), num_rows, runs))
      return false;
    rows += num_rows;
  }
  w.num_steps = rows;
  w.pages_after = static_cast<uint16_t>(runs->size() - w.first_run);
  return rows > 0;
}

// One output of one window of an item, on its way.
struct Copy {
  const Region& r;
  const Output& output;
  const Run* runs;  // of the item; those of one window follow each other
  uint32_t num_runs;
  uint32_t window;
  uint32_t stride;  // of the window
  double gamma;
  uint64_t num_bytes;  // of the output, for one window
  std::byte* to;

  template <class Each>
  void each_run(Each&& each) const {
    for (uint32_t k = 0; k < num_runs; ++k)
      if (runs[k].window == window) each(runs[k]);
  }

  // value(run, row in its page) for every row of the window, zeros behind the last.
  template <class T, class Value>
  void fill_rows(Value&& value) const {
    std::byte* at = to;
    each_run([&](const Run& run) {
      for (uint32_t k = 0; k < run.count; ++k, at += sizeof(T)) {
        const T number = static_cast<T>(value(run, run.first + k * stride));
        std::memcpy(at, &number, sizeof(T));
      }
    });
    std::memset(at, 0, static_cast<size_t>(to + num_bytes - at));
  }

  void copy_column() const {
    const ColumnLayout& column = r.columns[output.column];
    const size_t cell_bytes = column.num_bytes, step = column.stride * stride;
    std::byte* at = to;
    each_run([&](const Run& run) {
      const std::byte* from = run.base + column.offset + run.first * column.stride;
      if (output.is_of_member) {
        if (at == to) copy_bytes(at, from, cell_bytes);
        at = to + cell_bytes;
        return;
      }
      if (step == cell_bytes) {
        copy_bytes(at, from, run.count * cell_bytes);
        at += run.count * cell_bytes;
        return;
      }
      for (uint32_t k = 0; k < run.count; ++k, at += cell_bytes, from += step) copy_bytes(at, from, cell_bytes);
    });
    std::memset(at, 0, static_cast<size_t>(to + num_bytes - at));
  }

  // What a member has one value of.
  void copy_member_value() const {
    int64_t num_rows = 0, lane = 0, lowest = INT64_MAX, highest = 0;
    each_run([&](const Run& run) {
      if (num_rows == 0) lane = static_cast<int64_t>(r.lane_of(r.slot_of(run.page, run.first)));
      num_rows += run.count;
      const bool asks_version = output.source == Source::kPolicyVersion || output.source == Source::kStaleness;
      for (uint32_t row = run.first; asks_version && row < run.first + run.count; ++row) {
        const int64_t version = r.marks[r.slot_of(run.page, row)].policy_version.load(kRelaxed);
        lowest = std::min(lowest, version);
        highest = std::max(highest, version);
      }
    });
    const int64_t staleness = int64_t{r.header->policy_version.load(kRelaxed)} - lowest;
    const int64_t values[2] = {output.source == Source::kPolicyVersion ? lowest
                               : output.source == Source::kStaleness   ? staleness
                               : output.source == Source::kLane        ? lane
                                                                       : num_rows,
                               highest};
    std::memcpy(to, values, num_bytes);
  }

  void copy_row_values() const {
    if (output.is_of_member) return copy_member_value();
    const uint64_t record_stride = r.geometry->record_stride;
    const auto head = [record_stride](const Run& run, uint32_t row) {
      return load_head(run.base + row * record_stride);
    };
    const auto version = [this](const Run& run, uint32_t row) {
      return int64_t{r.marks[r.slot_of(run.page, row)].policy_version.load(kRelaxed)};
    };
    switch (output.source) {
      case Source::kMask:
        return fill_rows<uint8_t>([](const Run&, uint32_t) { return 1; });
      case Source::kLane:
        return fill_rows<int64_t>([&](const Run& run, uint32_t row) { return r.lane_of(r.slot_of(run.page, row)); });
      case Source::kPolicyVersion:
        return fill_rows<int64_t>(version);
      case Source::kStaleness: {
        const int64_t now = r.header->policy_version.load(kRelaxed);
        return fill_rows<int64_t>([&](const Run& run, uint32_t row) { return now - version(run, row); });
      }
      case Source::kDiscount:
        return fill_rows<float>([&](const Run& run, uint32_t row) {
          return gamma * r.discount_of(r.slot_of(run.page, row), head(run, row));
        });
      case Source::kEpisodeStep:
        return fill_rows<int64_t>([&](const Run& run, uint32_t row) { return head(run, row) & kStepMask; });
      case Source::kFirst:
        return fill_rows<uint8_t>([&](const Run& run, uint32_t row) { return (head(run, row) & kStepMask) == 0; });
      case Source::kTerminated:
        return fill_rows<uint8_t>([&](const Run& run, uint32_t row) { return (head(run, row) & kTerminatedBit) != 0; });
      default: {
        int64_t num_rows = 0;
        each_run([&](const Run& run) { num_rows += run.count; });
        std::memcpy(to, &num_rows, sizeof num_rows);
      }
    }
  }
};

}  // namespace

Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan) {
  const Records& records = r.records[plan->index];
  for (uint32_t w = 0; w < records.geometry->max_windows; ++w) plan->max_rows += records.shape(w).length;
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, records, name, &output));
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
  for (size_t k = 0; k < count; ++k) {  // nothing here is taken for true; resolve_records() looks again
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
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    w.pages_after = w.pages_before = 0;
    w.first_run = static_cast<uint32_t>(runs->size());
    if (w.ok) w.ok = resolve_one(r, records, w, runs);
  }
}

void copy_records(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                  const uint32_t* which, size_t count, std::byte* const* out) {
  copy_record_rows(r, plan, windows, runs, which, count, out);
  copy_record_values(r, plan, windows, which, count, out);
}

void copy_record_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                      const uint32_t* which, size_t count, std::byte* const* out) {
  const Records& records = r.records[plan.index];
  const double gamma = r.header->indexes[plan.index].gamma;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (output.source == Source::kItemColumn) continue;
    for (size_t k = 0; k < count; ++k) {
      const Window& w = windows[which[k]];
      if (!w.ok) continue;
      const uint64_t num_bytes = output.item_bytes / output.num_windows;
      const Run* first = runs.data() + w.first_run;
      const Run* const end = first + w.pages_after;
      for (uint32_t k = 0; k < output.num_windows; ++k) {
        const uint32_t window = output.window + k;
        const Run* next = output.num_windows == 1
                              ? end
                              : std::find_if(first, end, [window](const Run& run) { return run.window != window; });
        const Copy copy{r,
                        output,
                        first,
                        static_cast<uint32_t>(next - first),
                        window,
                        records.shape(window).stride,
                        gamma,
                        num_bytes,
                        out[o] + w.row * output.item_bytes + k * num_bytes};
        output.source == Source::kColumn ? copy.copy_column() : copy.copy_row_values();
        first = next;
      }
    }
  }
}

void copy_record_values(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which,
                        size_t count, std::byte* const* out) {
  const Records& records = r.records[plan.index];
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (output.source != Source::kItemColumn) continue;
    const uint64_t offset = records.columns[output.column].offset;
    for (size_t k = 0; k < count; ++k) {
      const Window& w = windows[which[k]];
      if (w.ok) copy_bytes(out[o] + w.row * output.item_bytes, records.values_of(w.slot) + offset, output.item_bytes);
    }
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
