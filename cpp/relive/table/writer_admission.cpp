#include "relive/table/writer_admission.hpp"

#include <algorithm>
#include <string>

#include "relive/table/under_way.hpp"
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

// Whether an end after num_steps steps of an episode makes an item that no row has asked for: the window that the end
// moves back begins at no period. Windows that the end cuts short are items no more. If they were counted from the
// moment they began, the moved window takes the place of one.
bool asks_for_moved(const SequenceConfig& sequence, uint64_t num_steps, bool counts_begun) {
  if (sequence.at_end != AtEnd::kShift || sequence.only_the_last != 0 || num_steps <= sequence.length) return false;
  const uint64_t moved = num_steps - sequence.length;
  if (sequence.begins_at(moved)) return false;
  const uint64_t last_begun = sequence.period == 0 ? 0 : (num_steps - 1) / sequence.period * sequence.period;
  return !counts_begun || last_begun <= moved;
}

// The most items that the next `rows` rows of a block can begin in an index. Admission counts these. An index of
// sequences counts the steps where one may begin, and once each end that moves a window back. An index of groups counts
// the groups that begin; `way` has looked at that index.
int64_t most_items(const Region& r, LaneBlock block, uint32_t index, size_t stored, size_t rows, UnderWay* way) {
  const SequenceConfig& sequence = r.header->indexes[index].sequence;
  if (r.header->indexes[index].group.is_set()) return way->groups_of(stored, rows);
  if (!sequence.is_set()) return static_cast<int64_t>(rows);
  const StepBlock& steps = block.steps;
  const bool counts_begun = UnderWay::is_counted(r, index, r.limiter(index));
  int64_t items = 0;
  for (size_t m = 0; m < steps.num_lanes; ++m) {
    const WriterLane& lane = block.lane(m);
    uint64_t step = sequence.crosses() ? lane.lane_step : lane.episode_step;
    for (size_t row = lane.num_stored; row * steps.num_lanes + m < stored + rows; ++row) {
      const bool ends = steps.ends_at(row, m), begins = sequence.begins_at(step++);
      items += begins || (ends && asks_for_moved(sequence, step, counts_begun)) ? 1 : 0;
      if (ends && !sequence.crosses()) step = 0;
    }
  }
  return items;
}

// How many of the next `rows` rows begin at most `allowed` items.
int64_t rows_of_items(const Region& r, LaneBlock block, uint32_t index, size_t stored, size_t rows, int64_t allowed,
                      UnderWay* way) {
  size_t fits = 0;
  for (size_t beyond = rows + 1; fits + 1 < beyond;) {  // more rows never begin fewer items
    const size_t middle = fits + (beyond - fits) / 2;
    (most_items(r, block, index, stored, middle, way) <= allowed ? fits : beyond) = middle;
  }
  return static_cast<int64_t>(fits);
}

// Fewer rows are admitted than are left. The block is stored in parts if it must be, and in whole steps if one step
// fits the limiters' windows together with the draws.
void split_admission(const Region& r, LaneBlock block, size_t stored, Admission* admission, UnderWay* way) {
  const auto width = static_cast<int64_t>(block.num_lanes());
  const auto first = static_cast<int64_t>(stored);
  bool goes_by_parts = stored > 0, steps_fit = true;
  for (const uint32_t i : r.appended_indexes()) {
    const LimiterConfig limiter = r.limiter(i);
    const int64_t draw = r.refused_draw(i);
    way->look(i);
    goes_by_parts |= UnderWay::is_counted(r, i, limiter);  // its own items under way may need the rows before
    const auto asked = static_cast<size_t>(admission->asked), step = static_cast<size_t>(width);
    goes_by_parts |= !always_moves(limiter, most_items(r, block, i, stored, asked, way), draw);
    steps_fit &= always_moves(limiter, most_items(r, block, i, stored, step, way), draw);
  }
  const int64_t unit = steps_fit ? width : 1;
  if (goes_by_parts) admission->asked = unit - first % unit;
  admission->rows = goes_by_parts ? std::max<int64_t>(0, (first + admission->rows) / unit * unit - first) : 0;
}

// The answer of one index's limiter to the rows that are left of a block.
struct Answer {
  int64_t rows = 0;   // admitted now
  int64_t items = 0;  // that all rows can begin
};

Answer ask_limiter(const Region& r, LaneBlock block, uint32_t index, size_t stored, size_t left, UnderWay* way) {
  const LimiterConfig limiter = r.limiter(index);
  const bool counts_begun = UnderWay::is_counted(r, index, limiter);
  if (counts_begun || r.header->indexes[index].group.is_set()) way->look(index);
  const int64_t items = most_items(r, block, index, stored, left, way);
  const LimiterCounts counts =
      r.inserted_counts(index, limiter, r.reserved_rows(), counts_begun ? way->num_items() : 0);
  const int64_t allowed = most_insertable(limiter, counts, items);
  if (allowed >= items) return {static_cast<int64_t>(left), items};
  return {rows_of_items(r, block, index, stored, left, allowed, way), items};
}

