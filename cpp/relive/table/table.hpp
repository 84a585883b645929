// One handle on a table: created or attached, attached again in the child of a fork, closed (rules E1 to E4).
// The functions that work with a handle have their own headers: reading.hpp, changing.hpp, settings.hpp, inspect.hpp,
// writer.hpp, tiered.hpp.
//
// Owner:   a Table owns its Storage, its participant slot, its Tier and the scratch memory of its door to the table
//          lock. Writers borrow it; their lanes end with it.
// Locking: any number of threads may call one handle. Each call counts itself in (Entered), and close() waits for these
//          calls. A mutex is taken to attach in a forked child and to close.
// Cost:    counting in and out is two atomic adds; attaching 22 us.
// Forks:   a shared handle attaches again at its first call in the child: one thread attaches, the others wait for it.
//          A local handle refuses (rule E3).
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
  // The same in two steps: a region that no other process can find, with memory for at least so many frames, and its
  // publication. In between the caller may fill the region.
  static Status make(const TableConfig& config, const std::string& path, uint64_t num_frames,
                     std::unique_ptr<Table>* out);
  Status publish();
  // Throws a region away that was made and not published. Nothing in it is read: its words may be half filled.
  void discard() { joined_ = false; }
  // stream: of the handle's random numbers. If none is given, the handle gets a stream of its own: the count of
  // attaches gives its number, or chance does if the handle is read-only.
  static Status attach(const std::string& path, Access access, std::optional<uint64_t> stream, double timeout_s,
                       std::unique_ptr<Table>* out);
  ~Table();
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  // Ends this handle's writers and its participation. The last handle of a shared region removes the region's name.
  // Idempotent. If close() was interrupted, or met the handle's deadline, another call continues.
  Status close();
  // The same for a handle that is dropped, or left at the end of the process: waits at most kLastPatience_s and ignores
  // signals.
  void close_at_last();
  // The deadline of calls that are given none. create() and attach() do not change it.
  void set_timeout(double timeout_s) { timeout_s_.store(timeout_s, std::memory_order_relaxed); }
  double timeout_s() const { return timeout_s_.load(std::memory_order_relaxed); }
  Deadline own_deadline() const { return Deadline::after(timeout_s()); }
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  bool is_read_only() const { return access_ == Access::kReadOnly; }
  bool is_tiered() const { return tier_ != nullptr; }
  const std::string& path() const { return path_; }
  uint64_t stream() const { return stream_; }  // in a forked child, after the first call: a stream of its own

  // ---- for calls that are counted in (Entered) ----------------------------------------------------------------------
  const Region& region() const { return region_; }
  Region& region() { return region_; }
  Door& door() { return door_; }
  Storage& storage() const { return *storage_; }
  Tier* tier() { return tier_.get(); }  // null: the table is not tiered
  // The layout that a tiered table would have without tiers. The pointer is null for all other tables.
  const Layout* plain_layout() const { return plain_layout_.get(); }
  uint32_t participant() const { return me_; }
  bool is_local() const { return storage_->is_local(); }
  bool is_alone() const;        // no other participant is attached
  bool is_last_writer() const;  // no other participant lives. Cost: a system call for each one that is attached
  // Whether a participant lives. A killed process stays a participant until a sweep ends it. Cost: a system call.
  bool is_alive(uint32_t participant) const {
    return is_local() || participant == me_ || !storage_->is_byte_free(kLifeByte + participant);
  }
  // Whether this process attached the handle. False between a fork and the child's first call.
  bool is_of_this_process() const;
  // Draws have numbers, and their random numbers follow from these. next_draw() is the number of the next draw.
  uint64_t next_draw() const { return draws_.load(std::memory_order_relaxed); }
  // For a caller that numbers its draws itself: over several handles of one stream, or on from an earlier run.
  void set_next_draw(uint64_t number) { draws_.store(number, std::memory_order_relaxed); }
  uint64_t take_draw() { return draws_.fetch_add(1, std::memory_order_relaxed); }
  // A draw that was given back also gives back its number, so that the next draw is the same. False if this handle has
  // taken a later number meanwhile; then the number is used up.
  bool give_back_draw(uint64_t number) {
    uint64_t after = number + 1;
    return draws_.compare_exchange_strong(after, number, std::memory_order_relaxed);
  }
  // Whether this handle draws, too. Then a writer of the handle that waits for room may be waiting for its own thread.
  void note_sampling() {
    if (!has_sampled()) has_sampled_.store(true, std::memory_order_relaxed);
  }
  bool has_sampled() const { return has_sampled_.load(std::memory_order_relaxed); }
  void count_writers(int32_t change) { open_writers_.fetch_add(static_cast<uint32_t>(change)); }
  bool has_writers() const { return open_writers_.load(std::memory_order_relaxed) > 0; }
  UncutLanes& uncut_lanes() { return uncut_lanes_; }

  // Counts a call in, or says why the handle refuses it. Every call of a table begins with it (Entered).
  Status enter(bool needs_write);
  // of_epoch: fork_epoch() when the call was counted in. If the call forked, its copy in the child is not counted
  // there.
  void leave(uint64_t of_epoch);

 private:
  Table();
  Status join(const Deadline& deadline);  // attaches to a shared region: bytes 0 and 1, a participant slot (rule E1)
  Status begin_alone();
  Status take_slot(const Deadline& deadline);
  Status not_attached(const Deadline& deadline, const char* needs) const;
  void reset_in_child();
  Status reattach_in_child();
  Status end(const Deadline& deadline);
  bool wait_for_calls(const Deadline& deadline);
  Status leave_region();
  void drop_storage();

  Region region_;
  std::unique_ptr<Storage> storage_;
  std::unique_ptr<const Layout> plain_layout_;
  std::unique_ptr<Tier> tier_;
  std::string path_;
  Access access_ = Access::kReadWrite;
  uint32_t me_ = 0;
  uint64_t stream_ = 0;
  bool counts_stream_ = false;           // the handle gets a stream of its own each time that it joins
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

uint64_t fork_epoch();  // the number of forks between the first process and this one, plus one
inline Entered::Entered(Table& table, bool needs_write)
    : table_(table), epoch_(fork_epoch()), status_(table.enter(needs_write)) {}
inline void Table::leave(uint64_t of_epoch) {
  if (of_epoch == fork_epoch()) active_.fetch_sub(1, std::memory_order_release);
}
inline bool Table::is_of_this_process() const { return fork_epoch_.load(std::memory_order_relaxed) == fork_epoch(); }
// The longest wait of a handle that is dropped, or left at the end of the process, for calls that are under way.
inline constexpr double kLastPatience_s = 5.0;

// A region seen from outside: facts for `relive ls`, and the removal of a region that no process is attached to.
struct Probe {
  uint64_t num_bytes = 0, num_steps = 0, capacity = 0, num_attached = 0;
  bool is_attached = false, is_lost = false;
  std::string uuid;  // in hexadecimal digits
};
Status probe_region(const std::string& path, Probe* out);
Status remove_region(const std::string& path);

}  // namespace relive
