// The words of a region, and a view over them.
//
// Owner:   the Storage of a handle owns the bytes; a Region is a view of them.
// Locking: word by word (rule B). Page words, ranges, links, leaves, use counts, lanes, participants and lists are
//          written under the table lock only. Row bytes at or above step_end of an OPEN page are written by the lane's
//          owner only, without a lock. Event words may be written by every process. recover() rebuilds DERIVED words
//          from PRIMARY ones.
// Cost:    O(1) for each function but the sums over participants; create and open are O(region).
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "relive/words/bulk_view.hpp"
#include "relive/words/layout.hpp"
#include "relive/words/limiter_cell.hpp"
#include "relive/words/ranks.hpp"
#include "relive/words/record_view.hpp"
#include "relive/words/sync.hpp"
#include "relive/words/testing.hpp"
#include "relive/words/tree.hpp"

namespace relive {

enum class PageState : uint64_t { kFree = 0, kOpen = 1, kClosed = 2, kRetired = 3 };
enum class LaneState : uint32_t { kClosed = 0, kLive = 1 };

inline constexpr uint32_t kNoPage = ~0u;

// The place of a free record in the queue of an index whose remover chooses records (rule R5): below every other place.
inline constexpr double kFreePlace = -0x1.0p54;

// The state of a leaf, PRIMARY, 16 bits: the part that the step of that slot plays in the index. Mass 0 is not a state.
inline constexpr uint16_t kMostUses = 0xfff9;  // 0 .. this: published, and drawn so many times
// Dropped from this index: by max_items, by max_wait_s or by a condition. The step stays, and may be an item of others.
inline constexpr uint16_t kStateDropped = 0xfffa;
inline constexpr uint16_t kStateUnfilled = 0xfffb;  // the window is complete, late columns are still to come
inline constexpr uint16_t kStatePending = 0xfffc;   // the step is there, or will be; its window is not complete yet
inline constexpr uint16_t kStateAwaiting = 0xfffd;  // the window is complete, its priority is still to come
inline constexpr uint16_t kStateRemoved = 0xfffe;   // deleted: never an item again
inline constexpr uint16_t kStateEnded = 0xffff;     // no item, or no longer: a row that it needs is gone; or a tail

// range: step_begin | step_end << 32; one store commits both (rule A3).
struct Range {
  uint32_t step_begin, step_end;

  static Range unpack(uint64_t word) { return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)}; }
  uint64_t pack() const { return uint64_t{step_begin} | uint64_t{step_end} << 32; }
};

// Flag of a page: its first row begins an episode or is a tail, so no item in it needs a row of the page before.
inline constexpr uint32_t kHistoryFree = 1;

struct PageRecord {
  std::atomic<uint64_t> range;               // PRIMARY
  std::atomic<uint64_t> prev, next;          // PRIMARY: page refs, 0 = none
  std::atomic<uint64_t> order;               // PRIMARY: age
  std::atomic<uint64_t> lane_uid;            // PRIMARY: of the first lane that wrote into it
  uint64_t first_t;                          // PRIMARY: position in the lane of row 0, tails counted
  std::atomic<uint64_t> ticket;              // PRIMARY: changes with the bytes of a CLOSED page (rule J3)
  std::atomic<uint32_t> lane_slot;           // PRIMARY
  std::atomic<uint32_t> flags;               // PRIMARY
  uint32_t ring_prev, ring_next, free_next;  // DERIVED; of a page on the kept list the first two link that list
  uint32_t live;                             // DERIVED: (step, index) pairs still live or pending
  std::atomic<uint32_t> first_cell;          // PRIMARY: start cells of its rows, + 1; 0: none (rule B4)
  uint32_t undecided;                        // uses that draws have claimed and may still give back, or read (rule G7)
  uint64_t first_step;  // PRIMARY where steps are counted (rules S4, S6): steps that its first lane had before row 0
};
static_assert(sizeof(PageRecord) == 96);

// The place at which publication goes on, of one lane and index. DERIVED, under the lock only. No row of the lane
// before this place is pending. The word has page ref and offset, and is stored after all before the place is done: a
// death leaves the place too early, never too late. The next process goes on from there, and finds the rest done
// already, so recovery does not look at this word. 0, or a page that is gone: publication goes on at the oldest page
// that a walk back from the lane's open page reaches.
struct Cursor {
  std::atomic<uint64_t> place;  // ref << (page_shift + 1) | offset; the offset may be the page's length
  uint64_t reserved;
};
static_assert(sizeof(Cursor) == 16);

