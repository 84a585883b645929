// The system layer between processes: files and their names, lock bytes, the table lock under SIGKILL and SIGSTOP.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "harness.hpp"
#include "processes.hpp"
#include "relive/words/sync.hpp"

using namespace relive;
using processes::Signal;

namespace {

constexpr size_t kBytes = size_t{4} << 20;
constexpr uint32_t kMax = 256;

std::string test_path() {
  static int count = 0;
  return "/dev/shm/relive-unit-" + std::to_string(getpid()) + "-" + std::to_string(count++);
}

struct Named {  // a file that the test removes at its end
  std::string path = test_path();
  ~Named() { ::unlink(path.c_str()); }
};

std::unique_ptr<Storage> create(const std::string& path) {
  std::unique_ptr<Storage> storage;
  const Status status = Storage::create_file(path, kBytes, 8192, kBytes, &storage);
  CHECK(status.ok());
  if (!status.ok()) std::abort();
  return storage;
}

std::unique_ptr<Storage> open_again(const std::string& path, Access access = Access::kReadWrite) {
  std::unique_ptr<Storage> storage;
  if (!Storage::open_file(path, access, 4096, &storage).ok()) std::abort();
  return storage;
}

std::atomic<uint32_t>* word_of(const Storage& storage) {
  return reinterpret_cast<std::atomic<uint32_t>*>(storage.base());
}

bool exists(const std::string& path) {
  struct stat facts{};
  return stat(path.c_str(), &facts) == 0;
}

// A child that is participant `id`, takes the lock, reports that, and releases it on request (exit status 0).
pid_t spawn_owner(const std::string& path, uint32_t id, Signal& is_taken, Signal& release) {
  return processes::spawn([&] {
    std::unique_ptr<Storage> storage = open_again(path);
    if (!storage->try_lock_byte(id == kMax ? 1 : 64 + id, true)) return 2;
    if (TableLock::lock(word_of(*storage), id, kMax, *storage, Deadline::after(10.0)) == LockResult::kTimeout) return 3;
    is_taken.give();
    if (!release.take()) return 4;
    TableLock::unlock(word_of(*storage));
    return 0;
  });
}

}  // namespace

TEST(a_file_is_nameless_until_published) {
  Named name;
  {
    std::unique_ptr<Storage> storage = create(name.path);
    CHECK(!exists(name.path));
    CHECK(storage->try_lock_byte(0, false) && storage->try_lock_byte(64, true));  // before it has a name
    std::memset(storage->base(), 5, 8192);
    CHECK(storage->publish().ok());
    CHECK(exists(name.path) && storage->is_same_file_as_name() && !storage->is_unlinked());

    std::unique_ptr<Storage> second = create(name.path);
    const Status taken = second->publish();
    CHECK(taken.code() == Code::kNameTaken);
    CHECK(!second->is_same_file_as_name());
    CHECK(second->unlink().ok() && exists(name.path));  // another file: stays

    std::unique_ptr<Storage> opened = open_again(name.path);
    CHECK_EQ(opened->num_bytes(), kBytes);
    CHECK_EQ(static_cast<int>(opened->base()[8191]), 5);
    CHECK(!opened->is_byte_free(64));
    CHECK(storage->unlink().ok() && !exists(name.path) && opened->is_unlinked() && storage->is_unlinked());
  }
}

TEST(a_creator_killed_before_publish_leaves_nothing) {
  Named name;
  Signal made;
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Storage> storage = create(name.path);
    made.give();
    processes::sleep_s(20.0);
    return 0;
  });
  CHECK(made.take());
  processes::kill_and_wait(child);
  CHECK(!exists(name.path));
}

