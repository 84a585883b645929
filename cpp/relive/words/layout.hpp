// Where every byte of a table lies: a plain value that a remote peer or a GPU kernel can compute addresses from.
//
// A region is: header | columns | participants | credits | lanes | page words | page frames | page records | tails |
// marks | free frames | per index: tree, leaf states, of rows cursors and, with max_items, the remover's tree, of records
// their words, windows, nodes, heads and own columns, with max_wait_s since when they wait | of start cells: state, links, free ones | metadata | slabs | start cells. All positions are
// offsets from the region's start.
// A slab is a run of frames, a frame holds the rows of one page:
//   address(row, column) = slabs_offset + (frame >> frames_per_slab_shift) * slab_bytes
//                        + (frame & frames_per_slab_mask) * frame_bytes + column.offset + row * column.stride
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "relive/words/bulk_layout.hpp"
#include "relive/words/limiter.hpp"
#include "relive/words/program.hpp"
#include "relive/words/status.hpp"
#include "relive/words/tree.hpp"

namespace relive {

inline constexpr uint32_t kMaxIndexes = 8;
inline constexpr uint32_t kMaxColumns = 128;
inline constexpr uint32_t kMaxDims = 8;
inline constexpr uint32_t kPins = 4;        // pages one participant may pin at a time
inline constexpr uint32_t kRecordHead = 4;  // bytes of the row's head in front of the packed columns
inline constexpr uint32_t kCellWord = 4;    // where a table has start cells: behind the head, the number of the row's
inline constexpr uint32_t kNoCell = ~0u;    // that of a row which has none
inline constexpr uint32_t kLargeColumn = 256;    // a column of more bytes a row has rows of its own, 64-byte aligned
inline constexpr uint32_t kMostLateBytes = 256;  // of a row's late columns together: they are written under the lock
inline constexpr uint32_t kFormatVersion = 10;
inline constexpr uint32_t kMaxWindow = 4096;  // rows before an item and of it, together; that a record's window spans
inline constexpr uint32_t kMaxWindows = 32;   // of a record
inline constexpr uint32_t kMaxItemBytes = 4096;  // of a record's own columns: they may be copied under the lock (X5)
inline constexpr double kMaxWait_s = 1e9;        // 30 years
inline constexpr uint32_t kMaxGroupSize = 64;    // episodes of a group
inline constexpr uint64_t kMaxGroups = 4096;     // of an index: an episode that ends asks for the group of its value
inline constexpr uint32_t kLeafBits = 51;        // a key is shard << 51 | generation and slot
inline constexpr uint32_t kStateBits = 2;
inline constexpr uint32_t kMoveBits = 16;
inline constexpr uint32_t kGenerationShift = kStateBits + kMoveBits;

// kLate: a step column that nobody gives when its row is written; it comes later, by the row's key.
// kEpisode: the same in all rows of an episode, which every row has.
enum class ColumnKind : uint32_t { kStep = 0, kState = 1, kStart = 2, kLate = 3, kEpisode = 4 };
// kBulk: a large column of a tiered table. kCell: one of kind start, which only rows have where a window may begin.
enum class Area : uint32_t { kRecord = 0, kLarge = 1, kBulk = 2, kCell = 3 };

struct ColumnLayout {
  char name[128];
  char dtype[16];  // numpy's str, e.g. "<f4"
  uint64_t num_bytes;
  uint64_t offset;  // inside the frame (kBulk: inside the bulk frame), of row 0; kCell: inside the cell
  uint64_t stride;  // from row to row
  ColumnKind kind;
  Area area;
  uint32_t block_rows;  // rows of one compression block; 1 = none
  uint32_t num_dims;
  int64_t dims[kMaxDims];
};
static_assert(std::is_trivially_copyable_v<ColumnLayout>);

// A row in the table of kinds (index/kinds.hpp): what a sampler or a remover is. Named here are those that C++ names; a
// kind that is only ever asked for by its name in a configuration needs no more than its row.
enum class Sampling : uint32_t { kUniform = 0, kPrioritized = 1 };
enum class Removal : uint32_t { kFifo = 0 };
enum class Initial : uint32_t { kMax = 0, kGiven = 1, kNumber = 2 };
enum class StackPad : uint32_t { kRepeat = 0, kZeros = 1 };
// What a leaf of an index stands for: the row slot where its window begins, or a record that lists windows.
enum class LeafMap : uint32_t { kImplicit = 0, kExplicit = 1 };

// What becomes of a sequence that its episode's end would cut short: padded; moved back so that it ends with the episode
// (one more window, where length does not divide the episode); none at all; or it runs on into the lane's next episode.
enum class AtEnd : uint32_t { kPad = 0, kShift = 1, kDrop = 2, kCross = 3 };
enum class PadSide : uint32_t { kRight = 0, kLeft = 1 };

// Items with a time axis: T = burn_in + length + bootstrap rows of one episode (kCross: of one lane), of which `length`
// carry loss. All zero where items are transitions (length 0).
inline constexpr uint32_t kOneAtRandom = 2;  // SequenceConfig::only_the_last
struct SequenceConfig {
  uint32_t length;     // steps that carry loss, from the item's own on
  uint32_t burn_in;    // rows before them; fewer where the episode begins later
  uint32_t bootstrap;  // rows behind them
  uint32_t period;     // an item begins at every period-th step of an episode (kCross: of a lane); 0: at its first only
  AtEnd at_end;        // what becomes of a window that its episode ends too early for
  PadSide pad;         // where a window that an end cuts short is padded
  uint32_t only_ended;     // 1: an episode that its lane's end cut off is no item (episodes)
  uint32_t only_the_last;  // of an episode longer than `length` the only item is 1: its last window, 2: one at random
  uint32_t longest;        // steps that an episode may have: one more is refused; 0: any number