// The words of a step that few batches need. These words lie apart from its row: a row of 60 bytes is one line of
// memory with its head. A mark is written before its step is published, as the row is. It is found by slot, so it does
// not move with its page. All lanes that wrote into one page had one lane slot, in the order of their uids, so the low
// half of a uid names the lane (lane_of).
struct Mark {
  std::atomic<uint32_t> policy_version;
  std::atomic<float> discount;             // valid if the head has kDiscountBit
  std::atomic<uint32_t> pending_priority;  // of one index (Region::given)
  std::atomic<uint32_t> lane;              // low half of the uid of the lane that wrote it

  void write(uint32_t version, float own_discount, uint32_t priority, uint32_t lane_uid) {
    policy_version.store(version, std::memory_order_relaxed);
    discount.store(own_discount, std::memory_order_relaxed);
    pending_priority.store(priority, std::memory_order_relaxed);
    lane.store(lane_uid, std::memory_order_relaxed);
  }
};
static_assert(sizeof(Mark) == 16);

// A CLOSED lane whose open page is still OPEN is parked: the next lane of its slot continues in that page (rule E5).
struct Lane {
  std::atomic<LaneState> state;
  std::atomic<uint32_t> owner;  // participant
  std::atomic<uint64_t> uid;    // of the present lane of this slot, or the last one; never reused
  std::atomic<uint64_t> open;   // ref of the page to which the next row goes, or of a full page; 0 = none yet
  std::atomic<uint64_t> ahead;  // ref of the page after `open`, which is opened before a cell is written into it
  std::atomic<uint64_t> seam;   // key of the row whose state cell is written and frozen before its step, 0 = none
  uint64_t num_steps;           // where windows cross ends: steps of the lane when its last full page became full
  // 1: the limiters refused its writer's last call, so the lane stands still (rule P6). The writer alone stores it.
  std::atomic<uint64_t> is_refused;
  uint64_t reserved;
};
static_assert(sizeof(Lane) == 64);

struct alignas(64) Participant {
  std::atomic<uint32_t> live;
  std::atomic<uint32_t> epoch;
  std::atomic<int64_t> pid;  // as the namespace, for messages only
  std::atomic<uint64_t> pid_namespace;
  std::atomic<uint64_t> pins[kPins];  // page refs
  std::atomic<uint32_t> pinning_all;  // its threads that have pinned all pages (rule D7)
  uint32_t reserved;
};
static_assert(sizeof(Participant) == 64);

// The threads of a participant that wait for an index's limiter now, for other processes to read (rule P3). Threads
// count themselves in and out of each slice of their wait. If several threads wait, `largest` and `since_s` are right
// once the next slice of each thread has begun.
struct WaitWords {
  std::atomic<uint32_t> count;    // threads
  std::atomic<uint32_t> largest;  // the most items that one of these threads asks for
  std::atomic<double> since_s;    // if count is above 0: when the longest wait began, by the clock of T1
};
static_assert(sizeof(WaitWords) == 16);

// Each credit has a line of its own, because one participant writes it with every batch.
struct alignas(64) Credit {
  std::atomic<int64_t> in_flight;  // items drawn, not yet handed out
  std::atomic<int64_t> done;       // items handed out by all participants that had this slot
  std::atomic<int64_t> reserved;   // rows admitted by the limiter, not yet committed
  // The largest draw that the limiter has refused this participant so far. A block of rows that does not fit the window
  // together with it is admitted in parts.
  std::atomic<int64_t> refused_draw;
  WaitWords sampler_wait, writer_wait;
  // Items whose last use a draw has claimed and may still give back. They keep their places in a queue (rule P7).
  std::atomic<int64_t> undecided;
};
static_assert(sizeof(Credit) == 128);

// Start cells, placed by CellGeometry. A cell is free, or hangs at the page that took it.
struct CellState {
  std::atomic<uint64_t> committed;  // PRIMARY: cells below this number have committed memory
  std::atomic<uint64_t> num_free;   // DERIVED
};

struct Counters {
  std::atomic<uint64_t> appended, evicted, pool_pressure, early_freed, deleted, cut_lanes, skipped_items;
  std::atomic<uint64_t> updates_applied, updates_stale, redraws_generation, redraws_empty, redraws_claimed, slow_draws;
  std::atomic<uint64_t> recoveries, swept, sampler_waits, writer_waits, sampler_wait_ns, writer_wait_ns;
  std::atomic<uint64_t> completed, completions_stale, incomplete_items;
  std::atomic<uint64_t> dropped_groups;
};

