// The place of every byte of a table, as plain values: a remote peer or a GPU kernel computes addresses from these
// values.
//
// A region is: header | columns | participants | credits | lanes | page words | page frames | page records | tails |
// marks | free frames | areas of each index | areas of start cells | metadata | slabs | start cells.
//
//   areas of               | order
//   each index             | tree, leaf states
//   an index of rows       | then cursors and, with max_items, the remover's tree
//   an index of records    | then record words, windows, nodes, heads and the items' own columns
//   an index with max_wait_s | the times since which items wait
//   start cells            | state, links, free cells
//
// All positions are offsets from the region's start. A slab is a run of frames; a frame has the rows of one page:
//   address(row, column) = slabs_offset + (frame >> frames_per_slab_shift) * slab_bytes
//                        + (frame & frames_per_slab_mask) * frame_bytes + column.offset + row * column.stride
//
// Owner:   none of these values owns memory. Geometry and IndexConfig lie in the region's header.
// Locking: none. The values never change after the table was made, except an index's priority_exponent (rule H2).
// Cost:    making a layout is O(columns + indexes).
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
inline constexpr uint32_t kCellWord = 4;    // offset in a record of the number of the row's start cell, after the head
inline constexpr uint32_t kNoCell = ~0u;    // the number of a row without a start cell
inline constexpr uint32_t kLargeColumn = 256;    // a column of more bytes a row has rows of its own, 64-byte aligned
inline constexpr uint32_t kMostLateBytes = 256;  // of a row's late columns together: they are written under the lock
inline constexpr uint32_t kFormatVersion = 14;
inline constexpr uint32_t kMaxWindow = 4096;     // rows before an item and of it together; rows that a window spans
inline constexpr uint32_t kMaxWindows = 32;      // of a record
inline constexpr uint32_t kMaxItemBytes = 4096;  // of a record's own columns: they may be copied under the lock (X5)
inline constexpr double kMaxWait_s = 1e9;        // 30 years
inline constexpr uint32_t kMaxGroupSize = 64;    // episodes of a group
inline constexpr uint64_t kMaxGroups = 4096;     // of an index: the end of an episode looks at all of them
inline constexpr uint32_t kLeafBits = 51;        // a key is shard << 51 | generation and slot
inline constexpr uint32_t kStateBits = 2;
inline constexpr uint32_t kMoveBits = 16;
inline constexpr uint32_t kGenerationShift = kStateBits + kMoveBits;

// kLate: a step column whose value is not written with its row, but later, by the row's key.
// kEpisode: a value of an episode, stored in every row of that episode.
enum class ColumnKind : uint32_t { kStep = 0, kState = 1, kStart = 2, kLate = 3, kEpisode = 4 };
// kBulk: a large column of a tiered table. kCell: a large column of kind start, stored only for rows at which a window
// may begin.
enum class Area : uint32_t { kRecord = 0, kLarge = 1, kBulk = 2, kCell = 3 };

struct ColumnLayout {
  char name[128];
  char dtype[16];  // numpy's str, e.g. "<f4"
  uint64_t num_bytes;
  uint64_t offset;  // of row 0 inside the frame (kBulk: inside the bulk frame); kCell: inside the cell
  uint64_t stride;  // from row to row
  ColumnKind kind;
  Area area;
  uint32_t block_rows;  // rows of one compression block; 1 = none
  uint32_t num_dims;
  int64_t dims[kMaxDims];
};
static_assert(std::is_trivially_copyable_v<ColumnLayout>);

// The number of a row in the table of kinds (index/kinds.hpp). Only the kinds that C++ code mentions have a name here;
// every other kind is found by its name in a configuration.
enum class Sampling : uint32_t { kUniform = 0, kPrioritized = 1 };
enum class Removal : uint32_t { kFifo = 0 };
enum class Initial : uint32_t { kMax = 0, kGiven = 1, kNumber = 2 };
enum class StackPad : uint32_t { kRepeat = 0, kZeros = 1 };
// A leaf of an index stands for the row slot at which a window begins, or for a record that lists windows.
enum class LeafMap : uint32_t { kImplicit = 0, kExplicit = 1 };

// The fate of a sequence that the end of its episode would cut short: it is padded; it is moved back so that it ends
// with the episode (one more window, where length does not divide the episode); it is dropped; or it runs on into the
// lane's next episode.
enum class AtEnd : uint32_t { kPad = 0, kShift = 1, kDrop = 2, kCross = 3 };
enum class PadSide : uint32_t { kRight = 0, kLeft = 1 };

