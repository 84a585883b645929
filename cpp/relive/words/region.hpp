// The words of a region and a view over them. Owner: the Storage of a handle owns the bytes; a Region is a view.
//
// Locking, word by word (rule B): page words, ranges, links, leaves, use counts, lanes, participants, lists: written
// under the table lock only; row bytes at or above step_end of an OPEN page: the lane's owner only, without a lock;
// event words: anybody. PRIMARY words are the truth, DERIVED ones are rebuilt from them by recover().
#pragma once

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

// The state of a leaf, PRIMARY, 16 bits: what the step of that slot is to the index. Mass 0 is not a state.
inline constexpr uint16_t kMostUses = 0xfff9;  // 0 .. this: published, and drawn so many times
// Its index holds no more (max_items), or it waited too long (max_wait_s): the step stays, as others' item.
inline constexpr uint16_t kStateDropped = 0xfffa;
inline constexpr uint16_t kStateUnfilled = 0xfffb;  // its window is complete, late columns of its rows still to come
inline constexpr uint16_t kStatePending = 0xfffc;   // the step is there, or will be; its window is not complete yet
inline constexpr uint16_t kStateAwaiting = 0xfffd;  // its window is complete, its priority still to come
inline constexpr uint16_t kStateRemoved = 0xfffe;   // deleted: never an item again
inline constexpr uint16_t kStateEnded = 0xffff;     // no item, or none any more: a row that it needs is gone, or a tail

// range: step_begin | step_end << 32; one store commits both (rule A3).
struct Range {
  uint32_t step_begin, step_end;

  static Range unpack(uint64_t word) { return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32)}; }
  uint64_t pack() const { return uint64_t{step_begin} | uint64_t{step_end} << 32; }
};

inline constexpr uint32_t kHistoryFree = 1;  // the page's first row begins an episode or is a tail: no item in it
                                             // needs a row of the page before

struct PageRecord {
  std::atomic<uint64_t> range;               // PRIMARY
  std::atomic<uint64_t> prev, next;          // PRIMARY: page refs, 0 = none
  std::atomic<uint64_t> order;               // PRIMARY: age
  std::atomic<uint64_t> lane_uid;            // PRIMARY: of the first lane that wrote into it
  uint64_t first_t;                          // PRIMARY: position in the lane of row 0, tails counted
  uint64_t ticket;                           // PRIMARY: order of sealing
  std::atomic<uint32_t> lane_slot;           // PRIMARY
  std::atomic<uint32_t> flags;               // PRIMARY
  uint32_t ring_prev, ring_next, free_next;  // DERIVED; the ring's two are the kept list's while the page is on it
  uint32_t live;                             // DERIVED: (step, index) pairs still live or pending
  std::atomic<uint32_t> first_cell;          // PRIMARY: start cells of its rows, + 1; 0: none (rule B4)
  uint32_t undecided;   // uses claimed by draws that may yet give them back, or read them (rule G7)
  uint64_t first_step;  // PRIMARY where steps are counted (rules S4, S6): steps that its first lane had before row 0
};
static_assert(sizeof(PageRecord) == 96);

// Of one lane and index, DERIVED, under the lock only: where publication goes on. No row of the lane before it is
// pending. Page ref and offset in one word, stored when what lies before it is done: a death leaves it behind the truth,
// never ahead of it, and whoever goes on from there finds the rest done already. So recovery need not look at it. 0, or
// where the page is gone: the oldest page that a walk back from the lane's open one comes to.
struct Cursor {
  std::atomic<uint64_t> place;  // ref << (page_shift + 1) | offset; the offset may be the page's length
  uint64_t reserved;
};
static_assert(sizeof(Cursor) == 16);