TEST(open_refuses_a_file_that_is_no_region) {
  Named name;
  std::unique_ptr<Storage> storage;
  CHECK(Storage::open_file(name.path, Access::kReadWrite, 4096, &storage).code() == Code::kNoSuchTable);
  const int fd = open(name.path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  CHECK(Storage::open_file(name.path, Access::kReadWrite, 4096, &storage).code() == Code::kNotARegion);
  CHECK(write(fd, "short", 5) == 5);
  CHECK(Storage::open_file(name.path, Access::kReadWrite, 4096, &storage).code() == Code::kNotARegion);
  close(fd);
  CHECK(Storage::open_file("/dev/shm", Access::kReadWrite, 4096, &storage).code() == Code::kNotARegion);
  CHECK(Storage::open_file("/dev/shm/none/none", Access::kReadWrite, 4096, &storage).code() == Code::kNoSuchTable);
  CHECK(storage == nullptr);
}

TEST(storage_full_says_so) {
  Named name;
  std::unique_ptr<Storage> storage;
  const size_t total = file_system_total_bytes("/dev/shm");
  if (total == 0) SKIP("/dev/shm has no limit here");
  Status status = Storage::create_file(name.path, kBytes, 8192, total + 1, &storage);
  CHECK(status.code() == Code::kStorageFull);
  CHECK_EQ(status.fields().size(), 3u);
  CHECK_EQ(status.fields()[1].integer, static_cast<int64_t>(total + 1));
  CHECK_EQ(status.fields()[2].integer, static_cast<int64_t>(total));
  status = Storage::create_file(name.path, 2 * total, 2 * total, 0, &storage);
  CHECK(status.code() == Code::kStorageFull);
  CHECK(Storage::create_file(name.path, 2 * total, 8192, 0, &storage).ok());  // sparse: uncommitted bytes are free
  CHECK(storage->commit(0, 2 * total).code() == Code::kStorageFull);
  CHECK(storage->commit(1 << 20, 1 << 20).ok());
  std::memset(storage->base() + (1 << 20), 1, 1 << 20);
}

TEST(a_read_only_mapping_is_read_only) {
  Named name;
  std::unique_ptr<Storage> storage = create(name.path);
  CHECK(storage->publish().ok());
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Storage> reader = open_again(name.path, Access::kReadOnly);
    if (!reader->try_lock_byte(0, false)) return 2;
    if (reader->try_lock_byte(64, true)) return 3;
    signal(SIGSEGV, SIG_DFL);  // otherwise the sanitizers catch it
    const rlimit none{0, 0};   // a core dump is for deaths that no test asked for
    setrlimit(RLIMIT_CORE, &none);
    reader->base()[0] = std::byte{1};  // must die here
    return 0;
  });
  CHECK_EQ(processes::wait_for(child), 128 + SIGSEGV);
}

TEST(lock_bytes_between_processes) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok());
  CHECK(mine->try_lock_byte(0, false));
  Signal ready, go;
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Storage> storage = open_again(name.path);
    if (!storage->try_lock_byte(0, false)) return 2;  // two shared locks are allowed
    if (storage->try_lock_byte(0, true)) return 3;    // not alone
    if (!storage->try_lock_byte(65, true)) return 4;
    ready.give();
    go.take();
    processes::sleep_s(20.0);
    return 0;
  });
  CHECK(ready.take());
  CHECK(!mine->try_lock_byte(0, true));
  CHECK(!mine->is_byte_free(65) && mine->is_byte_free(64));
  CHECK(!mine->try_lock_byte(65, true));
  const Deadline deadline = Deadline::after(0.1);
  CHECK(!mine->lock_byte(65, true, deadline));
  CHECK(deadline.waited_s() >= 0.1 && deadline.waited_s() < 1.0);
  processes::kill_and_wait(child);
  CHECK(mine->is_byte_free(65));
  CHECK(mine->lock_byte(65, true, Deadline::after(5.0)));
  CHECK(mine->try_lock_byte(0, true));   // alone: shared becomes exclusive
  CHECK(mine->try_lock_byte(0, false));  // and back
  mine->unlock_byte(0);
  std::unique_ptr<Storage> other = open_again(name.path);  // a second handle of one process counts as another user
  CHECK(!other->is_byte_free(65) && mine->is_byte_free(65) && !other->try_lock_byte(65, true));
}

