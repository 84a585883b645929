// A save of a table is the table at one moment, and a table that is loaded from it goes on as the saved one would have
// (rules J3 to J6): against the naive model, for random programmes.
#include <optional>

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

TEST(a_change_of_a_closed_page_gives_it_a_new_ticket) {
  for (const bool is_switched_off : {false, true}) {
    Spec spec = spec_of({IndexSpec{}}, true);
    spec.num_lanes = 1;
    Rig rig(spec);
    CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 60, std::vector<int>(60, 0), NextGiven::kYes)), kOk);
    const Region& r = rig.table->region();
    const uint64_t page = r.page_of(r.key_slot(rig.keys.front()));
    CHECK(Region::state_of(r.words[page].load()) == PageState::kClosed);
    const uint64_t before = r.pages[page].ticket.load();
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_ticket)] = is_switched_off;
    rig.complete({rig.keys.front()});
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_ticket)] = false;
    CHECK_EQ(r.pages[page].ticket.load() == before, is_switched_off);
    rig.close_writer();
  }
}

TEST(a_save_has_the_bytes_that_changed_between_its_rounds) {
  for (const bool is_switched_off : {false, true}) {
    Spec spec = spec_of({IndexSpec{}}, true);
    spec.num_lanes = 1;
    std::vector<std::unique_ptr<Table>> old;
    Rig rig(spec);
    CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 60, std::vector<int>(60, 0), NextGiven::kYes)), kOk);
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_ticket)] = is_switched_off;
    const Save saved = save_while(*rig.table, [&](int phase) {
      if (phase == 0) rig.complete({rig.keys[0], rig.keys[1]});
    });
    testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_ticket)] = false;
    std::unique_ptr<Table> loaded;
    const Status status = load(loading_config(make_config(spec), saved, spec.capacity), saved, &loaded);
    // The states of the cut name items whose late columns the old image lacks.
    CHECK_EQ(status.ok() && relive::num_items(*loaded, 0) == 2, !is_switched_off);
    rig.close_writer();
  }
}

TEST(a_death_in_a_change_leaves_no_page_with_its_old_ticket) {
  Spec spec = spec_of({IndexSpec{}}, true);
  spec.num_lanes = 1;
  for (const bool is_switched_off : {false, true}) {
    for (const auto point : {testing::FailPoint::change_noted, testing::FailPoint::late_cells}) {
      Rig rig(spec);
      CHECK_EQ(static_cast<uint32_t>(rig.write({0}, 60, std::vector<int>(60, 0), NextGiven::kYes)), kOk);
      const Region& r = rig.table->region();
      const uint64_t page = r.page_of(r.key_slot(rig.keys.front()));
      const uint64_t before = r.pages[page].ticket.load();
      testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_note)] = is_switched_off;
      const float reward = 1.0f;
      int64_t applied = 0;
      die_at(point, *rig.table, [&] {
        (void)relive::complete_rows(*rig.table, rig.keys.data(), 1, reinterpret_cast<const std::byte*>(&reward),
                                    sizeof reward, &applied);
      });
      testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J3_note)] = false;
      CHECK_EQ(r.header->changing_page.load(), 0u);
      CHECK_EQ(r.pages[page].ticket.load() == before, is_switched_off);
      end_writers(*rig.table);
    }
  }
}

namespace {

// Whether a loaded table gives out a key that the saved table gave out after the save.
bool gives_a_key_again(std::optional<testing::Rule> off) {
  const TableConfig config = make_config(spec_of({IndexSpec{}}));
  std::mt19937_64 random(5);
  std::unique_ptr<Table> table, loaded;
  std::unique_ptr<Writer> writer;
  CHECK(Table::create(config, "", &table).ok());
  CHECK(Writer::open(table.get(), 2, &writer).ok());
  feed(*table, *writer, 70, random);
  const Save saved = save_of(*table);
  const std::vector<int64_t> lost = feed(*table, *writer, 300, random);
  writer.reset();
  if (off) testing::rule_switched_off[static_cast<uint32_t>(*off)] = true;
  CHECK(load(loading_config(config, saved, config.capacity), saved, &loaded).ok());
  CHECK(Writer::open(loaded.get(), 2, &writer).ok());
  const std::vector<int64_t> given = feed(*loaded, *writer, 300, random);
  writer.reset();
  if (off) testing::rule_switched_off[static_cast<uint32_t>(*off)] = false;
  CHECK_EQ(given.size(), 600u);
  return std::any_of(given.begin(), given.end(),
                     [&](int64_t key) { return std::find(lost.begin(), lost.end(), key) != lost.end(); });
}

}  // namespace

// Keys have room for about 8 times the slots of the first table. A second load that grows as much gives new keys.
TEST(a_loaded_table_that_grew_can_grow_again) {
  const TableConfig config = make_config(spec_of({IndexSpec{}}));
  std::mt19937_64 random(6);
  std::unique_ptr<Table> table, grown, again;
  std::unique_ptr<Writer> writer;
  CHECK(Table::create(config, "", &table).ok());
  CHECK(Writer::open(table.get(), 2, &writer).ok());
  feed(*table, *writer, 100, random);
  writer.reset();
  const Save first = save_of(*table);
  bool keeps_keys = false;
  const TableConfig larger = loading_config(config, first, 8 * config.capacity);
  CHECK(load(larger, first, &grown, &keeps_keys).ok());
  CHECK(keeps_keys);
  const Save second = save_of(*grown);
  const Status status = load(loading_config(larger, second, 8 * larger.capacity), second, &again, &keeps_keys);
  CHECK_EQ(text_of(status), text_of(Status()));
  CHECK(!keeps_keys);
  if (status.ok()) CHECK_EQ(relive::num_steps(*again), relive::num_steps(*table));
}

TEST(no_key_of_the_lost_time_comes_again) {
  CHECK(!gives_a_key_again({}));
  CHECK(gives_a_key_again(testing::Rule::J4_floor));
  CHECK(gives_a_key_again(testing::Rule::J4_closed));
}

TEST_MAIN()
