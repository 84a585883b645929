// The life of a handle: which handles there are, calls counted in, the child of a fork, the end (rules E3, J2).
#include "relive/table/table.hpp"

#include <algorithm>
#include <utility>

#include "relive/table/handles.hpp"
#include "relive/table/kept_file.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr double kLeaveWait_s = 1.0;  // a handle that cannot end its participation in this time leaves it to a sweep

std::atomic<uint64_t> epoch{1};

}  // namespace

Handles& handles() {
  static Handles& made = *new Handles;  // never destroyed: handles may live until the process is gone
  return made;
}

uint64_t fork_epoch() { return epoch.load(kRelaxed); }

Table::Table() {
  static const bool once = [] {
    on_fork([] { handles().mutex.lock(); }, [] { handles().mutex.unlock(); },
            [] {
              epoch.fetch_add(1);
              for (Table* table : handles().all) table->reset_in_child();
              handles().mutex.unlock();
            });
    return true;
  }();
  (void)once;
  const std::lock_guard<std::mutex> guard(handles().mutex);
  handles().all.push_back(this);
}

Table::~Table() {
  // A handle that is dropped without close() still gives its slot back. A killed process leaves its slot to a sweep.
  close_at_last();
  const std::lock_guard<std::mutex> guard(handles().mutex);
  std::erase(handles().all, this);
}

// In the child of a fork, on the thread that forked, before any other thread exists there (rule E3). Calls that were
// under way belong to the parent.
void Table::reset_in_child() {
  active_.store(0);
  mutex_.reset();
  uncut_lanes_.forget();
  door_.owed_unpins.store(0);
  if (storage_ != nullptr) storage_->close_locks();
}

bool Table::is_alone() const {
  if (storage_->is_local()) return true;
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (p != me_ && region_.participants[p].live.load(kRelaxed) != 0) return false;
  return true;
}

bool Table::is_last_writer() const {
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (p != me_ && region_.participants[p].live.load(kRelaxed) != 0 && is_alive(p)) return false;
  return true;
}

Status Table::enter(bool needs_write) {
  while (true) {
    active_.fetch_add(1);  // in one order with closed_: close() counts this call, or this call sees the flag
    Status status;
    if (closed_.load()) {
      status = Status(Code::kTableClosed);
    } else if (needs_write && access_ == Access::kReadOnly) {
      status = Status(Code::kReadOnly);
    } else if (fork_epoch_.load(std::memory_order_acquire) == fork_epoch()) {
      return {};
    }
    leave(fork_epoch());
    RELIVE_RETURN_IF_ERROR(std::move(status));
    RELIVE_RETURN_IF_ERROR(reattach_in_child());
  }
}

Status Table::close() {
  closed_.store(true);  // ends the waits of calls under way, and refuses new calls
  return end(own_deadline());
}

void Table::close_at_last() { (void)end(Deadline::after(std::min(kLastPatience_s, timeout_s())).deaf()); }

// Waits for the calls under way. False: some of them did not return.
bool Table::wait_for_calls(const Deadline& deadline) {
  Hearing hearing(deadline, nullptr);
  while (active_.load() > 0) {
    if (deadline.passed() || hearing.ends()) return false;
    if (access_ == Access::kReadWrite) {
      notify(&region_.header->items_event);
      notify(&region_.header->room_event);
    }
    std::atomic<uint32_t> never_woken{0};
    futex_wait(&never_woken, 0, 0.001);
  }
  return true;
}

Status Table::end(const Deadline& deadline) {
  closed_.store(true);
  // In a signal handler: the interrupted call may be this handle's, and it cannot end before the handler does.
  if (is_in_interrupt() && active_.load() > 0) return {};
  const TimedLock lock(mutex_, "to close this handle", deadline);
  RELIVE_RETURN_IF_ERROR(lock.status());
  if (storage_ == nullptr) return {};
  const bool is_ours = fork_epoch_.load() == fork_epoch();
  if (!is_ours) (void)tier_.release();  // its threads belong to the parent
  if (tier_ != nullptr) tier_->stop();
  if (joined_ && is_ours) {
    const bool are_back = wait_for_calls(deadline);
    if (!are_back && !deadline.passed()) return Status(Code::kInterrupted);  // the next close() continues here
    (void)leave_region();
    joined_ = false;
    if (!are_back) {
      (void)tier_.release();
      const std::lock_guard<std::mutex> guard(handles().mutex);
      (void)storage_.release();  // a call that did not return still uses the mapping, so it stays
      return {};
    }
  }
  tier_.reset();
  drop_storage();
  return {};
}

void Table::drop_storage() {
  std::unique_ptr<Storage> old;
  const std::lock_guard<std::mutex> guard(handles().mutex);
  storage_->close_locks();
  old = std::move(storage_);
}

Status Table::leave_region() {
  const bool counts = access_ == Access::kReadWrite;
  const Deadline deadline = Deadline::after(std::min(kLeaveWait_s, timeout_s())).deaf();
  for (bool is_ended = !counts; !is_ended;) {
    Locked locked(door_, deadline);
    if (!locked.status().ok()) break;  // a sweep ends the rest
    is_ended = locked.end_me();
  }
  if (storage_->is_local()) return {};
  if (counts) storage_->unlock_byte(kLifeByte + me_);
  {
    const std::lock_guard<std::mutex> guard(handles().mutex);
    if (!storage_->become_last(kAttachedByte)) return {};
  }
  const bool keeps = region_.header->keeps_file.load() != 0;
  if (counts && keeps) return close_kept(region_, *storage_);
  if (counts) {
    region_.header->clean.store(1);
    return storage_->unlink();
  }
  if (keeps) return {};
  // No process is attached, so a participant that is still live was killed. A read-only handle changes nothing, so it
  // does not clean up: it leaves the name.
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (region_.participants[p].live.load() != 0) return {};
  return storage_->unlink();
}

}  // namespace relive
