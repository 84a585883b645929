// Critical sections of the table lock (rule C4): they allocate and free no memory, and their only system call asks
// which lock byte is free. The test makes every call of a table and a writer, including the rounds that only other
// processes' changes cause. The test replaces malloc and its relatives; system calls of a thread that owns the lock
// arrive as a signal (Syscall User Dispatch). Page faults are not seen.
#include <array>
#include <atomic>
#include <csignal>
#include <filesystem>

#include "core_rig.hpp"
#include "processes.hpp"
#include "relive/tiers/tier.hpp"

#if defined(__GLIBC__) && !defined(RELIVE_TSAN) && !defined(__SANITIZE_ADDRESS__)
#define RELIVE_COUNTS_MALLOC 1
#endif
#if defined(RELIVE_COUNTS_MALLOC) && defined(__x86_64__)
#include <execinfo.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif
#define RELIVE_COUNTS_SYSTEM_CALLS 1
#endif

namespace {

constinit thread_local int depth = 0;  // critical sections of this thread
std::atomic<uint64_t> allocations{0}, sections{0};
std::array<std::atomic<uint64_t>, 1024> system_calls{};

void on_allocation() {
  if (depth == 0) return;
  allocations.fetch_add(1);
#ifdef RELIVE_COUNTS_SYSTEM_CALLS
  if (std::getenv("RELIVE_TRACE") == nullptr) return;
  const int before = std::exchange(depth, 0);
  void* frames[16];
  backtrace_symbols_fd(frames, backtrace(frames, 16), 2);
  depth = before;
#endif
}

}  // namespace

#ifdef RELIVE_COUNTS_MALLOC
extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
void __libc_free(void*);
void* malloc(size_t size) {
  on_allocation();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  on_allocation();
  return __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  on_allocation();
  return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
  on_allocation();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  on_allocation();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** out, size_t alignment, size_t size) {
  on_allocation();
  *out = __libc_memalign(alignment, size);
  return *out == nullptr ? 12 : 0;
}
void free(void* old) {
  if (old != nullptr) on_allocation();
  __libc_free(old);
}
}
#endif

using namespace rig;

namespace {

#ifdef RELIVE_COUNTS_SYSTEM_CALLS
constexpr char kAllow = 0, kBlock = 1;
thread_local volatile char selector = kAllow;
thread_local pid_t watched_thread = 0;  // of this process, if the thread is watched
bool can_watch = true;

// Makes the intercepted call, and does not intercept further ones of this critical section: one report is enough.
void on_system_call(int, siginfo_t* info, void* context) {
  selector = kAllow;
  system_calls[static_cast<size_t>(info->si_syscall) % system_calls.size()].fetch_add(1);
  auto& g = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  register long r10 asm("r10") = g[REG_R10];
  register long r8 asm("r8") = g[REG_R8];
  register long r9 asm("r9") = g[REG_R9];
  long result;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(static_cast<long>(info->si_syscall)), "D"(g[REG_RDI]), "S"(g[REG_RSI]), "d"(g[REG_RDX]), "r"(r10),
                 "r"(r8), "r"(r9)
               : "rcx", "r11", "memory");
  g[REG_RAX] = result;
}

void watch_system_calls(bool begins) {
  if (begins && watched_thread != getpid()) {
    watched_thread = getpid();
    if (prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, &selector) != 0) can_watch = false;
  }
  selector = begins ? kBlock : kAllow;
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_system_call;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  sigaction(SIGSYS, &action, nullptr);
}
#else
constexpr bool can_watch = false;
void watch_system_calls(bool) {}
void install() {}
#endif

void on_section(bool begins) {
  if (!begins) watch_system_calls(false);
  depth += begins ? 1 : -1;
  if (!begins) return;
  sections.fetch_add(1);
  watch_system_calls(true);
}