// What few batches ask of a step, out of the way of its row: a row of 60 bytes is one line of memory with its head.
// Written before the step is published, as its row is; found by slot, so it stays where it is when its page moves. The
// lanes of a page are those of one slot, in the order of their uids: the low half of each says which (lane_of).
struct Mark {
  std::atomic<uint32_t> policy_version;
  std::atomic<float> discount;             // counts where the head has kDiscountBit
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

// A CLOSED lane whose open page still is OPEN is parked: the next one of its slot goes on in that page (rule E5).
struct Lane {
  std::atomic<LaneState> state;
  std::atomic<uint32_t> owner;  // participant
  std::atomic<uint64_t> uid;    // of the present lane of this slot, or the last one; never reused
  std::atomic<uint64_t> open;   // ref of the page the next row goes to, or of a full one; 0 = none yet
  std::atomic<uint64_t> ahead;  // ref of the page after `open`, opened before a cell must be written into it
  std::atomic<uint64_t> seam;   // key of the row whose state cell is written and frozen ahead of its step, 0 = none
  uint64_t num_steps;           // where windows cross ends: that it had when its last full page was full
  uint64_t reserved[2];
};
static_assert(sizeof(Lane) == 64);

struct alignas(64) Participant {
  std::atomic<uint32_t> live;
  std::atomic<uint32_t> epoch;
  std::atomic<int64_t> pid;  // with the namespace: for messages only
  std::atomic<uint64_t> pid_namespace;
  std::atomic<uint64_t> pins[kPins];  // page refs
  std::atomic<uint32_t> holding;      // its threads that hold all pages where they are (rule D7)
  uint32_t reserved;
};
static_assert(sizeof(Participant) == 64);

// Who of a participant waits for an index's limiter now, for others to read (rule P3). Threads count themselves in and
// out of each slice of their wait; the longest and the largest are those of a participant that waits with several threads
// once the next slice of each has begun.
struct WaitWords {
  std::atomic<uint32_t> count;    // threads
  std::atomic<uint32_t> largest;  // items that one of them asks for
  std::atomic<double> since_s;    // where count is above 0: by the clock of T1
};
static_assert(sizeof(WaitWords) == 16);

// A line of its own: each is written by one participant with every batch.
struct alignas(64) Credit {
  std::atomic<int64_t> in_flight;  // items drawn, not yet handed out
  std::atomic<int64_t> done;       // items handed out, cumulative over incarnations of the slot
  std::atomic<int64_t> reserved;   // rows admitted by the limiter, not yet committed
  // The largest draw that the limiter has refused this participant so far: a block of rows that does not fit the window
  // beside it is let in by parts.
  std::atomic<int64_t> refused_draw;
  WaitWords sampler_wait, writer_wait;
};
static_assert(sizeof(Credit) == 64);

// Start cells, by CellGeometry. A cell is free, or hangs at the page that took it.
struct CellState {
  std::atomic<uint64_t> committed;  // PRIMARY: cells below this number really have memory behind them
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
  std::atomic<uint64_t> next_item;   // PRIMARY, of a ring: records ever taken; the next is that modulo their number
  std::atomic<uint64_t> tickets;     // PRIMARY: ever given, of an index that keeps an order (rule R1)
  std::atomic<int64_t> pending;      // DERIVED: items, unfilled or awaiting: let in, and neither published nor over
  std::atomic<uint64_t> timed_out;   // items that waited too long
  std::atomic<uint64_t> expired;     // items that went as their versions were too old
  std::atomic<uint64_t> base;        // PRIMARY: the version whose items have mass 1 where masses fade, x 2; odd: moving
  std::atomic<uint64_t> filtered;    // steps whose items the index's condition kept out
  std::atomic<int64_t> unused;  // DERIVED, as the next of an index with use counts: live items that were never drawn
  std::atomic<int64_t> used;    // PRIMARY: items that were drawn at least once, never lowered but by a draw given back
  LimiterCell limiter;          // the present one

  // Of the first index, of rows: items that went because no page was without any (rule D8). It has no ring.
  std::atomic<uint64_t>& crowded_out() { return next_item; }
  // PRIMARY. Of an index that draws among the items that came last, whose masses do not fade: tickets that newcomers did
  // not take, but items that were revalued (rule Z4).
  std::atomic<uint64_t>& tickets_renewed() { return base; }
  const std::atomic<uint64_t>& tickets_renewed() const { return base; }
  uint64_t arrivals() const {
    return tickets.load(std::memory_order_relaxed) - tickets_renewed().load(std::memory_order_relaxed);
  }

