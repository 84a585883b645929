#include "relive/table/staged_source.hpp"

#include <algorithm>
#include <cstring>

#include "relive/read/rows.hpp"
#include "relive/read/sequences.hpp"
#include "relive/words/record_view.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The place of one row of a large column.
struct BulkRow {
  uint64_t page;
  uint64_t word;
  uint32_t column;
  uint32_t row;
};

BulkRow row_of(const Region& r, const Window& w, const Runs& runs, int64_t offset, uint32_t column) {
  const Run run = run_at(r, w, runs.data(), offset);
  return {run.page, run.word, column, static_cast<uint32_t>(offset & (r.page_len - 1))};
}

// The rows of an explicit item's windows. Zeros follow the last row of each window.
template <class Each>
void for_each_record_row(const Region& r, const GatherPlan& plan, const Output& output, const Window& w,
                         const Runs& runs, std::byte* out, Each&& each) {
  const Records& records = r.records[plan.index];
  const uint64_t num_bytes = r.columns[output.column].num_bytes,
                 bytes_a_window = output.item_bytes / output.num_windows;
  const Run* const begin = runs.data() + w.first_run;
  for (uint32_t k = 0; k < output.num_windows; ++k) {
    const uint32_t window = output.window + k;
    std::byte* to = out == nullptr ? nullptr : out + w.row * output.item_bytes + k * bytes_a_window;
    std::byte* const end = out == nullptr ? nullptr : to + bytes_a_window;
    uint32_t left = output.is_of_member ? 1 : ~0u;  // a member has one value of such a column: that of its first row
    for (const Run* run = begin; run < begin + w.pages_after; ++run) {
      if (run->window != window) continue;
      for (uint32_t row = 0; row < run->count && left > 0; ++row, --left) {
        each(BulkRow{run->page, run->word, output.column, run->first + row * records.shape(window).stride}, to);
        if (to != nullptr) to += num_bytes;
      }
    }
    if (to != nullptr) std::memset(to, 0, static_cast<size_t>(end - to));
  }
}

// Calls each(row, destination) for every bulk row that a window needs, and writes zeros for padding. out may be null:
// then nothing is written.
template <class Each>
void for_each_row(const Region& r, const GatherPlan& plan, const Window& w, const Runs& runs, size_t batch,
                  std::byte* const* out, Each&& each) {
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (!output.is_bulk) continue;
    if (plan.max_rows != 0) {
      for_each_record_row(r, plan, output, w, runs, out == nullptr ? nullptr : out[o], each);
      continue;
    }
    if (plan.num_rows != 0) {
      const ItemPlace place = out == nullptr ? ItemPlace{} : place_of(plan, output, w, batch, out[o]);
      SequenceRows(r, plan, w, runs.data()).for_each_cell(plan, output, place, [&](int64_t offset, std::byte* to) {
        each(row_of(r, w, runs, offset, output.column), to);
      });
      continue;
    }
    const uint64_t num_bytes = r.columns[output.column].num_bytes;
    const uint32_t ahead = output.source == Source::kNext ? w.num_steps : 0;
    const int64_t newest = int64_t{r.offset_of(w.slot)} + ahead;
    const uint32_t before = w.episode_step + ahead;
    std::byte* to = out == nullptr ? nullptr : out[o] + w.row * output.item_bytes;
    const bool pads_zeros = output.stack > 1 && r.header->indexes[plan.index].stack_pad == StackPad::kZeros;
    if (output.of_step && !has_step(r, w, runs.data(), newest)) {
      if (to != nullptr) std::memset(to, 0, num_bytes);
      continue;
    }
    for (uint32_t back = output.stack; back-- > 0;) {
      if (output.stack > 1 && back > before && pads_zeros) {
        if (to != nullptr) std::memset(to, 0, num_bytes);
      } else {
        const uint32_t reach = output.stack > 1 ? std::min(back, before) : 0;
        each(row_of(r, w, runs, newest - reach, output.column), to);
      }
      if (to != nullptr) to += num_bytes;
    }
  }
}

// Calls each(unit, offset in the unit, bytes of the row in the unit) for each unit that the row lies in.
template <class Each>
void for_each_unit(const Region& r, const BulkRow& row, Each&& each) {
  const uint64_t unit_bytes = r.bulk.geometry->unit_bytes(row.column);
  uint64_t at = row.row * r.columns[row.column].stride, left = r.columns[row.column].num_bytes;
  while (left > 0) {
    const uint64_t offset = at % unit_bytes, size = std::min(left, unit_bytes - offset);
    each(UnitId{r.ref_of(row.page, row.word),
                r.bulk.geometry->first_unit[row.column] + static_cast<uint32_t>(at / unit_bytes)},
         offset, size);
    at += size;
    left -= size;
  }
}

}  // namespace

// Copies the rows that are in memory, and lists the pieces of the others. Returns the number of copied rows.
uint64_t StagedSource::copy_from_ram(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                                     size_t batch, const Runs& runs, std::byte* const* out) {
  RELIVE_NOT_LOCKED("rows are copied under the lock");
  uint64_t copied = 0;
  pieces_.clear();
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    Window& w = windows[i];
    if (!w.ok) continue;
    for_each_row(r_, plan, w, runs, batch, out, [&](const BulkRow& row, std::byte* to) {
      const BulkPlace place = r_.bulk.place(row.page);
      const ColumnLayout& column = r_.columns[row.column];
      if (place.kind == BulkKind::kRam) {
        copy_bytes(to, r_.bulk.frame(place.number) + column.offset + row.row * column.stride, column.num_bytes);
        ++copied;
      } else if (place.kind == BulkKind::kNone) {
        w.ok = false;
      } else {
        for_each_unit(r_, row, [&](const UnitId& id, uint64_t offset, uint64_t size) {
          pieces_.push_back({id, offset, size, to, i});
          to += size;
        });
      }
    });
  }
  return copied;
}

Status StagedSource::read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch,
                          Runs* runs, std::byte* const* out) {
  locate(r_, plan, windows, which, count);
  resolve(r_, plan, windows, which, count, runs);
  copy_rows(r_, plan, windows, *runs, which, count, batch, out);
  tier_.counters().rows_from_ram.fetch_add(copy_from_ram(plan, windows, which, count, batch, *runs, out), kRelaxed);
  stale_.resize(batch);
  const Status status = tier_.staging().deliver(ticket_, &pieces_, deadline_, cancelled_, stale_.data());
  for (size_t k = 0; k < count; ++k) {
    if (stale_[which[k]] != 0) windows[which[k]].ok = false;
    stale_[which[k]] = 0;
  }
  return status;
}

void list_units(const Region& r, const GatherPlan& plan, const Window* windows, const uint32_t* which, size_t count,
                const Runs& runs, std::vector<UnitId>* units) {
  for (size_t k = 0; k < count; ++k) {
    if (!windows[which[k]].ok) continue;
    for_each_row(r, plan, windows[which[k]], runs, 0, nullptr, [&](const BulkRow& row, std::byte*) {
      for_each_unit(r, row, [&](const UnitId& id, uint64_t, uint64_t) { units->push_back(id); });
    });
  }
  std::sort(units->begin(), units->end());
  units->erase(std::unique(units->begin(), units->end()), units->end());
}

}  // namespace relive