  bool is_set() const { return length != 0; }
  uint32_t num_rows() const { return burn_in + length + bootstrap; }
  // Whether a whole window is no item before its episode has ended, though no step can come any more.
  bool waits_for_end() const { return only_ended != 0 && longest != 0; }
  bool crosses() const { return at_end == AtEnd::kCross; }
  bool draws_one() const { return only_the_last == kOneAtRandom; }
  // Whether it follows from the step of a row (kCross: of its lane), and from where its episode ends, that some item's
  // first row is that one.
  bool knows_starts() const { return is_set() && !draws_one(); }
  // Then, whether it may be by its step alone: an item's burn-in lies before the step where its loss begins.
  bool starts_at(uint64_t step) const { return step == 0 || (period != 0 && (step + burn_in) % period == 0); }
  // The first row of the window that ends with an episode of so many steps, where an end moves windows back; 0: that is
  // the episode's own first.
  uint32_t moved_start(uint32_t num_steps) const {
    const uint32_t most = length + burn_in;
    return at_end == AtEnd::kShift && num_steps > most ? num_steps - most : 0;
  }
  // Whether an item may begin at this step of an episode (kCross: of a lane), whatever its end makes of it.
  bool begins_at(uint64_t step) const { return step == 0 || (period != 0 && step % period == 0); }
};
static_assert(std::is_trivially_copyable_v<SequenceConfig>);

// What an item of an index needs of its lane: the rows that its stacks (or its burn-in) reach back over, the steps from
// its own on, and whether the state after the last of them is needed too.
struct ItemShape {
  uint32_t before;     // rows before the item's own
  uint32_t spanned;    // steps from the item's own on, that one included; fewer where the episode ends
  uint32_t bootstrap;  // 1: the row after them is read as well

  // Rows after the item's own that it may need.
  uint32_t after() const { return spanned - 1 + bootstrap; }
};
static_assert(std::is_trivially_copyable_v<ItemShape>);

// One window that the items of an explicit index may have.
struct WindowConfig {
  char name[48];    // empty: of the only one, whose columns have their own names in a batch
  uint32_t length;  // rows that it has at most
  uint32_t stride;  // rows of the lane from one of its rows to the next
  uint64_t reserved;

