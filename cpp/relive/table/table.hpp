// One handle on a table: what a process does with a region. Draw, gather, update, delete, statistics.
//
// Owner:   a Table owns its Storage, its participant slot and its scratch; writers borrow it and end with it.
// Locking: any number of threads may call one handle; each public method counts itself in (close() waits for them).
// Forks:   in a forked child a shared handle attaches anew at its first call, a local one refuses (rule E3). Whichever
//          thread comes first attaches, the others wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "relive/pages/lock.hpp"
#include "relive/pages/records.hpp"
#include "relive/read/draw.hpp"
#include "relive/read/gather.hpp"
#include "relive/table/turn.hpp"
#include "relive/words/region.hpp"
#include "relive/words/sync.hpp"

namespace relive {

struct TableStats {
  uint64_t num_steps = 0, num_participants = 0, num_open_lanes = 0, num_free_pages = 0, num_pages = 0;
  uint64_t frames_committed = 0, frames_used = 0, bytes_committed = 0;
  std::vector<int64_t> live_items, inserted, sampled, in_flight;
  std::vector<double> total_mass, max_priority;
  std::vector<std::pair<const char*, uint64_t>> counters;
};

// Explicit items to be inserted: windows[0 .. num_windows[0]) are the first one's, and so on.
struct NewItems {
  size_t num_items = 0;
  const uint32_t* num_windows = nullptr;  // of each
  const WindowRows* windows = nullptr;
  const float* priorities = nullptr;  // of each; null: none given, as for rows
};

class Tier;
class PlannedBatch;
struct TierStats;

class Table final {
 public:
  static Status create(const TableConfig& config, const std::string& path, std::unique_ptr<Table>* out);
  // stream: of its random numbers; none: one of its own, counted by attaches (read-only: by chance).
  static Status attach(const std::string& path, Access access, std::optional<uint64_t> stream, double timeout_s,
                       std::unique_ptr<Table>* out);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Ends this handle's writers and its participation. The last one removes a shared region's name. Idempotent; where it
  // was interrupted, or met the handle's deadline, it may be called again and goes on.
  Status close();
  // The same for a handle that is dropped or left at the end of the process: a few seconds, whatever signals come.
  void close_at_last();
  // The deadline of calls that are given none: create and attach leave the one they had.
  void set_timeout(double timeout_s) { timeout_s_.store(timeout_s, std::memory_order_relaxed); }
  double timeout_s() const { return timeout_s_.load(std::memory_order_relaxed); }
  Deadline own_deadline() const { return Deadline::after(timeout_s()); }
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  bool is_read_only() const { return access_ == Access::kReadOnly; }

  Status make_plan(uint32_t index, const std::vector<std::string>& names, GatherPlan* plan);
  // Draws num_items with replacement in proportion to mass, stratified, in permuted rows; with a plan also gathers.
  // Blocks until limiter and min_size allow, at most timeout_s.
  Status sample(const DrawRequest& request, double timeout_s);
  // present[i] = 0 and zeros where a key's item is gone.
  Status gather(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out, uint8_t* present);
  // The number that the next draw of this handle takes. A draw that was given back, and behind which no other of this
  // handle came, may give its number back, too: then the next draw is the same. False where another came.
  uint64_t next_call() const { return calls_.load(std::memory_order_relaxed); }
  bool return_call(uint64_t call) {
    uint64_t after = call + 1;
    return calls_.compare_exchange_strong(after, call, std::memory_order_relaxed);
  }
  Status commit_held(uint32_t index, int64_t num_items);
  Status return_held(uint32_t index, int64_t num_items);

  // Applied = how many were still there (pending ones included). All are checked before the first is applied.
  Status update_priorities(uint32_t index, const int64_t* keys, const float* priorities, size_t count,
                           int64_t* applied);
  // A row's key: out of every index whose leaves are rows; its bytes stay, and so do explicit items that refer to it. An
  // explicit item's: that item.
  Status delete_items(const int64_t* keys, size_t count, int64_t* deleted);
  // Explicit items, in order: each lists windows of rows that are steps of the table now. Stores the first `stored` of
  // them, whole, and their keys; what stops it says which item: kForeignKey (item, window: a key that is no row's),
  // kInvalidConfig (of a window or an item that the index cannot hold), kRowGone (item, window: a row that is not there,
  // or not yet, or no step). All are checked before the first is stored. Blocks while the limiter refuses.
  Status insert_items(uint32_t index, const NewItems& items, double timeout_s, int64_t* keys, size_t* stored);
  Status clear();

