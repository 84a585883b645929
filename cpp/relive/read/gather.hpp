// From items to batches: which rows a window needs, and copying them into columns (rules G2 to G4).
//
// A window is a list of runs of rows: its own page's, which lies in the Window itself, and one for each page before and
// after it that it needs, in the list of Runs that all windows of a call share. Pages of a lane are full, so rows that
// follow each other in a lane follow each other from run to run.
//
// Owner:   a GatherPlan is a value made once; Windows and Runs are scratch of one call, reused by its thread.
// Locking: none needed. resolve() notes the generation of every page a window touches, copy_rows() copies, and
//          recheck() says which windows are still what they were; the others are rubbish and must be drawn again.
//          A window whose rows are not all there any more is never cut short: it is not ok (rule W1).
// Cost:    about 36 ns a small row; large rows at the speed of memory; 10 ns and a line of memory for each further page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "relive/words/region.hpp"

namespace relive {

inline constexpr size_t kBlock = 32;  // windows whose rows are asked for ahead of the copy

enum class Source : uint32_t {
  kColumn,    // a declared column at the window's first row (stacked where the index says so)
  kNext,      // a state column at the bootstrap row
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
  kMask,        // of sequences: which rows are steps; of explicit items: which rows of a window are rows of the item
  kLossMask,    // of sequences: which rows are steps that carry loss
  kOffsets,     // of sequences that lie end to end: where each begins, and behind the last (ragged.hpp writes them)
  kNumRows,     // of sequences: rows that an item shows (asked for by ragged.hpp alone)
  kItemColumn,  // of explicit items: a column of the item's own
  kRelabelled   // of hindsight: whether the goal is another than the one that was wanted
};

struct Output {
  std::string name;
  std::string dtype;           // numpy's str
  std::vector<int64_t> shape;  // of one item, the stack axis included
  uint64_t item_bytes = 0;     // of one item
  Source source = Source::kColumn;
  uint32_t column = 0;
  uint32_t window = 0;        // of explicit items: whose rows it takes
  uint32_t num_windows = 1;   // of groups of episodes: each member's, from `window` on, one behind the other
  bool is_of_member = false;  // of groups: one value a member, and not one for each of its rows
  uint32_t stack = 1;
  bool is_bulk = false;    // of a tiered table's large column: a source brings it that knows the tier
  uint64_t row_bytes = 0;  // of sequences: of one row of the item's, 0 where it has one value for all of them
};

struct GatherPlan {
  uint32_t index = 0;
  std::vector<Output> outputs;
  bool needs_walk = false;   // the window's length is not simply one step
  uint32_t before = 0;       // rows before the window's first that its stacks may reach
  uint32_t after = 0;        // rows after it that its steps and its bootstrap may reach
  bool needs_end = false;    // truncated is asked for
  bool needs_bulk = false;   // some output is a large column of a tiered table
  uint32_t record_span = 0;  // bytes of packed records a window is read over, from its first row's start
  uint32_t max_rows = 0;     // of explicit items: of all windows, each as long as it may be; 0: implicit ones
  uint32_t num_rows = 0;     // of sequences: T; 0: no time axis
  bool time_major = false;   // of sequences: the time axis stands before the axis of items
  bool is_ragged = false;    // of sequences: no padding, the items' rows lie end to end (ragged.hpp)
  uint32_t stacked = 0;      // of sequences: rows of `before` that stacks reach back over, in front of the burn-in
  bool needs_next = false;   // of sequences: the row behind the last step is looked at
  bool has_goals = false;    // of hindsight (goals.hpp)
};

// Names: declared columns, next_<state>, discount and the derived ones; of explicit items columns and what a row has by
// itself (read/records.hpp). kInvalidConfig for any other.
Status make_plan(const Region& r, uint32_t index, const std::vector<std::string>& names, GatherPlan* plan);

// Where the axis of items stands in an output's array, in front of or behind axes of Output::shape.
inline size_t item_axis(const GatherPlan& plan, const Output& output) {
  return plan.time_major && output.row_bytes != 0 ? 1 : 0;
}

// Where an item's rows lie in an output: row t at first + t * step. Null where nothing is to be written.
struct ItemPlace {
  std::byte* first = nullptr;
  uint64_t step = 0;