// Items with a time axis: T = burn_in + length + bootstrap rows of one episode (kCross: of one lane), of which `length`
// carry loss. All zero where items are transitions (length 0).
inline constexpr uint32_t kOneAtRandom = 2;  // SequenceConfig::only_the_last
struct SequenceConfig {
  uint32_t length;     // steps that carry loss, from the item's own on
  uint32_t burn_in;    // rows before them; fewer where the episode begins later
  uint32_t bootstrap;  // rows after them
  uint32_t period;     // an item begins at every period-th step of an episode (kCross: of a lane); 0: at its first only
  AtEnd at_end;        // the fate of a window whose episode ends too early
  PadSide pad;         // the side on which a window that an end cuts short is padded
  uint32_t only_ended;     // 1: an episode that the end of its lane cut off is no item (episodes)
  uint32_t only_the_last;  // the only item of an episode longer than `length` is 1: its last window, 2: one at random
  uint32_t longest;        // the most steps of an episode, one more is refused; 0: any number

  bool is_set() const { return length != 0; }
  uint32_t num_rows() const { return burn_in + length + bootstrap; }
  // Whether a window that is complete is no item before its episode has ended.
  bool waits_for_end() const { return only_ended != 0 && longest != 0; }
  bool crosses() const { return at_end == AtEnd::kCross; }
  bool draws_one() const { return only_the_last == kOneAtRandom; }
  // Whether the number of a row's step (kCross: in its lane) and the end of its episode decide that the row is the
  // first row of an item.
  bool knows_starts() const { return is_set() && !draws_one(); }
  // If knows_starts(): whether a row of this step may be the first row of an item. Burn-in lies before the step at
  // which loss begins.
  bool starts_at(uint64_t step) const { return step == 0 || (period != 0 && (step + burn_in) % period == 0); }
  // If ends move windows back (kShift): the first row of the window that ends with an episode of num_steps steps. 0: it
  // is the first row of the episode.
  uint32_t moved_start(uint32_t num_steps) const {
    const uint32_t most = length + burn_in;
    return at_end == AtEnd::kShift && num_steps > most ? num_steps - most : 0;
  }
  // Whether an item may begin at this step of an episode (kCross: of a lane), wherever the episode ends.
  bool begins_at(uint64_t step) const { return step == 0 || (period != 0 && step % period == 0); }
};
static_assert(std::is_trivially_copyable_v<SequenceConfig>);

// The rows of its lane that an item of an index needs: rows before its own, for stacks or burn-in; steps from its own
// on; and perhaps the state after the last of them.
struct ItemShape {
  uint32_t before;     // rows before the item's own
  uint32_t spanned;    // steps from the item's own on, that one included; fewer where the episode ends
  uint32_t bootstrap;  // 1: the row after these steps is read as well

  // The most rows after the item's own that the item needs.
  uint32_t after() const { return spanned - 1 + bootstrap; }
};
static_assert(std::is_trivially_copyable_v<ItemShape>);

// One window that the items of an explicit index may have.
struct WindowConfig {
  char name[48];    // empty: of the only window, whose columns have their own names in a batch
  uint32_t length;  // the most rows of the window
  uint32_t stride;  // rows of the lane from one row of the window to the next
  uint64_t reserved;

  // Rows of the lane from the first to the last of num_rows rows of the window.
  uint32_t span(uint32_t num_rows) const { return (num_rows - 1) * stride + 1; }
};
static_assert(sizeof(WindowConfig) == 64);

// Transitions of episodes that have ended; a draw may replace their goals by goals that were achieved (read/hindsight.hpp).
// The SequenceConfig of such an index reaches to the end of the episode; IndexConfig::own_rows() is one step. All zero in
// every other index.
enum class Goals : uint32_t { kNone = 0, kFuture = 1, kFinal = 2, kEpisode = 3 };
struct HindsightConfig {
  Goals goals;
  uint32_t goal;      // the column of the goals
  uint32_t achieved;  // the state column of the achieved goals, of the same dtype and shape
  uint32_t reserved;
  double share;  // of the drawn items: those that get another goal

  bool is_set() const { return goals != Goals::kNone; }
};
static_assert(sizeof(HindsightConfig) == 24);

// An episode has more steps than its item has rows: the step that makes it so long is refused; or the item is the first
// steps, the last steps, or as many steps from a random one on.
enum class TooLong : uint32_t { kRefuse = 0, kHead = 1, kTail = 2, kRandom = 3 };

// Items that are groups of episodes: the index is explicit, and its one declared window is the window of each member. A
// record is made by the episodes that end, not by a call (rules Y1 to Y5). All zero where items are no groups.
enum class GroupWeight : uint16_t { kNone = 0, kMean = 1, kVariance = 2, kAnyMean = 3, kAnyVariance = 4 };
struct GroupConfig {
  uint32_t size;       // episodes of a group
  uint32_t column;     // an int64 of kind episode: the members of a group have one value of it
  TooLong too_long;    // the fate of an episode of more steps than the index's window has rows
  GroupWeight weight;  // the priority of a group when it is published (pages/group_weight.hpp)
  uint16_t weighed;    // the column from which that priority is computed

