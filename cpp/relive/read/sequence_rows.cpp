// Copies the rows of sequences and episodes into the columns of a batch.
#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "relive/index/bounds.hpp"
#include "relive/read/rows.hpp"
#include "relive/read/sequences.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// One value for each step.
template <class T, class Value>
void fill(const SequenceRows& rows, const ItemPlace& place, Value&& value) {
  uint32_t t = rows.in_front;
  rows.for_each(0, rows.num_steps, [&](const std::byte* base, uint32_t row, uint64_t slot) {
    const T number = static_cast<T>(value(load_head(base + row * rows.r.geometry->record_stride), slot));
    std::memcpy(place.at(t++), &number, sizeof(T));
  });
}

// Bytes of rows of which all columns are copied before the next rows are.
constexpr uint64_t kTogether = 4096;

// The cells of one column in rows that follow each other.
struct Cells {
  std::byte* to;
  uint64_t step;
  const std::byte* from;
  uint64_t stride;
  size_t num_bytes;
};
using CopyRows = void (*)(const Cells* cells, uint32_t count);

// All numbers are values: the compiler must assume that a store changes others. Prefetches the next rows, because the
// processor's prefetcher stops at every 4 KiB.
template <class... Copies>
void copy_strided(const Cells* cells, uint32_t count) {
  [&]<size_t... kColumn>(std::index_sequence<kColumn...>) {
    const std::tuple<Copies...> copies{Copies{cells[kColumn].num_bytes}...};
    std::byte* to[] = {cells[kColumn].to...};
    const std::byte* from[] = {cells[kColumn].from...};
    const uint64_t steps[] = {cells[kColumn].step...}, strides[] = {cells[kColumn].stride...};
    for (uint32_t k = 0; k < count; ++k) {
      ((__builtin_prefetch(from[kColumn] + kTogether), std::get<kColumn>(copies)(to[kColumn], from[kColumn]),
        to[kColumn] += steps[kColumn], from[kColumn] += strides[kColumn]),
       ...);
    }
  }(std::index_sequence_for<Copies...>{});
}

// Whether each row of the window has one cell of the output, which is copied as it is.
bool has_cells(const SequenceRows& rows, const Output& output, size_t batch) {
  if (output.source != Source::kColumn && output.source != Source::kNext) return false;
  const ColumnLayout& column = rows.r.columns[output.column];
  // A piece of a window that crosses ends may stop before a tail: the row after it is then not in the piece.
  const bool has_next_rows = !rows.crosses || output.source != Source::kNext;
  return has_next_rows && output.stack == 1 && output.row_bytes != 0 && column.area != Area::kCell &&
         !is_streamed(column, output.item_bytes, batch);
}

// One or two outputs of has_cells() that are copied together, row by row: a loop over rows has work of its own for each
// row, whatever it copies.
struct Pass {
  size_t outputs[2];
  const ColumnLayout* columns[2];
  ItemPlace places[2];  // of the present window
  size_t num_outputs;
  CopyRows copy;
};
struct Passes {
  std::vector<Pass> of_steps, of_next;  // of the rows of the steps, and of the rows after them
};

CopyRows copy_of(size_t num_bytes) {
  CopyRows found = nullptr;
  with_copy(num_bytes, [&](auto copy) { found = copy_strided<decltype(copy)>; });
  return found;
}

CopyRows copy_of(size_t first, size_t second) {
  CopyRows found = nullptr;
  with_copy(first, [&](auto one) {
    with_copy(second, [&](auto other) { found = copy_strided<decltype(one), decltype(other)>; });
  });
  return found;
}

// Cells of one record.
bool go_together(const ColumnLayout& one, const ColumnLayout& other) {
  constexpr size_t kMost = 128;  // bytes: for longer cells, the work of the loop counts little
  return one.area == Area::kRecord && other.area == Area::kRecord && std::max(one.num_bytes, other.num_bytes) <= kMost;
}

Passes make_passes(const SequenceRows& rows, const GatherPlan& plan, size_t batch) {
  Passes made;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (output.is_bulk || !has_cells(rows, output, batch)) continue;
    const ColumnLayout& column = rows.r.columns[output.column];
    std::vector<Pass>& passes = output.source == Source::kNext ? made.of_next : made.of_steps;
    if (!passes.empty() && passes.back().num_outputs == 1 && go_together(*passes.back().columns[0], column)) {
      Pass& pass = passes.back();
      pass.outputs[1] = o;
      pass.columns[1] = &column;
      pass.num_outputs = 2;
      pass.copy = copy_of(pass.columns[0]->num_bytes, column.num_bytes);
    } else {
      passes.push_back({{o, o}, {&column, &column}, {}, 1, copy_of(column.num_bytes)});
    }
  }
  return made;
}