  std::byte* at(uint32_t t) const { return first == nullptr ? nullptr : first + t * step; }
};
// item: of the `batch` items that the output has room for.
inline ItemPlace place_of(const GatherPlan& plan, const Output& output, uint32_t item, size_t batch, std::byte* out) {
  if (item_axis(plan, output) == 0) return {out + item * output.item_bytes, output.row_bytes};
  return {out + item * output.row_bytes, batch * output.row_bytes};
}
// What an output has one value of, or of its shape.
enum class Per : uint32_t { kItem, kRow, kOffset };
inline Per per_what(const GatherPlan& plan, const Output& output) {
  if (output.source == Source::kOffsets) return Per::kOffset;
  return plan.is_ragged && output.row_bytes != 0 ? Per::kRow : Per::kItem;
}
// Bytes of an output's array, num_rows being those of all items where they lie end to end.
inline uint64_t output_bytes(const GatherPlan& plan, const Output& output, size_t num_items, size_t num_rows) {
  const Per per = per_what(plan, output);
  if (per == Per::kItem) return num_items * output.item_bytes;
  return per == Per::kRow ? num_rows * output.row_bytes : (num_items + 1) * sizeof(int64_t);
}
// Zeros in rows [begin, end) of an item.
void zero_rows(const Output& output, const ItemPlace& to, uint32_t begin, uint32_t end);

// One page beside the item's own that a window touches, as it was when the window was resolved; of an explicit item
// every page, and which rows of it are which window's: none of a page that its stride passes over.
struct Run {
  uint64_t page = kNoPage;
  uint64_t word = 0;
  const std::byte* base = nullptr;  // of its frame
  uint32_t first = 0;               // of explicit items only, as what follows
  uint16_t count = 0, window = 0;   // rows from `first` on, so far apart as the window's are
};
static_assert(sizeof(Run) == 32);

// The runs of all windows of a call.
using Runs = std::vector<Run>;

inline constexpr int32_t kOwnGoal = INT32_MIN;

// One window of a batch. What draw or gather knows of it comes first, the rest is filled by locate() and resolve().
// The first cache line is all that a plain transition needs.
struct alignas(64) Window {
  uint64_t slot = 0;  // its leaf: a row's slot, or a record
  uint64_t word = 0;  // of the item's page, or of its record, read before its leaf
  double mass = 0.0;
  const std::byte* base = nullptr;  // frame of the item's page
  uint32_t row = 0;                 // of the outputs
  uint32_t num_steps = 1;           // m; of an explicit item, its rows
  uint32_t episode_step = 0;        // of the first row
  bool ok = false;
  uint8_t ends = 0;          // bit 0 terminated, bit 1 truncated
  uint16_t pages_after = 0;  // runs[first_run ..): the pages after the item's own, nearest first (explicit: all of it),
  uint16_t pages_before = 0;  // behind them the pages before it, nearest first
  uint32_t first_run = 0;

  double reward = 0.0, discount = 0.0;
  uint32_t lead = 0;      // of a sequence: steps before the item's own, its burn-in
  bool has_tail = false;  // and whether a tail stands behind its last step, as far as that was looked at
  uint32_t rows_before = 0, rows_after = 0;  // rows from its first step to the item's own, and from there to its last
  uint64_t first_out = 0;                    // where items lie end to end: before it lie so many rows of others,
  uint32_t room = 0;                         // and it has room for so many; one that shows another number is not ok
  int32_t goal = kOwnGoal;                   // of hindsight: rows from its own to the one whose state is its goal
  double pick = 1.0;                         // and the random number in [0, 1) that chooses it; 1: it has its own
};
// The same of a resolved window, also where items lie end to end.
inline ItemPlace place_of(const GatherPlan& plan, const Output& output, const Window& w, size_t batch, std::byte* out) {
  if (per_what(plan, output) == Per::kRow) return {out + w.first_out * output.row_bytes, output.row_bytes};
  return place_of(plan, output, w.row, batch, out);
}

// Where a row of a window lies: a frame and the row inside it. offset: from row 0 of the item's page.
struct RowPlace {
  const std::byte* base;
  uint32_t offset;
};
// The page of that row, for a window whose runs reach it.
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

// All functions below work on windows[which[0 .. count)] that are ok.

// Finds the first row of each window and asks for its bytes. Call it one block ahead of resolve().
void locate(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count);

// Fills the other fields of each window and appends its runs; ok = false where a row it needs is gone.
void resolve(const Region& r, const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, Runs* runs);

// Copies the outputs. out[o] has room for the `batch` items of all rows of the batch.
void copy_rows(const Region& r, const GatherPlan& plan, const Window* windows, const Runs& runs, const uint32_t* which,
               size_t count, size_t batch, std::byte* const* out);

// ok = false for windows whose pages, or whose record, changed since resolve(). Call after one acquire fence (rule G4).
void recheck(const Region& r, const GatherPlan& plan, Window* windows, const Runs& runs, const uint32_t* which,
             size_t count);

// Zeros in all that an item has in the outputs (a key that is not there any more): of rows end to end it has none.
void zero_item(const GatherPlan& plan, uint32_t item, size_t batch, std::byte* const* out);

}  // namespace relive