  bool is_set() const { return size != 0; }
};
static_assert(sizeof(GroupConfig) == 16);

// Traits of an index, which most indexes do not have (Region::traits). Those marked "kind" follow from its sampler, or
// from its sampler and its remover.
inline constexpr uint32_t kHasPriorities = 1;  // kind: the sampler or the remover looks at priorities
inline constexpr uint32_t kIsOrdered = 2;      // kind: the sampler draws by an order of items, not by mass
inline constexpr uint32_t kIsBounded = 4;      // the index has a remover's tree: max_items, or records and a choice
inline constexpr uint32_t kIsTimed = 8;        // max_wait_s
inline constexpr uint32_t kIsRanked = 16;      // kind: the sampler draws by the ranks of priorities
inline constexpr uint32_t kHasQueue = 256;     // records whose remover is not Fifo: a queue, no ring (rule R5)
inline constexpr uint32_t kIsAged = 32;        // max_staleness
inline constexpr uint32_t kIsLatest = 64;      // kind: the sampler draws among the items that came last
inline constexpr uint32_t kFades = 128;        // kind: the sampler's masses follow from versions
inline constexpr uint32_t kIsShuffled = 512;   // kind: the sampler visits every leaf once an epoch
inline constexpr uint32_t kIsDistinct = 1024;  // configured: a batch has no item twice
inline constexpr uint64_t kVisitedBytes = 64;  // after the tree of a shuffled index: the count of leaves visited (O1)

struct IndexConfig {
  char name[64];
  uint32_t n_step;
  StackPad stack_pad;
  double gamma;
  Sampling sampling;
  Removal removal;
  Reduction reduction;  // of the sampler's leaves; this and the next two follow from the kinds (settle_kinds)
  Reduction order;      // of the remover's leaves
  uint32_t traits;      // kHasPriorities, kIsOrdered, kIsRanked, kIsLatest, kFades, kIsShuffled, kIsDistinct
  Initial initial;
  alignas(8) double priority_exponent;  // may be changed; exponent_of() reads it without the lock
  double removal_exponent;              // the remover's
  double initial_number;
  LimiterConfig limiter;
  uint32_t max_times_sampled;   // 0: no limit
  uint32_t stack[kMaxColumns];  // frames of each state column, 1 = no stack
  SequenceConfig sequence;      // of items with a time axis
  LeafMap map;                  // whether its leaves stand for slots or records
  uint64_t max_items;           // the most items that live at a time; 0: any number (never where they are explicit)
  uint32_t num_windows;         // kExplicit, 0 else
  uint32_t time_major;          // 1: columns of items with a time axis come as [T, B, ...]; 0: as [B, T, ...]
  WindowConfig windows[kMaxWindows];
  GroupConfig group;    // kExplicit: of items that episodes make as they end
  double max_wait_s;    // an item that waits longer to be published is dropped; 0: no limit
  Predicate where;      // a step that does not pass it is no item (rule Q1); without operations every step passes
  uint64_t best_items;  // of a sampler that draws among the best: how many of them; 0: best_share of all items
  double best_share;
  HindsightConfig hindsight;  // of transitions whose goals may be replaced when they are drawn
  uint64_t versions_kept;     // an item goes so many learner versions after that of its oldest row; 0: no limit
  uint64_t latest;            // kIsLatest: draws see those of the last so many items that are still there
  double decay;               // kFades: the part of an item's mass that is left after each version

  // The rows that an item itself has: its columns come from them, it waits for their late columns, and its age is that of
  // the oldest of them. `sequence` has the rows that must exist as long as the item does, which are more with hindsight:
  // the item is one step, and reaches to the end of its episode.
  SequenceConfig own_rows() const { return hindsight.is_set() ? SequenceConfig{} : sequence; }

  // Whether items are explicit and the remover chooses the item that goes, possibly the newcomer: one record more (R5).
  bool chooses_records() const { return map == LeafMap::kExplicit && removal != Removal::kFifo; }
  // For the first index: whether its remover, and not the age of pages, decides which pages go at capacity (rule D8).
  bool chooses_pages() const { return map == LeafMap::kImplicit && removal != Removal::kFifo; }
  uint64_t num_records() const { return max_items + (chooses_records() ? 1 : 0); }
};
static_assert(std::is_trivially_copyable_v<IndexConfig>);
// The sampler's present exponent. May be called at any time.
inline double exponent_of(const IndexConfig& index) {
  return std::atomic_ref<double>(const_cast<double&>(index.priority_exponent)).load(std::memory_order_acquire);
}

