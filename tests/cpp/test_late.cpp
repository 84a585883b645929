// Late columns against the naive model: rows are completed in any order, before and after their windows are complete,
// by one thread and by several, and a completer may die at any point (rules L1 to L5).
#include <thread>

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/index/leaves.hpp"

using namespace rig;

namespace {

constexpr uint32_t kOk = static_cast<uint32_t>(Code::kOk);

Spec late_spec(uint64_t capacity, std::vector<IndexSpec> indexes = {IndexSpec{}}) {
  Spec spec;
  spec.capacity = capacity;
  spec.has_late = true;
  spec.indexes = std::move(indexes);
  return spec;
}

void write(Rig& rig, size_t num_rows, NextGiven given = NextGiven::kYes, int last_end = 0) {
  std::vector<int> ends(num_rows, 0);
  ends.back() = last_end;
  CHECK_EQ(static_cast<uint32_t>(rig.write({0}, num_rows, ends, given)), kOk);
}

// The code of a refused call, which must have changed nothing.
Code refused(Rig& rig, const std::vector<int64_t>& keys) {
  std::vector<float> rewards(keys.size(), 77.0f);  // of no row of the model
  int64_t applied = -1;
  const Status status =
      relive::complete_rows(*rig.table, keys.data(), keys.size(), reinterpret_cast<const std::byte*>(rewards.data()),
                            sizeof(float) * keys.size(), &applied);
  CHECK_EQ(applied, 0);
  rig.verify();
  return status.code();
}

uint16_t state_of(const Rig& rig, int64_t key, uint32_t index = 0) {
  return Leaves(rig.table->region(), index).state(rig.table->region().key_slot(key));
}

uint64_t counter(const Rig& rig, const std::string& name) {
  TableStats stats;
  CHECK(relive::stats(*rig.table, &stats).ok());
  for (const auto& [known, value] : stats.counters)
    if (name == known) return value;
  harness::fail(__FILE__, __LINE__, "no counter " + name);
  return 0;
}

// Rows are written, ended, cut, deleted, moved, drawn, updated, and completed in any order, on the table and on the
// model.
void run_late_programme(const Spec& spec, int num_operations) {
  Rig rig(spec);
  std::vector<int64_t> waiting;  // keys that were not completed yet
  size_t known = 0;
  for (int operation = 0; operation < num_operations && harness::failures() == 0; ++operation) {
    const uint64_t kind = rig.below(100);
    if (kind < 40) {
      const size_t num_rows = 1 + rig.below(12);
      std::vector<int> ends(num_rows, 0);
      for (int& end : ends) end = rig.below(7) == 0 ? 1 : 0;
      const auto given = spec.has_state ? static_cast<NextGiven>(rig.below(3)) : NextGiven::kNo;
      CHECK_EQ(static_cast<uint32_t>(rig.write({0}, num_rows, ends, given)), kOk);
    } else if (kind < 75 && !waiting.empty()) {
      std::vector<int64_t> chosen;
      for (uint64_t k = 1 + rig.below(14); k > 0 && !waiting.empty(); --k) {
        const size_t at = rig.below(4) == 0 ? 0 : rig.below(waiting.size());
        if (rig.places.count(waiting[at]) != 0) chosen.push_back(waiting[at]);  // else its lane's cut made it a tail
        waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(at));
      }
      if (rig.below(3) == 0) std::sort(chosen.begin(), chosen.end());
      rig.complete(chosen);
    } else if (kind < 82) {
      if (rig.can_end(0)) CHECK_EQ(static_cast<uint32_t>(rig.end_episode({0}, false, true)), kOk);
    } else if (kind < 88) {
      for (uint32_t i = 0; i < spec.indexes.size(); ++i) {
        const std::vector<int64_t> keys = rig.sample(i, 1 + rig.below(9));
        if (spec.indexes[i].max_times != 0) rig.has_holes = true;
        if (!spec.indexes[i].prioritized || rig.keys.empty()) continue;
        std::vector<int64_t> updated = keys;
        for (int k = 0; k < 6; ++k) updated.push_back(rig.keys[rig.below(rig.keys.size())]);
        const std::vector<float> priorities(updated.size(), 3.0f);
        int64_t applied = 0;
        CHECK(
            relive::update_priorities(*rig.table, i, updated.data(), priorities.data(), updated.size(), &applied).ok());
      }
    } else if (kind < 92 && !rig.keys.empty()) {
      rig.remove({rig.some_key(30)});
    } else if (kind < 95) {
      rig.move_pages();
    } else if (kind < 97) {
      rig.close_writer();
      if (rig.below(2) == 0) recover_all(*rig.table);
      rig.open_writer();
    } else if (kind == 99 && rig.below(4) == 0) {
      CHECK(relive::clear(*rig.table).ok());
    }
    for (known = std::min(known, rig.keys.size()); known < rig.keys.size(); ++known)
      if (rig.below(12) != 0) waiting.push_back(rig.keys[known]);  // the others are never completed
    rig.verify();
    if (harness::failures() != 0) fail_at(spec, operation, kind);
  }
}

