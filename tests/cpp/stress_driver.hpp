// The driver of the stress programme. A phase starts the workers on a fresh table, kills, stops and restarts them, and
// judges the table at the end.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>

#include <thread>

#include "stress_checker.hpp"
#include "stress_groups.hpp"
#include "stress_saver.hpp"

namespace stress {

using relive::testing::FailPoint;

inline constexpr double kHang_s = 12.0;

inline Control* control = nullptr;
inline Options options;
inline uint32_t my_point = kNumPoints;
inline uint64_t my_passages = 0;

// Gives a worker new orders with every new handle: to die at the k-th passage of a point, or to live for a while.
inline void take_orders(Random* random) {
  my_point = control->forced_point.load();
  my_passages = 1 + random->below(uint64_t{1} << random->below(7));
  if (my_point != kNumPoints && random->below(3) == 0) my_point = kNumPoints;  // otherwise no call would finish
  const std::string name = my_point < kNumPoints ? relive::testing::fail_point_name(my_point) : "";
  if (name.find("grow_") == 0 || name == "evict_not_yet") my_passages = 1;  // passed a few times in a table's life
  // A worker that should die during recovery or a sweep needs dead processes: some workers die in a critical section
  // instead. A page that is freed unused was opened by a process that died before its first row.
  const bool is_unused = name == "free_unlinked";
  const bool is_cleaning = name.find("recover_") == 0 || name.find("sweep_") == 0 || is_unused;
  if (is_cleaning && random->below(2) == 0) {
    FailPoint in_commit = random->below(2) == 0 ? FailPoint::lock_taken : FailPoint::commit_range;
    if (name == "sweep_page_end") in_commit = FailPoint::commit_closed;  // at the end of a page, before the advance
    my_point = static_cast<uint32_t>(is_unused ? FailPoint::open_ring : in_commit);
  } else if (is_cleaning) {
    my_passages = is_unused ? 1 : 1 + random->below(3);
  }
  if (control->random_points.load() != 0 && random->below(2) == 0) {
    my_point = static_cast<uint32_t>(random->below(kNumPoints));
    my_passages = 1 + random->below(uint64_t{1} << random->below(8));
  }
}

// Points that are passed without the table lock; sample_gathered is passed without it most of the time.
inline bool is_outside_lock(FailPoint point) {
  return point == FailPoint::commit_unlocked || point == FailPoint::draw_found || point == FailPoint::draw_word ||
         point == FailPoint::sample_reserved || point == FailPoint::sample_gathered ||
         point == FailPoint::sample_done_added || point == FailPoint::sample_in_flight ||
         point == FailPoint::attach_byte || point == FailPoint::grow_committed || point == FailPoint::cells_written ||
         point == FailPoint::pins_read || point == FailPoint::where_tested || point == FailPoint::where_found;
}

// Sometimes delays a worker between two steps of the protocol, as on a machine with fewer cores.
inline void dawdle() {
  thread_local Random random{static_cast<uint64_t>(now_s() * 1e9) ^ reinterpret_cast<uintptr_t>(&random)};
  const uint64_t dice = random.below(1u << 14);
  if (dice == 0) usleep(static_cast<useconds_t>(1 + random.below(2000)));
  if (dice < 8) std::this_thread::yield();
}

inline void at_point(FailPoint point) {
  if (is_apart) return;
  if (point == FailPoint::wait_noted) control->drops_begun.fetch_add(1);
  if (point == FailPoint::wait_ended) control->drops_done.fetch_add(1);
  if (static_cast<uint32_t>(point) != my_point || --my_passages > 0) return dawdle();
  control->deaths[my_point].fetch_add(1);
  if (!is_outside_lock(point)) control->deaths_in_lock.fetch_add(1);
  kill(getpid(), SIGKILL);
  for (;;) pause();
}

// The first fault catches a mutant.
inline uint64_t enough_bad() { return options.mutant.empty() ? 50 : 0; }

enum class Role { kWriter, kSampler, kUpdater, kSaver, kCompleter, kInserter, kItemSampler, kGroupSampler, kChecker };

inline int num_workers() {
  const int of_items = options.explicit_items ? options.inserters + options.item_samplers : 0;
  const int of_late = options.late ? options.completers : 0;
  return options.writers + options.samplers + options.updaters + of_late + of_items +
         (options.groups ? options.group_samplers : 0) + (options.saves ? 1 : 0) + 1;
}

inline Role role_of(int position) {
  if (position < options.writers) return Role::kWriter;
  position -= options.writers;
  if (position < options.samplers) return Role::kSampler;
  position -= options.samplers;
  if (position < options.updaters) return Role::kUpdater;
  position -= options.updaters;
  if (options.saves && position == 0) return Role::kSaver;
  position -= options.saves ? 1 : 0;
  if (options.late && position < options.completers) return Role::kCompleter;
  position -= options.late ? options.completers : 0;
  if (options.groups && position < options.group_samplers) return Role::kGroupSampler;
  position -= options.groups ? options.group_samplers : 0;
  if (!options.explicit_items || position >= options.inserters + options.item_samplers) return Role::kChecker;
  return position < options.inserters ? Role::kInserter : Role::kItemSampler;
}

inline std::unique_ptr<Worker> make_worker(int position, uint64_t seed, Table* shared) {
  const auto at = static_cast<uint32_t>(position);
  switch (role_of(position)) {
    case Role::kWriter:
      return std::make_unique<WriterWorker>(options, control, at, seed, shared);
    case Role::kSampler:
      return std::make_unique<SamplerWorker>(options, control, at, seed, shared);
    case Role::kUpdater:
      return std::make_unique<UpdaterWorker>(options, control, at, seed, shared);
    case Role::kSaver:
      return std::make_unique<SaverWorker>(options, control, at, seed, shared);
    case Role::kCompleter:
      return std::make_unique<CompleterWorker>(options, control, at, seed, shared);
    case Role::kInserter:
      return std::make_unique<InserterWorker>(options, control, at, seed, shared);
    case Role::kItemSampler:
      return std::make_unique<ItemSamplerWorker>(options, control, at, seed, shared);
    case Role::kGroupSampler:
      return std::make_unique<GroupSamplerWorker>(options, control, at, seed, shared);
    default:
      return std::make_unique<CheckerWorker>(options, control, at, seed, shared);
  }
}

// Items that were dropped for their time: each is counted once, whichever process died in between.
inline std::string wrong_drops(const TableStats& stats) {
  int64_t counted = 0;
  for (const int64_t count : stats.timed_out) counted += count;
  for (const int64_t count : stats.expired) counted += count;
  const auto done = static_cast<int64_t>(control->drops_done.load());
  if (counted >= done && counted <= static_cast<int64_t>(control->drops_begun.load())) return {};
  return std::to_string(counted) + " items timed out of " + std::to_string(done) + " that were dropped";
}

// Runs after all workers have ended: a fresh handle, all invariants, nothing in flight.
inline int judge() {
  std::unique_ptr<Table> table;
  Status status = Table::attach(options.path, Access::kReadWrite, 0, 5.0, &table);
  if (!status.ok()) return control->found_violation("the last attach failed"), 1;
  status = relive::check(*table);
  if (!status.ok())
    control->found_violation(("at the end: " + (status.fields().empty() ? "?" : status.fields()[0].text)).c_str());
  TableStats stats;
  if (!relive::stats(*table, &stats).ok()) control->found_violation("no statistics at the end");
  for (int64_t in_flight : stats.in_flight)
    if (in_flight != 0) control->found_violation(("in flight at the end: " + std::to_string(in_flight)).c_str());
  const std::string miscounted = wrong_drops(stats);
  if (!miscounted.empty()) control->found_violation(miscounted.c_str());
  if (table->region().header->num_pinning_all.load() != 0) control->found_violation("pages are pinned at the end");
  if (stats.num_open_lanes != 0)
    control->found_violation(("lanes open at the end: " + std::to_string(stats.num_open_lanes)).c_str());
  for (const std::string& wrong :
       {CheckerWorker::wrong_mass(table->region()), CheckerWorker::wrong_item_mass(table->region()),
        CheckerWorker::wrong_limiter(table->region())})
    if (!wrong.empty()) control->found_violation(("at the end: " + wrong).c_str());
  if (!options.quiet && options.deaths_a_point == 0)
    for (const auto& [name, value] : stats.counters)
      if (value != 0) std::printf("  %s %llu\n", name, static_cast<unsigned long long>(value));
  std::fflush(stdout);
  return table->close().ok() ? 0 : 1;
}

// Creates the table and keeps it attached, so that it outlives its users.
inline int keep() {
  std::unique_ptr<Table> table;
  const Status status = Table::create(make_config(options), options.path, &table);
  if (!status.ok()) return 1;
  control->is_over.store(0);
  while (control->is_over.load() < 2) usleep(2000);
  return table->close().ok() ? 0 : 1;
}

template <class Body>
pid_t spawn(Body&& body) {
  std::fflush(stdout);
  const pid_t pid = fork();
  if (pid < 0) std::abort();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  _exit(body());
}

struct Child {
  pid_t pid = 0;
  bool was_killed = false;
  double stopped_until = 0.0;  // 0: not stopped
  uint64_t progress = 0;
  double progress_at = 0.0;
};

class Phase {
 public:
  explicit Phase(Random* random) : random_(*random) {}

