// One handle on a table: born by creating or attaching, attached anew in the child of a fork, closed (rules E1 to E4).
// What is done with it stands beside it: reading.hpp, changing.hpp, looking.hpp, writer.hpp, tiered.hpp.
//
// Owner:   a Table owns its Storage, its participant slot, its Tier and its scratch; writers borrow it, end with it.
// Locking: any number of threads may call one handle; each call counts itself in (Entered; close() waits for them).
// Forks:   in a forked child a shared handle attaches anew at its first call, a local one refuses (rule E3). Whichever
//          thread comes first attaches, the others wait for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "relive/pages/lock.hpp"
#include "relive/table/timed_mutex.hpp"
#include "relive/table/uncut_lanes.hpp"
#include "relive/words/region.hpp"
#include "relive/words/sync.hpp"

namespace relive {

class Tier;

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
  bool is_tiered() const { return tier_ != nullptr; }
  const std::string& path() const { return path_; }
  uint64_t stream() const { return stream_; }  // in a forked child, after the first call: one of its own

  // ---- for who is counted in (Entered) ------------------------------------------------------------------------------
  const Region& region() const { return region_; }
  Region& region() { return region_; }
  Door& door() { return door_; }
  Storage& storage() const { return *storage_; }
  Tier* tier() { return tier_.get(); }  // null where the table is not tiered
  uint32_t participant() const { return me_; }
  bool is_local() const { return storage_->is_local(); }
  bool is_alone() const;  // no other participant is attached
  // What this handle attached is this process's own: not so between a fork and the child's first call.
  bool is_of_this_process() const;
  // The number that the next draw of this handle takes. A draw that was given back, and behind which no other of this
  // handle came, may give its number back, too: then the next draw is the same. False where another came.
  uint64_t next_draw() const { return draws_.load(std::memory_order_relaxed); }
  // For who numbers its draws itself: over handles of one stream, or from where an earlier run was.
  void set_next_draw(uint64_t number) { draws_.store(number, std::memory_order_relaxed); }
  uint64_t take_draw() { return draws_.fetch_add(1, std::memory_order_relaxed); }
  bool give_back_draw(uint64_t number) {
    uint64_t after = number + 1;
    return draws_.compare_exchange_strong(after, number, std::memory_order_relaxed);
  }
  // Whether this handle also does what a waiting call waits for.
  void note_sampling() {
    if (!has_sampled()) has_sampled_.store(true, std::memory_order_relaxed);
  }
  bool has_sampled() const { return has_sampled_.load(std::memory_order_relaxed); }
  void count_writers(int32_t change) { open_writers_.fetch_add(static_cast<uint32_t>(change)); }
  bool has_writers() const { return open_writers_.load(std::memory_order_relaxed) > 0; }
  UncutLanes& uncut_lanes() { return uncut_lanes_; }

  // Lets a thread that a handle's call would refuse be told so: counts calls in. Every call of a table starts with it.
  Status enter(bool needs_write);
  // of_epoch: fork_epoch() when it was counted in; in the child of a fork made inside the call it is not counted.
  void leave(uint64_t of_epoch);

 private:
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

  Region region_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<Tier> tier_;
  std::string path_;
  Access access_ = Access::kReadWrite;
  uint32_t me_ = 0;
  uint64_t stream_ = 0;
  bool counts_stream_ = false;           // each time that it joins it gets a stream of its own
  std::atomic<uint64_t> fork_epoch_{0};  // of the process that attached; stored last
  std::atomic<uint64_t> draws_{0};
  bool joined_ = false;
  std::atomic<bool> closed_{false};
  const std::atomic<bool>* is_over_ = &closed_;  // ends waits for locks
  TimedMutex mutex_;                             // to attach in a child, and to close
  UncutLanes uncut_lanes_;
  std::atomic<double> timeout_s_{60.0};
  std::atomic<int64_t> active_{0};
  std::atomic<uint32_t> open_writers_{0};
  std::atomic<bool> has_sampled_{false};
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
inline bool Table::is_of_this_process() const { return fork_epoch_.load(std::memory_order_relaxed) == fork_epoch(); }
// How long a handle that is dropped, or left at the end of the process, waits for calls that are under way.
inline constexpr double kLastPatience_s = 5.0;

// A region seen from outside: facts for `relive ls`, and removal of one nobody is attached to.
struct Probe {
  uint64_t num_bytes = 0, num_steps = 0, capacity = 0, num_attached = 0;
  bool is_attached = false;
};
Status probe_region(const std::string& path, Probe* out);
Status remove_region(const std::string& path);

}  // namespace relive