void run_late_programmes(const Spec& spec, int num_seeds, int num_operations) {
  run_with_seeds(spec, num_seeds, [&](const Spec& one) { run_late_programme(one, num_operations); });
}

}  // namespace

TEST(an_item_comes_with_its_late_column) {
  Rig rig(late_spec(20));
  write(rig, 1);
  rig.verify();
  CHECK(rig.sample(0, 1).empty());
  CHECK_EQ(state_of(rig, rig.keys[0]), kStateUnfilled);
  CHECK_EQ(relive::num_items(*rig.table, 0), 0);
  rig.complete({rig.keys[0]});
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 1);
  CHECK_EQ(rig.sample(0, 4).size(), 4u);
  CHECK_EQ(counter(rig, "completed"), 1u);
}

TEST(an_item_comes_with_its_window_if_that_is_last) {
  Rig rig(late_spec(20, {{.n_step = 3}}));
  write(rig, 2, NextGiven::kNo);
  rig.complete(rig.keys);
  CHECK_EQ(state_of(rig, rig.keys[0]), kStatePending);
  write(rig, 1);
  CHECK_EQ(state_of(rig, rig.keys[0]), kStateUnfilled);
  rig.verify();
  rig.complete({rig.keys[2]});
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 1);
  CHECK_EQ(static_cast<uint32_t>(rig.end_episode({0}, false, true)), kOk);
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 3);
}

TEST(any_row_of_a_window_may_be_the_last_and_publish_it) {
  for (const size_t last : {0, 3, 7, 8, 11, 15, 19}) {  // over pages of 8 rows
    Rig rig(late_spec(60, {{.n_step = 20}}));
    write(rig, 40);
    std::vector<int64_t> others(rig.keys.begin(), rig.keys.begin() + 20);
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(last));
    rig.complete(others);
    rig.verify();
    CHECK_EQ(relive::num_items(*rig.table, 0), 0);
    rig.complete({rig.keys[last]});
    rig.verify();
    CHECK_EQ(relive::num_items(*rig.table, 0), 1);
    rig.complete({rig.keys.begin() + 20, rig.keys.end()});
    rig.verify();
    CHECK_EQ(relive::num_items(*rig.table, 0), 21);
  }
}

TEST(several_indexes_each_by_its_own_window) {
  Rig rig(late_spec(40, {{.n_step = 1}, {.n_step = 3, .stack = 4}}));
  write(rig, 9, NextGiven::kYes, 1);
  rig.complete({rig.keys[4], rig.keys[6], rig.keys[8]});
  CHECK_EQ(relive::num_items(*rig.table, 0), 3);
  CHECK_EQ(relive::num_items(*rig.table, 1), 1);  // the last row's: its window ends with the episode
  rig.complete({rig.keys[5]});
  CHECK_EQ(relive::num_items(*rig.table, 1), 2);
  rig.verify();
}