struct IndexState {
  std::atomic<int64_t> inserted;     // PRIMARY: items ever published
  std::atomic<int64_t> live_items;   // DERIVED
  std::atomic<double> max_priority;  // PRIMARY: running maximum of given priorities
  std::atomic<double> max_mass;      // its mass
  std::atomic<uint64_t> next_item;   // PRIMARY: records ever taken; a ring goes on at that modulo its length
  std::atomic<uint64_t> tickets;     // PRIMARY: tickets ever given, of an index that keeps an order (rule R1)
  std::atomic<int64_t> pending;      // DERIVED: unfilled or awaiting items: admitted, and neither published nor gone
  std::atomic<uint64_t> timed_out;   // items that waited too long
  std::atomic<uint64_t> expired;     // items that went because their versions were too old
  std::atomic<uint64_t> base;      // PRIMARY, where masses fade: twice the version whose items have mass 1; odd: moving
  std::atomic<uint64_t> filtered;  // steps that the index's condition kept out
  std::atomic<int64_t> unused;     // DERIVED, of an index with use counts: live items with a mass that were never drawn
  std::atomic<int64_t> used;       // PRIMARY, of the same: items drawn at least once; only a draw given back lowers it
  LimiterCell limiter;             // the present limiter
  std::atomic<int64_t> massless;   // DERIVED: live items whose mass is 0, so no draw finds them
  std::atomic<int64_t> lacked;     // items inserted when a draw last found too few, + 1; 0: never (rule P4)

  // For the first index, if it is of rows: items that went because every page had some (rule D8). Such an index has no
  // ring.
  std::atomic<uint64_t>& crowded_out() { return next_item; }
  // PRIMARY. For an index that draws among the items that came last and whose masses do not fade: the tickets that went
  // to items that were revalued, and not to newcomers (rule Z4).
  std::atomic<uint64_t>& tickets_renewed() { return base; }
  const std::atomic<uint64_t>& tickets_renewed() const { return base; }
  uint64_t arrivals() const {
    return tickets.load(std::memory_order_relaxed) - tickets_renewed().load(std::memory_order_relaxed);
  }

  // The insert side of the limiter also counts pending items, until they are published or gone.
  int64_t inserted_or_pending() const {
    return inserted.load(std::memory_order_relaxed) + pending.load(std::memory_order_relaxed);
  }
  // The live items that a draw can find (rule P4).
  int64_t drawable() const {
    return live_items.load(std::memory_order_relaxed) - massless.load(std::memory_order_relaxed);
  }
};

// The rows whose late columns came and whose explicit items have still to be looked at. PRIMARY, under the lock only
// (rule L6). The work goes on at `slot`, row by row downwards to `stop`; at each row index by index and node by node.
struct LateRest {
  std::atomic<uint64_t> slot;  // row slot + 1; 0: nothing is left
  std::atomic<uint64_t> stop;  // the last row slot to look at
  std::atomic<uint32_t> index;
  std::atomic<uint32_t> node;  // the next node there, + 1; 0: none
};

// A change of a sampler's exponent that is under way. PRIMARY, under the lock only (rule H2). A change takes one
// critical section; all words are zero at any other time. A leaf below 0 has its new value, negated.
struct Raising {
  std::atomic<uint32_t> index;  // + 1; 0: no change is under way. Stored last, cleared when all is done
  std::atomic<uint32_t> phase;  // 0: leaves are raised; 1: all leaves are raised, and lose their signs
  std::atomic<double> from, to;
};

struct Header {
  char magic[8];
  uint32_t format_version;
  uint32_t abi_tag;  // size and byte order of the words
  uint8_t uuid[16];
  char boot_id[40];
  uint64_t layout_hash;
  std::atomic<uint32_t> clean;  // 1: the last user closed the table
  uint32_t checksum;            // CRC-32 over all that never changes
  Geometry geometry;
  IndexConfig indexes[kMaxIndexes];