TEST(a_forked_childs_mapping_does_not_keep_its_parent_alive) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok());
  Signal ready, end;
  const pid_t parent = processes::spawn([&] {
    std::unique_ptr<Storage> storage = open_again(name.path);
    if (!storage->try_lock_byte(70, true)) return 2;
    const pid_t grandchild = fork();
    if (grandchild == 0) {
      storage->close_locks();
      ready.give();
      end.take();
      _exit(static_cast<int>(storage->base()[0]));  // the mapping still exists
    }
    processes::sleep_s(20.0);
    return 0;
  });
  CHECK(ready.take());
  CHECK(!mine->is_byte_free(70));
  processes::kill_and_wait(parent);
  CHECK(mine->is_byte_free(70));
  end.give();
}

TEST(a_living_owner_keeps_the_lock) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok() && mine->try_lock_byte(64, true));
  Signal is_taken, release;
  const pid_t child = spawn_owner(name.path, 5, is_taken, release);
  CHECK(is_taken.take());
  CHECK_EQ(word_of(*mine)->load() & ~TableLock::kWaiters, 6u);
  const Deadline deadline = Deadline::after(0.2);
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, deadline) == LockResult::kTimeout);
  CHECK(deadline.waited_s() >= 0.2 && deadline.waited_s() < 1.2);
  release.give();
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, Deadline::after(10.0)) == LockResult::kTaken);
  TableLock::unlock(word_of(*mine));
  CHECK_EQ(processes::wait_for(child), 0);
}

TEST(a_killed_owner_loses_the_lock) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok() && mine->try_lock_byte(64, true));
  for (const double timeout_s : {10.0, 0.0}) {  // a single attempt finds out, too
    Signal is_taken, release;
    const pid_t child = spawn_owner(name.path, 5, is_taken, release);
    CHECK(is_taken.take());
    processes::kill_and_wait(child);
    const Deadline deadline = Deadline::after(timeout_s);
    CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, deadline) == LockResult::kTakenFromDead);
    CHECK(deadline.waited_s() < 1.0);
    CHECK(mine->is_byte_free(69));  // the byte of the dead process was only borrowed
    TableLock::unlock(word_of(*mine));
    CHECK_EQ(word_of(*mine)->load(), 0u);
  }
}

TEST(a_killed_waiter_changes_nothing) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok() && mine->try_lock_byte(64, true));
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, Deadline::after(0.0)) == LockResult::kTaken);
  Signal waits, never;
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Storage> storage = open_again(name.path);
    if (!storage->try_lock_byte(66, true)) return 2;
    waits.give();
    TableLock::lock(word_of(*storage), 2, kMax, *storage, Deadline::after(20.0));
    return 0;
  });
  CHECK(waits.take());
  processes::sleep_s(0.05);
  processes::kill_and_wait(child);
  CHECK_EQ(word_of(*mine)->load() & ~TableLock::kWaiters, 1u);
  TableLock::unlock(word_of(*mine));
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, Deadline::after(0.0)) == LockResult::kTaken);
  TableLock::unlock(word_of(*mine));
}

TEST(one_winner_takes_over_from_the_dead) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok() && mine->try_lock_byte(64, true));
  Signal is_taken, release;
  const pid_t owner = spawn_owner(name.path, 5, is_taken, release);
  CHECK(is_taken.take());
  auto* taken_from_dead = word_of(*mine) + 64;
  auto* inside = word_of(*mine) + 128;
  pid_t children[4];
  for (uint32_t c = 0; c < 4; ++c) {
    children[c] = processes::spawn([&, c] {
      std::unique_ptr<Storage> storage = open_again(name.path);
      if (!storage->try_lock_byte(74 + c, true)) return 2;
      for (int round = 0; round < 200; ++round) {
        const LockResult result = TableLock::lock(word_of(*storage), 10 + c, kMax, *storage, Deadline::after(15.0));
        if (result == LockResult::kTimeout) return 3;
        if (result == LockResult::kTakenFromDead) taken_from_dead->fetch_add(1);
        if (inside->fetch_add(1) != 0) return 4;
        inside->fetch_sub(1);
        TableLock::unlock(word_of(*storage));
      }
      return 0;
    });
  }
  processes::sleep_s(0.05);
  processes::kill_and_wait(owner);
  for (const pid_t child : children) CHECK_EQ(processes::wait_for(child), 0);
  CHECK_EQ(taken_from_dead->load(), 1u);
}

