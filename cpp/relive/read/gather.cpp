// Copies the rows of resolved windows into the columns of a batch.
#include "relive/read/gather.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "relive/index/bounds.hpp"
#include "relive/read/hindsight.hpp"
#include "relive/read/records.hpp"
#include "relive/read/rows.hpp"
#include "relive/read/sequences.hpp"

namespace relive {
namespace {

constexpr size_t kListed = 64;

// The loops below are not inlined into copy_rows. Inlined, they share its registers, and each loop reloads its bounds
// from the stack for every item (3% of a sample of 256 items).

// The ok windows of a part of the batch, with the values that every column needs computed once.
struct Listed {
  size_t count = 0;
  size_t batch = 0;  // rows of the outputs
  const Run* runs = nullptr;
  const Window* windows[kListed];
  uint32_t rows[kListed];                  // of the outputs
  const std::byte* records[kListed];       // packed record of the first row
  RowPlace boots[kListed];                 // bootstrap row
  const std::byte* boot_records[kListed];  // its packed record
};

[[gnu::noinline]] void list_windows(const Region& r, const Window* windows, const uint32_t* which, size_t count,
                                    Listed* listed) {
  // Local copies: the compiler must assume that the stores below change the objects that `r` refers to.
  const uint64_t stride = r.geometry->record_stride;
  const uint32_t page_len = r.page_len, steps_to_boot = r.geometry->has_state != 0 ? ~0u : 0;
  const Run* const runs = listed->runs;
  size_t n = 0;
  for (size_t k = 0; k < count; ++k) {
    const Window& w = windows[which[k]];
    if (!w.ok) continue;
    const uint32_t offset = static_cast<uint32_t>(w.slot) & (page_len - 1);
    const uint32_t boot = offset + (w.num_steps & steps_to_boot);
    const RowPlace place = boot < page_len ? RowPlace{w.base, boot} : row_at(r, w, runs, boot);
    listed->windows[n] = &w;
    listed->rows[n] = w.row;
    listed->records[n] = w.base + offset * stride;
    listed->boots[n] = place;
    listed->boot_records[n] = place.base + place.offset * stride;
    ++n;
  }
  listed->count = n;
}

// Copies one column of every listed window, from its first row or its bootstrap row.
template <class Copy>
void copy_each(const Region& r, const Listed& listed, const ColumnLayout& column, bool is_boot, std::byte* out,
               Copy&& copy) {
  const uint64_t num_bytes = column.num_bytes, offset = column.offset, stride = column.stride;
  if (column.area == Area::kRecord) {
    const std::byte* const* records = is_boot ? listed.boot_records : listed.records;
    for (size_t k = 0; k < listed.count; ++k) copy(out + listed.rows[k] * num_bytes, records[k] + offset);
    return;
  }
  for (size_t k = 0; k < listed.count; ++k) {
    const Window& w = *listed.windows[k];
    const RowPlace row = is_boot ? listed.boots[k] : RowPlace{w.base, r.offset_of(w.slot)};
    copy(out + listed.rows[k] * num_bytes, row.base + offset + row.offset * stride);
  }
}

[[gnu::noinline]] void copy_column(const Region& r, const Listed& listed, const ColumnLayout& column, bool is_boot,
                                   std::byte* out) {
  const size_t num_bytes = column.num_bytes;
  const auto run = [&](auto&& copy) { copy_each(r, listed, column, is_boot, out, copy); };
  if (is_streamed(column, num_bytes, listed.batch)) {
    run([num_bytes](std::byte* to, const std::byte* from) { stream_bytes(to, from, num_bytes); });
    return end_stream();
  }
  with_copy(num_bytes, run);
}

// A step column at the bootstrap row: zeros if the episode has ended, or if its next step is not written yet.
[[gnu::noinline]] void copy_next_step(const Region& r, const Listed& listed, const Output& output, std::byte* out) {
  const ColumnLayout& column = r.columns[output.column];
  for (size_t k = 0; k < listed.count; ++k) {
    const Window& w = *listed.windows[k];
    const RowPlace row = listed.boots[k];
    std::byte* const to = out + listed.rows[k] * column.num_bytes;
    if (has_step(r, w, listed.runs, int64_t{r.offset_of(w.slot)} + w.num_steps)) {
      copy_bytes(to, row.base + column.offset + row.offset * column.stride, column.num_bytes);
    } else {
      std::memset(to, 0, column.num_bytes);
    }
  }
}

// A start column that only some rows have: zeros for the others.
[[gnu::noinline]] void copy_cell(const Region& r, const Listed& listed, const ColumnLayout& column, std::byte* out) {
  for (size_t k = 0; k < listed.count; ++k) {
    const uint32_t cell = load_head(listed.records[k] + kCellWord);
    std::byte* const to = out + listed.rows[k] * column.num_bytes;
    if (cell < r.cells.state->committed.load(std::memory_order_acquire)) {
      copy_bytes(to, r.cells.at(cell) + column.offset, column.num_bytes);
    } else {
      std::memset(to, 0, column.num_bytes);
    }
  }
}

// The newest frame is last. Before the episode's first frame, the stack repeats that frame or has zeros.
void copy_stack(const Region& r, const Window& w, const Run* runs, const Output& output, StackPad pad, size_t batch,
                std::byte* out) {
  const ColumnLayout& column = r.columns[output.column];
  const bool streamed = is_streamed(column, output.item_bytes, batch);
  const uint32_t ahead = output.source == Source::kNext ? w.num_steps : 0;
  const int64_t newest = int64_t{r.offset_of(w.slot)} + ahead;
  const uint32_t before = w.episode_step + ahead;  // frames of the episode before the newest
  std::byte* to = out + w.row * output.item_bytes;
  for (uint32_t back = output.stack; back-- > 0; to += column.num_bytes) {
    if (back > before && pad == StackPad::kZeros) {
      std::memset(to, 0, column.num_bytes);
      continue;
    }
    const RowPlace row = row_at(r, w, runs, newest - std::min(back, before));
    const std::byte* from = row.base + column.offset + row.offset * column.stride;
    streamed ? stream_bytes(to, from, column.num_bytes) : copy_bytes(to, from, column.num_bytes);
  }
}

template <class T, class Value>
void fill(const Listed& listed, std::byte* out, Value&& value) {
  for (size_t k = 0; k < listed.count; ++k) {
    const T number = static_cast<T>(value(k));
    std::memcpy(out + listed.rows[k] * sizeof(T), &number, sizeof(T));
  }
}

[[gnu::noinline]] void fill_derived(const Region& r, const GatherPlan& plan, const Output& output, const Listed& listed,
                                    std::byte* out) {
  const double gamma = config_of(r, plan).gamma;
  const bool walked = plan.needs_walk || plan.needs_end;
  const auto window = [&](size_t k) -> const Window& { return *listed.windows[k]; };
  const auto head = [&](size_t k) { return load_head(listed.records[k]); };
  const auto discount = [&](size_t k) { return r.discount_of(window(k).slot, head(k)); };
  const auto version = [&](size_t k) {
    return int64_t{r.marks[window(k).slot].policy_version.load(std::memory_order_relaxed)};
  };
  const auto end_bit = [&](size_t k, uint8_t bit) {
    if (walked) return (window(k).ends & bit) != 0;
    return (head(k) & (bit == 1 ? kTerminatedBit : kTruncatedBit)) != 0;
  };
  switch (output.source) {
    case Source::kReward:
      if (r.columns[output.column].dtype[2] == '8')
        return fill<double>(listed, out, [&](size_t k) { return window(k).reward; });
      return fill<float>(listed, out, [&](size_t k) { return window(k).reward; });
    case Source::kDiscount:
      return walked ? fill<float>(listed, out, [&](size_t k) { return window(k).discount; })
                    : fill<float>(listed, out, [&](size_t k) { return gamma * discount(k); });
    case Source::kTerminated:
      return fill<uint8_t>(listed, out, [&](size_t k) { return end_bit(k, 1); });
    case Source::kTruncated:
      return fill<uint8_t>(listed, out, [&](size_t k) { return end_bit(k, 2); });
    case Source::kEpisodeStep:
      return fill<int64_t>(listed, out, [&](size_t k) { return head(k) & kStepMask; });
    case Source::kFirst:
      return fill<uint8_t>(listed, out, [&](size_t k) { return (head(k) & kStepMask) == 0; });
    case Source::kLane:
      return fill<int64_t>(listed, out, [&](size_t k) { return r.lane_of(window(k).slot); });
    case Source::kPolicyVersion:
      return fill<int64_t>(listed, out, version);
    case Source::kStaleness: {
      const int64_t now = r.header->policy_version.load(std::memory_order_relaxed);
      return fill<int64_t>(listed, out, [&](size_t k) { return now - version(k); });
    }
    case Source::kHasNext:
      return fill<uint8_t>(listed, out, [&](size_t k) {
        const Window& w = window(k);
        return r.geometry->has_state != 0 && has_step(r, w, listed.runs, int64_t{r.offset_of(w.slot)} + w.num_steps);
      });
    case Source::kPriority:
      if (plan.are_steps) return fill<float>(listed, out, [&](size_t) { return std::nanf(""); });
      return fill<float>(listed, out, [&](size_t k) { return Bounds(r, plan.index).priority(window(k).slot); });
    case Source::kAge:
      return fill<int64_t>(listed, out,
                           [&](size_t k) { return age_of(r, plan.index, window(k).slot, window(k).word); });
    case Source::kRelabelled:
      return fill<uint8_t>(listed, out, [&](size_t k) { return plan.has_goals && window(k).goal != kOwnGoal; });
    default:
      return fill<int64_t>(listed, out, [&](size_t k) { return window(k).num_steps; });
  }
}

void copy_listed(const Region& r, const GatherPlan& plan, const Listed& listed, std::byte* const* out) {
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (output.stack > 1 || output.is_bulk) continue;
    if (output.of_step) {
      copy_next_step(r, listed, output, out[o]);
    } else if (output.source == Source::kColumn && r.columns[output.column].area == Area::kCell) {
      copy_cell(r, listed, r.columns[output.column], out[o]);
    } else if (output.source == Source::kColumn || output.source == Source::kNext) {
      copy_column(r, listed, r.columns[output.column], output.source == Source::kNext, out[o]);
    } else {
      fill_derived(r, plan, output, listed, out[o]);
    }
  }
  if (plan.before == 0) return;
  const StackPad pad = r.header->indexes[plan.index].stack_pad;
  for (size_t k = 0; k < listed.count; ++k)  // by window: neighbouring stacks share frames in the cache
    for (size_t o = 0; o < plan.outputs.size(); ++o)
      if (plan.outputs[o].stack > 1 && !plan.outputs[o].is_bulk)
        copy_stack(r, *listed.windows[k], listed.runs, plan.outputs[o], pad, listed.batch, out[o]);
  end_stream();
}

}  // namespace

