// The stress programme: writers, samplers, updaters and a checker on one small shared table are killed and stopped at
// any point, and every delivered window is verified in every byte. Prints one line as summary; the exit status is 0
// only if no fault was found.
//
//   stress --seconds 10                              a race, without kills
//   stress --seconds 10 --random-kills 100 --stops 50 --self-kills 200
//   stress --fail-points 20 [--point NAME]           a death forced at every numbered point, 20 each
//   stress --threads-only                            threads on LocalMemory
//   stress --mutant RULE                             one rule of the protocol is switched off: should report RED
//   stress --n-step 20 --stack 12                    windows over four and more of the pages of 8 rows
//   stress --stateless                               no state columns: ends are marks in rows
//   stress --short-lanes                             writers of a few rows each: their lanes continue in parked pages
//   stress --sequences pad|shift|drop|cross|head|tail|random  items with a time axis: windows, or whole episodes
//   stress --sequences head|tail|random --ragged     episodes, read as ragged batches
//   stress --explicit                                adds an index of explicit items with own inserters and samplers
//   stress --late                                    late columns: completers fill them in any order, some never
//   stress --groups                                  adds an index of groups of episodes with its own samplers
//   stress --weigh                                   groups with the mean of their members' rewards as priority
//   stress --abandon                                 writers abandon episodes, and no sampler may see one of them again
//   stress --saves                                   a saver saves the table again and again, and loads each save
//   stress --sampler max_priority                    sampler of the first index, from the table of kinds
//   stress --sampler rank_based|top_k                by rank; top_k draws the best quarter
//   stress --sampler latest|fading|shuffle           newest items, fading masses, epochs; updaters change the version
//   stress --max-staleness 600000000                 in versions; of every index
//   stress --max-items 150 --remover min_priority    the remover chooses the items that are dropped
//   stress --explicit --groups --remover lifo        the same for explicit items and groups
//   stress --max-items 150                           bound of the first index; half of it for a second one
//   stress --where                                   the first index has a condition, and half of the draws have one
//   stress --distinct                                the first index and the second draw without replacement
//   stress --max-wait 0.002                          of every index; with --late, --groups
//   stress --rounds 1                                pins all pages after one round without the lock failed; 0: always
//   more:  --seconds-a-point S --max-times K --samples-per-insert X --uniform --no-deletes --no-moves --two-indexes
//          --second-priorities --capacity N --writers N --samplers N --updaters N --seed N --quiet
#include "stress_driver.hpp"

using namespace stress;