  // Runs one phase. The control has the faults that were found.
  void run(double seconds, int kills, int stops, uint64_t wanted_deaths);

  uint64_t num_kills = 0, num_stops = 0, num_self_kills = 0;

 private:
  void start(size_t position);
  void reap();
  void watch_progress();
  void stop_one();
  void go_on(Child& child);
  void finish(bool by_force);
  // At the forced point, or at all points.
  uint64_t deaths() const {
    const uint32_t forced = control->forced_point.load();
    if (forced != kNumPoints) return control->deaths[forced].load();
    uint64_t sum = 0;
    for (const auto& count : control->deaths) sum += count.load();
    return sum;
  }

  Random& random_;
  std::vector<Child> children_;
  pid_t keeper_ = 0;
};

inline void Phase::start(size_t position) {
  Child& child = children_[position];
  child = Child{};
  child.progress = control->workers[position].progress.load();
  child.progress_at = now_s();
  if (control->workers[position].stops.load() % 2 != 0) control->workers[position].stops.fetch_add(1);
  const uint64_t seed = random_.next();
  relive::testing::most_rounds = options.rounds;
  child.pid = spawn([&] { return make_worker(static_cast<int>(position), seed, nullptr)->run(); });
}

inline void Phase::reap() {
  for (size_t position = 0; position < children_.size(); ++position) {
    Child& child = children_[position];
    int status = 0;
    if (child.pid == 0 || waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      if (!child.was_killed) ++num_self_kills;
    } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
      control->crashes.fetch_add(1);
      control->say("crash", "worker %zu ended with status %x", position, status);
    }
    child.pid = 0;
    if (control->is_over.load() == 0) start(position);
  }
}

