// Items with a time axis: sequences and episodes (rules S1 to S3 say which there are).
//
// A window is `lead` rows of burn-in, the steps from the item's own on, and the state behind the last of them where the
// episode ends before the window is full. Its T rows come as [T, ...], padded where there are none (in the
// array of a batch together, or where the time axis comes first a batch apart; ItemPlace says where):
//
//   pad right   | padding: burn-in that the episode does not have | lead | steps | tail | padding |
//   pad left    | padding | lead | steps | tail |
//
// Padding in front repeats the first state of the window (columns of kind state), all else of padding is zero; a tail
// has its states and zeros. The mask is set for steps alone.
//
// Locking: none needed, as for transitions (gather.hpp, which calls these).
// Cost:    the bytes of the rows at the speed of memory, and the head of each of its steps.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "relive/read/gather.hpp"

namespace relive {

// A window as its columns are copied: row t of it, t < num_rows, lies `first + t` rows behind row 0 of the item's page.
struct SequenceRows {
  const Region& r;
  const Window& w;
  const Run* runs;
  int64_t first;       // of the window's first row
  uint32_t in_front;   // rows of padding
  uint32_t num_steps;  // rows that are steps, burn-in included
  uint32_t num_rows;   // and the tail, where bootstrap leaves a row for it

  SequenceRows(const Region& region, const GatherPlan& plan, const Window& window, const Run* list)
      : r(region),
        w(window),
        runs(list),
        first(int64_t{region.offset_of(window.slot)} - window.lead),
        num_steps(window.lead + window.num_steps) {
    const SequenceConfig& sequence = r.header->indexes[plan.index].sequence;
    const bool shows_tail = w.has_tail && sequence.bootstrap > 0 && w.num_steps < sequence.length + sequence.bootstrap;
    num_rows = num_steps + (shows_tail ? 1 : 0);
    in_front = sequence.pad == PadSide::kLeft ? plan.num_rows - num_rows : sequence.burn_in - w.lead;
  }
  uint32_t episode_step(uint32_t t) const { return w.episode_step - w.lead + t; }

  // Calls each(base, row in it, slot) for rows [begin, begin + count) of the window, in order.
  template <class Each>
  void for_each(int64_t begin, uint32_t count, Each&& each) const {
    for (int64_t offset = first + begin; count > 0;) {
      const Run run = run_at(r, w, runs, offset);
      const auto row = static_cast<uint32_t>(offset & (r.page_len - 1));
      const uint32_t here = std::min(count, r.page_len - row);
      for (uint32_t k = 0; k < here; ++k) each(run.base, row + k, r.slot_of(run.page, row + k));
      offset += here;
      count -= here;
    }
  }

  // Calls each(rows behind row 0 of the item's page, destination) for every cell of a column that the window has, padding
  // in front among them; zeros where there is none. place: of the item, may be of none.
  template <class Each>
  void for_each_cell(const GatherPlan& plan, const Output& output, const ItemPlace& place, Each&& each) const {
    const ColumnLayout& column = r.columns[output.column];
    const auto copy = [&](int64_t row, uint32_t t) {
      const uint32_t before = episode_step(static_cast<uint32_t>(row));  // rows of the episode before it
      std::byte* to = place.at(t);
      for (uint32_t back = output.stack; back-- > 0;) {
        if (back <= before || r.header->indexes[plan.index].stack_pad != StackPad::kZeros) {
          each(first + row - std::min(back, before), to);
        } else if (to != nullptr) {
          std::memset(to, 0, column.num_bytes);
        }
        if (to != nullptr) to += column.num_bytes;
      }
    };
    if (output.row_bytes == 0) return copy(0, 0);  // of kind start
    const bool is_state = column.kind == ColumnKind::kState && output.source == Source::kColumn;
    const uint32_t count = is_state ? num_rows : num_steps;
    if (!is_state) zero_rows(output, place, 0, in_front);
    for (uint32_t t = 0; is_state && t < in_front; ++t) copy(0, t);
    const int64_t ahead = output.source == Source::kNext ? 1 : 0;
    for (uint32_t t = 0; t < count; ++t) copy(int64_t{t} + ahead, in_front + t);
    zero_rows(output, place, in_front + count, plan.num_rows);
  }
};

// Names: declared columns (of kind start: the first row's, no time axis), next_<state>, discount, mask, terminated,
// truncated, episode_step and first, one a row; lane, num_steps, policy_version (lowest and highest) and staleness (of
// the lowest), one an item. kInvalidConfig for any other.
Status make_sequence_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// resolve() and copy_rows() of sequences.
void resolve_sequences(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                       Runs* runs);
void copy_sequences(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                    const uint32_t* which, size_t count, size_t batch, std::byte* const* out);

}  // namespace relive