TEST(a_stopped_owner_is_alive) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok() && mine->try_lock_byte(64, true));
  Signal is_taken, release;
  const pid_t child = spawn_owner(name.path, 5, is_taken, release);
  CHECK(is_taken.take());
  processes::stop_and_wait(child);
  const Deadline deadline = Deadline::after(0.4);
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, deadline) == LockResult::kTimeout);
  CHECK(deadline.waited_s() >= 0.4 && deadline.waited_s() < 1.4);
  kill(child, SIGCONT);
  release.give();
  CHECK(TableLock::lock(word_of(*mine), 0, kMax, *mine, Deadline::after(10.0)) == LockResult::kTaken);
  TableLock::unlock(word_of(*mine));
  CHECK_EQ(processes::wait_for(child), 0);
}

TEST(a_killed_attacher_is_replaced_by_the_next_one) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok());
  Signal is_taken, release;
  const pid_t child = spawn_owner(name.path, kMax, is_taken, release);
  CHECK(is_taken.take());
  CHECK(!mine->try_lock_byte(1, true));
  processes::kill_and_wait(child);
  CHECK(mine->try_lock_byte(1, true));  // this process is the attacher now, under the same id
  CHECK(TableLock::lock(word_of(*mine), kMax, kMax, *mine, Deadline::after(5.0)) == LockResult::kTakenFromDead);
  CHECK(!open_again(name.path)->is_byte_free(1));  // and still has byte 1
  TableLock::unlock(word_of(*mine));
}

TEST(events_between_processes) {
  Named name;
  std::unique_ptr<Storage> mine = create(name.path);
  CHECK(mine->publish().ok());
  auto* event = reinterpret_cast<EventWords*>(mine->base() + 1024);
  auto* value = word_of(*mine) + 64;
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Storage> storage = open_again(name.path);
    auto* theirs = reinterpret_cast<EventWords*>(storage->base() + 1024);
    auto* seen = word_of(*storage) + 64;
    for (uint32_t count = 1; count <= 500; count += 2) {
      const Deadline deadline = Deadline::after(15.0);
      while (!wait_slice(theirs, deadline, 0.1, [&] { return seen->load() == count; }))
        if (deadline.passed()) return 2;
      seen->store(count + 1);
      notify(theirs);
    }
    return 0;
  });
  bool in_time = true;
  for (uint32_t count = 0; count < 500 && in_time; count += 2) {
    const Deadline deadline = Deadline::after(15.0);
    while (in_time && !wait_slice(event, deadline, 0.1, [&] { return value->load() == count; })) {
      in_time = !deadline.passed();
    }
    value->store(count + 1);
    notify(event);
  }
  CHECK(in_time);
  CHECK_EQ(processes::wait_for(child), 0);
}

namespace {
int forks_seen = 0, order = 0;
}

TEST(the_hooks_of_each_owner_run_at_a_fork) {
  on_fork([] { order = order * 10 + 1; }, [] {}, [] { ++forks_seen; });
  on_fork([] { order = order * 10 + 2; }, [] {}, [] { ++forks_seen; });
  CHECK_EQ(processes::wait_for(processes::spawn([] { return forks_seen; })), 2);
  CHECK_EQ(forks_seen, 0);
  CHECK_EQ(order, 21);  // the last one first
}

TEST_MAIN()
