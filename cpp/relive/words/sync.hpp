// Everything that the core needs of the operating system: the memory of a region, lock bytes, the table lock, waits.
// sync_linux.cpp is the only file that knows Linux; sync_portable.cpp replaces it in a build for LocalMemory only.
//
// Owner:   a Storage belongs to one table handle. It owns the mapping and the lock descriptor.
// Locking: every function may be called from any thread; only the owner may map, unmap and close.
// Cost:    O(1) and the system's calls; TableLock::lock makes no call if the lock is free.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "relive/words/status.hpp"

namespace relive {

// Called in every slice of a wait; true ends the wait with kInterrupted. Set once by the bindings (signals of Python).
extern bool (*interrupt_hook)();
// Calls the hook. Also true in the child of a fork that a signal handler made: the interrupted call is the parent's.
bool is_interrupted();
// Whether the calling thread is the only thread of the process that could end its wait; null counts as false.
extern bool (*only_thread_hook)();
// Calls the hook, which may run a signal handler. If the handler raised an error, is_interrupted() is true afterwards.
bool is_only_thread();
// Whether a hook is running on this thread: a signal handler may call the handle whose call it interrupted.
bool is_in_interrupt();

// Seconds of the system's monotonic clock, which all processes of a boot and a time namespace share (rule I2). Tests
// may set it ahead in their process.
double clock_s();
void set_clock_ahead(double seconds);

// A point in monotonic time, local to the process.
class Deadline final {
 public:
  // seconds: 0 = try once, +inf = wait for ever. NaN and negative numbers count as 0.
  static Deadline after(double seconds);
  // The same deadline for a wait that no signal ends, because work that has begun must be finished.
  Deadline deaf() const {
    Deadline same = *this;
    same.is_deaf_ = true;
    return same;
  }
  // The same deadline, but at least so many seconds from now.
  Deadline at_least(double seconds) const;
  bool is_deaf() const { return is_deaf_; }
  bool passed() const;
  double remaining_s() const;  // 0 after the deadline, +inf without one
  double waited_s() const;     // since construction

 private:
  int64_t start_ns_ = 0;
  int64_t end_ns_ = 0;  // INT64_MAX: endless
  bool is_deaf_ = false;
};

// Ends a wait in slices before its deadline, because of a signal or of a raised flag. The hook is called seldom,
// because it may have to wait for Python.
class Hearing final {
 public:
  Hearing(const Deadline& deadline, const std::atomic<bool>* is_over)
      : deadline_(deadline), is_over_(is_over), next_s_(deadline.waited_s() + kEvery_s) {}
  bool ends();

 private:
  static constexpr double kEvery_s = 0.05;
  const Deadline& deadline_;
  const std::atomic<bool>* is_over_;
  double next_s_;
};

enum class Access : uint32_t { kReadWrite, kReadOnly };

// The bytes of one region, and the kernel's record of the processes that use it (rules A7, E1, E2, J1, J2).
class Storage final {
 public:
  // Anonymous memory of this process, with huge pages if the system has them. Lock bytes do nothing: every attempt
  // succeeds, and no other process is ever alive.
  static Status create_local(size_t num_bytes, std::unique_ptr<Storage>* out);

  // A nameless file in the folder of `path` (O_TMPFILE), num_bytes long (sparse), mapped whole. Bytes [0, commit_bytes)
  // are allocated. kStorageFull {path, needs_bytes, has_bytes} if the file system has no room for them, or if its total
  // size is below num_bytes_expected. No other process sees the file before publish().
  static Status create_file(const std::string& path, size_t num_bytes, size_t commit_bytes, size_t num_bytes_expected,
                            std::unique_ptr<Storage>* out);

  // Gives the nameless file its name (linkat through /proc/self/fd). kNameTaken if the name exists.
  Status publish();

  // Opens by name. The descriptor of the mapping is closed after mmap; a second open file has the locks and is never
  // mapped (rule E1). kNoSuchTable, kNotARegion (shorter than min_bytes), kSystemError.
  static Status open_file(const std::string& path, Access access, size_t min_bytes, std::unique_ptr<Storage>* out);

  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* base() const { return base_; }
  size_t num_bytes() const { return num_bytes_; }
  const std::string& path() const { return path_; }  // empty for local memory
  bool is_local() const { return path_.empty(); }
  Access access() const { return access_; }

  // Allocates [offset, offset + num_bytes), by posix_fallocate through the lock descriptor. No effect on local memory.
  Status commit(size_t offset, size_t num_bytes);

  // Open-file-description record locks on single bytes of the file.
  bool try_lock_byte(uint64_t byte, bool exclusive) const;  // also converts a lock that this storage has
  // Polls in slices of at most 5 ms. False if the deadline passed, a signal came or *is_over was raised.
  bool lock_byte(uint64_t byte, bool exclusive, const Deadline& deadline,
                 const std::atomic<bool>* is_over = nullptr) const;
  void unlock_byte(uint64_t byte) const;
  // F_OFD_GETLK for an exclusive lock: false while another open file has a lock.
  bool is_byte_free(uint64_t byte) const;

