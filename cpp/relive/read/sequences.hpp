// Items with a time axis: sequences and episodes (rules S1 to S6 say which rows are items).
//
// Owns:    nothing.
// Locking: none, as for transitions (gather.hpp, which calls these functions).
// Cost:    the bytes of the rows at the speed of memory; if windows cross ends, the head of each step, too.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "relive/read/gather.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {

// A window has `lead` rows of burn-in, the steps from the item's own on, and the state after the last step if the
// episode ends before the window is full. A batch has T rows for each window; ItemPlace gives the place of a row, with
// the time axis first or second:
//
//   pad right   | padding: burn-in before the episode's start | lead | steps | tail | padding |
//   pad left    | padding | lead | steps | tail |
//
// Padding in front repeats the window's first state (columns of kind state); all other padding is zero. A tail has its
// states, and zeros. The mask is set for steps only. Ragged batches (ragged.hpp) have no padding.
//
// Row t of the window, t < num_rows, lies `first + t` rows after row 0 of the item's page. If windows cross ends, the
// window has steps only: row t is the t-th row of first, first + 1 ... last that is no tail.
struct SequenceRows {
  const Region& r;
  const Window& w;
  const Run* runs;
  bool crosses;
  int64_t first, last;  // of the window's first row; crosses: of its last step
  uint32_t in_front;    // rows of padding
  uint32_t num_steps;   // rows that are steps, burn-in included
  uint32_t num_rows;    // plus the tail, if bootstrap has a row for it
  uint32_t end;         // rows of its place, padding included

  SequenceRows(const Region& region, const GatherPlan& plan, const Window& window, const Run* list)
      : r(region),
        w(window),
        runs(list),
        crosses(region.header->indexes[plan.index].sequence.crosses()),
        first(int64_t{region.offset_of(window.slot)} - window.rows_before),
        last(int64_t{region.offset_of(window.slot)} + window.rows_after),
        num_steps(window.lead + window.num_steps) {
    const SequenceConfig& sequence = r.header->indexes[plan.index].sequence;
    const bool shows_tail =
        !crosses && w.has_tail && sequence.bootstrap > 0 && w.num_steps < sequence.length + sequence.bootstrap;
    num_rows = num_steps + (shows_tail ? 1 : 0);
    end = plan.is_ragged ? num_rows : plan.num_rows;
    in_front = sequence.pad == PadSide::kLeft ? plan.num_rows - num_rows : sequence.burn_in - w.lead;
    if (plan.is_ragged) in_front = 0;
  }
  // Crosses: the number of rows of a step's episode before the step, as far as the window's pages reach.
  uint32_t stackable(int64_t offset) const {
    const RowPlace row = row_at(r, w, runs, offset);
    const uint32_t step = load_head(row.base + row.offset * r.geometry->record_stride) & kStepMask;
    return static_cast<uint32_t>(std::min<int64_t>(step, offset + int64_t{w.pages_before} * r.page_len));
  }
  uint32_t episode_step(uint32_t t) const { return w.episode_step - w.lead + t; }