  // What the limiter's insert side counts: what is pending, too, until it is published or over.
  int64_t inserted_or_pending() const {
    return inserted.load(std::memory_order_relaxed) + pending.load(std::memory_order_relaxed);
  }
  int64_t live_or_pending() const {
    return live_items.load(std::memory_order_relaxed) + pending.load(std::memory_order_relaxed);
  }
};

// Where late columns came and explicit items have still to be looked at, PRIMARY, under the lock only (rule L6): a place
// to go on at, row by row downwards to `stop`, of each row index by index and node by node.
struct LateRest {
  std::atomic<uint64_t> slot;  // row slot + 1; 0: nothing is left
  std::atomic<uint64_t> stop;  // the last row slot to look at
  std::atomic<uint32_t> index;
  std::atomic<uint32_t> node;  // the next one there, + 1; 0: none
};

// A change of a sampler's exponent under way, PRIMARY, under the lock only (rule H2): all zero but while one is made, in
// one hold. A leaf below 0 has its new value, negated.
struct Raising {
  std::atomic<uint32_t> index;  // + 1; 0: none is under way. Stored last, cleared when all is done
  std::atomic<uint32_t> phase;  // 0: leaves are raised; 1: all are, and lose their signs
  std::atomic<double> from, to;
};

struct Header {
  char magic[8];
  uint32_t format_version;
  uint32_t abi_tag;  // size and byte order of the words
  uint8_t uuid[16];
  char boot_id[40];
  uint64_t layout_hash;
  std::atomic<uint32_t> clean;  // closed by its last user
  uint32_t checksum;            // CRC-32 over all that never changes
  Geometry geometry;
  IndexConfig indexes[kMaxIndexes];

  alignas(64) std::atomic<uint32_t> lock;
  alignas(64) EventWords items_event;            // something to draw may have come
  alignas(64) EventWords room_event;             // room to insert may have come
  Raising raising;                               // in what is left of this line
  alignas(64) std::atomic<uint64_t> live_steps;  // DERIVED
  std::atomic<uint64_t> removed_steps;           // DERIVED: of these, deleted ones
  std::atomic<uint64_t> next_order, next_ticket, next_uid;
  std::atomic<uint64_t> frames_committed;                      // PRIMARY
  std::atomic<uint64_t> num_free_frames;                       // DERIVED
  std::atomic<uint32_t> free_head, free_tail, num_free_pages;  // DERIVED
  std::atomic<uint32_t> ring_head, ring_tail;                  // DERIVED
  std::atomic<uint32_t> num_pins;                              // DERIVED
  std::atomic<uint32_t> policy_version;
  std::atomic<uint32_t> num_holding;  // DERIVED: the sum of holding over all participants
  std::atomic<uint32_t> kept_head;    // DERIVED: CLOSED pages without rows, kept for who holds or pins them
  LateRest late_rest;                 // PRIMARY
  std::atomic<uint64_t> num_raised;   // twice the changes of exponents ever made, odd while one is under way (rule H3)
  alignas(64) IndexState index_state[kMaxIndexes];
  alignas(64) Counters counters;
};

inline constexpr char kMagic[8] = {'r', 'e', 'l', 'i', 'v', 'e', '\n', '\0'};

// What of a geometry cannot be true of a file of num_bytes, its columns included; empty where it is sound.
std::string unsound_part(const Geometry& geometry, const std::byte* memory, size_t num_bytes);

// A table's start cells; empty where it has none.
struct StartCells {
  const CellGeometry* geometry = nullptr;
  std::byte* first = nullptr;
  CellState* state = nullptr;
  std::atomic<uint32_t>* links = nullptr;  // PRIMARY: of one that hangs at a page, the next one, + 1; 0: it is the last
  std::atomic<uint32_t>* free = nullptr;   // DERIVED