// Whether a limiter can never admit the rows. More episodes that begin at once than a version's whole budget has would
// wait for each other: none of them ends before all have begun.
bool is_never_admitted(const Region& r, LaneBlock block, uint32_t index, int64_t items, UnderWay* way) {
  const LimiterConfig limiter = r.limiter(index);
  if (!insert_can_ever_pass(limiter, items)) return true;
  if (limiter.kind != LimiterConfig::kStalenessBudget || !UnderWay::is_counted(r, index, limiter)) return false;
  return static_cast<double>(most_items(r, block, index, 0, block.num_lanes(), way)) > whole_budget(limiter);
}

// A block is admitted whole as long as it fits a limiter's window together with the draws. If it does not fit together
// with the largest draw that was refused so far, that draw and this block would wait for each other: then the block
// goes in parts, as many rows as there is room for.
Admission ask_limiters(const Region& r, LaneBlock block, size_t stored, UnderWay* way) {
  const int64_t left = static_cast<int64_t>(block.steps.num_rows * block.steps.num_lanes - stored);
  Admission admission{left, left, left, 0, false};
  for (const uint32_t i : r.appended_indexes()) {
    if (!paces_inserts(r.limiter(i))) continue;
    const Answer answer = ask_limiter(r, block, i, stored, static_cast<size_t>(left), way);
    if (answer.rows < left && stored == 0 && is_never_admitted(r, block, i, answer.items, way))
      return {0, left, answer.items, i, true};
    if (answer.rows >= admission.rows) continue;
    admission.rows = answer.rows;
    admission.items = answer.items;
    admission.refused = i;
  }
  if (admission.rows < left) split_admission(r, block, stored, &admission, way);
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

Status room_error(const Region& r, Code code, const Admission& admission, const Deadline& deadline, UnderWay* way) {
  const LimiterConfig limiter = r.limiter(admission.refused);
  if (code == Code::kRequestTooLarge)
    return Status(code)
        .with_int("requested", admission.items)
        .with_double("window", std::min(window(limiter), whole_budget(limiter)) / limiter.samples_per_insert)
        .with_text("arithmetic", limiter_text(r, admission.refused))
        .with_int("index", admission.refused);
  const bool counts_begun = UnderWay::is_counted(r, admission.refused, limiter);
  if (counts_begun) way->look(admission.refused);
  const LimiterCounts counts = r.inserted_counts(admission.refused, limiter, 0, counts_begun ? way->num_items() : 0);
  const double inserted = static_cast<double>(counts.inserted + admission.items);
  const double has = inserted * limiter.samples_per_insert - static_cast<double>(counts.sampled);
  return Status(code)
      .with_text("needs", room_text(limiter))
      .with_double("has", has)
      .with_double("waited_s", deadline.waited_s());
}

// Notes in all lanes of a writer whether the limiters refuse its call. Returns whether that is new.
bool mark_refused(const Region& r, const std::vector<WriterLane>& lanes, uint64_t is_refused) {
  bool is_new = false;
  for (const WriterLane& lane : lanes) is_new |= r.lanes[lane.slot].is_refused.exchange(is_refused) != is_refused;
  return is_new;
}

// One slice of a wait for the limiters. Without the lock, steps under way may be misread while their page changes hands:
// what is found here is a hint, and the next look under the lock decides.
Status wait_for_limiters(Table& table, LaneBlock block, size_t stored, const Deadline& deadline, UnderWay* way) {
  const Region& r = table.region();
  const Admission admission = ask_limiters(r, block, stored, way);
  if (admission.rows > 0) return {};
  Counters& counters = r.header->counters;
  const LimiterWait wait{
      r.header->room_event, counters.writer_waits, counters.writer_wait_ns, table.has_sampled(), true,
      admission.refused,    admission.items};
  return wait_for_limiter(
      table, wait, deadline, [&] { return ask_limiters(r, block, stored, way).rows > 0; },
      [&](Code code) { return room_error(r, code, admission, deadline, way); });
}

}  // namespace

Status admit_rows(Table& table, LaneBlock block, const std::vector<WriterLane>& lanes, size_t stored,
                  const Deadline& deadline, ReservedRows* reserved, size_t* upto) {
  const Region& r = table.region();
  bool is_limited = false;
  for (const uint32_t i : r.appended_indexes()) is_limited |= paces_inserts(r.limiter(i));
  if (!is_limited) return {};
  UnderWay way(r, block);
  while (true) {
    if (table.is_closed()) return Status(Code::kTableClosed);
    Admission admission;
    {
      Locked locked(table.door(), deadline);
      RELIVE_RETURN_IF_ERROR(locked.status());
      admission = ask_limiters(r, block, stored, &way);
      if (admission.rows == 0 && !admission.never && mark_refused(r, lanes, 1)) {
        locked.room_came();  // items under way stand still with this writer: they do not count
        admission = ask_limiters(r, block, stored, &way);
      }
      if (admission.rows > 0) {
        (void)mark_refused(r, lanes, 0);
        reserved->reserve(admission.rows);
        *upto = stored + static_cast<size_t>(admission.rows);
        return {};
      }
    }
    if (admission.never) return room_error(r, Code::kRequestTooLarge, admission, deadline, &way);
    RELIVE_RETURN_IF_ERROR(wait_for_limiters(table, block, stored, deadline, &way));
  }
}

}  // namespace relive