  // Rows of the lane from the first to the last of so many of its rows.
  uint32_t span(uint32_t num_rows) const { return (num_rows - 1) * stride + 1; }
};
static_assert(sizeof(WindowConfig) == 64);

// Transitions of episodes that have ended, whose goals may be replaced by ones that were achieved (read/goals.hpp). Such
// an index has a window to the end of its episode (SequenceConfig) and is read as a transition. All zero elsewhere.
enum class Goals : uint32_t { kNone = 0, kFuture = 1, kFinal = 2, kEpisode = 3 };
struct HindsightConfig {
  Goals goals;
  uint32_t goal;      // a column: what was wanted
  uint32_t achieved;  // a state column of the same dtype and shape: what was reached
  uint32_t reserved;
  double share;  // of the drawn items, that have another goal

  bool is_set() const { return goals != Goals::kNone; }
};
static_assert(sizeof(HindsightConfig) == 24);

// What becomes of an episode of more steps than its item has rows: the step that makes it so long is refused; or the item
// is its first ones, its last ones, or as many from one at random on.
enum class TooLong : uint32_t { kRefuse = 0, kHead = 1, kTail = 2, kRandom = 3 };

// Items that are groups of episodes: the index is explicit, its one declared window that of each member, and a record is
// made by the episodes that end, not by a call (rules Y1 to Y5). All zero where items are no groups.
enum class GroupWeight : uint16_t { kNone = 0, kMean = 1, kVariance = 2, kAnyMean = 3, kAnyVariance = 4 };
struct GroupConfig {
  uint32_t size;       // episodes of a group
  uint32_t column;     // an int64 of kind episode, of which the members of a group have the same value
  TooLong too_long;    // of an episode of more steps than the index's window has rows
  GroupWeight weight;  // what a group's priority is when it is published (pages/group_weight.hpp)
  uint16_t weighed;    // the column that it is computed from

  bool is_set() const { return size != 0; }
};
static_assert(sizeof(GroupConfig) == 16);

// What an index does that most do not (Region::traits): the first two and the last follow from its kinds.
inline constexpr uint32_t kHasPriorities = 1;  // its sampler or its remover looks at them
inline constexpr uint32_t kIsOrdered = 2;      // its sampler draws by an order of items, no mass
inline constexpr uint32_t kIsBounded = 4;      // it has a remover's tree: max_items, and of records a choice
inline constexpr uint32_t kIsTimed = 8;        // max_wait_s
inline constexpr uint32_t kIsRanked = 16;      // its sampler draws by the ranks of priorities; follows from its kind
inline constexpr uint32_t kHasQueue = 256;     // of records whose remover is not Fifo: a queue, no ring (rule R5)
inline constexpr uint32_t kIsAged = 32;        // max_staleness
inline constexpr uint32_t kIsLatest = 64;     // its sampler draws among the items that came last; follows from its kind
inline constexpr uint32_t kFades = 128;       // its sampler's masses are of versions; follows from its kind
inline constexpr uint32_t kIsShuffled = 512;  // its sampler goes through all leaves, epoch by epoch
inline constexpr uint32_t kIsDistinct = 1024;  // a batch has no item twice; asked for
inline constexpr uint64_t kTurnBytes = 64;     // behind the tree of such an index: the turns that were taken

struct IndexConfig {
  char name[64];
  uint32_t n_step;
  StackPad stack_pad;
  double gamma;
  Sampling sampling;
  Removal removal;
  Reduction reduction;  // of the sampler's leaves; follows from its kind, as the next two do from both kinds
  Reduction order;      // of the remover's
  uint32_t traits;      // kHasPriorities, kIsOrdered, kIsRanked, kIsLatest, kFades, kIsShuffled, kIsDistinct
  Initial initial;
  alignas(8) double priority_exponent;  // exponent_of() reads it without the lock: it may be changed
  double removal_exponent;              // the remover's
  double initial_number;
  LimiterConfig limiter;
  uint32_t max_times_sampled;   // 0: no limit
  uint32_t stack[kMaxColumns];  // frames of each state column, 1 = no stack
  SequenceConfig sequence;      // of items with a time axis
  LeafMap map;                  // what its leaves stand for
  uint64_t max_items;           // items that live at a time; 0: any number (never where they are explicit)
  uint32_t num_windows;         // kExplicit, 0 else
  uint32_t time_major;          // 1: columns of items with a time axis come as [T, B, ...]; 0: as [B, T, ...]
  WindowConfig windows[kMaxWindows];
  GroupConfig group;    // kExplicit: of items that episodes make as they end
  double max_wait_s;    // an item that waits longer to be published is none; 0: for ever
  Predicate where;      // a step whose item does not pass it is none (rule Q1); without operations every one passes
  uint64_t best_items;  // of a sampler that draws among the best: how many of them; 0: best_share of all there are
  double best_share;
  HindsightConfig hindsight;  // of transitions whose goals may be replaced when they are drawn
  uint64_t versions_kept;     // an item goes so many versions of the learner after its oldest row's; 0: never by that
  uint64_t latest;            // kIsLatest: of so many items that came last those that are there are drawn
  double decay;               // kFades: what is left of an item's mass with each version