namespace {

int summary(const char* what, uint64_t kills, uint64_t self_kills, uint64_t stops) {
  const auto number = [](const std::atomic<uint64_t>& value) { return static_cast<unsigned long long>(value.load()); };
  const uint32_t num_messages = std::min<uint32_t>(control->num_messages.load(), 24);
  for (uint32_t k = 0; k < num_messages; ++k) std::printf("  %s\n", control->messages[k]);
  const bool none_known = ((options.explicit_items || options.groups) && control->items_known.load() == 0) ||
                          (options.late && control->rows_completed.load() == 0) ||
                          (options.abandons && control->num_given_up.load() == 0) ||
                          (options.saves && control->saves_loaded.load() == 0);
  const bool good = control->num_bad() == 0 && control->windows.load() > 0 && !none_known;
  std::printf(
      "%s %s: kills %llu + %llu at fail points, in the lock %llu, stops %llu; steps %llu, windows verified %llu, "
      "gathered again "
      "%llu, updates applied %llu stale %llu, items inserted %llu known %llu, rows completed %llu, saves loaded %llu, "
      "deleted %llu, pages "
      "moved %llu, checks "
      "%llu, deadlines passed %llu, "
      "longest call "
      "%.0f ms; torn %llu, violations %llu, hangs %llu, crashes %llu, overruns %llu\n",
      good ? "GREEN" : "RED", what, static_cast<unsigned long long>(kills), static_cast<unsigned long long>(self_kills),
      number(control->deaths_in_lock), static_cast<unsigned long long>(stops), number(control->steps),
      number(control->windows), number(control->gathered_again), number(control->updates_applied),
      number(control->updates_stale), number(control->items_inserted), number(control->items_known),
      number(control->rows_completed), number(control->saves_loaded), number(control->deleted), number(control->moved),
      number(control->checks), number(control->timeouts), static_cast<double>(control->longest_call_us.load()) / 1000.0,
      number(control->torn), number(control->violations), number(control->hangs), number(control->crashes),
      number(control->overruns));
  return good ? 0 : 1;
}

int run_threads() {
  std::unique_ptr<Table> table;
  if (!Table::create(make_config(options), "", &table).ok()) return 2;
  relive::testing::most_rounds = options.rounds;
  std::vector<std::thread> threads;
  const int count = num_workers();
  for (int position = 0; position < count; ++position)
    threads.emplace_back([&, position] {
      make_worker(position, options.seed * 1000 + static_cast<uint64_t>(position), table.get())->run();
    });
  const double end = now_s() + options.seconds;
  while (now_s() < end && control->num_bad() <= enough_bad()) usleep(10000);
  control->is_over.store(1);
  for (std::thread& thread : threads) thread.join();
  if (!relive::check(*table).ok()) control->found_violation("check() at the end");
  return summary("threads", 0, 0, 0);
}

// Some points are passed only with certain options.
void fit_options_to(const std::string& point, const Options& given) {
  options = given;
  options.large_rows = point.find("grow_") == 0;  // only a table of many frames is committed in steps
  if (options.large_rows) options.capacity = 2000, options.with_moves = false;
  if (point.find("claim_") == 0 && given.max_times == 0) options.max_times = 3;  // otherwise no use is claimed
  if (point == "close_mark") options.stateless = true;
  if (point.find("lane_") == 0) options.short_lanes = true;
  if (point.find("insert_") == 0 || point.find("record_") == 0 || point == "recover_records" ||
      point == "evict_not_yet")
    options.explicit_items = true;
  if (point.find("late_") == 0 || point == "publish_unfilled") options.late = true;
  if (point.find("abandon_") == 0) options.abandons = true;
  if (point.find("group_") == 0) options.groups = true;
  for (const char* of_items : {"late_insert", "late_noted", "late_item"})
    if (point == of_items) options.explicit_items = true;
  if (point == "commit_counted") options.sequences = "cross";
  for (const char* of_cells : {"cell_hung", "cells_given_back", "grow_cells"})
    if (point == of_cells) options.sequences = "pad", options.explicit_items = options.groups = false;
  for (const char* of_ends : {"cell_unhung", "cell_moved", "cell_named"})  // an end moves a window back
    if (point == of_ends) options.sequences = "shift", options.explicit_items = options.groups = false;
  if (point.find("order_") == 0 && given.max_items == 0) options.max_items = 150;
  if (point.find("rank_") == 0 && given.sampler.empty()) options.sampler = "rank_based";
  if (point == "shuffle_claimed" && given.sampler.empty()) options.sampler = "shuffle";
  if (point.find("latest_") == 0 && given.sampler.empty()) options.sampler = "latest";
  if (point.find("base_") == 0 && given.sampler.empty()) options.sampler = "fading";
  if (point.find("version_") == 0 && given.max_staleness == 0) options.max_staleness = kVersions / 2;
  if (point == "version_base" && given.max_times == 0) options.max_times = 3;  // a base is for use counts alone
  if (point == "page_ranked" && given.max_items == 0) options.max_items = 150;
  if (point == "record_waits" || point == "record_chosen")
    options.remover = given.remover.empty() ? "lifo" : given.remover;
  if ((point == "order_renewed" || point == "page_ranked") && given.remover.empty()) options.remover = "min_priority";
  if (point.find("wait_") == 0)
    options.late = true, options.max_wait_s = given.max_wait_s > 0 ? given.max_wait_s : 0.002;
  if (point.find("where_") == 0 || point.find("kept_out") != std::string::npos) options.where = true;
  if (point == "close_dropped") options.sequences = "head", options.short_lanes = true;  // an index with only_ended
  if (point.find("pins_") == 0 || point == "kept_removed") options.rounds = 0;
  for (const char* of_state :
       {"commit_tail_bit", "commit_tail_range", "commit_seam", "commit_next_page", "evict_carry", "sweep_page_end"})
    if (point == of_state) options.stateless = false;
}

void found_broken_promise(const char* what) { control->found_violation(what); }

int run_fail_points() {
  Random random{options.seed};
  uint64_t self_kills = 0;
  int missed = 0;
  const Options given = options;
  for (uint32_t point = 0; point < kNumPoints && control->num_bad() == 0; ++point) {
    const std::string name = relive::testing::fail_point_name(point);
    if (!options.only_point.empty() && name.find(options.only_point) != 0) continue;
    fit_options_to(name, given);
    control->forced_point.store(point);
    const auto wanted = static_cast<uint64_t>(options.deaths_a_point);
    // A table grows only a few times in its life. So each point gets fresh tables, for a short time each, until enough
    // workers have died there.
    const int most_tables = options.large_rows ? 20 + 2 * options.deaths_a_point : 1;
    const double seconds = options.large_rows ? std::min(options.seconds_a_point, 0.2) : options.seconds_a_point;
    uint64_t deaths = 0;
    for (int tables = 0; tables < most_tables && deaths < wanted && control->num_bad() == 0; ++tables) {
      Phase phase(&random);
      phase.run(seconds, 0, 0, wanted - deaths);
      self_kills += phase.num_self_kills;
      deaths = control->deaths[point].load();
    }
    missed += deaths == 0 ? 1 : 0;
    if (!options.quiet || deaths == 0)
      std::printf("  %-20s %llu deaths\n", name.c_str(), static_cast<unsigned long long>(deaths));
  }
  if (missed != 0) std::printf("  %d points were not reached\n", missed);
  const int result = summary("fail points", 0, self_kills, 0);
  return missed != 0 ? 1 : result;
}

bool parse(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto has_value = i + 1 < argc;
    if (name == "--uniform")
      options.uniform = true;
    else if (name == "--no-deletes")
      options.with_deletes = false;
    else if (name == "--no-moves")
      options.with_moves = false;
    else if (name == "--two-indexes")
      options.two_indexes = true;
    else if (name == "--second-priorities")
      options.two_indexes = options.second_priorities = true;
    else if (name == "--distinct")
      options.distinct = true;
    else if (name == "--where")
      options.where = true;
    else if (name == "--sequences" && has_value)
      options.sequences = argv[++i];
    else if (name == "--ragged")
      options.ragged = true;
    else if (name == "--explicit")
      options.explicit_items = true;
    else if (name == "--late")
      options.late = true;
    else if (name == "--groups")
      options.groups = true;
    else if (name == "--weigh")
      options.groups = options.weigh = true;
    else if (name == "--abandon")
      options.abandons = true;
    else if (name == "--saves")
      options.saves = true;
    else if (name == "--threads-only")
      options.threads_only = true;
    else if (name == "--stateless")
      options.stateless = true;
    else if (name == "--short-lanes")
      options.short_lanes = true;
    else if (name == "--quiet")
      options.quiet = true;
    else if (!has_value)
      return false;
    else if (name == "--seconds")
      options.seconds = std::atof(argv[++i]);
    else if (name == "--random-kills")
      options.random_kills = std::atoi(argv[++i]);
    else if (name == "--self-kills")
      options.self_kills = std::atoi(argv[++i]);
    else if (name == "--stops")
      options.stops = std::atoi(argv[++i]);
    else if (name == "--fail-points")
      options.deaths_a_point = std::atoi(argv[++i]);
    else if (name == "--seconds-a-point")
      options.seconds_a_point = std::atof(argv[++i]);
    else if (name == "--point")
      options.only_point = argv[++i];
    else if (name == "--rounds")
      options.rounds = static_cast<uint32_t>(std::atoi(argv[++i]));
    else if (name == "--n-step")
      options.n_step = static_cast<uint32_t>(std::atoi(argv[++i]));
    else if (name == "--stack")
      options.stack = static_cast<uint32_t>(std::atoi(argv[++i]));
    else if (name == "--max-times")
      options.max_times = static_cast<uint32_t>(std::atoi(argv[++i]));
    else if (name == "--max-items")
      options.max_items = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (name == "--sampler")
      options.sampler = argv[++i];
    else if (name == "--remover")
      options.remover = argv[++i];
    else if (name == "--max-wait")
      options.max_wait_s = std::atof(argv[++i]);
    else if (name == "--max-staleness")
      options.max_staleness = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (name == "--samples-per-insert")
      options.samples_per_insert = std::atof(argv[++i]);
    else if (name == "--capacity")
      options.capacity = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (name == "--writers")
      options.writers = std::atoi(argv[++i]);
    else if (name == "--samplers")
      options.samplers = std::atoi(argv[++i]);
    else if (name == "--updaters")
      options.updaters = std::atoi(argv[++i]);
    else if (name == "--seed")
      options.seed = static_cast<uint64_t>(std::atoll(argv[++i]));
    else if (name == "--mutant")
      options.mutant = argv[++i];
    else
      return false;
  }
  bool known = options.mutant.empty();
  for (uint32_t rule = 0; rule < static_cast<uint32_t>(relive::testing::Rule::kCount); ++rule) {
    if (options.mutant != relive::testing::rule_name(rule)) continue;
    relive::testing::rule_switched_off[rule] = known = true;
  }
  Sampling sampling;
  Removal removal;
  std::string names;
  known = known && (options.sampler.empty() || relive::find_sampler(options.sampler, &sampling, &names));
  known = known && (options.remover.empty() || relive::find_remover(options.remover, &removal, &names));
  const bool are_episodes = sequence_of(options).only_ended != 0;
  return known && (!options.ragged || are_episodes) && num_workers() <= static_cast<int>(kMaxWorkers);
}

}  // namespace

int main(int argc, char** argv) {
  if (!parse(argc, argv)) {
    std::printf("unknown option; see the top of stress.cpp\n");
    return 2;
  }
  options.path = "/dev/shm/relive-stress-" + std::to_string(getpid());
  control = make_control();
  relive::testing::fail_point_hook = &at_point;
  relive::testing::lanes_per_section = 1;  // sweeps then take several critical sections and stay unfinished
  relive::testing::broken_promise_hook = &found_broken_promise;
  if (options.saves)
    relive::testing::copy_hook = [](bool) { usleep(20); };  // the rows of a page and its heads are apart
  if (options.threads_only) return run_threads();
  new_orders = &take_orders;
  if (options.deaths_a_point > 0) return run_fail_points();
  control->random_points.store(options.self_kills > 0 ? 1 : 0);
  Random random{options.seed};
  Phase phase(&random);
  phase.run(options.seconds, options.random_kills, options.stops, static_cast<uint64_t>(options.self_kills));
  return summary("stress", phase.num_kills, phase.num_self_kills, phase.num_stops);
}