// Watches critical sections while it lives. At its end none may have allocated or called the system, except to ask for
// lock bytes if `asks_for_bytes`.
struct Quiet {
  explicit Quiet(bool asks_for_bytes = false) : asks_(asks_for_bytes) {
#ifndef RELIVE_COUNTS_MALLOC
    SKIP("the allocator is a sanitizer's, or not glibc's");
#endif
    install();
    allocations = sections = 0;
    for (auto& count : system_calls) count = 0;
    testing::section_hook = on_section;
  }
  ~Quiet() {
    testing::section_hook = nullptr;
    testing::fail_point_hook = nullptr;
    CHECK(sections.load() > 0);
    CHECK_EQ(allocations.load(), 0u);
#ifdef RELIVE_COUNTS_SYSTEM_CALLS
    if (!can_watch) std::printf("  system calls are not watched: this kernel cannot\n");
    for (size_t number = 0; number < system_calls.size(); ++number)
      if (system_calls[number].load() > 0 && !(asks_ && number == SYS_fcntl))
        harness::fail(__FILE__, __LINE__,
                      "system call " + std::to_string(number) + " under the lock, " +
                          std::to_string(system_calls[number].load()) + " times");
#endif
  }
  bool asks_;
};

std::vector<int32_t> all_of(uint32_t lanes) {
  std::vector<int32_t> all;
  for (uint32_t m = 0; m < lanes; ++m) all.push_back(static_cast<int32_t>(m));
  return all;
}

// The calls of an actor and a learner: rows, ends, draws, priorities, deletions, moves. The model checks the results.
void live(Rig& rig, const Spec& spec, int rounds) {
  const std::vector<int32_t> all = all_of(spec.num_lanes);
  for (int round = 0; round < rounds; ++round) {
    std::vector<int> ends(20 * all.size(), 0);
    for (int& end : ends) end = rig.below(9) == 0 ? 1 : 0;
    CHECK(rig.write(all, 20, ends, spec.has_state ? NextGiven::kLastRow : NextGiven::kNo) == Code::kOk);
    CHECK(rig.write(all, 1, std::vector<int>(all.size(), 0), spec.has_state ? NextGiven::kYes : NextGiven::kNo) ==
          Code::kOk);
    CHECK(rig.end_episode(all, false, true) == Code::kOk);
    for (uint32_t i = 0; i < spec.indexes.size(); ++i) {
      const std::vector<int64_t> keys = rig.sample(i, 40);
      rig.has_holes |= spec.indexes[i].max_times != 0;
      if (!spec.indexes[i].prioritized) continue;
      const std::vector<int64_t> updated(rig.keys.end() - 60, rig.keys.end());  // live, pending, awaiting, used up
      const std::vector<float> priorities(updated.size(), 2.0f);
      int64_t applied = 0;
      CHECK(relive::update_priorities(*rig.table, i, updated.data(), priorities.data(), updated.size(), &applied).ok());
    }
    rig.remove({rig.keys[rig.keys.size() - 3], rig.keys[rig.keys.size() - 30]});
    uint64_t moved = 0;
    CHECK(relive::move_all_pages(*rig.table, &moved).ok());
    rig.verify();
  }
  const int64_t newest = rig.keys.back();
  CHECK(relive::pin_page(*rig.table, newest, true).ok());
  CHECK(relive::clear(*rig.table).ok());
  CHECK(relive::pin_page(*rig.table, newest, false).ok());
  CHECK(relive::pin_page(*rig.table, newest, false).code() == Code::kRequestTooLarge);
  CHECK(relive::pin_page(*rig.table, rig.keys.front(), true).code() == Code::kForeignKey);
  rig.close_writer();
  rig.verify();
  rig.open_writer();
  std::unique_ptr<Writer> another;
  CHECK(Writer::open(rig.table.get(), spec.max_lanes, &another).code() == Code::kTooManyLanes);
}

Table* moving = nullptr;
uint32_t pinned_reads = 0;

// Moves all pages between copy and check, so that no round succeeds before all pages are pinned.
void move_meanwhile(testing::FailPoint point) {
  if (point != testing::FailPoint::sample_gathered) return;
  CHECK_EQ(depth, 0);
  const bool is_pinned = moving->region().header->num_pinning_all.load() > 0;
  pinned_reads += is_pinned ? 1 : 0;
  uint64_t moved = 0;
  CHECK(relive::move_all_pages(*moving, &moved).ok());
  CHECK(moved == 0 || !is_pinned);
}