  // Explicit items, of which the remover chooses the one that goes, the newcomer among them: so one record more (rule R5).
  bool chooses_records() const { return map == LeafMap::kExplicit && removal != Removal::kFifo; }
  // Of the first index: which pages go at capacity is its remover's choice, and no longer their age's (rule D8).
  bool chooses_pages() const { return map == LeafMap::kImplicit && removal != Removal::kFifo; }
  uint64_t num_records() const { return max_items + (chooses_records() ? 1 : 0); }
};
static_assert(std::is_trivially_copyable_v<IndexConfig>);
// The sampler's exponent now, at any time.
inline double exponent_of(const IndexConfig& index) {
  return std::atomic_ref<double>(const_cast<double&>(index.priority_exponent)).load(std::memory_order_acquire);
}

// What a user asks for; everything else follows from it.
struct ColumnConfig {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
  uint64_t item_bytes = 0;
  ColumnKind kind = ColumnKind::kStep;
};

struct TableConfig {
  std::vector<ColumnConfig> columns;
  std::vector<IndexConfig> indexes;
  std::vector<std::vector<ColumnConfig>> item_columns;    // of each index, as far as any has some (explicit ones may)
  std::vector<std::vector<WrittenOperation>> conditions;  // of each index; settle_conditions() makes its `where` of it
  uint64_t capacity = 0;
  uint32_t max_lanes = 256;
  uint32_t max_participants = 256;
  uint64_t seed = 0;
  uint64_t shard = 0;
  uint64_t epoch = 0;  // says where generations begin (Region::first_generation); 0: at 1
  std::string metadata;
  TierConfig tier;
};

// The records of an index whose items are explicit; all zero where they are not.
struct RecordGeometry {
  uint64_t first_leaf;  // what their keys hold in a slot's place: first_leaf + record, above every row's slot
  uint64_t max_items;   // records: one more than its index's max_items where its remover chooses
  uint32_t max_windows;
  uint32_t max_rows;  // of the lane, that the longest window spans
  uint32_t pages_a_window;
  uint32_t num_columns;     // of the items' own
  uint32_t first_column;    // where these stand: behind the columns of rows, and of the indexes before
  uint32_t value_stride;    // their bytes, from record to record
  uint64_t words_offset;    // generation and state of each record
  uint64_t windows_offset;  // max_windows of each
  uint64_t nodes_offset;    // max_windows x pages_a_window of each: where it hangs
  uint64_t heads_offset;    // of each row slot: what hangs there
  uint64_t values_offset;   // its own columns; of groups their value

  uint64_t group_size;     // of groups, as what follows, 0 else: members
  uint64_t joined_offset;  // of each lane: the episode that was looked at last

