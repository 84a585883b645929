#include "relive/read/hindsight.hpp"

#include <algorithm>

#include "relive/read/rows.hpp"
#include "relive/read/window_walk.hpp"

namespace relive {
namespace {

constexpr uint64_t kGoals = uint64_t{1} << 41;  // random numbers from here on select goals, lower ones draw and permute

// The number of existing rows of the episode before the item's row, at most episode_step. Adds their pages to the runs.
uint32_t rows_before(const Region& r, Window& w, Runs* runs) {
  uint64_t page = r.page_of(w.slot);
  uint32_t found = std::min(r.offset_of(w.slot), w.episode_step);
  while (found < w.episode_step) {
    Run prev;
    if (!follow(r, r.pages[page].prev, &prev)) break;
    runs->push_back(prev);
    ++w.pages_before;
    page = prev.page;
    found = std::min(found + r.page_len, w.episode_step);
  }
  return found;
}

// Resolves the step like a one-step transition, then walks to the end of its episode, whose row is a tail.
bool resolve_one(const Region& r, const GatherPlan& plan, Window& w, Runs* runs) {
  const IndexConfig& config = r.header->indexes[plan.index];
  Walk steps(r, w, runs);
  const uint32_t head = load_head(steps.at.base + steps.row * r.geometry->record_stride);
  w.episode_step = head & kStepMask;
  w.discount = config.gamma * r.discount_of(w.slot, head);
  w.ends = static_cast<uint8_t>((head & kTerminatedBit ? 1 : 0) | (head & kTruncatedBit ? 2 : 0));
  w.goal = kOwnGoal;
  uint32_t after = 0;  // rows from this one to the tail
  do {
    if (++after > config.sequence.length || !steps.advance() || !steps.is_there()) return false;
  } while (!steps.is_tail());
  if (after == 1 && w.ends == 0) w.ends = 2;
  if (!(w.pick < config.hindsight.share)) return true;
  const double place = w.pick / config.hindsight.share;  // uniform in [0, 1)
  const auto one_of = [place](uint32_t count) {
    return std::min(count - 1, static_cast<uint32_t>(place * static_cast<double>(count)));
  };
  switch (config.hindsight.goals) {
    case Goals::kFuture:
      w.goal = static_cast<int32_t>(1 + one_of(after));
      break;
    case Goals::kFinal:
      w.goal = static_cast<int32_t>(after);
      break;
    default: {  // the state after any step that still exists
      const uint32_t before = rows_before(r, w, runs);
      w.goal = 1 + static_cast<int32_t>(one_of(before + after)) - static_cast<int32_t>(before);
    }
  }
  return true;
}

}  // namespace

void pick_goals(const CounterRng& rng, Window* windows, const uint32_t* which, size_t count, double* picks) {
  for (size_t k = 0; k < count; ++k) {
    const uint32_t row = which[k];
    windows[row].pick = rng.uniform(kGoals + row);
    if (picks != nullptr) picks[row] = windows[row].pick;
  }
}

void resolve_with_goals(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count,
                        Runs* runs) {
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    begin_window(w, *runs);
    if (w.ok) w.ok = resolve_one(r, plan, w, runs);
  }
}

void copy_goals(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
                size_t count, size_t batch, std::byte* const* out) {
  const HindsightConfig& hindsight = r.header->indexes[plan.index].hindsight;
  const ColumnLayout& achieved = r.columns[hindsight.achieved];
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    const bool is_column = output.source == Source::kColumn || output.source == Source::kNext;
    if (!is_column || output.column != hindsight.goal) continue;
    for (size_t k = 0; k < count; ++k) {
      const Window& w = windows[which[k]];
      if (!w.ok || w.goal == kOwnGoal) continue;
      const RowPlace row = row_at(r, w, runs.data(), int64_t{r.offset_of(w.slot)} + w.goal);
      const ItemPlace to = place_of(plan, output, w, batch, out[o]);
      copy_bytes(to.first, row.base + achieved.offset + row.offset * achieved.stride, achieved.num_bytes);
    }
  }
}

}  // namespace relive
