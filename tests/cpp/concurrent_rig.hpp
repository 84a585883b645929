// Threads on one table of this process, their windows verified in every byte: what concurrent.cpp and
// concurrent_tiered.cpp share.
#pragma once

#include <thread>

#include "harness.hpp"
#include "stress_checker.hpp"

namespace stress {

inline double seconds() {
  const char* text = std::getenv("RELIVE_CONCURRENT_SECONDS");
  return text == nullptr ? 1.0 : std::atof(text);
}

struct Hall {
  explicit Hall(const Options& with) : options(with), control(make_control()) {
    judge = control;
    relive::testing::most_rounds = options.rounds;
    relive::testing::broken_promise_hook = [](const char* what) { judge->found_violation(what); };
    CHECK(Table::create(make_config(options), "", &table).ok());
  }
  ~Hall() {
    relive::testing::broken_promise_hook = nullptr;
    relive::testing::most_rounds = ~0u;
    munmap(control, sizeof(Control));
  }

  template <class Kind>
  void start() {
    const auto position = static_cast<uint32_t>(workers.size());
    workers.push_back(std::make_unique<Kind>(options, control, position, 77 + position, table.get()));
    threads.emplace_back([worker = workers.back().get()] { worker->run(); });
  }
  // Until the seconds are over and everything to be seen was seen: a machine under load, or a sanitizer's build, has a
  // minute more for the first of each.
  template <class Seen>
  bool goes_on(double end, Seen&& all_seen) const {
    if (control->num_bad() > 0) return false;
    const bool has_begun = control->windows.load() > 0 && control->steps.load() > 0 && all_seen();
    return now_s() < end + (has_begun ? 0.0 : 60.0);
  }
  // Lets them run, ends them, and looks at what is left.
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

// 2 writers, 2 samplers, 1 updater that also deletes and moves pages.
inline void run_everybody(Options options) {
  options.capacity = 300;
  Hall hall(options);
  hall.start<WriterWorker>();
  hall.start<WriterWorker>();
  hall.start<SamplerWorker>();
  hall.start<SamplerWorker>();
  hall.start<UpdaterWorker>();
  hall.start<CheckerWorker>();
  if (options.explicit_items) {
    hall.start<InserterWorker>();
    hall.start<ItemSamplerWorker>();
  }
  hall.run([&] {
    return (hall.control->updates_applied.load() > 0 || options.uniform) &&
           (hall.control->items_known.load() > 0 || !options.explicit_items);
  });
  CHECK(hall.control->updates_applied.load() > 0 || options.uniform);
  CHECK(hall.control->items_known.load() > 0 || !options.explicit_items);
}

}  // namespace stress