TEST(a_row_is_completed_once) {
  Rig rig(late_spec(40, {{.n_step = 2}}));
  write(rig, 9);
  rig.complete({rig.keys[3], rig.keys[4]});
  CHECK(refused(rig, {rig.keys[3]}) == Code::kAlreadyCompleted);
  CHECK(refused(rig, {rig.keys[5], rig.keys[6], rig.keys[4]}) == Code::kAlreadyCompleted);
  CHECK(refused(rig, {rig.keys[7], rig.keys[6], rig.keys[7]}) == Code::kAlreadyCompleted);  // twice in one call
  CHECK(refused(rig, {rig.keys[5], 5}) == Code::kForeignKey);
  CHECK(refused(rig, {rig.keys[5], -1}) == Code::kForeignKey);
  int64_t applied = 0;
  const float reward = 1.0f;
  const auto* cells = reinterpret_cast<const std::byte*>(&reward);
  CHECK(relive::complete_rows(*rig.table, &rig.keys[5], 1, cells, 3, &applied).code() == Code::kInvalidConfig);
  CHECK(relive::complete_rows(*rig.table, nullptr, 0, nullptr, 0, &applied).ok());
  CHECK_EQ(relive::num_items(*rig.table, 0), 1);
  CHECK(rig.table->close().ok());
  CHECK(relive::complete_rows(*rig.table, nullptr, 0, nullptr, 0, &applied).code() == Code::kTableClosed);
}

// The first of six steps is completed, of an index whose items are one step and reach to the end of the episode.
int64_t num_items_of_hindsight() {
  Rig rig(late_spec(40, {{.sequence = {10, 0, 0, 1, AtEnd::kPad, PadSide::kRight, 1, 0, 10}}}));
  rig.table->region().header->indexes[0].hindsight = {Goals::kFuture, 0, 0, 0, 0.5};
  CHECK(rig.write({0}, 6, {0, 0, 0, 0, 0, 2}, NextGiven::kYes) == Code::kOk);
  rig.complete({rig.keys.front()});
  return relive::num_items(*rig.table, 0);
}

TEST(an_item_waits_for_the_late_columns_of_its_own_rows) {
  CHECK_EQ(num_items_of_hindsight(), 1);
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::L7_own)] = true;
  CHECK_EQ(num_items_of_hindsight(), 0);
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::L7_own)] = false;
}

TEST(a_table_without_late_columns_has_nothing_to_complete) {
  Rig rig(Spec{});
  int64_t applied = 0;
  CHECK(relive::complete_rows(*rig.table, nullptr, 0, nullptr, 0, &applied).code() == Code::kInvalidConfig);
}

TEST(late_columns_are_small) {
  TableConfig config = make_config(late_spec(20));
  config.columns.push_back(column("verdict", "|u1", {252}, 1, ColumnKind::kLate));
  Layout layout;
  CHECK(make_layout(config, &layout).ok());
  CHECK(layout.columns.back().area == Area::kRecord);
  config.columns.back().shape = {253};
  CHECK(make_layout(config, &layout).code() == Code::kInvalidConfig);
}

TEST(a_gone_row_is_stale_and_an_unfilled_item_that_ends_is_counted) {
  Rig rig(late_spec(16));
  write(rig, 16, NextGiven::kYes, 1);
  rig.complete({rig.keys[0]});
  write(rig, 10, NextGiven::kYes, 1);  // ten rows of the first episode are evicted, one is complete
  CHECK_EQ(counter(rig, "incomplete_items"), 9u);
  rig.complete({rig.keys[1], rig.keys[12], rig.keys[2]});
  CHECK_EQ(counter(rig, "completions_stale"), 2u);
  CHECK_EQ(counter(rig, "completed"), 2u);
  rig.verify();
  CHECK(relive::clear(*rig.table).ok());
  CHECK_EQ(counter(rig, "incomplete_items"), 24u);
  rig.complete({rig.keys[20]});
  rig.verify();
}

