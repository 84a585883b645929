// Copies the rows of sequences and episodes into the columns of a batch.
#include <algorithm>
#include <cstring>

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

// Returns the place after the last cell. All numbers are values: the compiler must assume that a store changes others.
// Prefetches the next rows, because the processor's prefetcher stops at every 4 KiB.
template <class Copy>
std::byte* copy_strided(Copy copy, std::byte* to, uint64_t step, const std::byte* from, uint64_t stride,
                        uint32_t count) {
  for (uint32_t k = 0; k < count; ++k, to += step, from += stride) {
    __builtin_prefetch(from + kTogether);
    copy(to, from);
  }
  return to;
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

// Copies these cells of the window's rows [begin, begin + most), page by page. From 0 on: the padding, too. A window
// that crosses ends is copied as a whole.
void copy_pieces(const SequenceRows& rows, const Output& output, const ItemPlace& place, uint32_t begin,
                 uint32_t most) {
  const ColumnLayout& column = rows.r.columns[output.column];
  const uint64_t stride = column.stride, offset = column.offset, step = place.step;
  const bool is_next = output.source == Source::kNext;
  const bool is_state = column.kind == ColumnKind::kState && !is_next;
  const uint32_t count = is_state ? rows.num_rows : rows.num_steps, in_front = rows.in_front;
  with_copy(column.num_bytes, [&](auto&& copy) {
    if (begin == 0 && is_state) {
      const RowPlace first = row_at(rows.r, rows.w, rows.runs, rows.first);
      for (uint32_t t = 0; t < in_front; ++t) copy(place.at(t), first.base + offset + first.offset * stride);
    }
    if (begin >= count) return;
    std::byte* to = place.at(in_front + begin);
    const uint32_t here = std::min(most, count - begin);
    rows.for_each_piece(begin + (is_next ? 1 : 0), here, [&](const Run& run, uint32_t row, uint32_t num_rows) {
      to = copy_strided(copy, to, step, run.base + offset + row * stride, stride, num_rows);
    });
  });
  if (begin != 0) return;
  if (!is_state) zero_rows(output, place, 0, in_front);
  zero_rows(output, place, in_front + count, rows.end);
}

// Copies the outputs of has_cells(): all of some rows, then all of the next rows. The first-level cache keeps the rows
// until their last column is copied.
void copy_all_pieces(const SequenceRows& rows, const GatherPlan& plan, size_t batch, std::byte* const* out) {
  const auto some = static_cast<uint32_t>(std::max<uint64_t>(kTogether / rows.r.geometry->record_stride, 1));
  const uint32_t most = rows.crosses ? rows.end : some;
  for (uint32_t begin = 0; begin < rows.end; begin += most)
    for (size_t o = 0; o < plan.outputs.size(); ++o) {
      const Output& output = plan.outputs[o];
      if (output.is_bulk || !has_cells(rows, output, batch)) continue;
      copy_pieces(rows, output, place_of(plan, output, rows.w, batch, out[o]), begin, most);
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
  for (size_t k = 0; k < count; ++k) {
    const Window& w = windows[which[k]];
    if (!w.ok) continue;
    const SequenceRows rows(r, plan, w, runs.data());
    copy_all_pieces(rows, plan, batch, out);
    for (size_t o = 0; o < plan.outputs.size(); ++o) {
      const Output& output = plan.outputs[o];
      if (!output.is_bulk && !has_cells(rows, output, batch)) copy_output(rows, plan, output, batch, out[o]);
    }
  }
  end_stream();
}

}  // namespace relive
