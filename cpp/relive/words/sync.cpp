// The part of sync.hpp that is the same on every system: deadlines, events and the table lock. It is built on
// futex_wait, futex_wake and the lock bytes of a Storage.
#include "relive/words/sync.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "relive/words/testing.hpp"

namespace relive {

bool (*interrupt_hook)() = nullptr;
bool (*only_thread_hook)() = nullptr;

namespace {

std::atomic<double> clock_ahead_s{0.0};

thread_local int hooks_running = 0;  // on this thread

constexpr int kSpins = 100;  // a critical section is about 1 us between threads of one process
constexpr double kFirstSlice_s = 0.0002;
constexpr double kLastSlice_s = 0.005;

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

uint32_t owner_of(uint32_t word) { return word & ~TableLock::kWaiters; }  // id + 1, 0 = the lock is free

// Replaces `seen` by `me` and keeps the waiters' flag. acquire on success.
bool take(std::atomic<uint32_t>* word, uint32_t seen, uint32_t me) {
  return word->compare_exchange_strong(seen, me | (seen & TableLock::kWaiters), std::memory_order_acquire,
                                       std::memory_order_relaxed);
}

// Takes the lock from an owner whose life byte is free. This process locks that byte for the exchange: a slot is given
// to a new participant only with its byte, so the word cannot name a living owner of the same slot in between.
bool take_from_dead(std::atomic<uint32_t>* word, uint32_t seen, uint32_t me, uint32_t max_participants,
                    const Storage& storage) {
  const uint32_t owner = owner_of(seen) - 1;
  const bool is_attacher = owner == max_participants;
  // A lock of this open file never conflicts with itself. The threads of a handle share its slot, so the owner may be
  // another thread of this handle. One attacher at a time has byte 1: if it is this process, the attacher in the word
  // died.
  const bool is_mine = owner + 1 == me;
  if (is_mine && !is_attacher) return false;
  if (!RELIVE_RULE(E2_lock_byte)) return take(word, seen, me);
  const uint64_t byte = is_attacher ? 1 : 64 + uint64_t{owner};
  if (!storage.is_byte_free(byte)) return false;
  if (is_mine) return take(word, seen, me);
  if (!storage.try_lock_byte(byte, true)) return false;
  const bool taken = take(word, seen, me);
  storage.unlock_byte(byte);
  return taken;
}

bool asked(bool (*hook)()) {
  if (hook == nullptr) return false;
  ++hooks_running;
  const bool said = hook();
  --hooks_running;
  return said;
}

}  // namespace

bool is_interrupted() {
  const int64_t process = process_id();
  return asked(interrupt_hook) || (interrupt_hook != nullptr && process_id() != process);
}

bool is_only_thread() { return asked(only_thread_hook); }

bool is_in_interrupt() { return hooks_running > 0; }

bool Hearing::ends() {
  if (deadline_.waited_s() < next_s_) return false;
  next_s_ = deadline_.waited_s() + kEvery_s;
  if (is_over_ != nullptr && is_over_->load(std::memory_order_relaxed)) return true;
  return !deadline_.is_deaf() && is_interrupted();
}

double clock_s() { return static_cast<double>(now_ns()) * 1e-9 + clock_ahead_s.load(std::memory_order_relaxed); }
void set_clock_ahead(double seconds) { clock_ahead_s.store(seconds, std::memory_order_relaxed); }

Deadline Deadline::after(double seconds) {
  Deadline deadline;
  deadline.start_ns_ = now_ns();
  const double longest_s = 1e9;  // 30 years
  if (!(seconds > 0.0)) {
    deadline.end_ns_ = deadline.start_ns_;
  } else if (seconds >= longest_s) {
    deadline.end_ns_ = std::numeric_limits<int64_t>::max();
  } else {
    deadline.end_ns_ = deadline.start_ns_ + static_cast<int64_t>(seconds * 1e9);
  }
  return deadline;
}

Deadline Deadline::at_least(double seconds) const {
  Deadline longer = *this;
  longer.end_ns_ = std::max(end_ns_, after(seconds).end_ns_);
  return longer;
}

bool Deadline::passed() const {
  return end_ns_ <= start_ns_ || (end_ns_ != std::numeric_limits<int64_t>::max() && now_ns() >= end_ns_);
}

double Deadline::remaining_s() const {
  if (end_ns_ == std::numeric_limits<int64_t>::max()) return std::numeric_limits<double>::infinity();
  if (end_ns_ <= start_ns_) return 0.0;
  return std::max(0.0, static_cast<double>(end_ns_ - now_ns()) * 1e-9);
}

double Deadline::waited_s() const { return static_cast<double>(now_ns() - start_ns_) * 1e-9; }

void notify(EventWords* event) {
  event->count.fetch_add(1, std::memory_order_seq_cst);
  if (event->waiters.load(std::memory_order_seq_cst) == 0) return;  // the line stays shared if nothing waits
  if (event->waiters.exchange(0, std::memory_order_seq_cst) != 0) {
    futex_wake(&event->count, std::numeric_limits<int>::max());
  }
}

bool await_count(EventWords* event, uint32_t count, double spin_s, const Deadline& deadline) {
  const auto ready = [&] { return static_cast<int32_t>(event->count.load(std::memory_order_acquire) - count) >= 0; };
  if (ready()) return true;
  const Deadline spinning = Deadline::after(std::min(spin_s, deadline.remaining_s()));
  while (!spinning.passed()) {
    for (int spin = 0; spin < kSpins; ++spin) {
      cpu_relax();
      if (ready()) return true;
    }
  }
  while (!wait_slice(event, deadline, kLastSlice_s * 10, ready)) {
    if (deadline.passed()) return false;
  }
  return true;
}

LockResult TableLock::lock(std::atomic<uint32_t>* word, uint32_t id, uint32_t max_participants, const Storage& storage,
                           const Deadline& deadline, const std::atomic<bool>* is_over) {
  if (!RELIVE_RULE(C1_lock)) return LockResult::kTaken;
  const uint32_t me = id + 1;
  uint32_t seen = 0;
  if (word->compare_exchange_strong(seen, me, std::memory_order_acquire, std::memory_order_relaxed)) {
    return LockResult::kTaken;
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    cpu_relax();
    seen = word->load(std::memory_order_relaxed);
    if (owner_of(seen) == 0 && take(word, seen, me)) return LockResult::kTaken;
  }
  double slice_s = kFirstSlice_s;
  Hearing hearing(deadline, is_over);
  seen = word->load(std::memory_order_relaxed);
  for (;;) {
    if (owner_of(seen) == 0) {
      // Other threads may still sleep, so a thread that has waited sets the flag; at worst that costs one idle wake.
      if (take(word, seen, me | kWaiters)) return LockResult::kTaken;
      seen = word->load(std::memory_order_relaxed);
      continue;
    }
    if ((seen & kWaiters) == 0) {
      if (!word->compare_exchange_strong(seen, seen | kWaiters, std::memory_order_relaxed)) continue;
      seen |= kWaiters;
    }
    const double remaining_s = deadline.remaining_s();
    if (remaining_s > 0.0) futex_wait(word, seen, std::min(slice_s, remaining_s));
    slice_s = std::min(2.0 * slice_s, kLastSlice_s);
    const uint32_t after = word->load(std::memory_order_relaxed);
    if (after == seen && take_from_dead(word, seen, me, max_participants, storage)) return LockResult::kTakenFromDead;
    if (owner_of(after) != 0 && deadline.passed()) return LockResult::kTimeout;
    if (owner_of(after) != 0 && hearing.ends()) return LockResult::kEnded;
    seen = after;
  }
}

void TableLock::unlock(std::atomic<uint32_t>* word) {
  const uint32_t seen = word->exchange(0, std::memory_order_release);
  if ((seen & kWaiters) != 0) futex_wake(word, 1);
}

uint64_t thread_id() {
  static thread_local char marker;
  return reinterpret_cast<uintptr_t>(&marker);
}

}  // namespace relive