// Writes the rows of an output that are no steps: padding, and the state of a tail.
void copy_ends(const SequenceRows& rows, const Output& output, const ItemPlace& place) {
  const ColumnLayout& column = rows.r.columns[output.column];
  const bool is_state = column.kind == ColumnKind::kState && output.source != Source::kNext;
  const uint32_t count = is_state ? rows.num_rows : rows.num_steps;
  const auto copy_state = [&](int64_t offset, uint32_t t) {
    const RowPlace row = row_at(rows.r, rows.w, rows.runs, offset);
    copy_bytes(place.at(t), row.base + column.offset + row.offset * column.stride, column.num_bytes);
  };
  if (!is_state) zero_rows(output, place, 0, rows.in_front);
  for (uint32_t t = 0; is_state && t < rows.in_front; ++t) copy_state(rows.first, t);
  for (uint32_t t = rows.num_steps; t < count; ++t) copy_state(rows.first + t, rows.in_front + t);
  zero_rows(output, place, rows.in_front + count, rows.end);
}

// Copies the outputs of the passes, page by page: all of some rows, then all of the next rows. The first-level cache
// keeps the rows until their last column is copied. next: 1 for the rows after the steps.
void copy_steps(const SequenceRows& rows, const std::vector<Pass>& passes, uint32_t next) {
  const auto some = static_cast<uint32_t>(std::max<uint64_t>(kTogether / rows.r.geometry->record_stride, 1));
  uint32_t t = rows.in_front;
  rows.for_each_piece(next, rows.num_steps, [&](const Run& run, uint32_t row, uint32_t num_rows) {
    for (uint32_t end = row + num_rows; row < end;) {
      const uint32_t here = std::min(some, end - row);
      for (const Pass& pass : passes) {
        Cells cells[2];
        for (size_t i = 0; i < pass.num_outputs; ++i) {
          const ColumnLayout& column = *pass.columns[i];
          const std::byte* from = run.base + column.offset + row * column.stride;
          cells[i] = {pass.places[i].at(t), pass.places[i].step, from, column.stride, column.num_bytes};
        }
        pass.copy(cells, here);
      }
      row += here;
      t += here;
    }
  });
}

// Copies the outputs of has_cells().
void copy_passes(const SequenceRows& rows, const GatherPlan& plan, Passes* passes, size_t batch,
                 std::byte* const* out) {
  const bool has_ends = rows.in_front != 0 || rows.num_steps != rows.end;
  for (std::vector<Pass>* some : {&passes->of_steps, &passes->of_next}) {
    if (some->empty()) continue;
    for (Pass& pass : *some)
      for (size_t i = 0; i < pass.num_outputs; ++i) {
        const Output& output = plan.outputs[pass.outputs[i]];
        pass.places[i] = place_of(plan, output, rows.w, batch, out[pass.outputs[i]]);
        if (has_ends) copy_ends(rows, output, pass.places[i]);
      }
    copy_steps(rows, *some, some == &passes->of_next ? 1 : 0);
  }
}

void copy_cells(const SequenceRows& rows, const GatherPlan& plan, const Output& output, size_t batch,
                const ItemPlace& place) {
  const ColumnLayout& column = rows.r.columns[output.column];
  const uint64_t num_bytes = column.num_bytes, stride = column.stride, offset = column.offset;
  const bool streams = is_streamed(column, output.item_bytes, batch);
  rows.for_each_cell(plan, output, place, [&](int64_t at, std::byte* into) {
    const RowPlace row = row_at(rows.r, rows.w, rows.runs, at);
    const std::byte* from = row.base + offset + row.offset * stride;
    streams ? stream_bytes(into, from, num_bytes) : copy_bytes(into, from, num_bytes);
  });
}

// Copies the value of a start column that only some rows have: that of the window's first row. If the row has no cell,
// the window has changed, and the check after the copy finds that (rule G4).
void copy_start(const SequenceRows& rows, const Output& output, std::byte* to) {
  const Region& r = rows.r;
  const RowPlace row = row_at(r, rows.w, rows.runs, rows.first);
  const uint32_t cell = load_head(row.base + row.offset * r.geometry->record_stride + kCellWord);
  if (cell < r.cells.state->committed.load(std::memory_order_acquire)) {
    copy_bytes(to, r.cells.at(cell) + r.columns[output.column].offset, output.item_bytes);
  } else {
    std::memset(to, 0, output.item_bytes);
  }
}