  alignas(64) std::atomic<uint32_t> lock;
  alignas(64) EventWords items_event;            // something to draw may have come
  alignas(64) EventWords room_event;             // room to insert may have come
  Raising raising;                               // in the rest of this line
  alignas(64) std::atomic<uint64_t> live_steps;  // DERIVED
  std::atomic<uint64_t> removed_steps;           // DERIVED: the deleted ones of these steps
  std::atomic<uint64_t> next_order, next_ticket, next_uid;
  std::atomic<uint64_t> frames_committed;                      // PRIMARY
  std::atomic<uint64_t> num_free_frames;                       // DERIVED
  std::atomic<uint32_t> free_head, free_tail, num_free_pages;  // DERIVED
  std::atomic<uint32_t> ring_head, ring_tail;                  // DERIVED
  std::atomic<uint32_t> num_pins;                              // DERIVED
  std::atomic<uint32_t> policy_version;
  std::atomic<uint32_t> num_pinning_all;  // DERIVED: the sum of `pinning_all` over all participants
  std::atomic<uint32_t> kept_head;        // DERIVED: the list of CLOSED pages without rows that are pinned
  LateRest late_rest;                     // PRIMARY
  std::atomic<uint64_t> num_raised;       // twice the changes of exponents so far, odd during a change (rule H3)
  std::atomic<int64_t> base_version;      // PRIMARY: the version from which staleness budgets count (rule P5)
  uint64_t floor;                         // the least generation of a page or record that opens (rule J4)
  std::atomic<uint32_t> changing_page;    // PRIMARY: + 1; the page whose committed rows change now (rule J3)
  std::atomic<uint32_t> keeps_file;       // 1: the last close leaves the file (rule J7)
  uint64_t file_number;                   // of the file that the region was made in, or came whole into (rule J7)
  double closed_s;                        // the clock of T1 at the last clean close (rule J7)
  alignas(64) IndexState index_state[kMaxIndexes];
  alignas(64) Counters counters;
};

inline constexpr char kMagic[8] = {'r', 'e', 'l', 'i', 'v', 'e', '\n', '\0'};

// Names the part of a geometry, or of its columns, that cannot be true of a file of num_bytes. Empty if all is sound.
std::string unsound_part(const Geometry& geometry, const std::byte* memory, size_t num_bytes);

// The start cells of a table; empty if it has none.
struct StartCells {
  const CellGeometry* geometry = nullptr;
  std::byte* first = nullptr;
  CellState* state = nullptr;
  std::atomic<uint32_t>* links = nullptr;  // PRIMARY: of a cell that hangs at a page, the next cell + 1; 0: the last
  std::atomic<uint32_t>* free = nullptr;   // DERIVED

  explicit operator bool() const { return geometry != nullptr; }
  std::byte* at(uint64_t cell) const { return first + cell * geometry->stride; }
};

// The kinds of times by which items go, each in a tree of minima (index/due_times.hpp): since when the item waits, the
// version of its oldest row, its place among the items that came last. The item with the least time is due first.
enum class Due : uint32_t { kWait = 0, kAge = 1, kPlace = 2 };
inline constexpr uint32_t kNumDues = 3;

struct Region {
  std::byte* base = nullptr;
  Header* header = nullptr;
  const Geometry* geometry = nullptr;
  const ColumnLayout* columns = nullptr;
  Participant* participants = nullptr;
  Credit* credits = nullptr;
  Lane* lanes = nullptr;
  std::atomic<uint64_t>* words = nullptr;
  std::atomic<uint32_t>* frames = nullptr;
  PageRecord* pages = nullptr;
  std::atomic<uint64_t>* tails = nullptr;
  Mark* marks = nullptr;
  Cursor* cursors[kMaxIndexes] = {};                 // of the row indexes
  Records records[kMaxIndexes] = {};                 // of the record indexes
  std::atomic<uint64_t>* visited[kMaxIndexes] = {};  // PRIMARY, of shuffled indexes: leaves visited so far (rule O1)
  std::atomic<uint32_t>* free_frames = nullptr;
  uint32_t num_indexes = 0;
  uint32_t page_shift = 0;
  uint32_t page_len = 0;
  uint32_t page_bits = 0;
  uint32_t late_bytes = 0;            // of a row's late columns; 0: there are none
  Tree ranks;                         // of pages, DERIVED, if chooses_pages(); else without leaves
  uint16_t traits[kMaxIndexes] = {};  // of each index (words/layout.hpp)
  Bulk bulk;                          // of a tiered table; empty in every other table
  StartCells cells;

