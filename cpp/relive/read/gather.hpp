// Gathers items into batches: finds the rows that a window needs, and copies them into columns (rules G2 to G4).
//
// Owns:    a GatherPlan is an immutable value; Windows and Runs are scratch that one thread reuses.
// Locking: none. resolve() notes the word of every page that a window touches, copy_rows() copies, and recheck() marks
//          the windows that changed as not ok; the caller draws them again. A window that lost a row is never shortened
//          (rule W1).
// Cost:    about 36 ns for a small row; the speed of memory for large rows; 10 ns and a cache line for each further
//          page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relive/words/region.hpp"
#include "relive/words/sizes.hpp"

namespace relive {

inline constexpr size_t kBlock = 32;  // windows whose rows are prefetched before the copy

enum class Source : uint32_t {
  kColumn,    // a declared column at the window's first row, stacked if the index says so
  kNext,      // a column at the bootstrap row; of a step column zeros if no step is there
  kReward,    // n-step return over the window
  kDiscount,  // product of gamma x discount over the window
  kTerminated,
  kTruncated,
  kEpisodeStep,
  kFirst,
  kLane,
  kPolicyVersion,
  kStaleness,
  kNumSteps,
  kMask,        // sequences: rows that are steps; explicit items: rows of a window that belong to the item
  kLossMask,    // sequences: rows that are steps with loss
  kOffsets,     // ragged sequences: first row of each item, and the end of the last (written by ragged.hpp)
  kNumRows,     // sequences: number of rows of an item (requested by ragged.hpp only)
  kItemColumn,  // explicit items: an own column of the item
  kRelabelled,  // hindsight: whether the goal was replaced
  kHasNext,     // transitions: whether a step is at the bootstrap row
  kPriority,    // of the item, NaN if it is not known (index/bounds.hpp)
  kAge          // rises in the order in which items came (table/listing.hpp)
};

struct Output {
  std::string name;
  std::string dtype;           // numpy's str
  std::vector<int64_t> shape;  // of one item, the stack axis included
  uint64_t item_bytes = 0;     // of one item
  Source source = Source::kColumn;
  uint32_t column = 0;
  uint32_t window = 0;        // explicit items: the window whose rows it takes
  uint32_t num_windows = 1;   // groups of episodes: windows of all members from `window` on, concatenated
  bool is_of_member = false;  // groups: one value for each member instead of one for each row
  uint32_t stack = 1;
  bool of_step = false;    // kNext of a step column
  bool is_bulk = false;    // large column of a tiered table: a row source that knows the tier copies it
  uint64_t row_bytes = 0;  // sequences: bytes of one row; 0 if the item has one value for all rows
};

struct GatherPlan {
  uint32_t index = 0;  // Region::steps(): the items are the steps themselves
  bool are_steps = false;
  bool needs_late = false;  // of steps: a late column is an output
  std::vector<Output> outputs;
  bool needs_walk = false;   // the length of the window may differ from one step
  uint32_t before = 0;       // rows before the window's first that its stacks may reach
  uint32_t after = 0;        // rows after its first that its steps and its bootstrap may reach
  bool needs_end = false;    // truncated is an output
  bool needs_bulk = false;   // an output is a large column of a tiered table
  uint32_t record_span = 0;  // bytes of packed records that a window reads, from its first row on
  uint32_t max_rows = 0;     // explicit items: rows of all windows at their longest; 0: implicit items
  uint32_t num_rows = 0;     // sequences: T; 0: no time axis
  bool time_major = false;   // sequences: the time axis comes before the axis of items
  bool is_ragged = false;    // sequences: no padding, the rows of all items are concatenated (ragged.hpp)
  uint32_t stacked = 0;      // sequences: rows of `before` that stacks reach, before the burn-in
  bool needs_next = false;   // sequences: the row after the last step is read
  bool has_goals = false;    // hindsight (hindsight.hpp)
};

// names: declared columns, next_<state>, discount and the derived columns; of transitions and steps also next_<step>,
// if the table has states; for explicit items read/records.hpp lists them. Returns kInvalidConfig for any other name.
// index: Region::steps() for the steps as they were written, one a key, whatever the indexes are.
Status make_plan(const Region& r, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan);

// The position of the axis of items in an output's array, relative to the axes of Output::shape.
inline size_t item_axis(const GatherPlan& plan, const Output& output) {
  return plan.time_major && output.row_bytes != 0 ? 1 : 0;
}

// The place of an item's rows in an output: row t is at first + t * step. first is null if nothing is written.
struct ItemPlace {
  std::byte* first = nullptr;
  uint64_t step = 0;