  explicit operator bool() const { return geometry != nullptr; }
  std::byte* at(uint64_t cell) const { return first + cell * geometry->stride; }
};

// What an item is timed by, each in a tree of minima: since when it waits, how old its versions are, its place among those
// that came last. What has the least is the first due.
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
  Cursor* cursors[kMaxIndexes] = {};               // of the row indexes
  Records records[kMaxIndexes] = {};               // of the record indexes
  std::atomic<uint64_t>* turns[kMaxIndexes] = {};  // PRIMARY, of shuffled indexes: turns ever taken (rule O1)
  std::atomic<uint32_t>* free_frames = nullptr;
  uint32_t num_indexes = 0;
  uint32_t page_shift = 0;
  uint32_t page_len = 0;
  uint32_t page_bits = 0;
  uint32_t late_bytes = 0;            // of a row's late columns; 0: there are none
  Tree ranks;                         // of the pages, DERIVED, where chooses_pages(); else without leaves
  uint16_t traits[kMaxIndexes] = {};  // of each index, what most do not do (words/layout.hpp)
  Bulk bulk;                          // of a tiered table; empty in all others
  StartCells cells;

  // Fills a fresh, zeroed region of layout.geometry.region_bytes and binds to it.
  void create(std::byte* memory, const TableConfig& config, const Layout& layout);
  // Binds to a region that exists; checks magic, version, ABI, size, geometry and checksum first.
  Status open(std::byte* memory, size_t num_bytes);

  // ---- names of things ---------------------------------------------------------------------------------------
  uint64_t page_of(uint64_t slot) const { return slot >> page_shift; }
  uint32_t offset_of(uint64_t slot) const { return static_cast<uint32_t>(slot & (page_len - 1)); }
  uint64_t slot_of(uint64_t page, uint32_t offset) const { return page << page_shift | offset; }
  static uint64_t generation_of(uint64_t word) { return word >> kGenerationShift; }

  // Where the generations of a new region begin: in the lower half of those that a key has bits for, so that as many
  // are left as it would ever use. A region made anew in place of a lost one has another epoch, and keys of the lost
  // one name nothing there, but by a chance of one in as many as the half is (2^22 for ten million rows).
  uint64_t first_generation(uint64_t epoch) const {
    return 1 + epoch % (uint64_t{1} << (kLeafBits - geometry->slot_bits - 1));
  }
  static PageState state_of(uint64_t word) { return static_cast<PageState>(word & 3); }
  static bool is_used(uint64_t word) { return (word & 3) == 1 || (word & 3) == 2; }
  // The word of a page that ends its generation: free again, or retired where the next one has no number.
  uint64_t freed_word(uint64_t word) const {
    const uint64_t generation = generation_of(word) + 1;
    const bool overflows = generation >> (kLeafBits - geometry->slot_bits) != 0;
    return generation << kGenerationShift | static_cast<uint64_t>(overflows ? PageState::kRetired : PageState::kFree);
  }
  // The word of a page whose bytes lie elsewhere now (rule D6).
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
  // Whether a row is a step: committed, not evicted, no tail. Exact under the lock.
  bool is_step(uint64_t page, uint32_t offset) const {
    const Range range = Range::unpack(pages[page].range.load(std::memory_order_relaxed));
    return offset >= range.step_begin && offset < range.step_end && !is_tail(page, offset);
  }
  // Whether the key could ever have come from this region: of a row, or of an explicit item.
  bool is_own_key(int64_t key) const;
  bool is_row_key(int64_t key) const { return is_key_in(0, geometry->num_slots, key); }
  // Whether it could be of an item of this index.
  bool is_item_key(uint32_t index, int64_t key) const {
    return is_key_in(maps_[index].first, maps_[index].num_leaves, key);
  }
  // The page of a ref if it still is that very page and in use, else kNoPage.
  uint64_t alive(uint64_t ref) const;