std::string shared_path(const char* name) {
  return "/dev/shm/relive-test-quiet-" + std::string(name) + "-" + std::to_string(process_id());
}

}  // namespace

TEST(a_table_at_work) {
  const Quiet quiet;
  Spec spec{.capacity = 300, .num_lanes = 3, .max_lanes = 4};
  spec.indexes = {{.n_step = 3, .stack = 4, .prioritized = true},
                  {.prioritized = true, .initial = Initial::kGiven},
                  {.n_step = 12, .max_times = 2}};
  Rig rig(spec);
  live(rig, spec, 8);
}

TEST(a_table_without_state_columns) {
  const Quiet quiet;
  Spec spec{.capacity = 300, .num_lanes = 3, .max_lanes = 4, .has_state = false};
  spec.indexes = {{.n_step = 5, .max_times = 1}, {.n_step = 1, .prioritized = true}};
  Rig rig(spec);
  live(rig, spec, 8);
}

TEST(start_values_where_windows_begin) {
  const Quiet quiet;
  for (const bool has_state : {false, true}) {
    TableConfig config;
    config.columns.push_back(column("number", "<i4", {}, 4, has_state ? ColumnKind::kState : ColumnKind::kStep));
    config.columns.push_back(column("core", "<f4", {80}, 4, ColumnKind::kStart));
    IndexConfig index{};
    std::snprintf(index.name, sizeof index.name, "shift");
    index.n_step = 1;
    index.initial = Initial::kMax;
    index.limiter = make_min_size(1);
    for (uint32_t& frames : index.stack) frames = 1;
    index.sequence = {5, 4, 1, 3, AtEnd::kShift, PadSide::kRight, 0, 0, 0};
    config.indexes = {index};
    config.capacity = 200;
    config.max_lanes = 2;
    config.max_participants = 2;
    std::unique_ptr<Table> table;
    CHECK(Table::create(config, "", &table).ok());
    const std::vector<std::byte> zeros(64 * 320);
    for (size_t rows = 1; rows < 64; ++rows) {
      std::unique_ptr<Writer> writer;
      CHECK(Writer::open(table.get(), 1, &writer).ok());
      StepBlock block;
      block.num_rows = rows;
      block.num_lanes = 1;
      block.has_next = has_state;
      block.columns.assign(2, Cells{zeros.data(), 0, 0});
      block.next = block.columns;
      std::vector<int64_t> keys(rows);
      CHECK(writer->write(block, 1.0, keys.data()).ok());
      CHECK(writer->end_episode(block, false, 1.0).ok());
      CHECK(writer->write(block, 1.0, keys.data()).ok());
      CHECK(writer->close().ok());
    }
    CHECK(relive::check(*table).ok());
  }
}

TEST(late_columns_and_their_completers) {
  const Quiet quiet;
  Spec spec{.capacity = 300, .has_late = true};
  spec.indexes = {{.n_step = 3, .stack = 4, .prioritized = true}, {.max_times = 2}};
  Rig rig(spec);
  size_t done = 0;
  for (int round = 0; round < 8; ++round) {
    CHECK(rig.write({0}, 60, std::vector<int>(60, 0), NextGiven::kLastRow) == Code::kOk);
    rig.complete({rig.keys.rbegin(), rig.keys.rend() - static_cast<std::ptrdiff_t>(done)});
    done = rig.keys.size();
    for (uint32_t i = 0; i < 2; ++i) (void)rig.sample(i, 40);
    rig.has_holes = true;
    rig.verify();
  }
  int64_t applied = 0;
  const float reward = 0.0f;
  const auto* cells = reinterpret_cast<const std::byte*>(&reward);
  CHECK(relive::complete_rows(*rig.table, &rig.keys.back(), 1, cells, 4, &applied).code() == Code::kAlreadyCompleted);
}