  // Calls each(base, row in it, slot) for rows [begin, begin + count) of the window, in order; crosses: for all steps.
  template <class Each>
  void for_each(int64_t begin, uint32_t count, Each&& each) const {
    for_each_piece(begin, count, [&](const Run& run, uint32_t row, uint32_t num_rows) {
      for (uint32_t k = 0; k < num_rows; ++k) each(run.base, row + k, r.slot_of(run.page, row + k));
    });
  }
  // The same rows in pieces of one page: calls each(run, first row in it, number of rows).
  template <class Each>
  void for_each_piece(int64_t begin, uint32_t count, Each&& each) const {
    int64_t offset = crosses ? first : first + begin;
    uint32_t left = crosses ? num_steps : count;
    while (left > 0 && !(crosses && offset > last)) {
      const auto row = static_cast<uint32_t>(offset & (r.page_len - 1));
      const Run run = run_at(r, w, runs, offset);
      uint32_t here = std::min(left, r.page_len - row);
      if (crosses)
        here = r.rows_to_tail(run.page, row, static_cast<uint32_t>(std::min<int64_t>(here, last - offset + 1)));
      if (here > 0) each(run, row, here);
      offset += here > 0 ? here : 1;  // crosses: past a tail
      left -= here;
    }
  }
  bool is_tail(int64_t offset) const {
    return r.is_tail(run_at(r, w, runs, offset).page, static_cast<uint32_t>(offset & (r.page_len - 1)));
  }
  // Crosses: calls each(offset) for the steps in order. Rows that were rewritten at the same time may give other or
  // fewer steps, but never rows outside the window.
  template <class Each>
  void for_each_step(Each&& each) const {
    uint32_t left = num_steps;
    for (int64_t offset = first; offset <= last && left > 0; ++offset) {
      if (is_tail(offset)) continue;
      each(offset);
      --left;
    }
  }

  // Calls each(rows after row 0 of the item's page, destination) for every cell of a column in the window, padding in
  // front included. Writes zeros for all other cells. place: of the item; its first may be null.
  template <class Each>
  void for_each_cell(const GatherPlan& plan, const Output& output, const ItemPlace& place, Each&& each) const {
    const ColumnLayout& column = r.columns[output.column];
    // newest: rows after row 0 of the page; before: rows of the episode before it; t: position on the time axis
    const auto copy_at = [&](int64_t newest, uint32_t before, uint32_t t) {
      std::byte* to = place.at(t);
      for (uint32_t back = output.stack; back-- > 0;) {
        if (back <= before || r.header->indexes[plan.index].stack_pad != StackPad::kZeros) {
          each(newest - std::min(back, before), to);
        } else if (to != nullptr) {
          std::memset(to, 0, column.num_bytes);
        }
        if (to != nullptr) to += column.num_bytes;
      }
    };
    const auto copy = [&](int64_t row, uint32_t t) {
      copy_at(first + row, episode_step(static_cast<uint32_t>(row)), t);
    };
    const int64_t next = output.source == Source::kNext ? 1 : 0;
    const auto copy_step = [&](int64_t offset, uint32_t t) {
      copy_at(offset + next, output.stack > 1 ? stackable(offset) + static_cast<uint32_t>(next) : 0, t);
    };
    if (output.row_bytes == 0) return copy_at(first, 0, 0);  // kind start or episode
    const bool is_state = column.kind == ColumnKind::kState && next == 0;
    const uint32_t count = is_state ? num_rows : num_steps;
    if (!is_state) zero_rows(output, place, 0, in_front);
    for (uint32_t t = 0; is_state && t < in_front; ++t) crosses ? copy_step(first, t) : copy(0, t);
    if (crosses) {
      uint32_t t = in_front;
      for_each_step([&](int64_t offset) { copy_step(offset, t++); });
    } else {
      for (uint32_t t = 0; t < count; ++t) copy(int64_t{t} + next, in_front + t);
    }
    zero_rows(output, place, in_front + count, end);
  }
};

// Names, with one value for each row: declared columns, next_<state>, discount, mask, loss_mask, terminated, truncated,
// episode_step, first. With one value for each item: columns of kind start, and of kind episode unless windows cross
// ends (the first row's value); lane, num_steps, policy_version (lowest and highest), staleness (of the lowest).
// offsets: makes the batch ragged. kInvalidConfig for any other name, and for offsets if the time axis comes first.
Status make_sequence_plan(const Region& r, const std::vector<std::string>& names, GatherPlan* plan);

// resolve() and copy_rows() for sequences.
void resolve_sequences(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                       Runs* runs);
void copy_sequences(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs,
                    const uint32_t* which, size_t count, size_t batch, std::byte* const* out);

}  // namespace relive