  // ---- rows --------------------------------------------------------------------------------------------------
  std::byte* frame_base(uint32_t frame) const {
    const uint32_t shift = geometry->frames_per_slab_shift;
    return base + geometry->slabs_offset + (frame >> shift) * geometry->slab_bytes +
           (frame & ((1u << shift) - 1)) * geometry->frame_bytes;
  }
  std::byte* page_base(uint64_t page) const { return frame_base(frames[page].load(std::memory_order_acquire)); }
  // The head of a row, for those who change one that others may be reading.
  std::atomic_ref<uint32_t> head_of(uint64_t slot) const {
    std::byte* record = page_base(page_of(slot)) + offset_of(slot) * geometry->record_stride;
    return std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(record));
  }
  // What the step of a slot multiplies those after it with, before gamma.
  float discount_of(uint64_t slot, uint32_t head) const {
    if (head & kDiscountBit) return marks[slot].discount.load(std::memory_order_relaxed);
    return head & kTerminatedBit ? 0.0f : 1.0f;
  }
  // The uid of the lane that the step of a slot belongs to.
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
  // Bits of rows that are not there yet mean nothing; before others write those rows they go.
  void clear_tails_from(uint64_t page, uint32_t offset);

  // ---- items: their leaves are the index room's (index/leaves.hpp) -------------------------------------------
  // The indexes whose leaves are row slots, and those whose leaves are records. Most tables have none of these.
  std::span<const uint32_t> row_indexes() const { return {row_indexes_, num_row_indexes_}; }
  std::span<const uint32_t> record_indexes() const { return {record_indexes_, num_indexes - num_row_indexes_}; }
  bool has_records() const { return num_row_indexes_ < num_indexes; }
  // Those to which a row that is appended may bring an item: of rows, and of groups of episodes.
  std::span<const uint32_t> appended_indexes() const { return {appended_indexes_, num_appended_indexes_}; }
  bool has_groups() const { return has_groups_; }  // of episodes: some of the records are theirs
  const ItemMap& map(uint32_t index) const { return maps_[index]; }
  uint64_t leaf_of_key(uint32_t index, int64_t key) const { return key_slot(key) - maps_[index].first; }
  int64_t key_of_leaf(uint32_t index, uint64_t leaf, uint64_t word) const {
    return key_of(maps_[index].first + leaf, word);
  }
  // The priority that the item of a row came with, or was given since, in one index of rows that has priorities: bits of
  // a float32, NaN where none came. PRIMARY; its writer's as the row's mark is, then under the lock (rule H1).
  std::atomic<uint32_t>& given(uint32_t index, uint64_t slot) const {
    const bool is_the_marks = given_[index] == nullptr || !RELIVE_RULE(H1_index);
    return is_the_marks ? marks[slot].pending_priority : given_[index][slot];
  }
  // The indexes whose pending priorities stand apart from the marks: all but the first of rows that has some.
  std::span<const uint32_t> given_apart() const { return {given_apart_, num_given_apart_}; }
  // Those of rows that hold no more than max_items.
  std::span<const uint32_t> bounded_indexes() const { return {bounded_indexes_, num_bounded_indexes_}; }
  // Whether the remover of the first index chooses which page goes where the table is full (pages/choice.hpp).
  bool chooses_pages() const { return ranks.num_leaves() != 0; }
  // Those whose items wait no longer than max_wait_s.
  std::span<const uint32_t> timed_indexes() const { return {timed_indexes_, num_timed_indexes_}; }
  // Those whose items go by max_staleness, whose draws are among the items that came last, and whose masses fade.
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
  int64_t refused_draw(uint32_t index) const;  // the largest over all participants
  // The present limiter of an index, at the present policy version; and what it counts on the side of draws, and on that
  // of inserts: what is pending, and rows that are reserved, count there, too. Exact under the lock.
  LimiterConfig limiter(uint32_t index) const;
  LimiterCounts drawn_counts(uint32_t index, const LimiterConfig& limiter) const;
  LimiterCounts inserted_counts(uint32_t index, const LimiterConfig& limiter, int64_t reserved) const;

 private:
  friend class IndexView;  // the index room alone names a tree or a leaf's state

  Tree trees_[kMaxIndexes];
  Tree orders_[kMaxIndexes];  // of the bounded indexes: which of their items goes first
  Ranks ranks_[kMaxIndexes];  // of those that draw by ranks: classes of their leaves
  Tree queues_[kMaxIndexes];  // of records that a remover chooses from: which goes first of those that it does not see
  Tree dues_[kNumDues][kMaxIndexes];  // of the timed, the aged, and those that draw among the items that came last
  std::atomic<uint16_t>* states_[kMaxIndexes] = {};
  std::atomic<uint32_t>* given_[kMaxIndexes] = {};
  ItemMap maps_[kMaxIndexes] = {};
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
           key_generation(key) >= 1;  // below `first` wraps to above
  }
  void bind(std::byte* memory);
  void bind_index(uint32_t index);
};

}  // namespace relive