  // Fills a new, zeroed region of layout.geometry.region_bytes and binds to it.
  void create(std::byte* memory, const TableConfig& config, const Layout& layout);
  // Binds to a region that exists. Checks magic, version, ABI, size, geometry and checksum first.
  Status open(std::byte* memory, size_t num_bytes);

  // ---- names of things ---------------------------------------------------------------------------------------
  uint64_t page_of(uint64_t slot) const { return slot >> page_shift; }
  uint32_t offset_of(uint64_t slot) const { return static_cast<uint32_t>(slot & (page_len - 1)); }
  uint64_t slot_of(uint64_t page, uint32_t offset) const { return page << page_shift | offset; }
  static uint64_t generation_of(uint64_t word) { return word >> kGenerationShift; }

  // The first generation of a new region. It lies in the lower half of the generations that a key has bits for, so that
  // enough are left. If a region replaces a lost one, it has another epoch: keys of the lost region lead to nothing,
  // except by a chance of one in the size of that half (2^22 for ten million rows).
  uint64_t first_generation(uint64_t epoch) const {
    return 1 + epoch % (uint64_t{1} << (kLeafBits - geometry->slot_bits - 1));
  }
  static PageState state_of(uint64_t word) { return static_cast<PageState>(word & 3); }
  static bool is_used(uint64_t word) { return (word & 3) == 1 || (word & 3) == 2; }
  // The word of a page whose generation ends: free again, or retired if there is no number for the next generation.
  uint64_t freed_word(uint64_t word) const {
    const uint64_t generation = std::max(generation_of(word) + 1, header->floor);
    const bool overflows = generation >> (kLeafBits - geometry->slot_bits) != 0;
    return generation << kGenerationShift | static_cast<uint64_t>(overflows ? PageState::kRetired : PageState::kFree);
  }
  // The word of a page whose bytes were moved (rule D6).
  static uint64_t moved_word(uint64_t word) {
    const uint64_t moves = ((word >> kStateBits) + 1) & ((uint64_t{1} << kMoveBits) - 1);
    return generation_of(word) << kGenerationShift | moves << kStateBits | (word & 3);
  }
  uint64_t ref_of(uint64_t page, uint64_t word) const { return generation_of(word) << page_bits | page; }
  uint64_t ref_page(uint64_t ref) const { return ref & ((uint64_t{1} << page_bits) - 1); }
  uint64_t ref_generation(uint64_t ref) const { return ref >> page_bits; }
  int64_t key_of(uint64_t slot, uint64_t word) const {
    return static_cast<int64_t>(geometry->shard << kLeafBits | generation_of(word) << geometry->slot_bits | slot);
  }
  uint64_t key_slot(int64_t key) const {
    return static_cast<uint64_t>(key) & ((uint64_t{1} << geometry->slot_bits) - 1);
  }
  uint64_t key_generation(int64_t key) const {
    return (static_cast<uint64_t>(key) & ((uint64_t{1} << kLeafBits) - 1)) >> geometry->slot_bits;
  }
  // Whether a row is a step: committed, not evicted, not a tail. Exact under the lock.
  bool is_step(uint64_t page, uint32_t offset) const {
    const Range range = Range::unpack(pages[page].range.load(std::memory_order_relaxed));
    return offset >= range.step_begin && offset < range.step_end && !is_tail(page, offset);
  }
  // Whether the key may have come from this region, as the key of a row or of an explicit item.
  bool is_own_key(int64_t key) const;
  bool is_row_key(int64_t key) const { return is_key_in(0, geometry->num_slots, key); }
  // The number that stands for the steps themselves where a call takes the number of an index: each row is an item.
  uint32_t steps() const { return num_indexes; }
  // Whether the key may be that of an item of this index, or of a step.
  bool is_item_key(uint32_t index, int64_t key) const {
    return is_key_in(maps_[index].first, maps_[index].num_leaves, key);
  }
  // The page of a ref if that page is in use and still has the generation of the ref, else kNoPage.
  uint64_t alive(uint64_t ref) const;

