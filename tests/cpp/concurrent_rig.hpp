// The rig of concurrent.cpp and concurrent_tiered.cpp: threads on one table of this process, with windows that are
// verified in every byte.
#pragma once

#include <thread>

#include "harness.hpp"
#include "stress_checker.hpp"

namespace stress {

inline double seconds() {
  const char* text = std::getenv("RELIVE_CONCURRENT_SECONDS");
  if (text != nullptr) return std::atof(text);
  return harness::is_short() ? 0.3 : 1.0;
}

// Whether this thread calls the table; false in the threads that a table has of its own.
inline thread_local bool is_caller = false;

struct ThreadRig {
  explicit ThreadRig(const Options& with) : options(with), control(make_control()) {
    judge = control;
    is_caller = true;
    relive::testing::most_rounds = options.rounds;
    relive::testing::broken_promise_hook = [](const char* what) { judge->found_violation(what); };
    CHECK(Table::create(make_config(options), "", &table).ok());
  }
  ~ThreadRig() {
    relive::testing::broken_promise_hook = nullptr;
    relive::testing::most_rounds = ~0u;
    munmap(control, sizeof(Control));
  }

  template <class Kind>
  void start() {
    const auto position = static_cast<uint32_t>(workers.size());
    workers.push_back(std::make_unique<Kind>(options, control, position, 77 + position, table.get()));
    threads.emplace_back([worker = workers.back().get()] {
      is_caller = true;
      worker->run();
    });
  }
  // Runs until the seconds are over and each expected event was seen. A busy machine or a sanitizer's build has one
  // minute more for the first event of each kind.
  template <class Seen>
  bool goes_on(double end, Seen&& all_seen) const {
    if (control->num_bad() > 0) return false;
    const bool has_begun = control->windows.load() > 0 && control->steps.load() > 0 && all_seen();
    return now_s() < end + (has_begun ? 0.0 : 60.0);
  }
  // Runs the workers, ends them, and checks the table that is left.
  template <class Seen>
  void run(Seen&& all_seen) {
    const double end = now_s() + seconds();
    while (goes_on(end, all_seen)) usleep(10000);
    finish();
  }
  void run() {
    run([] { return true; });
  }
  void finish() {
    control->is_over.store(1);
    for (std::thread& thread : threads) thread.join();
    for (uint32_t k = 0; k < std::min<uint32_t>(control->num_messages.load(), 24); ++k)
      std::printf("  %s\n", control->messages[k]);
    CHECK_EQ(control->torn.load(), 0u);
    CHECK_EQ(control->violations.load(), 0u);
    CHECK_EQ(control->overruns.load(), 0u);
    CHECK(control->windows.load() > 0 && control->steps.load() > 0);
    CHECK(relive::check(*table).ok());
    TableStats stats;
    CHECK(relive::stats(*table, &stats).ok());
    CHECK_EQ(stats.in_flight.at(0), 0);
    CHECK_EQ(stats.num_open_lanes, 0u);
  }

  inline static Control* judge = nullptr;
  Options options;
  Control* control;
  std::unique_ptr<Table> table;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<std::thread> threads;
};

// 2 writers, 2 samplers, 1 updater that also deletes and moves pages, 1 checker.
inline void run_all_workers(Options options) {
  options.capacity = 300;
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<SamplerWorker>();
  rig.start<UpdaterWorker>();
  rig.start<CheckerWorker>();
  if (options.explicit_items) {
    rig.start<InserterWorker>();
    rig.start<ItemSamplerWorker>();
  }
  rig.run([&] {
    return (rig.control->updates_applied.load() > 0 || options.uniform) &&
           (rig.control->items_known.load() > 0 || !options.explicit_items);
  });
  CHECK(rig.control->updates_applied.load() > 0 || options.uniform);
  CHECK(rig.control->items_known.load() > 0 || !options.explicit_items);
}

}  // namespace stress
