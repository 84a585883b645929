// A save of a table is the table at one moment, and a table that is loaded from it goes on as the saved one would have
// (rules J3 to J6): against the naive model, for random programmes.
#include "core_deaths.hpp"
#include "save_rig.hpp"

using namespace rig;

namespace {

constexpr uint32_t kOk = static_cast<uint32_t>(Code::kOk);

// Random appends, ends, draws, updates and deletions on the table and on the model.
void operate(Rig& rig, const Spec& spec) {
  std::vector<int32_t> which;
  for (uint32_t m = 0; m < spec.num_lanes; ++m)
    if (rig.below(3) != 0) which.push_back(static_cast<int32_t>(m));
  if (which.empty()) which.push_back(0);
  const uint64_t kind = rig.below(100);
  if (kind < 60) {
    const size_t num_rows = kind < 40 ? 1 : 1 + rig.below(20);
    const auto given = static_cast<NextGiven>(rig.below(3));
    std::vector<int> ends(num_rows * which.size(), 0);
    for (size_t at = 0; at < ends.size(); ++at) {
      if (rig.below(6) != 0) continue;
      const bool is_last = at / which.size() + 1 == num_rows;
      const bool can_truncate =
          !spec.has_state || given == NextGiven::kYes || (is_last && given == NextGiven::kLastRow);
      ends[at] = can_truncate && rig.below(2) == 0 ? 2 : 1;
    }
    std::vector<float> priorities;
    if (spec.indexes[0].prioritized && rig.below(2) == 0)
      for (size_t at = 0; at < ends.size(); ++at) priorities.push_back(static_cast<float>(rig.below(9)));
    CHECK_EQ(
        static_cast<uint32_t>(rig.write(which, num_rows, ends, spec.has_state ? given : NextGiven::kNo, priorities)),
        kOk);
  } else if (kind < 70) {
    const bool terminated = rig.below(2) == 0;
    std::vector<int32_t> able;
    for (int32_t m : which)
      if (rig.can_end(m) && !(terminated && (rig.has_seam(m) || !spec.has_state))) able.push_back(m);
    if (!able.empty())
      CHECK_EQ(static_cast<uint32_t>(rig.end_episode(able, terminated, !terminated || rig.below(2) == 0)), kOk);
  } else if (kind < 82) {
    const auto index = static_cast<uint32_t>(rig.below(spec.indexes.size()));
    const std::vector<int64_t> keys = rig.sample(index, 1 + rig.below(20));
    if (spec.indexes[index].max_times != 0) rig.has_holes = true;
    if (!spec.indexes[index].prioritized || rig.keys.empty()) return;
    std::vector<int64_t> updated = keys;
    for (int k = 0; k < 8; ++k) updated.push_back(rig.some_key(40));
    std::vector<float> priorities;
    for (size_t k = 0; k < updated.size(); ++k) priorities.push_back(static_cast<float>(rig.below(7)));
    int64_t applied = 0;
    CHECK(
        relive::update_priorities(*rig.table, index, updated.data(), priorities.data(), updated.size(), &applied).ok());
  } else if (kind < 86) {
    std::vector<int64_t> removed;
    for (int k = 0; k < 4 && !rig.keys.empty(); ++k) removed.push_back(rig.some_key(60));
    if (!removed.empty()) rig.remove(removed);
  } else if (kind < 94 && spec.has_late) {
    std::vector<int64_t> completed;
    for (int k = 0; k < 12 && !rig.keys.empty(); ++k) {
      const int64_t key = rig.some_key(50);
      const Place place = rig.places.at(key);
      const bool is_filled = rig.lanes[place.lane].episodes[place.episode].steps[place.step].is_filled;
      if (!is_filled && std::find(completed.begin(), completed.end(), key) == completed.end()) completed.push_back(key);
    }
    if (!completed.empty()) rig.complete(completed);
  } else if (kind < 97) {
    rig.close_writer();
    rig.open_writer();
  } else {
    rig.move_pages();
  }
}

// Operations, a save, a load, twice over or more; the model goes on with the loaded table.
void run_saves(const Spec& spec, uint64_t times_capacity) {
  std::vector<std::unique_ptr<Table>> old;
  Rig rig(spec);
  TableConfig config = make_config(spec);
  for (int save = 0; save < 3; ++save) {
    for (int operation = 0; operation < 60 && harness::failures() == 0; ++operation) operate(rig, spec);
    rig.verify();
    const Save saved = save_of(*rig.table);
    CHECK_EQ(saved.num_steps, relive::num_steps(*rig.table));
    std::unique_ptr<Table> loaded;
    config = loading_config(config, saved, config.capacity * (save == 1 ? times_capacity : 1));
    bool keeps_keys = false;
    const Status status = load(config, saved, &loaded, &keeps_keys);
    if (!status.ok()) {
      harness::fail(__FILE__, __LINE__, "seed " + std::to_string(spec.seed) + ": load: " + text_of(status));
      return;
    }
    CHECK(keeps_keys);
    old.push_back(rig.go_on_with(std::move(loaded)));
    rig.verify();
    rig.open_writer();
    if (harness::failures() != 0) {
      harness::fail(__FILE__, __LINE__, "seed " + std::to_string(spec.seed) + " save " + std::to_string(save));
      break;
    }
  }
  if (harness::failures() == 0) rig.verify();
  rig.writer.reset();
}

void run_saves_with_seeds(const Spec& spec, int num_seeds) {
  for (const uint64_t times : {1, 2, 8})
    run_with_seeds(spec, num_seeds, [&](const Spec& one) { run_saves(one, times); });
}

Spec spec_of(std::vector<IndexSpec> indexes, bool has_late = false, bool has_state = true) {
  Spec spec;
  spec.capacity = 150;
  spec.num_lanes = 2;
  spec.has_late = has_late;
  spec.has_state = has_state;
  spec.indexes = std::move(indexes);
  return spec;
}

IndexSpec prioritized(uint32_t n_step) {
  IndexSpec index;
  index.n_step = n_step;
  index.prioritized = true;
  return index;
}

}  // namespace