  // ---- rows --------------------------------------------------------------------------------------------------
  std::byte* frame_base(uint32_t frame) const {
    const uint32_t shift = geometry->frames_per_slab_shift;
    return base + geometry->slabs_offset + (frame >> shift) * geometry->slab_bytes +
           (frame & ((1u << shift) - 1)) * geometry->frame_bytes;
  }
  std::byte* page_base(uint64_t page) const { return frame_base(frames[page].load(std::memory_order_acquire)); }
  // The head of a row, for a writer whose change others may read at the same time.
  std::atomic_ref<uint32_t> head_of(uint64_t slot) const {
    std::byte* record = page_base(page_of(slot)) + offset_of(slot) * geometry->record_stride;
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(record));
  }
  // The discount of the step of a slot, without gamma.
  float discount_of(uint64_t slot, uint32_t head) const {
    if (head & kDiscountBit) return marks[slot].discount.load(std::memory_order_relaxed);
    return head & kTerminatedBit ? 0.0f : 1.0f;
  }
  // The uid of the lane of the step of a slot.
  uint64_t lane_of(uint64_t slot) const {
    const uint64_t first = pages[page_of(slot)].lane_uid.load(std::memory_order_relaxed);
    return first + (marks[slot].lane.load(std::memory_order_relaxed) - static_cast<uint32_t>(first));
  }
  bool is_tail(uint64_t page, uint32_t offset) const {
    return tails[page * geometry->tail_words + offset / 64].load(std::memory_order_acquire) >> (offset & 63) & 1;
  }
  void set_tail(uint64_t page, uint32_t offset) {
    tails[page * geometry->tail_words + offset / 64].fetch_or(uint64_t{1} << (offset & 63), std::memory_order_release);
  }
  uint32_t num_tails(uint64_t page, uint32_t begin, uint32_t end) const;
  // The number of rows from `offset` on, at most `most`, that come before the next tail.
  uint32_t rows_to_tail(uint64_t page, uint32_t offset, uint32_t most) const {
    const uint32_t end = offset + most;
    for (uint32_t row = offset; row < end; row = (row | 63) + 1) {
      const uint64_t bits = tails[page * geometry->tail_words + row / 64].load(std::memory_order_acquire) >> (row & 63);
      if (bits != 0) return std::min(most, row - offset + static_cast<uint32_t>(std::countr_zero(bits)));
    }
    return most;
  }
  // The bits of rows that are not there yet mean nothing. The bits are cleared before another lane writes those rows.
  void clear_tails_from(uint64_t page, uint32_t offset);

  // ---- items: the room index/ alone has their leaves (index/index_view.hpp) ----------------------------------
  // The indexes whose leaves are row slots, and those whose leaves are records. Most tables have no records.
  std::span<const uint32_t> row_indexes() const { return {row_indexes_, num_row_indexes_}; }
  std::span<const uint32_t> record_indexes() const { return {record_indexes_, num_indexes - num_row_indexes_}; }
  bool has_records() const { return num_row_indexes_ < num_indexes; }
  // The indexes that an appended row may give an item: those of rows, and those of groups of episodes.
  std::span<const uint32_t> appended_indexes() const { return {appended_indexes_, num_appended_indexes_}; }
  bool has_groups() const { return has_groups_; }  // whether an index has groups of episodes
  const ItemMap& map(uint32_t index) const { return maps_[index]; }
  uint64_t leaf_of_key(uint32_t index, int64_t key) const { return key_slot(key) - maps_[index].first; }
  int64_t key_of_leaf(uint32_t index, uint64_t leaf, uint64_t word) const {
    return key_of(maps_[index].first + leaf, word);
  }
  // The priority with which the item of a row came, or that it was given since, in one index of rows that has
  // priorities: bits of a float32, NaN if none came. PRIMARY. The writer of the row writes it first, as the row's mark;
  // later it is written under the lock (rule H1).
  std::atomic<uint32_t>& given(uint32_t index, uint64_t slot) const {
    const bool is_the_marks = given_[index] == nullptr || !RELIVE_RULE(H1_index);
    return is_the_marks ? marks[slot].pending_priority : given_[index][slot];
  }
  // The indexes whose pending priorities are not in the marks: all indexes of rows with priorities but the first.
  std::span<const uint32_t> given_apart() const { return {given_apart_, num_given_apart_}; }
  // The indexes of rows with max_items.
  std::span<const uint32_t> bounded_indexes() const { return {bounded_indexes_, num_bounded_indexes_}; }
  // Whether the remover of the first index chooses which page goes when the table is full (pages/eviction_order.hpp).
  bool chooses_pages() const { return ranks.num_leaves() != 0; }
  // The indexes with max_wait_s.
  std::span<const uint32_t> timed_indexes() const { return {timed_indexes_, num_timed_indexes_}; }
  // The indexes with max_staleness; with Fresh(last=); with Fresh(decay=).
  std::span<const uint32_t> aged_indexes() const { return {aged_indexes_, num_aged_indexes_}; }
  std::span<const uint32_t> latest_indexes() const { return {latest_indexes_, num_latest_indexes_}; }
  std::span<const uint32_t> fading_indexes() const { return {fading_indexes_, num_fading_indexes_}; }
  uint32_t max_times(uint32_t index) const { return header->indexes[index].max_times_sampled; }
  const ItemShape& shape(uint32_t index) const { return geometry->shapes[index]; }
  std::atomic<uint64_t>& cursor(uint32_t index, uint32_t lane) const { return cursors[index][lane].place; }
  uint64_t place_of(uint64_t ref, uint32_t offset) const { return ref << (page_shift + 1) | offset; }
  uint64_t place_ref(uint64_t place) const { return place >> (page_shift + 1); }
  uint32_t place_offset(uint64_t place) const { return static_cast<uint32_t>(place & (2 * uint64_t{page_len} - 1)); }

  Credit& credit(uint32_t participant, uint32_t index) const { return credits[participant * num_indexes + index]; }
  // Sums over all participants; exact under the lock.
  int64_t sampled(uint32_t index) const;
  int64_t reserved_rows() const;
  int64_t undecided(uint32_t index) const;     // over all participants
  int64_t refused_draw(uint32_t index) const;  // the largest over all participants
  // The items that the limiter counts as published. Where uses are counted these are the items that were ever drawn, and
  // those that a draw may still find (rule P2).
  int64_t inserted(uint32_t index) const;
  // No live item has a mass, or a draw found too few items, although the limiter let it pass: the next insert may pass
  // the corridor (rule P4).
  void note_lack(uint32_t index) const;
  bool lacks_items(uint32_t index) const;
  // The present limiter of an index, at the present policy version. Then its counts on the side of draws and on the
  // side of inserts, which includes pending items and reserved rows. Exact under the lock.
  LimiterConfig limiter(uint32_t index) const;
  LimiterCounts drawn_counts(uint32_t index, const LimiterConfig& limiter) const;
  LimiterCounts inserted_counts(uint32_t index, const LimiterConfig& limiter, int64_t reserved,
                                int64_t under_way = 0) const;

 private:
  friend class IndexView;  // the room index/ alone names a tree or a leaf state

  Tree trees_[kMaxIndexes];
  Tree orders_[kMaxIndexes];          // of the bounded indexes: which of their items goes first
  Ranks ranks_[kMaxIndexes];          // of the indexes that draw by ranks: classes of their leaves
  Tree queues_[kMaxIndexes];          // of records that a remover chooses from
  Tree dues_[kNumDues][kMaxIndexes];  // of the timed, the aged and the latest indexes
  std::atomic<uint16_t>* states_[kMaxIndexes] = {};
  std::atomic<uint32_t>* given_[kMaxIndexes] = {};
  ItemMap maps_[kMaxIndexes + 1] = {};  // of each index; after the last one, of the steps
  uint32_t row_indexes_[kMaxIndexes] = {};
  uint32_t record_indexes_[kMaxIndexes] = {};
  uint32_t num_row_indexes_ = 0;
  uint32_t appended_indexes_[kMaxIndexes] = {};
  uint32_t num_appended_indexes_ = 0;
  uint32_t bounded_indexes_[kMaxIndexes] = {};
  uint32_t num_bounded_indexes_ = 0;
  uint32_t timed_indexes_[kMaxIndexes] = {};
  uint32_t num_timed_indexes_ = 0;
  uint32_t aged_indexes_[kMaxIndexes] = {};
  uint32_t num_aged_indexes_ = 0;
  uint32_t latest_indexes_[kMaxIndexes] = {};
  uint32_t num_latest_indexes_ = 0;
  uint32_t fading_indexes_[kMaxIndexes] = {};
  uint32_t num_fading_indexes_ = 0;
  uint32_t given_apart_[kMaxIndexes] = {};
  uint32_t num_given_apart_ = 0;
  bool has_groups_ = false;
  bool is_key_in(uint64_t first, uint64_t count, int64_t key) const {
    return key >= 0 && static_cast<uint64_t>(key) >> kLeafBits == geometry->shard && key_slot(key) - first < count &&
           key_generation(key) >= 1;  // a slot below `first` wraps to a number above `count`
  }
  void bind(std::byte* memory);
  void bind_index(uint32_t index);
};

}  // namespace relive
