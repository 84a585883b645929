// The system layer: deadlines, events, and the table lock between threads. test_sync_processes.cpp tests it between
// processes.
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "harness.hpp"
#include "relive/table/timed_mutex.hpp"
#include "relive/words/sync.hpp"

using namespace relive;

namespace {

double seconds_of(const std::chrono::steady_clock::time_point& begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::unique_ptr<Storage> local(size_t num_bytes) {
  std::unique_ptr<Storage> storage;
  if (!Storage::create_local(num_bytes, &storage).ok()) std::abort();
  return storage;
}

}  // namespace

TEST(deadlines) {
  CHECK(Deadline::after(0.0).passed());
  CHECK(Deadline::after(-1.0).passed());
  CHECK(Deadline::after(std::numeric_limits<double>::quiet_NaN()).passed());
  CHECK_EQ(Deadline::after(0.0).remaining_s(), 0.0);
  const Deadline endless = Deadline::after(std::numeric_limits<double>::infinity());
  CHECK(!endless.passed() && std::isinf(endless.remaining_s()) && endless.waited_s() >= 0.0);
  const Deadline soon = Deadline::after(0.02);
  CHECK(!soon.passed() && soon.remaining_s() <= 0.02);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  CHECK(soon.passed() && soon.remaining_s() == 0.0 && soon.waited_s() >= 0.02);
}

TEST(local_memory_is_zero_aligned_and_writable_to_its_end) {
  for (const size_t num_bytes : {size_t{1}, size_t{4096}, size_t{100'000}, (size_t{2} << 20) + 1, size_t{64} << 20}) {
    const std::unique_ptr<Storage> storage = local(num_bytes);
    CHECK_EQ(storage->num_bytes(), num_bytes);
    CHECK_EQ(reinterpret_cast<uintptr_t>(storage->base()) % 4096, 0u);
    CHECK_EQ(static_cast<int>(storage->base()[0]), 0);
    CHECK_EQ(static_cast<int>(storage->base()[num_bytes - 1]), 0);
    std::memset(storage->base(), 7, num_bytes);
    CHECK(storage->is_local() && storage->path().empty());
    CHECK(storage->commit(0, num_bytes).ok());
    CHECK(storage->try_lock_byte(64, true) && storage->is_byte_free(64));
    storage->unlock_byte(64);
  }
}

TEST(a_count_is_awaited_spinning_or_asleep) {
  const std::unique_ptr<Storage> storage = local(4096);
  auto* event = new (storage->base()) EventWords{};
  event->count.store(0xfffffffeu);  // the count wraps during the test
  CHECK(await_count(event, 0xfffffffeu, 0.0, Deadline::after(0.0)));
  CHECK(await_count(event, 0xfffffff0u, 0.0, Deadline::after(0.0)));
  CHECK(!await_count(event, 0xffffffffu, 0.001, Deadline::after(0.01)));
  for (const double spin_s : {0.0, 10.0}) {
    const uint32_t before = event->count.load();
    int number = 0;  // written before the count, read after it
    std::thread other([&] {
      for (int step = 1; step <= 3; ++step) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        number = step;
        notify(event);
        if (!await_count(event + 1, static_cast<uint32_t>(step) + (spin_s > 0.0 ? 3 : 0), spin_s,
                         Deadline::after(20.0)))
          return;
      }
    });
    for (int step = 1; step <= 3; ++step) {
      CHECK(await_count(event, before + static_cast<uint32_t>(step), spin_s, Deadline::after(20.0)));
      CHECK_EQ(number, step);
      notify(event + 1);
    }
    other.join();
  }
}

TEST(lock_between_threads_of_one_handle) {
  const std::unique_ptr<Storage> storage = local(4096);
  auto* word = new (storage->base()) std::atomic<uint32_t>(0);
  int64_t counter = 0;  // not atomic, on purpose
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        if (TableLock::lock(word, 3, 256, *storage, Deadline::after(30.0)) != LockResult::kTaken) ++failures;
        ++counter;
        TableLock::unlock(word);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(counter, 80'000);
  CHECK_EQ(failures.load(), 0);
  CHECK_EQ(word->load(), 0u);
}

TEST(a_sibling_thread_keeps_the_lock_until_the_deadline) {
  const std::unique_ptr<Storage> storage = local(4096);
  auto* word = new (storage->base()) std::atomic<uint32_t>(0);
  CHECK(TableLock::lock(word, 0, 256, *storage, Deadline::after(0.0)) == LockResult::kTaken);
  for (const double timeout_s : {0.0, 0.001, 0.05, 0.2}) {
    const auto begin = std::chrono::steady_clock::now();
    CHECK(TableLock::lock(word, 0, 256, *storage, Deadline::after(timeout_s)) == LockResult::kTimeout);
    CHECK(seconds_of(begin) >= timeout_s);
    CHECK(seconds_of(begin) < timeout_s + 1.0);
  }
  std::thread waiter([&] {
    CHECK(TableLock::lock(word, 0, 256, *storage, Deadline::after(20.0)) == LockResult::kTaken);
    TableLock::unlock(word);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  TableLock::unlock(word);
  waiter.join();
  CHECK_EQ(word->load(), 0u);
}

TEST(event_wakes_every_waiter_and_loses_none) {
  EventWords event{};
  std::atomic<uint32_t> count{0};
  const uint32_t num_counts = 3'000;
  std::atomic<int> late{0};
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (;;) {
        const Deadline deadline = Deadline::after(20.0);
        while (
            !wait_slice(&event, deadline, 0.1, [&] { return count.load() % 3 == t || count.load() >= num_counts; })) {
          if (deadline.passed()) {
            ++late;
            return;
          }
        }
        if (count.load() >= num_counts) return;
        count.fetch_add(1);
        notify(&event);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(late.load(), 0);
  CHECK(count.load() >= num_counts);
}

TEST(event_waits_never_overrun) {
  EventWords event{};
  for (const double timeout_s : {0.0, 0.001, 0.03, 0.25}) {
    const Deadline deadline = Deadline::after(timeout_s);
    int asked = 0;
    bool seen = false;
    while (!(seen = wait_slice(&event, deadline, 0.1, [&] { return ++asked < 0; })) && !deadline.passed()) {
    }
    CHECK(!seen && asked >= 1);
    CHECK(deadline.waited_s() >= timeout_s && deadline.waited_s() < timeout_s + 1.0);
  }
}

TEST(a_ready_event_does_not_wait) {
  EventWords event{};
  CHECK(wait_slice(&event, Deadline::after(0.0), 0.1, [] { return true; }));
  CHECK_EQ(event.waiters.load(), 0u);
}

// A thread that takes a mutex again as soon as it has released it: the others, which sleep, must come in between.
TEST(the_last_owner_of_a_mutex_stands_back) {
  TimedMutex mutex;
  std::atomic<bool> over{false};
  std::atomic<int64_t> busy_rounds{0};
  std::thread busy([&] {
    while (!over.load()) {
      CHECK(mutex.take("a round", Deadline::after(20.0)).ok());
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      mutex.release();
      busy_rounds += 1;
    }
  });
  while (busy_rounds.load() < 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::vector<std::thread> others;
  for (int thread = 0; thread < 3; ++thread)
    others.emplace_back([&] {
      for (int round = 0; round < 50; ++round) {
        CHECK(mutex.take("a round", Deadline::after(2.0)).ok());
        mutex.release();
      }
    });
  const auto begin = std::chrono::steady_clock::now();
  for (std::thread& other : others) other.join();
  CHECK(seconds_of(begin) < 4.0);  // 0.1 s on a free machine
  const int64_t rounds_beside = busy_rounds.load();
  while (busy_rounds.load() < rounds_beside + 20) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  over.store(true);
  busy.join();
  CHECK(mutex.take("the end", Deadline::after(0.0)).ok());  // no thread is left that would be stood back for
  mutex.release();
  CHECK(mutex.take("the end", Deadline::after(0.0)).ok());
  mutex.release();
}

TEST(small_things) {
  unsigned char first[32] = {}, second[32] = {};
  random_bytes(first, sizeof(first));
  random_bytes(second, sizeof(second));
  CHECK(std::memcmp(first, second, sizeof(first)) != 0);
  uint64_t other = 0;
  std::thread([&] { other = thread_id(); }).join();
  CHECK_EQ(thread_id(), thread_id());
#ifdef RELIVE_PORTABLE
  std::unique_ptr<Storage> storage;
  CHECK(Storage::create_file("/dev/shm/relive-none", 4096, 4096, 4096, &storage).code() == Code::kSystemError);
  CHECK(Storage::open_file("/dev/shm/relive-none", Access::kReadWrite, 1, &storage).code() == Code::kSystemError);
  CHECK(storage == nullptr);
#else
  CHECK_EQ(boot_id().size(), 36u);
  CHECK(pid_namespace() != 0);
  CHECK(process_id() > 0);
  CHECK(file_system_total_bytes("/dev/shm") >= file_system_free_bytes("/dev/shm"));
#endif
}

TEST_MAIN()