void fill_steps(const SequenceRows& rows, const GatherPlan& plan, const Output& output, const ItemPlace& to) {
  const Region& r = rows.r;
  const double gamma = r.header->indexes[plan.index].gamma;
  const uint32_t last = rows.num_steps - 1;
  uint32_t t = 0;
  switch (output.source) {
    case Source::kDiscount:
      return fill<float>(rows, to, [&](uint32_t head, uint64_t slot) { return gamma * r.discount_of(slot, head); });
    case Source::kTerminated:
      return fill<uint8_t>(rows, to, [](uint32_t head, uint64_t) { return (head & kTerminatedBit) != 0; });
    case Source::kTruncated:  // an end that came after its step is the tail after it
      if (rows.crosses && r.geometry->has_state != 0) {
        const auto is_end = [&](int64_t at) { return at == rows.last ? rows.w.has_tail : rows.is_tail(at + 1); };
        rows.for_each_step([&](int64_t offset) {
          const RowPlace row = row_at(r, rows.w, rows.runs, offset);
          const uint32_t head = load_head(row.base + row.offset * r.geometry->record_stride);
          const bool is_cut = is_end(offset) && (head & kTerminatedBit) == 0;
          *to.at(rows.in_front + t++) = static_cast<std::byte>(is_cut || (head & kTruncatedBit) != 0);
        });
        return;
      }
      return fill<uint8_t>(rows, to, [&](uint32_t head, uint64_t) {
        const bool is_cut = t++ == last && rows.w.has_tail && (head & kTerminatedBit) == 0;
        return is_cut || (head & kTruncatedBit) != 0;
      });
    case Source::kEpisodeStep:
      return fill<int64_t>(rows, to, [](uint32_t head, uint64_t) { return head & kStepMask; });
    case Source::kFirst:
      return fill<uint8_t>(rows, to, [](uint32_t head, uint64_t) { return (head & kStepMask) == 0; });
    case Source::kLossMask: {
      const uint32_t length = r.header->indexes[plan.index].sequence.length;
      for (uint32_t step = 0; step < rows.num_steps; ++step)
        *to.at(rows.in_front + step) = std::byte{step >= rows.w.lead && step - rows.w.lead < length};
      return;
    }
    default:
      for (uint32_t step = 0; step < rows.num_steps; ++step) *to.at(rows.in_front + step) = std::byte{1};  // the mask
  }
}

// One value for each item.
void fill_item(const SequenceRows& rows, uint32_t index, const Output& output, std::byte* to) {
  const Region& r = rows.r;
  const auto store = [&to](int64_t number) {
    std::memcpy(to, &number, sizeof number);
    to += sizeof number;
  };
  int64_t lowest = INT64_MAX, highest = 0;
  const auto look_at_versions = [&] {
    rows.for_each(0, rows.num_steps, [&](const std::byte*, uint32_t, uint64_t slot) {
      const int64_t version = r.marks[slot].policy_version.load(kRelaxed);
      lowest = std::min(lowest, version);
      highest = std::max(highest, version);
    });
  };
  switch (output.source) {
    case Source::kLane:
      return store(static_cast<int64_t>(r.lane_of(rows.w.slot)));
    case Source::kPolicyVersion:
      look_at_versions();
      store(lowest);
      return store(highest);
    case Source::kStaleness:
      look_at_versions();
      return store(int64_t{r.header->policy_version.load(kRelaxed)} - lowest);
    case Source::kNumRows:
      return store(rows.num_rows);
    case Source::kAge:
      return store(static_cast<int64_t>(age_of(r, index, rows.w.slot, rows.w.word)));
    case Source::kPriority: {
      const float priority = Bounds(r, index).priority(rows.w.slot);
      std::memcpy(to, &priority, sizeof priority);
      return;
    }
    case Source::kOffsets:
      return;  // of the batch, not of an item
    default:
      return store(rows.num_steps);
  }
}

void copy_output(const SequenceRows& rows, const GatherPlan& plan, const Output& output, size_t batch, std::byte* out) {
  const ItemPlace place = place_of(plan, output, rows.w, batch, out);
  if (output.source == Source::kColumn && rows.r.columns[output.column].area == Area::kCell)
    return copy_start(rows, output, place.first);
  if (output.source == Source::kColumn || output.source == Source::kNext)
    return copy_cells(rows, plan, output, batch, place);
  if (output.row_bytes == 0) return fill_item(rows, plan.index, output, place.first);
  zero_rows(output, place, 0, rows.in_front);
  fill_steps(rows, plan, output, place);
  zero_rows(output, place, rows.in_front + rows.num_steps, rows.end);
}

}  // namespace

void copy_sequences(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                    const uint32_t* which, size_t count, size_t batch, std::byte* const* out) {
  std::optional<Passes> passes;  // the same for all windows of a batch
  for (size_t k = 0; k < count; ++k) {
    const Window& w = windows[which[k]];
    if (!w.ok) continue;
    const SequenceRows rows(r, plan, w, runs.data());
    if (!passes) passes = make_passes(rows, plan, batch);
    copy_passes(rows, plan, &*passes, batch, out);
    for (size_t o = 0; o < plan.outputs.size(); ++o) {
      const Output& output = plan.outputs[o];
      if (!output.is_bulk && !has_cells(rows, output, batch)) copy_output(rows, plan, output, batch, out[o]);
    }
  }
  end_stream();
}

}  // namespace relive