inline void Phase::watch_progress() {
  for (size_t position = 0; position < children_.size(); ++position) {
    Child& child = children_[position];
    if (child.pid == 0) continue;
    if (child.stopped_until > 0.0 && now_s() > child.stopped_until) go_on(child);
    const uint64_t progress = control->workers[position].progress.load();
    if (progress != child.progress || child.stopped_until > 0.0) {
      child.progress = progress;
      child.progress_at = now_s();
    } else if (now_s() - child.progress_at > kHang_s && !child.was_killed) {
      control->hangs.fetch_add(1);
      control->say("hang", "worker %zu made no call in %.0f s", position, kHang_s);
      child.was_killed = true;
      kill(child.pid, SIGKILL);
    }
  }
}

inline void Phase::stop_one() {
  const size_t position = random_.below(children_.size());
  Child& child = children_[position];
  if (child.pid == 0 || child.stopped_until > 0.0) return;
  control->workers[position].stops.fetch_add(1);
  kill(child.pid, SIGSTOP);
  child.stopped_until = now_s() + 0.001 * static_cast<double>(1 + random_.below(120));
  ++num_stops;
}

inline void Phase::go_on(Child& child) {
  kill(child.pid, SIGCONT);
  child.stopped_until = 0.0;
  control->workers[static_cast<size_t>(&child - children_.data())].stops.fetch_add(1);
}