TEST(a_limiter_that_lets_in_by_parts_and_refuses) {
  const Quiet quiet;
  Spec spec{.capacity = 300, .num_lanes = 3, .max_lanes = 4};
  spec.indexes = {{.limiter = make_samples_per_insert(1.0, 10, 50.0)}};
  Rig rig(spec);
  const std::vector<int32_t> all = all_of(3);
  CHECK(rig.write(all, 10, std::vector<int>(30, 0), NextGiven::kYes) == Code::kOk);
  CHECK(rig.sample(0, 90).empty());  // refused, and noted
  CHECK(rig.write(all, 30, std::vector<int>(90, 0), NextGiven::kYes) == Code::kDeadlineExceeded);
  CHECK(relive::check(*rig.table).ok());  // the first rows of the block are stored, and the model does not have them
}

TEST(reading_while_all_pages_are_pinned) {
  const Quiet quiet;
  Spec spec{.capacity = 300};
  spec.indexes = {{.n_step = 12, .stack = 4}, {.n_step = 12, .max_times = 1}};
  Rig rig(spec);
  CHECK(rig.write({0}, 200, std::vector<int>(200, 0), NextGiven::kYes) == Code::kOk);
  moving = rig.table.get();
  testing::fail_point_hook = move_meanwhile;
  for (int batch = 0; batch < 3; ++batch) {
    CHECK_EQ(rig.sample(0, 50).size(), 50u);
    CHECK_EQ(rig.sample(1, 50).size(), 50u);
  }
  CHECK(rig.sample(1, 150).empty());  // the claims are given back
  rig.has_holes = true;
  rig.verify();  // gathers by key
  CHECK(pinned_reads > 0);
}

// Over pages, with explicit items at the rows. The writer's list of its episode's pages grows outside the lock.
TEST(abandoned_episodes) {
  const Quiet quiet;
  Spec spec{.capacity = 600, .num_lanes = 2, .max_lanes = 3};
  spec.indexes = {{.n_step = 3, .stack = 4, .prioritized = true}, {}};
  Rig rig(spec);
  const std::vector<int32_t> all = all_of(2);
  for (int round = 0; round < 6; ++round) {
    CHECK(rig.write(all, 80, std::vector<int>(160, 0), round % 2 == 0 ? NextGiven::kLastRow : NextGiven::kNo) ==
          Code::kOk);
    StepBlock block;
    block.num_lanes = 2;
    CHECK(rig.writer->abandon(block, 1.0).ok());
    CHECK(relive::check(*rig.table).ok());
    CHECK_EQ(rig.table->region().header->live_steps.load(), 0u);
  }
}

TEST(a_table_on_disk) {
  const Quiet quiet;
  Spec spec{.capacity = 200, .num_lanes = 2, .max_lanes = 3, .has_pixels = true};
  spec.indexes = {{.n_step = 3, .stack = 4, .prioritized = true}, {.max_times = 2}};
  const char* folder = std::getenv("TMPDIR");
  spec.tier.directory = folder == nullptr ? "/tmp" : folder;
  spec.tier.num_io_threads = 2;
  spec.tier.staging_fraction = 0.1;
  spec.tier.ram_bytes = 20 * 8 * 8192;
  Rig rig(spec);
  const std::vector<int32_t> all = all_of(2);
  for (int round = 0; round < 6; ++round) {
    CHECK(rig.write(all, 20, std::vector<int>(40, 0), NextGiven::kLastRow) == Code::kOk);
    CHECK(rig.end_episode(all, false, true) == Code::kOk);
    uint64_t spilled = 0;
    CHECK(relive::spill_all_pages(*rig.table, &spilled).ok());
    for (uint32_t i = 0; i < 2; ++i) (void)rig.sample(i, 20);
    rig.has_holes = true;
    rig.verify();
  }
  moving = rig.table.get();
  testing::fail_point_hook = move_meanwhile;
  rig.verify();
  testing::fail_point_hook = nullptr;
  relive::fail_disk(*rig.table, 0, 5);
  uint64_t spilled = 0;
  (void)relive::spill_all_pages(*rig.table, &spilled);
  relive::fail_disk(*rig.table, 0, 0);
  CHECK(relive::check(*rig.table).ok());
  rig.close_writer();
  CHECK(rig.table->close().ok());
}