TEST(a_deleted_row_is_completed_for_its_neighbours) {
  Rig rig(late_spec(40, {{.n_step = 3}}));
  write(rig, 9, NextGiven::kYes, 1);
  rig.remove({rig.keys[4]});
  rig.complete({rig.keys[2], rig.keys[3], rig.keys[5], rig.keys[6]});
  CHECK_EQ(relive::num_items(*rig.table, 0), 0);
  rig.complete({rig.keys[4]});  // stale: not counted
  CHECK_EQ(counter(rig, "completions_stale"), 1u);
  rig.verify();
  CHECK_EQ(relive::num_items(*rig.table, 0), 2);  // of rows 2 and 3
  rig.complete({rig.keys[4]});                    // again: stale, not refused
  rig.complete({rig.keys[0]});
  rig.remove({rig.keys[0]});  // deletes an unfilled item (row 1 is not complete)
  rig.complete({rig.keys[1]});
  rig.verify();
  CHECK_EQ(state_of(rig, rig.keys[0]), kStateRemoved);
  CHECK_EQ(counter(rig, "incomplete_items"), 0u);
}

TEST(a_lane_that_is_cut) {
  for (const bool has_state : {true, false}) {
    Spec spec = late_spec(40, {{.n_step = 3}});
    spec.has_state = has_state;
    Rig rig(spec);
    write(rig, 10, NextGiven::kNo);
    const std::vector<int64_t> keys = rig.keys;
    rig.complete({keys[3], keys[4], keys[5], keys[7]});
    CHECK_EQ(relive::num_items(*rig.table, 0), 1);
    rig.close_writer();
    rig.verify();
    std::vector<int64_t> left(keys.begin() + 8, keys.end());
    if (has_state) {  // the last row became the state after the row before it
      CHECK(refused(rig, {keys[9]}) == Code::kOk);
      left.pop_back();
    }
    rig.complete(left);
    rig.verify();
    CHECK_EQ(relive::num_items(*rig.table, 0), has_state ? 3 : 4);
  }
}

TEST(priorities_wait_with_their_items) {
  Rig rig(late_spec(40, {{.prioritized = true}, {.prioritized = true, .initial = Initial::kGiven}}));
  write(rig, 6);
  const float priority = 5.0f;
  int64_t applied = 0;
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(relive::update_priorities(*rig.table, i, &rig.keys[2], &priority, 1, &applied).ok());
    CHECK_EQ(applied, 1);
  }
  rig.complete({rig.keys[2], rig.keys[3]});
  CHECK_EQ(relive::num_items(*rig.table, 0), 2);
  CHECK_EQ(relive::num_items(*rig.table, 1), 1);
  CHECK_EQ(state_of(rig, rig.keys[3], 1), kStateAwaiting);
  const Leaves leaves(rig.table->region(), 0);
  CHECK_EQ(leaves.mass(rig.table->region().key_slot(rig.keys[2])), leaf_of(leaves.config(), priority));
  CHECK(relive::update_priorities(*rig.table, 1, &rig.keys[3], &priority, 1, &applied).ok());
  CHECK_EQ(relive::num_items(*rig.table, 1), 2);
  rig.verify();
}

TEST(more_rows_than_one_critical_section_takes_in_any_order) {
  for (const uint32_t n_step : {1u, 5u, 200u}) {
    Spec spec = late_spec(3000, {{.n_step = n_step}});
    Rig rig(spec);
    write(rig, 1400);
    std::vector<int64_t> keys(rig.keys.begin(), rig.keys.begin() + 1300);
    for (size_t k = keys.size(); k > 1; --k) std::swap(keys[k - 1], keys[rig.below(k)]);
    rig.complete(keys);
    rig.verify(2000);
    CHECK_EQ(relive::num_items(*rig.table, 0), 1301 - static_cast<int64_t>(n_step));
    rig.complete({rig.keys.begin() + 1300, rig.keys.end()});  // in order
    rig.verify(2000);
  }
}