  std::byte* at(uint32_t t) const { return first == nullptr ? nullptr : first + t * step; }
};
// item: one of the `batch` items that the output has room for.
inline ItemPlace place_of(const GatherPlan& plan, const Output& output, uint32_t item, size_t batch, std::byte* out) {
  if (item_axis(plan, output) == 0) return {out + item * output.item_bytes, output.row_bytes};
  return {out + item * output.row_bytes, batch * output.row_bytes};
}
// An output has one value, or one array of its shape, for each of these.
enum class Per : uint32_t { kItem, kRow, kOffset };
inline Per per_what(const GatherPlan& plan, const Output& output) {
  if (output.source == Source::kOffsets) return Per::kOffset;
  return plan.is_ragged && output.row_bytes != 0 ? Per::kRow : Per::kItem;
}
// Bytes of an output's array. num_rows: the rows of all items, if their rows are concatenated.
inline uint64_t output_bytes(const GatherPlan& plan, const Output& output, size_t num_items, size_t num_rows) {
  const Per per = per_what(plan, output);
  if (per == Per::kItem) return checked_product(num_items, output.item_bytes);
  return per == Per::kRow ? checked_product(num_rows, output.row_bytes)
                          : checked_product(num_items + 1, sizeof(int64_t));
}
// Writes zeros to rows [begin, end) of an item.
void zero_rows(const Output& output, const ItemPlace& to, uint32_t begin, uint32_t end);

// A window is a list of runs of rows: the Window contains the run of the item's own page, and the list of Runs has one
// for each page before and after. Only the last page of a lane is not full, so consecutive rows of a lane are
// consecutive across runs. A run keeps the page as it was when the window was resolved. An explicit item has a run for
// every page; the run tells which rows belong to which window, none if the stride skips the page.
struct Run {
  uint64_t page = kNoPage;
  uint64_t word = 0;
  const std::byte* base = nullptr;  // of its frame
  uint32_t first = 0;               // explicit items only, like the next two
  uint16_t count = 0, window = 0;   // rows from `first` on, at the window's stride
};
static_assert(sizeof(Run) == 32);

// The runs of all windows of a call.
using Runs = std::vector<Run>;

inline constexpr int32_t kOwnGoal = INT32_MIN;

// One window of a batch. The members that draw or gather fill come first; locate() and resolve() fill the others. A
// transition without options needs the first cache line only.
struct alignas(64) Window {
  uint64_t slot = 0;  // its leaf: a row's slot, or a record
  uint64_t word = 0;  // of the item's page or record, read before its leaf
  double mass = 0.0;
  const std::byte* base = nullptr;  // frame of the item's page
  uint32_t row = 0;                 // of the outputs
  uint32_t num_steps = 1;           // m; explicit items: the number of rows
  uint32_t episode_step = 0;        // of the first row
  bool ok = false;
  uint8_t ends = 0;           // bit 0 terminated, bit 1 truncated
  uint16_t pages_after = 0;   // runs[first_run ..): pages after the item's own, nearest first (explicit: all pages),
  uint16_t pages_before = 0;  // then the pages before it, nearest first
  uint32_t first_run = 0;

  double reward = 0.0, discount = 0.0;
  uint32_t lead = 0;                         // sequences: steps before the item's own, its burn-in
  bool has_tail = false;                     // whether a tail follows the last step, if that row was read
  uint32_t rows_before = 0, rows_after = 0;  // rows from its first step to its own, from its own to its last
  uint64_t first_out = 0;                    // ragged items: first row in the output,
  uint32_t room = 0;                         // and room in rows; a window with another number is not ok
  int32_t goal = kOwnGoal;                   // hindsight: rows from its own to the row of its goal state
  double pick = 1.0;                         // and the random number in [0, 1) that selects it; 1: own goal
};
// The same for a resolved window; ragged items are supported.
inline ItemPlace place_of(const GatherPlan& plan, const Output& output, const Window& w, size_t batch, std::byte* out) {
  if (per_what(plan, output) == Per::kRow) return {out + w.first_out * output.row_bytes, output.row_bytes};
  return place_of(plan, output, w.row, batch, out);
}

// The place of a row of a window: a frame and the row in it. offset: from row 0 of the item's page.
struct RowPlace {
  const std::byte* base;
  uint32_t offset;
};
// The run of that row, if the window's runs reach it.
inline Run run_at(const Region& r, const Window& w, const Run* runs, int64_t offset) {
  const int64_t page = offset >> r.page_shift;
  if (page == 0) return {r.page_of(w.slot), w.word, w.base};
  return page > 0 ? runs[w.first_run + page - 1] : runs[w.first_run + w.pages_after - page - 1];
}
inline RowPlace row_at(const Region& r, const Window& w, const Run* runs, int64_t offset) {
  const auto row = static_cast<uint32_t>(offset & (r.page_len - 1));
  if (static_cast<uint64_t>(offset) < r.page_len) return {w.base, row};
  return {run_at(r, w, runs, offset).base, row};
}

// The configuration of the plan's index; that of plain transitions, without gamma, if the items are steps.
const IndexConfig& config_of(const Region& r, const GatherPlan& plan);

// Whether a step is committed at the row of a window, if the window's runs reach it. offset: as for row_at().
inline bool has_step(const Region& r, const Window& w, const Run* runs, int64_t offset) {
  const uint64_t page = run_at(r, w, runs, offset).page;
  const auto row = static_cast<uint32_t>(offset & (r.page_len - 1));
  const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));
  return row < range.step_end && !r.is_tail(page, row);
}

// Rises in the order in which items came: rows by the order in which their pages were opened, then by their place in
// the page; records by generation, then by number. word: of the leaf's page or record.
uint64_t age_of(const Region& r, uint32_t index, uint64_t leaf, uint64_t word);

// The functions below process the windows of windows[which[0 .. count)] that are ok.

// Finds the first row of each window and prefetches its bytes. Call this one block ahead of resolve().
void locate(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count);

// Fills the other members of each window and appends its runs. Sets ok = false if a row of the window is gone.
void resolve(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, Runs* runs);

// Copies the outputs. out[o] has room for the `batch` items of the whole batch.
void copy_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
               size_t count, size_t batch, std::byte* const* out);

// Sets ok = false for windows whose pages or record changed since resolve(). Call this after one acquire fence (rule
// G4).
void recheck(const Region& r, const GatherPlan& plan, Window* windows, const Runs& runs, const uint32_t* which,
             size_t count);

// Writes zeros to all outputs of an item whose key is gone. An item has no place in outputs with concatenated rows.
void zero_item(const GatherPlan& plan, uint32_t item, size_t batch, std::byte* const* out);

}  // namespace relive
