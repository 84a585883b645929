// Copies the bytes of explicit items and of groups: rows of their windows, values of their members, own columns.
#include <algorithm>
#include <cstring>

#include "relive/index/bounds.hpp"
#include "relive/read/records.hpp"
#include "relive/read/rows.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Whether an output has one value for the item, which no row of it has.
bool is_of_item(const Output& output) {
  return output.source == Source::kItemColumn || output.source == Source::kPriority || output.source == Source::kAge;
}

// The copy of one output of one window of an item.
struct Copy {
  const Region& r;
  const Output& output;
  const Run* runs;  // of the item; the runs of one window are consecutive
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

  // Stores value(run, row in its page) for every row of the window, then zeros.
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

  // Whether a tail follows the row: an end that came after its step. Only the last row of a window, which is of one
  // episode, can have one. On the next page it is visible because add_window() added that page.
  bool has_tail(const Run& run, uint32_t row) const {
    const bool is_behind = row + 1 == r.page_len;
    if (is_behind && (&run + 1 == runs + num_runs || (&run)[1].window != window)) return false;
    const uint64_t page = is_behind ? (&run)[1].page : run.page;
    const uint32_t at = is_behind ? 0 : row + 1;
    return at < Range::unpack(r.pages[page].range.load(std::memory_order_acquire)).step_end && r.is_tail(page, at);
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

  // Copies an output with one value for each member.
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
      case Source::kTruncated: {
        const bool has_state = r.geometry->has_state != 0;
        return fill_rows<uint8_t>([&](const Run& run, uint32_t row) {
          const uint32_t bits = head(run, row) & (kTerminatedBit | kTruncatedBit);
          return bits == 0 ? has_state && has_tail(run, row) : (bits & kTruncatedBit) != 0;
        });
      }
      default: {
        int64_t num_rows = 0;
        each_run([&](const Run& run) { num_rows += run.count; });
        std::memcpy(to, &num_rows, sizeof num_rows);
      }
    }
  }
};

}  // namespace

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
    if (is_of_item(output) || output.is_bulk) continue;
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
    if (!is_of_item(output)) continue;
    const bool is_column = output.source == Source::kItemColumn;
    const uint64_t offset = is_column ? records.columns[output.column].offset : 0;
    for (size_t k = 0; k < count; ++k) {
      const Window& w = windows[which[k]];
      if (!w.ok) continue;
      std::byte* const to = out[o] + w.row * output.item_bytes;
      if (is_column) {
        copy_bytes(to, records.values_of(w.slot) + offset, output.item_bytes);
      } else if (output.source == Source::kPriority) {
        const float priority = Bounds(r, plan.index).priority(w.slot);
        std::memcpy(to, &priority, sizeof priority);
      } else {
        const auto age = static_cast<int64_t>(age_of(r, plan.index, w.slot, w.word));
        std::memcpy(to, &age, sizeof age);
      }
    }
  }
}

}  // namespace relive