TEST(two_threads_complete_and_each_row_has_the_values_of_one) {
  TableConfig config = make_config(late_spec(4000));
  config.columns.push_back(column("verdict", "<i8", {31}, 8, ColumnKind::kLate));
  std::unique_ptr<Table> table;
  CHECK(Table::create(config, "", &table).ok());
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(table.get(), 1, &writer).ok());
  const std::vector<std::byte> zeros(3000 * 64);
  StepBlock block;
  block.num_rows = 2000;
  block.num_lanes = 1;
  block.has_next = true;
  block.columns.assign(config.columns.size(), Cells{zeros.data(), 0, 0});
  block.next = block.columns;
  std::vector<int64_t> keys(2000);
  CHECK(writer->write(block, 1.0, keys.data()).ok());
  std::atomic<int64_t> applied_by_all{0};
  const auto work = [&](int64_t who) {
    for (const int64_t key : keys) {
      std::byte cells[4 + 31 * 8] = {};
      for (size_t at = 0; at < 31; ++at) std::memcpy(cells + 4 + 8 * at, &who, 8);
      int64_t applied = 0;
      const Status status = relive::complete_rows(*table, &key, 1, cells, sizeof cells, &applied);
      CHECK(status.ok() || status.code() == Code::kAlreadyCompleted);
      applied_by_all.fetch_add(applied);
    }
  };
  std::thread one([&] { work(1); }), two([&] { work(2); });
  one.join();
  two.join();
  CHECK_EQ(applied_by_all.load(), 2000);
  GatherPlan plan;
  CHECK(relive::make_plan(*table, 0, {"verdict"}, &plan).ok());
  std::vector<int64_t> verdicts(2000 * 31);
  std::vector<uint8_t> present(2000);
  std::byte* out[] = {reinterpret_cast<std::byte*>(verdicts.data())};
  CHECK(relive::gather(*table, plan, keys.data(), keys.size(), out, present.data()).ok());
  for (size_t k = 0; k < 2000; ++k) {
    CHECK(present[k]);
    const int64_t* verdict = verdicts.data() + 31 * k;
    CHECK(verdict[0] == 1 || verdict[0] == 2);
    CHECK(std::count(verdict, verdict + 31, verdict[0]) == 31);
  }
  CHECK(relive::check(*table).ok());
}

TEST(a_completer_may_die_anywhere) {
  using testing::FailPoint;
  for (const FailPoint point : {FailPoint::late_begin, FailPoint::late_cells, FailPoint::late_filled,
                                FailPoint::publish_leaf, FailPoint::late_published})
    for (int passage = 1; passage < 5; ++passage) {
      Rig rig(late_spec(60, {{.n_step = 3}}));
      write(rig, 20);
      const Region& r = rig.table->region();
      const std::vector<int64_t> some(rig.keys.begin() + 4, rig.keys.begin() + 14);
      die_at(point, *rig.table, [&] { rig.complete(some); }, passage);
      // Takes over into the model which rows the dead completer has filled.
      std::vector<int64_t> left;
      for (int64_t key : rig.keys) {
        const Place place = rig.places.at(key);
        const bool is_filled = (r.head_of(r.key_slot(key)).load() & kLateBit) == 0;
        rig.lanes[place.lane].episodes[place.episode].steps[place.step].is_filled = is_filled;
        if (!is_filled) left.push_back(key);
      }
      rig.verify();
      rig.complete(left);
      rig.verify();
      CHECK_EQ(relive::num_items(*rig.table, 0), 18);
    }
}

TEST(a_publisher_may_die_after_an_unfilled_item) {
  Rig rig(late_spec(60, {{.n_step = 3}}));
  write(rig, 6);
  die_at(testing::FailPoint::publish_unfilled, *rig.table, [&] { write(rig, 6); });
  CHECK(relive::check(*rig.table).ok());
}

TEST(late_programme) { run_late_programmes(late_spec(40, {{.n_step = 1, .stack = 3}, {.n_step = 3}}), 40, 120); }

TEST(late_programme_of_long_windows) {
  run_late_programmes(late_spec(70, {{.n_step = 12, .stack = 4, .prioritized = true}, {.n_step = 1}}), 30, 120);
}

TEST(late_programme_without_states) {
  Spec spec = late_spec(40, {{.n_step = 5}, {.n_step = 2, .max_times = 2}});
  spec.has_state = false;
  run_late_programmes(spec, 30, 120);
}

TEST(late_programme_of_given_priorities) {
  run_late_programmes(late_spec(40, {{.n_step = 2, .prioritized = true, .initial = Initial::kGiven}}), 20, 120);
}

TEST_MAIN()