TEST(handles_that_come_and_go_and_the_lanes_of_the_dead) {
  // The lock allows one question to the system: whose byte is free (rules E1, E4).
  const Quiet quiet(true);
  constexpr uint32_t kLanes = 200;
  Spec spec{.capacity = 8000, .num_lanes = kLanes, .max_lanes = kLanes};
  spec.indexes = {{.n_step = 3, .prioritized = true}};
  const std::string path = shared_path("dead");
  std::unique_ptr<Table> table;
  CHECK(Table::create(make_config(spec), path, &table).ok());
  for (const bool dies_as_holder : {false, true}) {
    processes::Signal ready;
    const pid_t child = processes::spawn([&] {
      std::unique_ptr<Table> mine;
      std::unique_ptr<Writer> writer;
      testing::section_hook = nullptr;
      if (!Table::attach(path, Access::kReadWrite, std::nullopt, 5.0, &mine).ok()) return 1;
      if (!Writer::open(mine.get(), kLanes, &writer).ok()) return 2;
      const std::array<std::byte, 64> zeros{};
      StepBlock block;
      block.num_rows = 3;
      block.num_lanes = kLanes;
      block.columns.assign(mine->region().geometry->num_columns, Cells{zeros.data(), 0, 0});
      block.terminated = block.truncated = Cells{zeros.data(), 0, 0};
      std::vector<int64_t> keys(3 * kLanes);
      if (!writer->write(block, 5.0, keys.data()).ok()) return 3;
      if (dies_as_holder) new Locked(mine->door(), Deadline::after(5.0));
      ready.give();
      processes::sleep_s(60.0);
      return 4;
    });
    CHECK(ready.take());
    processes::kill_and_wait(child);
    std::unique_ptr<Table> other;
    CHECK(Table::attach(path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
    CHECK(relive::check(*table).ok());
    CHECK_EQ(relive::num_items(*table, 0), int64_t{2} * kLanes * (dies_as_holder ? 2 : 1));
    std::unique_ptr<Writer> writer;
    CHECK(Writer::open(other.get(), kLanes / 2, &writer).ok());
    writer.reset();
    CHECK(Writer::open(other.get(), kLanes / 2, &writer).ok());
    CHECK(other->close().ok());
  }
  CHECK(table->close().ok());
}

TEST(the_first_to_attach_after_all_others_died) {
  const Quiet quiet(true);
  Spec spec{.capacity = 300, .num_lanes = 2, .max_lanes = 4};
  const std::string path = shared_path("all");
  processes::Signal ready;
  const pid_t child = processes::spawn([&] {
    testing::section_hook = nullptr;
    std::unique_ptr<Table> mine;
    if (!Table::create(make_config(spec), path, &mine).ok()) return 1;
    ready.give();
    processes::sleep_s(60.0);
    return 2;
  });
  CHECK(ready.take());
  processes::kill_and_wait(child);
  std::unique_ptr<Table> table;
  CHECK(Table::attach(path, Access::kReadWrite, std::nullopt, 5.0, &table).ok());
  CHECK(relive::check(*table).ok());
  CHECK(table->close().ok());
}

// Proves that the watch itself sees allocations and system calls.
TEST(the_watch_sees) {
  Spec spec;
  Rig rig(spec);
#ifdef RELIVE_COUNTS_MALLOC
  install();
  allocations = 0;
  for (auto& count : system_calls) count = 0;
  testing::section_hook = on_section;
  {
    Locked locked(rig.table->door(), Deadline::after(1.0));
    delete new std::vector<int>(100);
#ifdef RELIVE_COUNTS_SYSTEM_CALLS
    (void)getppid();
#endif
  }
  testing::section_hook = nullptr;
  CHECK(allocations.load() >= 2);
#ifdef RELIVE_COUNTS_SYSTEM_CALLS
  if (can_watch) CHECK_EQ(system_calls[SYS_getppid].load(), 1u);
#endif
#endif
}

TEST_MAIN()