  Status set_policy_version(uint32_t version);
  uint32_t policy_version() const { return region_.header->policy_version.load(std::memory_order_relaxed); }
  uint64_t num_steps() const {
    const Header& h = *region_.header;
    return h.live_steps.load(std::memory_order_relaxed) - h.removed_steps.load(std::memory_order_relaxed);
  }
  int64_t num_items(uint32_t index) const {
    return region_.header->index_state[index].live_items.load(std::memory_order_relaxed);
  }
  Status stats(TableStats* out);
  Status check();

  // ---- tiered tables only (callers ask is_tiered() first), tiered.cpp ----------------------
  bool is_tiered() const { return tier_ != nullptr; }
  // Draws n items (in flight until commit_held or return_held) and begins to read what they need of the disk.
  Status plan_batch(const GatherPlan& plan, size_t num_items, double timeout_s, std::unique_ptr<PlannedBatch>* out);
  // Waits for the rows of a planned batch and copies them; items gone since are drawn anew. kInterrupted when cancelled.
  // timeout_s: for items to draw anew, where there are none; the disk has a minute for each read.
  Status gather_batch(PlannedBatch& batch, const GatherPlan& plan, std::byte* const* out, double timeout_s);
  void drop_batch(PlannedBatch& batch);  // its rows are not wanted any more; the credit is the caller's to return
  void note_late_batch();
  Status tier_stats(TierStats* out);
  Status spill_all_pages(uint64_t* spilled);  // test hook: every CLOSED page to the disk
  void fail_disk(int read_error, int write_error);

  // Test hooks of the layout: every CLOSED page to another frame; a page kept where it is (rules D6, layout point 5).
  Status move_all_pages(uint64_t* moved);
  Status pin_page(int64_t key, bool pin);

  const Region& region() const { return region_; }
  Door& door() { return door_; }
  const std::string& path() const { return path_; }
  uint64_t stream() const { return stream_; }  // in a forked child, after the first call: one of its own
  // Lets a thread that a handle's call would refuse be told so: counts calls in. Every public method starts with it.
  Status enter(bool needs_write);
  // of_epoch: fork_epoch() when it was counted in; in the child of a fork made inside the call it is not counted.
  void leave(uint64_t of_epoch);

 private:
  friend class Writer;

  Table();
  Status join(const Deadline& deadline);  // shared regions: bytes 0 and 1, a participant slot (rule E1)
  void recover_alone();
  Status take_slot(const Deadline& deadline);
  Status not_attached(const Deadline& deadline, const char* needs) const;
  void become_a_childs();
  Status reattach_in_child();
  Status end(const Deadline& deadline);
  bool wait_for_calls(const Deadline& deadline);
  Status leave_region();
  void drop_storage();
  Code pin_under_lock(Held& held, int64_t key, bool pin);
  bool is_alone();                                // no other participant is attached
  void leave_lanes(std::vector<uint32_t> lanes);  // of a writer that was dropped and did not get the lock
  Status cut_left_lanes(const Deadline& deadline);
  void note_thread(std::atomic<uint64_t>* who);
  // Whether all could be keys of this index's items.
  Status check_keys(uint32_t index, const int64_t* keys, size_t count) const;
  uint64_t find_key(int64_t key) const;