TEST(a_loaded_table_goes_on_as_the_saved_one) { run_saves_with_seeds(spec_of({IndexSpec{}}), 40); }
TEST(a_loaded_table_without_states_goes_on) { run_saves_with_seeds(spec_of({prioritized(3)}, false, false), 40); }
TEST(a_loaded_table_has_priorities_that_wait) { run_saves_with_seeds(spec_of({prioritized(5), prioritized(2)}), 40); }
TEST(a_loaded_table_waits_for_late_columns) { run_saves_with_seeds(spec_of({prioritized(3), IndexSpec{}}, true), 40); }
TEST(a_loaded_table_counts_uses) {
  IndexSpec index = prioritized(2);
  index.max_times = 3;
  run_saves_with_seeds(spec_of({index, IndexSpec{}}), 40);
}
TEST(a_loaded_table_stacks_pixels) {
  IndexSpec index;
  index.stack = 4;
  Spec spec = spec_of({index});
  spec.has_pixels = true;
  run_saves_with_seeds(spec, 8);
}

TEST(the_same_stream_draws_the_same_keys) {
  for (const bool is_prioritized : {false, true}) {
    std::vector<std::unique_ptr<Table>> old;
    Spec spec = spec_of({is_prioritized ? prioritized(1) : IndexSpec{}});
    spec.seed = 11;
    Rig rig(spec);
    for (int step = 0; step < 400; ++step) rig.write({0, 1}, 1, {step % 9 == 8, step % 13 == 12}, NextGiven::kYes, {});
    rig.close_writer();
    const Save saved = save_of(*rig.table);
    std::unique_ptr<Table> loaded;
    CHECK(load(loading_config(make_config(spec), saved, spec.capacity), saved, &loaded).ok());
    const auto draws = [&](Table& table) {
      std::vector<int64_t> keys(200);
      for (size_t k = 0; k < 5; ++k) {
        DrawRequest request;
        request.num_items = 40;
        request.keys = keys.data() + 40 * k;
        std::vector<double> probabilities(40);
        int64_t live = 0;
        request.probabilities = probabilities.data();
        request.num_live_items = &live;
        GatherPlan plan;
        CHECK(relive::make_plan(table, 0, {}, &plan).ok());
        request.plan = &plan;
        std::vector<std::byte*> out;
        request.out = out.data();
        CHECK(relive::sample(table, request, 0.0).ok());
      }
      return keys;
    };
    CHECK(draws(*rig.table) == draws(*loaded));
  }
}

TEST_MAIN()
