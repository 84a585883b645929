#include "relive/table/writer_admission.hpp"

#include <algorithm>
#include <string>

#include "relive/table/waiting.hpp"
#include "relive/words/limiter.hpp"

namespace relive {
namespace {

// The answer of the limiters to the unstored rows of a block.
struct Admission {
  int64_t rows = 0;      // admitted now
  int64_t asked = 0;     // rows that must be admitted together
  int64_t items = 0;     // that these rows can begin in the index that refuses them
  uint32_t refused = 0;  // that index
  bool never = false;    // it can never admit them
};

// The most items that the next `rows` rows of a block can begin in an index. Admission counts these. An index of
// sequences counts the steps where one may begin and, if it moves windows back, one more for each end. An index of
// groups counts each episode that begins, because the end of that episode may complete a group.
int64_t most_items(const Region& r, LaneBlock block, uint32_t index, size_t stored, size_t rows) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  const bool is_group = r.header->indexes[index].group.is_set();
  if (!sequence.is_set() && !is_group) return static_cast<int64_t>(rows);
  const StepBlock& steps = block.steps;
  int64_t items = 0;
  for (size_t m = 0; m < steps.num_lanes; ++m) {
    const WriterLane& lane = block.lane(m);
    uint64_t step = sequence.crosses() ? lane.lane_step : lane.episode_step;
    for (size_t row = lane.num_stored; row * steps.num_lanes + m < stored + rows; ++row) {
      items += sequence.begins_at(step++) ? 1 : 0;
      if (!steps.ends_at(row, m)) continue;
      items += sequence.at_end == AtEnd::kShift ? 1 : 0;
      if (!sequence.crosses()) step = 0;
    }
  }
  return items;
}

// How many of the next `rows` rows begin at most `allowed` items.
int64_t rows_of_items(const Region& r, LaneBlock block, uint32_t index, size_t stored, size_t rows, int64_t allowed) {
  size_t fits = 0;
  for (size_t beyond = rows + 1; fits + 1 < beyond;) {  // more rows never begin fewer items
    const size_t middle = fits + (beyond - fits) / 2;
    (most_items(r, block, index, stored, middle) <= allowed ? fits : beyond) = middle;
  }
  return static_cast<int64_t>(fits);
}

// Fewer rows are admitted than are left. The block is stored in parts if it must be, and in whole steps if one step
// fits the limiters' windows together with the draws.
void split_admission(const Region& r, LaneBlock block, size_t stored, Admission* admission) {
  const auto width = static_cast<int64_t>(block.num_lanes());
  const auto first = static_cast<int64_t>(stored);
  bool goes_by_parts = stored > 0, steps_fit = true;
  for (const uint32_t i : r.appended_indexes()) {
    const LimiterConfig limiter = r.limiter(i);
    const int64_t draw = r.refused_draw(i);
    const auto asked = static_cast<size_t>(admission->asked), step = static_cast<size_t>(width);
    goes_by_parts |= !always_moves(limiter, most_items(r, block, i, stored, asked), draw);
    steps_fit &= always_moves(limiter, most_items(r, block, i, stored, step), draw);
  }
  const int64_t unit = steps_fit ? width : 1;
  if (goes_by_parts) admission->asked = unit - first % unit;
  admission->rows = goes_by_parts ? std::max<int64_t>(0, (first + admission->rows) / unit * unit - first) : 0;
}

// A block is admitted whole as long as it fits a limiter's window together with the draws. If it does not fit together
// with the largest draw that was refused so far, that draw and this block would wait for each other: then the block
// goes in parts, as many rows as there is room for.
Admission ask_limiters(const Region& r, LaneBlock block, size_t stored) {
  const int64_t left = static_cast<int64_t>(block.steps.num_rows * block.steps.num_lanes - stored);
  const int64_t reserved = r.reserved_rows();
  Admission admission{left, left, left, 0, false};
  for (const uint32_t i : r.appended_indexes()) {
    const LimiterConfig limiter = r.limiter(i);
    if (!paces_inserts(limiter)) continue;
    const int64_t items = most_items(r, block, i, stored, static_cast<size_t>(left));
    const int64_t allowed = most_insertable(limiter, r.inserted_counts(i, limiter, reserved), items);
    const int64_t rows =
        allowed >= items ? left : rows_of_items(r, block, i, stored, static_cast<size_t>(left), allowed);
    if (rows < admission.rows) {
      admission.rows = rows;
      admission.items = items;
      admission.refused = i;
    }
    if (rows < left && stored == 0 && !insert_can_ever_pass(limiter, items)) return {0, left, items, i, true};
  }
  if (admission.rows < left) split_admission(r, block, stored, &admission);
  return admission;
}

// The inequality that an insert of n items waits for.
std::string room_text(const LimiterConfig& limiter) {
  const std::string most = " <= " + std::to_string(limiter.hi);
  if (limiter.kind == LimiterConfig::kQueue) return "items in the queue + n" + most;
  if (limiter.kind == LimiterConfig::kStalenessBudget)
    return "inserted + pending + n - removed unused" + most + " = (eta + version + 1) x items_per_version";
  return "(inserted + n) x samples_per_insert - sampled" + most;
}

Status room_error(const Region& r, Code code, const Admission& admission, const Deadline& deadline) {
  const LimiterConfig limiter = r.limiter(admission.refused);
  if (code == Code::kRequestTooLarge)
    return Status(code)
        .with_int("requested", admission.items)
        .with_double("window", window(limiter) / limiter.samples_per_insert)
        .with_text("arithmetic", limiter_text(r, admission.refused));
  const LimiterCounts counts = r.inserted_counts(admission.refused, limiter, 0);
  const double inserted = static_cast<double>(counts.inserted + admission.items);
  const double has = inserted * limiter.samples_per_insert - static_cast<double>(counts.sampled);
  const std::string needs = room_text(limiter);
  // If every mass is 0, samplers have nothing to draw and make no room: both sides stand still.
  const std::string massless = massless_text(r, admission.refused);
  Status status =
      massless.empty()
          ? Status(code).with_text("needs", needs).with_double("has", has)
          : Status(code).with_text("needs", needs).with_text("has", std::to_string(has) + ", of " + massless);
  return std::move(status).with_double("waited_s", deadline.waited_s());
}

// One slice of a wait for the limiters.
Status wait_for_limiters(Table& table, LaneBlock block, size_t stored, const Deadline& deadline) {
  const Region& r = table.region();
  const Admission admission = ask_limiters(r, block, stored);
  if (admission.rows > 0) return {};
  if (admission.never) return room_error(r, Code::kRequestTooLarge, admission, deadline);
  Counters& counters = r.header->counters;
  const LimiterWait wait{
      r.header->room_event, counters.writer_waits, counters.writer_wait_ns, table.has_sampled(), true,
      admission.refused,    admission.items};
  return wait_for_limiter(
      table, wait, deadline, [&] { return ask_limiters(r, block, stored).rows > 0; },
      [&](Code code) { return room_error(r, code, admission, deadline); });
}

}  // namespace

Status admit_rows(Table& table, LaneBlock block, size_t stored, const Deadline& deadline, ReservedRows* reserved,
                  size_t* upto) {
  const Region& r = table.region();
  bool is_limited = false;
  for (const uint32_t i : r.appended_indexes()) is_limited |= paces_inserts(r.limiter(i));
  while (is_limited) {
    if (table.is_closed()) return Status(Code::kTableClosed);
    {
      Locked locked(table.door(), deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      const int64_t rows = ask_limiters(r, block, stored).rows;
      if (rows > 0) {
        reserved->reserve(rows);
        *upto = stored + static_cast<size_t>(rows);
        return {};
      }
    }
    RELIVE_RETURN_IF_ERROR(wait_for_limiters(table, block, stored, deadline));
  }
  return {};
}

}  // namespace relive