void copy_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
               size_t count, size_t batch, std::byte* const* out) {
  RELIVE_NOT_LOCKED("rows are copied under the lock");
  if (plan.max_rows != 0) return copy_records(r, plan, windows, runs, which, count, out);
  if (plan.num_rows != 0) return copy_sequences(r, plan, windows, runs, which, count, batch, out);
  Listed listed;
  listed.runs = runs.data();
  listed.batch = batch;
  for (size_t begin = 0; begin < count; begin += kListed) {
    list_windows(r, windows, which + begin, std::min(kListed, count - begin), &listed);
    copy_listed(r, plan, listed, out);
  }
  if (plan.has_goals) copy_goals(r, plan, windows, runs, which, count, batch, out);
}

void zero_rows(const Output& output, const ItemPlace& to, uint32_t begin, uint32_t end) {
  if (to.first == nullptr || begin >= end) return;
  if (to.step == output.row_bytes) {
    std::memset(to.at(begin), 0, (end - begin) * output.row_bytes);
    return;
  }
  for (uint32_t t = begin; t < end; ++t) std::memset(to.at(t), 0, output.row_bytes);
}

void zero_item(const GatherPlan& plan, uint32_t item, size_t batch, std::byte* const* out) {
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (per_what(plan, output) != Per::kItem) continue;
    const ItemPlace place = place_of(plan, output, item, batch, out[o]);
    if (item_axis(plan, output) == 0) {
      std::memset(place.first, 0, output.item_bytes);
    } else {
      zero_rows(output, place, 0, plan.num_rows);
    }
  }
}

}  // namespace relive