  // The sampler's steps, in sample.cpp.
  void commit_credit(uint32_t index, int64_t n);
  void return_credit(uint32_t index, int64_t n);
  Status reserve(uint32_t index, int64_t n, const Deadline& deadline);
  void note_refused_draw(uint32_t index, int64_t n, Locked* locked);
  Status wait_for_items(uint32_t index, int64_t n, const Deadline& deadline);
  Status fill(const DrawRequest& request, uint64_t call, const Deadline& deadline, DrawScratch& s, bool* empty);
  Status fill_held(const DrawRequest& request, uint64_t call, const Deadline& deadline, DrawScratch& s, bool* empty);
  bool draw_missing(const DrawRequest& request, uint64_t call, uint32_t attempt, DrawScratch& s);
  bool takes_claims(uint32_t index) const { return region_.max_times(index) != 0 && access_ == Access::kReadWrite; }
  Status claim(const DrawRequest& request, const Deadline& deadline, DrawScratch& s);
  void claim_held(const DrawRequest& request, Held& held, DrawScratch& s);
  void undo_claims(const DrawRequest& request, const Deadline& deadline, DrawScratch& s);
  void count_in_flight(uint32_t index, int64_t n) {
    region_.credit(me_, index).in_flight.fetch_add(n, std::memory_order_acq_rel);
  }
  // Tiered tables', in tiered.cpp.
  Status sample_tiered(const DrawRequest& request, double timeout_s);
  Status gather_tiered(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out,
                       uint8_t* present);
  Status gather_rows(const GatherPlan& plan, const int64_t* keys, size_t count, std::byte* const* out, uint8_t* present,
                     uint64_t ticket, const std::atomic<bool>* cancelled);
  Status redraw(PlannedBatch& batch, const std::vector<uint32_t>& gone, const Deadline& deadline);
  void release_claims(const int64_t* keys, size_t count);
  Status wait_for_bulk(const Deadline& deadline);
  void wake_spill_if_low();
  // The inserter's, in insert.cpp.
  Status check_items(uint32_t index, const NewItems& items) const;
  Status wait_for_item_room(uint32_t index, const Deadline& deadline);
  Status insert_held(Held& held, uint32_t index, const NewItems& items, const WindowRows** at, int64_t* keys,
                     size_t* stored);

  Region region_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Tier> tier_;
  std::string path_;
  Access access_ = Access::kReadWrite;
  uint32_t me_ = 0;
  uint64_t stream_ = 0;
  bool counts_stream_ = false;           // each time that it joins it gets a stream of its own
  std::atomic<uint64_t> fork_epoch_{0};  // of the process that attached; stored last
  std::atomic<uint64_t> calls_{0};
  bool joined_ = false;
  std::atomic<bool> closed_{false};
  const std::atomic<bool>* is_over_ = &closed_;  // ends waits for locks
  TurnWord turn_;                                // to attach in a child, and to close
  struct LeftLanes {
    std::vector<uint32_t> lanes;
    LeftLanes* next;
  };
  std::atomic<LeftLanes*> left_lanes_{nullptr};
  std::atomic<double> timeout_s_{60.0};
  std::atomic<int64_t> active_{0};
  std::atomic<uint32_t> open_writers_{0};
  std::atomic<uint64_t> sampling_thread_{0};
  Door door_{region_, storage_, me_, is_over_};
};

// Counts a call in and out.
class Entered final {
 public:
  Entered(Table& table, bool needs_write);
  ~Entered() {
    if (status_.ok()) table_.leave(epoch_);
  }
  const Status& status() const { return status_; }

 private:
  Table& table_;
  uint64_t epoch_;
  Status status_;
};

uint64_t fork_epoch();  // how many forks lie between the first process and this one, plus one
inline Entered::Entered(Table& table, bool needs_write)
    : table_(table), epoch_(fork_epoch()), status_(table.enter(needs_write)) {}
inline void Table::leave(uint64_t of_epoch) {
  if (of_epoch == fork_epoch()) active_.fetch_sub(1, std::memory_order_release);
}
inline constexpr double kWaitSlice_s = 0.1;
// How long a handle that is dropped, or left at the end of the process, waits for calls that are under way.
inline constexpr double kLastPatience_s = 5.0;

// What an index's limiter asks for, with its numbers; for errors.
std::string limiter_text(const IndexConfig& index);
// Of an index that has live items and nothing to draw, since all their masses are 0: its name and how many; else empty.
std::string massless_text(const Region& r, uint32_t index);

// The deadline came while explicit items that stand on the oldest rows were being ended, as many as one hold may.
Status items_stand_error(const Deadline& deadline);

// A region seen from outside: facts for `relive ls`, and removal of one nobody is attached to.
struct Probe {
  uint64_t num_bytes = 0, num_steps = 0, capacity = 0, num_attached = 0;
  bool is_attached = false;
};
Status probe_region(const std::string& path, Probe* out);
Status remove_region(const std::string& path);

}  // namespace relive