  uint64_t nodes_a_record() const { return uint64_t{max_windows} * pages_a_window; }
};
static_assert(sizeof(RecordGeometry) == 96);

// Start cells: what a step has of the large columns of kind start, for those steps where a window may begin. All zero in
// a table that keeps them in every row. They have memory as frames have it: committed in order, taken last-in first-out.
struct CellGeometry {
  uint64_t stride;     // bytes of a cell
  uint64_t num_cells;  // as many as rows
  uint64_t grow_cells;
  uint64_t state_offset;  // CellState
  uint64_t links_offset;  // of each cell: the next one of its page
  uint64_t free_offset;   // the stack of free ones
  uint64_t cells_offset;
};
static_assert(sizeof(CellGeometry) == 56);

// Sizes and offsets of one region. Lives in its header, never changes after birth.
struct Geometry {
  uint64_t capacity;
  uint64_t seed;
  uint64_t shard;
  uint64_t num_pages;
  uint64_t num_slots;
  uint64_t num_frames;
  uint64_t frame_bytes;
  uint64_t slab_bytes;
  uint64_t row_bytes;  // of one step over all columns, heads included
  uint64_t record_stride;
  uint64_t grow_frames;  // frames committed at a time
  uint32_t page_len;     // P: a power of the tree's fanout
  uint32_t page_shift;
  uint32_t page_bits;
  uint32_t slot_bits;
  uint32_t frames_per_slab_shift;
  uint32_t tail_words;  // 64-bit words of the tail bitmap of one page
  uint32_t max_lanes;
  uint32_t max_participants;
  uint32_t num_indexes;
  uint32_t num_columns;
  uint32_t history;           // the largest `before` of all indexes
  uint32_t max_n_step;        // the largest `spanned`, and the longest episode of a group
  uint32_t has_state;         // some column is of kind state: windows need a bootstrap cell
  int32_t reward_column;      // -1: none
  uint32_t num_item_columns;  // of all explicit indexes, behind those of rows

  uint64_t columns_offset;
  uint64_t participants_offset;
  uint64_t credits_offset;
  uint64_t lanes_offset;
  uint64_t words_offset;
  uint64_t frames_offset;
  uint64_t pages_offset;
  uint64_t tails_offset;
  uint64_t marks_offset;
  uint64_t free_frames_offset;
  ItemShape shapes[kMaxIndexes];
  uint64_t trees_offset[kMaxIndexes];
  uint64_t states_offset[kMaxIndexes];
  uint64_t cursors_offset[kMaxIndexes];
  RecordGeometry records[kMaxIndexes];
  uint64_t metadata_offset;
  uint64_t metadata_bytes;
  uint64_t slabs_offset;
  uint64_t region_bytes;
  CellGeometry cells;
  uint64_t orders_offset[kMaxIndexes];  // the remover's tree, behind it the queue of records or ranks of pages; 0: none
  uint64_t waits_offset[kMaxIndexes];   // since when items wait, of indexes that have max_wait_s; 0: none
  // Pending priorities, of indexes of rows that have priorities; 0: none, or those of the marks, as the first of them.
  uint64_t given_offset[kMaxIndexes];
  uint64_t ranks_offset[kMaxIndexes];  // classes of priorities, of indexes whose sampler draws by ranks; 0: none
  uint64_t ages_offset[kMaxIndexes];   // items' versions, of indexes that have max_staleness; 0: none
  uint64_t
      places_offset[kMaxIndexes];  // tickets of the items that came last, of indexes that draw among these; 0: none
};
static_assert(std::is_trivially_copyable_v<Geometry>);

// The head of a row, in front of its packed columns: all that most batches ask of a step beside its columns.
inline constexpr uint32_t kTerminatedBit = 1u << 31;
inline constexpr uint32_t kTruncatedBit = 1u << 30;
inline constexpr uint32_t kDiscountBit = 1u << 29;   // a discount of its own: in the row's mark
inline constexpr uint32_t kLateBit = 1u << 28;       // its late columns are still to come
inline constexpr uint32_t kStepMask = kLateBit - 1;  // step of the episode
inline constexpr uint32_t kNoPriority = 0x7fc00000u;

struct Layout {
  Geometry geometry{};
  BulkGeometry bulk{};                // of a tiered table
  std::vector<ColumnLayout> columns;  // of rows, then items' own
};

// Computes the layout of a table, or says which part of the configuration cannot be.
Status make_layout(const TableConfig& config, Layout* out);

// A hash over everything that decides addresses: two regions with the same hash can read each other's rows.
uint64_t layout_hash(const Geometry& geometry, const ColumnLayout* columns);

}  // namespace relive