  // Gives up a shared lock on `byte` and takes an exclusive one: true if no other open file has a lock. The shared lock
  // is given up first, so that the last of several processes that leave at once sees itself alone. An exclusive lock
  // needs a descriptor that may write: a file that was opened read-only is opened again. False if the permissions
  // forbid that.
  bool become_last(uint64_t byte);

  Status sync();                      // returns when all bytes of the file are on disk
  uint64_t file_number() const;       // inode; 0: unknown
  bool is_unlinked() const;           // st_nlink == 0
  bool is_same_file_as_name() const;  // the name still leads to this file
  Status unlink();                    // removes the name if it still leads to this file

  // Closes the lock descriptor. Called in the child of a fork, so that the parent's death is visible (rule E3).
  void close_locks();

 private:
  Storage() = default;
  std::byte* base_ = nullptr;
  size_t num_bytes_ = 0;
  std::string path_;
  Access access_ = Access::kReadWrite;
  int lock_fd_ = -1;
  int file_fd_ = -1;  // only between create_file and publish
};

// The fences of rules D3 and G4. gcc's ThreadSanitizer does not support fences: in its build the acquire loads and
// release stores of the page word replace them, and rows are copied unobserved (row_bytes.hpp).
inline void acquire_fence() {
#ifndef RELIVE_TSAN
  std::atomic_thread_fence(std::memory_order_acquire);
#endif
}
inline void release_fence() {
#ifndef RELIVE_TSAN
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

// Sleeps until *word != expected, a wake, or the end of the slice. The word may lie in memory that processes share.
void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, double slice_s);
void futex_wake(std::atomic<uint32_t>* word, int how_many);

// Event count (rule I1): two words in the region.
struct EventWords {
  std::atomic<uint32_t> count;
  std::atomic<uint32_t> waiters;  // a flag, no counter: a killed waiter costs one spurious wake
};
void notify(EventWords* event);  // after the change; never under the lock
// One slice of a wait. `ready` is called before and after the flag is raised. True as soon as ready() is true.
template <class Ready>
bool wait_slice(EventWords* event, const Deadline& deadline, double slice_s, Ready&& ready) {
  const uint32_t seen = event->count.load(std::memory_order_seq_cst);
  if (ready()) return true;
  event->waiters.store(1, std::memory_order_seq_cst);
  if (ready()) return true;
  const double remaining = deadline.remaining_s();
  const double slice = remaining < slice_s ? remaining : slice_s;
  if (slice > 0.0 && event->count.load(std::memory_order_seq_cst) == seen) futex_wait(&event->count, seen, slice);
  return ready();
}
// Waits until the event was notified `count` times in all, modulo 2^32. The first spin_s are spent without sleeping,
// because a sleeper wakes tens of microseconds late. False if the deadline passed before.
bool await_count(EventWords* event, uint32_t count, double spin_s, const Deadline& deadline);

// The table lock (rules C1, C2): one word, 0 or `id + 1` (bits 0..30) with bit 31 = WAITERS.
enum class LockResult : uint32_t { kTimeout, kTaken, kTakenFromDead, kEnded };  // kEnded: Hearing::ends()
class TableLock final {
 public:
  static constexpr uint32_t kWaiters = 0x80000000u;
  // id: participant slot, or max_participants for an attacher without a slot. An owner is dead if its life byte is
  // free: byte 64 + id, or byte 1 for max_participants.
  static LockResult lock(std::atomic<uint32_t>* word, uint32_t id, uint32_t max_participants, const Storage& storage,
                         const Deadline& deadline, const std::atomic<bool>* is_over = nullptr);
  static void unlock(std::atomic<uint32_t>* word);  // release; wakes one waiter if WAITERS is set
};

int64_t process_id();
uint64_t pid_namespace();  // inode of the pid namespace, 0 if unknown; for messages only
std::string boot_id();     // empty if unknown
void random_bytes(void* out, size_t num_bytes);
// Registers functions that run before every fork, and after it in the parent and in the child, on the thread that
// forks. `before` of the last caller runs first. Call it once for each owner of a lock; the portable build does nothing.
void on_fork(void (*before)(), void (*in_parent)(), void (*in_child)());
uint64_t thread_id();            // differs between the threads of a process
size_t physical_memory_bytes();  // 0 if unknown
size_t file_system_free_bytes(const std::string& folder);
size_t file_system_total_bytes(const std::string& folder);
uint64_t file_system_kind(const std::string& folder);  // f_type of statfs; 0 if unknown

}  // namespace relive