// The configuration of a table, from which everything else follows.
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
  std::vector<std::vector<ColumnConfig>> item_columns;    // of the first indexes, up to the last one that has some
  std::vector<std::vector<WrittenOperation>> conditions;  // of each index; settle_conditions() turns them into `where`
  uint64_t capacity = 0;
  uint32_t max_lanes = 256;
  uint32_t max_participants = 256;
  uint64_t seed = 0;
  uint64_t shard = 0;
  uint64_t epoch = 0;     // decides where generations begin (Region::first_generation); 0: at 1
  uint32_t page_len = 0;  // of a table that is loaded from a save: those of the saved table. 0: make_layout() chooses
  uint32_t slot_bits = 0;
  bool keeps_file = false;  // the region's file stays after the last close (rule J7)
  std::string metadata;
  TierConfig tier;
};

// The records of an index whose items are explicit. All zero in every other index.
struct RecordGeometry {
  // A record's key has first_leaf + record in the place of a slot. Records have the upper half of the slot space, so that
  // their keys stay when a saved table is loaded with more rows.
  uint64_t first_leaf;
  uint64_t max_items;  // records: one more than its index's max_items where its remover chooses
  uint32_t max_windows;
  uint32_t max_rows;  // of the lane, that the longest window spans
  uint32_t pages_a_window;
  uint32_t num_columns;     // of the items' own
  uint32_t first_column;    // of these among all columns: after the columns of rows and of the indexes before
  uint32_t value_stride;    // bytes from the own columns of one record to those of the next
  uint64_t words_offset;    // generation and state of each record
  uint64_t windows_offset;  // max_windows of each record
  uint64_t nodes_offset;    // max_windows x pages_a_window of each record: where it hangs
  uint64_t heads_offset;    // of each row slot: the first record that hangs there
  uint64_t values_offset;   // the own columns of each record; of groups their value

  uint64_t group_size;     // members of a group; 0: no groups
  uint64_t joined_offset;  // of groups, of each lane: the last episode that was looked at

  uint64_t nodes_a_record() const { return uint64_t{max_windows} * pages_a_window; }
};
static_assert(sizeof(RecordGeometry) == 96);

// Start cells: the large columns of kind start, for those steps only at which a window may begin. All zero in a table
// that stores these columns in every row. Cells get memory as frames do: committed in order, taken last-in first-out.
struct CellGeometry {
  uint64_t stride;     // bytes of a cell
  uint64_t num_cells;  // as many as row slots
  uint64_t grow_cells;
  uint64_t state_offset;  // CellState
  uint64_t links_offset;  // of each cell: the next cell of its page
  uint64_t free_offset;   // the stack of free cells
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
  uint32_t has_state;         // 1: a column is of kind state, so windows need a bootstrap cell
  int32_t reward_column;      // -1: none
  uint32_t num_item_columns;  // of all explicit indexes, after the columns of rows

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
  uint64_t orders_offset[kMaxIndexes];  // the remover's tree, then the queue of records or the ranks of pages; 0: none
  uint64_t waits_offset[kMaxIndexes];   // times since which items wait, of indexes with max_wait_s; 0: none
  // Pending priorities, of indexes of rows with priorities. 0: none; or of the first such index, which uses the marks.
  uint64_t given_offset[kMaxIndexes];
  uint64_t ranks_offset[kMaxIndexes];  // classes of priorities, of indexes whose sampler draws by ranks; 0: none
  uint64_t ages_offset[kMaxIndexes];   // items' versions, of indexes that have max_staleness; 0: none
  // Tickets of the items that came last, of indexes whose sampler draws among these; 0: none.
  uint64_t places_offset[kMaxIndexes];
};
static_assert(std::is_trivially_copyable_v<Geometry>);

// The head of a row, in front of its packed columns: most batches need nothing else of a step than its columns and
// this.
inline constexpr uint32_t kTerminatedBit = 1u << 31;
inline constexpr uint32_t kTruncatedBit = 1u << 30;
inline constexpr uint32_t kDiscountBit = 1u << 29;   // the step has its own discount, in the row's mark
inline constexpr uint32_t kLateBit = 1u << 28;       // the late columns of the step are still to come
inline constexpr uint32_t kStepMask = kLateBit - 1;  // step of the episode
inline constexpr uint32_t kNoPriority = 0x7fc00000u;

struct Layout {
  Geometry geometry{};
  BulkGeometry bulk{};                // of a tiered table
  std::vector<ColumnLayout> columns;  // of rows, then the items' own
};

// Computes the layout of a table. kInvalidConfig or kCapacityTooSmall name the part of the configuration at fault.
Status make_layout(const TableConfig& config, Layout* out);

// A hash over everything that decides addresses: a reader of one region can read the rows of another with the same
// hash.
uint64_t layout_hash(const Geometry& geometry, const ColumnLayout* columns);

}  // namespace relive
