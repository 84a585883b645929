#include "relive/read/records.hpp"

#include <algorithm>
#include <cstring>

#include "relive/read/rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// What a row has by itself, beside its columns.
struct RowValue {
  const char* name;
  const char* dtype;
  uint64_t num_bytes;
  Source source;
};

constexpr RowValue kRowValues[] = {
    {"lane", "<i8", 8, Source::kLane},
    {"episode_step", "<i8", 8, Source::kEpisodeStep},
    {"first", "|b1", 1, Source::kFirst},
    {"terminated", "|b1", 1, Source::kTerminated},
    {"policy_version", "<i8", 8, Source::kPolicyVersion},
};

Output output_of(const std::string& name, const char* dtype, Source source, int64_t num_rows, uint64_t row_bytes) {
  Output out;
  out.name = name;
  out.dtype = dtype;
  out.source = source;
  out.shape = {num_rows};
  out.item_bytes = static_cast<uint64_t>(num_rows) * row_bytes;
  return out;
}

Status find_output(const Region& r, int64_t num_rows, const std::string& name, Output* out) {
  for (uint32_t c = 0; c < r.geometry->num_columns; ++c) {
    const ColumnLayout& column = r.columns[c];
    if (name != column.name) continue;
    *out = output_of(name, column.dtype, Source::kColumn, num_rows, column.num_bytes);
    out->shape.insert(out->shape.end(), column.dims, column.dims + column.num_dims);
    out->column = c;
    return {};
  }
  for (const RowValue& value : kRowValues) {
    if (name != value.name) continue;
    *out = output_of(name, value.dtype, value.source, num_rows, value.num_bytes);
    return {};
  }
  if (name != "num_steps")
    return Status(Code::kInvalidConfig)
        .with_text("what", "column of explicit items")
        .with_text("expected", "a declared column, num_steps, lane, episode_step, first, terminated or policy_version")
        .with_text("got", name);
  *out = output_of(name, "<i8", Source::kNumSteps, 1, 8);
  out->shape.clear();
  return {};
}

// The rows of one window. False where one of their pages is gone: the item has ended, or its record is being rewritten.
bool add_window(const Region& r, int64_t key, uint32_t num_rows, Runs* runs) {
  if (!r.is_row_key(key)) return false;
  const uint64_t page = r.page_of(r.key_slot(key));
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word) || Region::generation_of(word) != r.key_generation(key)) return false;
  Run run{page, word, r.page_base(page)};
  run.first = r.offset_of(r.key_slot(key));
  while (true) {
    run.count = std::min(num_rows, r.page_len - run.first);
    runs->push_back(run);
    num_rows -= run.count;
    if (num_rows == 0) return true;
    if (!follow(r, r.pages[run.page].next, &run)) return false;
    run.first = 0;
  }
}

bool resolve_one(const Region& r, const Records& records, Window& w, Runs* runs) {
  const ItemWindow* const windows = records.windows_of(w.slot);
  uint32_t rows = 0;
  for (uint32_t k = 0; k < records.geometry->max_windows; ++k) {
    const uint32_t num_rows = windows[k].num_rows.load(kRelaxed);
    if (num_rows == 0) break;
    if (num_rows > records.geometry->max_rows || !add_window(r, windows[k].key.load(kRelaxed), num_rows, runs))
      return false;
    rows += num_rows;
  }
  w.num_steps = rows;
  w.pages_after = static_cast<uint16_t>(runs->size() - w.first_run);
  return rows > 0;
}

// value(run, row in its page) for every row of every window, zeros behind the last.
template <class T, class Value>
void fill_rows(const Window& w, const Runs& runs, std::byte* to, size_t item_bytes, Value&& value) {
  std::byte* const end = to + item_bytes;
  for (uint32_t k = 0; k < w.pages_after; ++k) {
    const Run& run = runs[w.first_run + k];
    for (uint32_t row = run.first; row < run.first + run.count; ++row, to += sizeof(T)) {
      const T number = static_cast<T>(value(run, row));
      std::memcpy(to, &number, sizeof(T));
    }
  }
  std::memset(to, 0, static_cast<size_t>(end - to));
}

void copy_column(const Window& w, const Runs& runs, const ColumnLayout& column, std::byte* to, size_t item_bytes) {
  std::byte* const end = to + item_bytes;
  const size_t num_bytes = column.num_bytes;
  for (uint32_t k = 0; k < w.pages_after; ++k) {
    const Run& run = runs[w.first_run + k];
    const std::byte* from = run.base + column.offset + run.first * column.stride;
    if (column.stride == num_bytes) {
      copy_bytes(to, from, run.count * num_bytes);
      to += run.count * num_bytes;
      continue;
    }
    for (uint32_t row = 0; row < run.count; ++row, to += num_bytes, from += column.stride)
      copy_bytes(to, from, num_bytes);
  }
  std::memset(to, 0, static_cast<size_t>(end - to));
}

void copy_output(const Region& r, const Output& output, const Window& w, const Runs& runs, std::byte* out) {
  std::byte* const to = out + w.row * output.item_bytes;
  const uint64_t stride = r.geometry->record_stride;
  const auto head = [stride](const Run& run, uint32_t row) { return load_head(run.base + row * stride); };
  switch (output.source) {
    case Source::kColumn:
      return copy_column(w, runs, r.columns[output.column], to, output.item_bytes);
    case Source::kLane:
      return fill_rows<int64_t>(w, runs, to, output.item_bytes,
                                [&](const Run& run, uint32_t row) { return r.lane_of(r.slot_of(run.page, row)); });
    case Source::kPolicyVersion:
      return fill_rows<int64_t>(w, runs, to, output.item_bytes, [&](const Run& run, uint32_t row) {
        return r.marks[r.slot_of(run.page, row)].policy_version.load(kRelaxed);
      });
    case Source::kEpisodeStep:
      return fill_rows<int64_t>(w, runs, to, output.item_bytes,
                                [&](const Run& run, uint32_t row) { return head(run, row) & kStepMask; });
    case Source::kFirst:
      return fill_rows<uint8_t>(w, runs, to, output.item_bytes,
                                [&](const Run& run, uint32_t row) { return (head(run, row) & kStepMask) == 0; });
    case Source::kTerminated:
      return fill_rows<uint8_t>(w, runs, to, output.item_bytes,
                                [&](const Run& run, uint32_t row) { return (head(run, row) & kTerminatedBit) != 0; });
    default: {
      const int64_t num_rows = w.num_steps;
      std::memcpy(to, &num_rows, sizeof num_rows);
    }
  }
}

}  // namespace

Status make_record_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan) {
  const RecordGeometry& records = r.geometry->records[plan->index];
  plan->max_rows = records.max_windows * records.max_rows;
  for (const std::string& name : names) {
    Output output;
    RELIVE_RETURN_IF_ERROR(find_output(r, plan->max_rows, name, &output));
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
  for (size_t o = 0; o < plan.outputs.size(); ++o)
    for (size_t k = 0; k < count; ++k)
      if (windows[which[k]].ok) copy_output(r, plan.outputs[o], windows[which[k]], runs, out[o]);
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