inline void Phase::finish(bool by_force) {
  control->is_over.store(1);
  for (Child& child : children_) {
    if (child.pid == 0) continue;
    if (child.stopped_until > 0.0) go_on(child);
    if (by_force) child.was_killed = true, kill(child.pid, SIGKILL);
  }
  const double end = now_s() + kHang_s;
  bool any = true;
  while (any && now_s() < end) {
    reap();
    any = false;
    for (const Child& child : children_) any |= child.pid != 0;
    usleep(2000);
  }
  for (Child& child : children_) {
    if (child.pid == 0) continue;
    control->hangs.fetch_add(1);
    control->say("hang", "a worker did not end");
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
  const bool alone = random_.below(2) == 0;
  if (alone) kill(keeper_, SIGKILL), waitpid(keeper_, nullptr, 0);
  const pid_t judge_pid = spawn(judge);
  int status = 0;
  const double patience = now_s() + kHang_s;
  while (waitpid(judge_pid, &status, WNOHANG) == 0 && now_s() < patience) usleep(1000);
  if (now_s() >= patience) {
    control->hangs.fetch_add(1);
    control->say("hang", "the table could not be attached at the end");
    kill(judge_pid, SIGKILL);
    waitpid(judge_pid, &status, 0);
  } else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    control->crashes.fetch_add(1);
    control->say("crash", "the last handle ended with status %x", status);
  }
  control->is_over.store(2);
  if (!alone) waitpid(keeper_, nullptr, 0);
  if (access(options.path.c_str(), F_OK) == 0) control->found_violation("the name is still there after the last close");
  unlink(options.path.c_str());
}

inline void Phase::run(double seconds, int kills, int stops, uint64_t wanted_deaths) {
  control->is_over.store(3);  // until the table exists
  control->forget();
  keeper_ = spawn(keep);
  while (control->is_over.load() == 3) {
    int status = 0;
    if (waitpid(keeper_, &status, WNOHANG) == keeper_) {
      std::printf("the table could not be created at %s\n", options.path.c_str());
      std::exit(2);
    }
    usleep(500);
  }
  children_.resize(static_cast<size_t>(num_workers()));
  for (size_t position = 0; position < children_.size(); ++position) start(position);
  const double begin = now_s();
  const uint64_t deaths_before = deaths();
  while (true) {
    const double elapsed = now_s() - begin;
    const bool enough = wanted_deaths != 0 && deaths() - deaths_before >= wanted_deaths;
    const auto enough_one = [&] { return deaths() > deaths_before; };
    // A forced point gets its seconds, or ten times as many while no worker has died there.
    const bool is_forced = control->forced_point.load() != kNumPoints;
    const double most = wanted_deaths == 0 ? seconds
                        : !is_forced       ? 3.0 * seconds
                        : enough_one()     ? seconds
                                           : 10.0 * seconds;
    const bool late = elapsed > most;
    const bool killed_all = num_kills >= static_cast<uint64_t>(kills) && num_stops >= static_cast<uint64_t>(stops);
    if ((killed_all && (enough || late)) || elapsed > 20.0 * seconds + 60.0 || control->num_bad() > enough_bad()) break;
    reap();
    watch_progress();
    if (static_cast<double>(num_kills) < kills * elapsed / seconds && num_kills < static_cast<uint64_t>(kills)) {
      Child& child = children_[random_.below(children_.size())];
      if (child.pid != 0 && !child.was_killed) child.was_killed = true, ++num_kills, kill(child.pid, SIGKILL);
    }
    if (static_cast<double>(num_stops) < stops * elapsed / seconds && num_stops < static_cast<uint64_t>(stops))
      stop_one();
    usleep(500);
  }
  finish(random_.below(2) == 0);
}

}  // namespace stress
