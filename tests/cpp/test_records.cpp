// Explicit items in one thread on LocalMemory, against a naive model, with check() after every operation; deaths at
// their fail points.
#include <cstdlib>

#include "core_deaths.hpp"
#include "records_rig.hpp"

using namespace rig;

namespace {

std::vector<WindowRows> random_item(RecordsRig& rig, const RecordSpec& spec, bool* is_good) {
  std::vector<WindowRows> windows;
  *is_good = true;
  const size_t given = rig.rig.below(spec.windows.size());  // this window for certain, others may be missing
  for (size_t w = 0; w < spec.windows.size(); ++w) {
    if (w != given && rig.rig.below(2) == 0) {
      windows.push_back({0, 0});
      continue;
    }
    const std::vector<int64_t>& keys = rig.rig.keys;
    const uint64_t back =
        rig.rig.below(2) == 0 ? rig.rig.below(std::min<uint64_t>(keys.size(), 12)) : rig.rig.below(keys.size());
    const int64_t key = keys[keys.size() - 1 - back];
    WindowRows window{key, static_cast<int64_t>(1 + rig.rig.below(spec.windows[w].first))};
    const auto is_there = [&] { return !rig.rows_of(key, rig.span(window, w)).empty(); };
    while (window.num_rows > 1 && rig.rig.below(12) != 0 && !is_there()) --window.num_rows;
    *is_good = *is_good && is_there();
    windows.push_back(window);
  }
  return windows;
}

void append_some(RecordsRig& rig, const Spec& spec) {
  const size_t num_rows = rig.rig.below(3) == 0 ? 1 + rig.rig.below(12) : 1;
  std::vector<int32_t> which;
  for (uint32_t m = 0; m < spec.num_lanes; ++m)
    if (which.empty() || rig.rig.below(2) == 0) which.push_back(static_cast<int32_t>(m));
  std::vector<int> ends(num_rows * which.size(), 0);
  for (int& end : ends) end = rig.rig.below(9) == 0 ? 1 : 0;
  CHECK(rig.rig.write(which, num_rows, ends, spec.has_state ? NextGiven::kYes : NextGiven::kNo) == Code::kOk);
}

void insert_some(RecordsRig& rig, const RecordSpec& items) {
  if (rig.rig.keys.empty()) return;
  std::vector<std::vector<WindowRows>> wanted;
  std::vector<float> priorities;
  bool all_good = true;
  const bool gives = items.prioritized && rig.rig.below(2) == 0;
  for (uint64_t k = 1 + rig.rig.below(6); k > 0; --k) {
    bool is_good = true;
    wanted.push_back(random_item(rig, items, &is_good));
    all_good = all_good && is_good;
    if (gives) priorities.push_back(static_cast<float>(rig.rig.below(7)));
  }
  if (all_good) {
    (void)rig.insert(wanted, priorities);
    return;
  }
  std::vector<int64_t> keys;
  size_t stored = 7;
  const Code code = rig.try_insert(wanted, priorities, &keys, &stored).code();
  CHECK(code == Code::kRowGone || code == Code::kRowsApart);
  CHECK_EQ(stored, 0u);
}

std::vector<int64_t> some_items(RecordsRig& rig, size_t count) {
  std::vector<int64_t> keys;
  for (size_t k = 0; k < count && !rig.item_keys.empty(); ++k) {
    const int64_t key =
        rig.item_keys[rig.item_keys.size() - 1 - rig.rig.below(std::min<size_t>(60, rig.item_keys.size()))];
    if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  }
  return keys;
}

void run_programme(const Spec& spec, const RecordSpec& items, int num_operations) {
  RecordsRig rig(spec, items);
  for (int operation = 0; operation < num_operations && harness::failures() == 0; ++operation) {
    const uint64_t kind = rig.rig.below(100);
    if (kind < 40) {
      append_some(rig, spec);
    } else if (kind < 65) {
      insert_some(rig, items);
    } else if (kind < 78) {
      (void)rig.sample(1 + rig.rig.below(6));
    } else if (kind < 86 && items.prioritized) {
      const std::vector<int64_t> keys = some_items(rig, 6);
      std::vector<float> priorities;
      for (size_t k = 0; k < keys.size(); ++k) priorities.push_back(static_cast<float>(rig.rig.below(7)));
      rig.update(keys, priorities);
    } else if (kind < 90) {
      rig.remove(some_items(rig, 3));
    } else if (kind < 93 && !rig.rig.keys.empty()) {  // a row's key: explicit items stay
      rig.rig.remove({rig.rig.some_key(20)});
    } else if (kind < 96) {
      rig.rig.move_pages();
    } else if (kind < 98) {
      rig.rig.close_writer();
      rig.rig.open_writer();
    } else if (rig.rig.below(5) == 0) {
      CHECK(relive::clear(rig.table()).ok());
      CHECK_EQ(rig.num_live(), 0);
    }
    rig.verify();
    if (operation % 20 == 0) rig.rig.verify();
    if (harness::failures() != 0) fail_at(spec, operation, kind);
  }
}

void run_programmes(const Spec& spec, const RecordSpec& items, int num_seeds, int num_operations) {
  run_with_seeds(spec, num_seeds, [&](const Spec& one) { run_programme(one, items, num_operations); });
}

// A table of one lane with 40 rows, and items of two windows over them.
struct Small {
  explicit Small(RecordSpec items = {}, uint64_t capacity = 64)
      : rig({.capacity = capacity, .has_state = false}, items) {
    CHECK(rig.rig.write({0}, 40, std::vector<int>(40, 0), NextGiven::kNo) == Code::kOk);
  }
  std::vector<WindowRows> item(size_t a, size_t b) const { return {{rig.rig.keys[a], 10}, {rig.rig.keys[b], 5}}; }
  void append(size_t count) {
    CHECK(rig.rig.write({0}, count, std::vector<int>(count, 0), NextGiven::kNo) == Code::kOk);
  }

  RecordsRig rig;
};

}  // namespace

TEST(an_item_is_the_rows_of_its_windows) {
  Small small;
  const std::vector<int64_t> keys = small.rig.insert({small.item(3, 30), small.item(20, 0)});
  small.rig.verify();
  CHECK_EQ(small.rig.sample(8).size(), 8u);
  small.append(24);  // rows 0 to 31 stay: 64 in total
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 2);
  small.append(1);  // row 0 is evicted, and the second item ends
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 1);
}

TEST(rows_that_are_named_must_be_those_of_a_window) {
  Small small;
  const std::vector<int64_t>& keys = small.rig.rig.keys;
  const auto code = [&](WindowRows window, std::vector<int64_t> rows, size_t at) {
    window.rows = rows.data();
    std::vector<WindowRows> windows(3, WindowRows{0, 0});
    windows[at] = window;
    std::byte mark[kMarkBytes] = {}, weight[8] = {};
    const std::byte* const columns[] = {mark, weight};
    int64_t key = 0;
    size_t stored = 0;
    const Status status =
        relive::insert_items(small.rig.table(), 1, {1, windows.data(), nullptr, columns}, 0.0, &key, &stored);
    CHECK_EQ(stored, status.ok() ? 1u : 0u);
    return status.code();
  };
  CHECK(code({keys[6], 3}, {keys[6], keys[7], keys[8]}, 0) == Code::kOk);
  CHECK(code({keys[8], -3}, {keys[6], keys[7], keys[8]}, 0) == Code::kOk);
  CHECK(code({keys[6], 3}, {keys[6], keys[10], keys[14]}, 2) == Code::kOk);
  CHECK(code({keys[6], 3}, {keys[6], keys[8], keys[7]}, 0) == Code::kRowsApart);
  CHECK(code({keys[6], 3}, {keys[6], keys[7], keys[9]}, 0) == Code::kRowsApart);
  CHECK(code({keys[6], 3}, {keys[6], keys[7], keys[8]}, 2) == Code::kRowsApart);
  CHECK(code({keys[6], 2}, {keys[6], -1}, 0) == Code::kForeignKey);
}

TEST(a_stride_may_pass_over_whole_pages) {
  RecordsRig rig({.capacity = 400, .has_state = false}, {.windows = {{20, 17}, {3, 100}}});
  CHECK(rig.rig.write({0}, 390, std::vector<int>(390, 0), NextGiven::kNo) == Code::kOk);
  CHECK(rig.region().page_len < 17);
  const std::vector<int64_t>& keys = rig.rig.keys;
  (void)rig.insert({{{keys[3], 20}, {keys[7], 3}}, {{keys[66], 19}}, {{0, 0}, {keys[389 - 200], 3}}});
  rig.verify();
  CHECK_EQ(rig.sample(12).size(), 12u);
  CHECK_EQ(rig.num_live(), 3);
}

TEST(programmes_of_items) {
  run_programmes({.capacity = 60, .num_lanes = 2}, {}, 25, 300);
  run_programmes({.capacity = 200, .num_lanes = 3}, {.max_items = 70, .windows = {{30, 1}, {9, 3}}}, 12, 300);
  run_programmes({.capacity = 60, .num_lanes = 2, .has_state = false}, {.prioritized = false}, 20, 300);
  run_programmes({.capacity = 30}, {.max_items = 5, .windows = {{1, 1}}}, 12, 300);
}

TEST(programmes_of_items_with_use_counts) {
  run_programmes({.capacity = 60, .num_lanes = 2}, {.max_times = 1}, 20, 300);
  run_programmes({.capacity = 60, .indexes = {{.n_step = 3, .max_times = 1}}}, {.max_items = 40, .max_times = 3}, 20,
                 300);
}

TEST(programmes_of_items_that_await_their_priority) {
  run_programmes({.capacity = 60, .num_lanes = 2}, {.initial = Initial::kGiven}, 20, 300);
}

TEST(programmes_of_items_with_indexes_of_rows) {
  run_programmes({.capacity = 90,
                  .num_lanes = 2,
                  .indexes = {{.n_step = 3, .stack = 4, .prioritized = true}, {.n_step = 12, .max_times = 2}}},
                 {.max_items = 33}, 20, 300);
}

TEST(two_explicit_indexes_have_keys_of_their_own) {
  Spec spec{.capacity = 64, .has_state = false};
  spec.explicit_indexes = {explicit_index({.max_items = 7})};
  RecordsRig first(spec, {.max_items = 9});  // the rig's own index is the second explicit one
  const Region& r = first.region();
  const uint64_t first_leaf = uint64_t{1} << (r.geometry->slot_bits - 1);  // above every slot, however many come
  CHECK_EQ(r.map(1).first, first_leaf);
  CHECK_EQ(r.map(2).first, first_leaf + 7);
  CHECK(r.geometry->slot_bits >= 8 && r.map(2).first + 9 <= uint64_t{1} << r.geometry->slot_bits);
  const int64_t last = r.key_of_leaf(1, 6, r.map(1).word(6));
  CHECK(r.is_own_key(last) && r.is_item_key(1, last) && !r.is_item_key(2, last) && !r.is_row_key(last));
  CHECK(!r.is_own_key(r.key_of_leaf(2, 9, r.map(1).word(0))));
  int64_t applied = 0;
  const float priority = 1.0f;
  CHECK(relive::update_priorities(first.table(), 2, &last, &priority, 1, &applied).code() == Code::kForeignKey);
}

TEST(an_impossible_item_is_refused_by_name_and_its_call_stores_nothing) {
  Small small;
  const auto refused = [&](std::vector<WindowRows> bad) {
    std::vector<int64_t> keys;
    size_t stored = 9;
    const Status status = small.rig.try_insert({small.item(20, 30), std::move(bad)}, {}, &keys, &stored);
    CHECK_EQ(stored, 0u);
    for (const Field& field : status.fields())
      if (field.name == "item") CHECK_EQ(field.integer, 1);
    return status.code();
  };
  const std::vector<int64_t>& keys = small.rig.rig.keys;
  CHECK(refused({{keys[0], 10}, {keys[35], 6}}) == Code::kRowGone);  // row 40 does not exist yet
  CHECK(refused({{keys[0] + 64 * 4096, 1}}) == Code::kRowGone);      // of a future generation
  CHECK(refused({{keys[0] | ((int64_t{1} << small.rig.region().geometry->slot_bits) - 1), 1}}) == Code::kForeignKey);
  CHECK(refused({{-1, 1}}) == Code::kForeignKey);
  CHECK(refused({}) == Code::kInvalidConfig);
  CHECK(refused({{keys[0], 0}}) == Code::kInvalidConfig);
  CHECK(refused({{keys[0], 13}}) == Code::kInvalidConfig);
  CHECK(refused({{keys[20], -13}}) == Code::kInvalidConfig);
  CHECK(refused({{keys[0], std::numeric_limits<int64_t>::min()}}) == Code::kInvalidConfig);
  CHECK(refused({{keys[4], -6}}) == Code::kRowsApart);  // the lane begins at row 0
  CHECK(refused({{0, 0}, {0, 0}, {keys[2], 6}}) == Code::kInvalidConfig);
  CHECK(refused({{0, 0}, {0, 0}, {keys[24], 5}}) == Code::kRowGone);  // its last row would be the 40th
  const std::vector<int64_t> item = small.rig.insert({small.item(0, 10)});
  CHECK(refused({{item[0], 1}}) == Code::kForeignKey);  // an item's key is no row's
  small.append(30);
  CHECK(refused({{keys[5], 1}}) == Code::kRowGone);
  CHECK_EQ(small.rig.table().region().header->index_state[1].inserted.load(), 1);
  const WindowRows window{keys[20], 1};
  size_t stored = 0;
  int64_t key = 0;
  CHECK(relive::insert_items(small.rig.table(), 0, {1, &window}, 0.0, &key, &stored).code() == Code::kInvalidConfig);
}

TEST(configurations_that_cannot_be_are_refused) {
  const auto refused = [](auto&& change) {
    Spec spec{.capacity = 64};
    IndexConfig index = explicit_index({});
    change(index);
    spec.explicit_indexes = {index};
    std::unique_ptr<Table> table;
    return Table::create(make_config(spec), "", &table).code() == Code::kInvalidConfig;
  };
  CHECK(!refused([](IndexConfig&) {}));
  CHECK(refused([](IndexConfig& index) { index.max_items = 0; }));
  CHECK(refused([](IndexConfig& index) { index.num_windows = 0; }));
  CHECK(refused([](IndexConfig& index) { index.num_windows = kMaxWindows + 1; }));
  CHECK(refused([](IndexConfig& index) { index.windows[1].length = 4097; }));
  CHECK(refused([](IndexConfig& index) { index.windows[1].length = 0; }));
  CHECK(refused([](IndexConfig& index) { index.windows[2].stride = 0; }));
  CHECK(refused([](IndexConfig& index) { index.windows[2].stride = 1025; }));  // 5 rows span 4,101
  CHECK(!refused([](IndexConfig& index) { index.windows[2].stride = 1023; }));
  CHECK(refused([](IndexConfig& index) { index.windows[1].name[0] = 0; }));
  CHECK(refused([](IndexConfig& index) { index.n_step = 2; }));
  CHECK(refused([](IndexConfig& index) { index.stack[0] = 4; }));
  CHECK(refused([](IndexConfig& index) { index.map = LeafMap::kImplicit; }));
  CHECK(refused([](IndexConfig& index) { index.max_items = uint64_t{1} << 31; }));
  const auto refused_column = [](size_t at, std::vector<int64_t> shape) {
    TableConfig config = make_config(with_items({.capacity = 64}, {}));
    config.item_columns[at].push_back(column("more", "<f4", std::move(shape), 4, ColumnKind::kStep));
    std::unique_ptr<Table> table;
    return Table::create(config, "", &table).code() == Code::kInvalidConfig;
  };
  CHECK(!refused_column(1, {1000}));
  CHECK(refused_column(1, {1024}));  // more than 4,096 bytes with the other columns
  CHECK(refused_column(0, {1}));     // of an index of rows
}

TEST(outputs_computed_over_a_steps_window_are_refused_for_items) {
  RecordsRig rig({.capacity = 64}, {});
  for (const char* name : {"observation", "w0/next_observation", "w0/loss_mask", "w3/reward", "w1", "w0/", "w0/mark"}) {
    GatherPlan plan;
    CHECK(relive::make_plan(rig.table(), rig.index(), {name}, &plan).code() == Code::kInvalidConfig);
  }
}

TEST(a_record_whose_generations_are_used_up_is_passed_over) {
  Small small({.max_items = 3});
  const Region& r = small.rig.region();
  const uint64_t last = (uint64_t{1} << (kLeafBits - r.geometry->slot_bits)) - 1;
  r.records[1].words[1].store(last << kGenerationShift);
  const std::vector<int64_t> keys = small.rig.insert({small.item(0, 20), small.item(1, 20), small.item(2, 20)});
  CHECK_EQ(r.key_generation(keys[1]), last);
  small.rig.verify();
  small.rig.remove({keys[1]});
  CHECK(Region::state_of(r.map(1).word(1)) == PageState::kRetired);
  small.rig.verify();
  for (int k = 0; k < 5; ++k) {
    const int64_t key = small.rig.insert({small.item(3, 20)}).at(0);
    CHECK(r.leaf_of_key(1, key) != 1);
    if (r.leaf_of_key(1, key) == 2) ++small.rig.lost;  // the ring skipped a record
    if (r.leaf_of_key(1, key) == 2) small.rig.items[key].number += 1;
    small.rig.verify();
  }
}

TEST(all_items_on_a_row_end_before_it_at_most_256_in_a_critical_section) {
  Small small({.max_items = 2000, .windows = {{9, 1}}});
  static int ended, most;
  ended = most = 0;
  const auto watch = [] {
    testing::fail_point_hook = [](testing::FailPoint at) {
      if (at == testing::FailPoint::lock_taken) ended = 0;
      if (at == testing::FailPoint::record_rows) most = std::max(most, ++ended);
    };
  };
  const auto insert = [&](size_t row, size_t count) {
    (void)small.rig.insert(std::vector<std::vector<WindowRows>>(count, {{small.rig.rig.keys[row], 9}}));
  };
  insert(0, 1100);
  insert(5, 300);
  CHECK_EQ(relive::num_items(small.rig.table(), 1), 1400);
  small.append(24);
  watch();
  small.append(1);
  CHECK_EQ(most, 256);
  CHECK_EQ(relive::num_items(small.rig.table(), 1), 300);
  CHECK(relive::check(small.rig.table()).ok());
  insert(40, 700);
  most = 0;
  CHECK(relive::clear(small.rig.table()).ok());
  testing::fail_point_hook = nullptr;
  CHECK(most > 0 && most <= 256);
  CHECK_EQ(relive::num_items(small.rig.table(), 1), 0);
  small.rig.verify();
}

TEST(items_come_by_the_limiter_like_rows) {
  Spec spec{.capacity = 64, .has_state = false};
  IndexConfig index = explicit_index({.max_items = 100});
  index.limiter = make_samples_per_insert(1.0, 5, 8.0);  // inserted - sampled stays in [-3, 13]
  spec.explicit_indexes = {index};
  Rig rig(spec);
  CHECK(rig.write({0}, 20, std::vector<int>(20, 0), NextGiven::kNo) == Code::kOk);
  std::vector<WindowRows> windows(90, {rig.keys[0], 2});
  std::vector<int64_t> keys(30);
  size_t stored = 0;
  const NewItems items{30, windows.data()};
  const Status status = relive::insert_items(*rig.table, 1, items, 0.0, keys.data(), &stored);
  CHECK(status.code() == Code::kDeadlineExceeded);
  CHECK_EQ(stored, 16u);  // below min_size: as many as the window allows
  std::vector<double> probabilities(10);
  DrawRequest request;
  request.index = 1;
  request.num_items = 10;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  CHECK(relive::sample(*rig.table, request, 0.0).ok());
  CHECK(!relive::insert_items(*rig.table, 1, items, 0.0, keys.data(), &stored).ok());
  CHECK_EQ(stored, 7u);  // 16 - 10 + 7 = 13
  CHECK(relive::check(*rig.table).ok());
}

TEST(a_table_of_explicit_items_alone) {
  Spec spec{.capacity = 60, .num_lanes = 2};
  spec.indexes = {};
  run_programmes(spec, {}, 10, 300);
}

TEST(records_that_lie_outside_of_their_place_are_refused) {
  RecordsRig rig({.capacity = 64}, {});
  const Region& r = rig.region();
  const size_t num_bytes = r.geometry->region_bytes;
  const auto refused = [&](auto&& change) {
    const std::unique_ptr<std::byte[], void (*)(std::byte*)> copy(
        static_cast<std::byte*>(std::aligned_alloc(4096, (num_bytes + 4095) / 4096 * 4096)),
        [](std::byte* memory) { std::free(memory); });
    std::memcpy(copy.get(), r.base, r.geometry->slabs_offset);
    change(reinterpret_cast<Header*>(copy.get())->geometry.records[1]);
    Region opened;
    return opened.open(copy.get(), num_bytes).code();
  };
  CHECK(refused([](RecordGeometry&) {}) == Code::kOk);
  CHECK(refused([](RecordGeometry& records) { records.max_items = uint64_t{1} << 40; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.max_items = 0; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.max_windows = 0; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.max_rows = 5000; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.pages_a_window = 1; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.first_leaf = 3; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.value_stride = 16; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.num_columns = 3; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.first_column = ~0u; }) == Code::kNotARegion);
  for (uint64_t RecordGeometry::* area :
       {&RecordGeometry::words_offset, &RecordGeometry::windows_offset, &RecordGeometry::nodes_offset,
        &RecordGeometry::heads_offset, &RecordGeometry::values_offset})
    CHECK(refused([&](RecordGeometry& records) { records.*area = num_bytes - 64; }) == Code::kNotARegion);
  CHECK(refused([](RecordGeometry& records) { records.heads_offset += 64; }) == Code::kFormatMismatch);  // the checksum
}

TEST(a_step_that_becomes_a_tail_stays_a_row_of_the_items_it_has) {
  RecordsRig rig({.capacity = 64}, {});
  CHECK(rig.rig.write({0}, 6, std::vector<int>(6, 0), NextGiven::kNo) == Code::kOk);
  const int64_t last = rig.rig.keys[5];
  (void)rig.insert({{{rig.rig.keys[2], 4}}, {{last, 1}}});
  rig.rig.close_writer();  // the last row becomes the state after the row before it
  rig.verify();
  CHECK_EQ(rig.num_live(), 2);
  std::vector<int64_t> keys;
  size_t stored = 0;
  CHECK(rig.try_insert({{{last, 1}}}, {}, &keys, &stored).code() == Code::kRowGone);
  rig.rig.open_writer();
  CHECK(relive::clear(rig.table()).ok());
  rig.verify();
  CHECK_EQ(rig.num_live(), 0);
}

TEST(a_death_while_an_item_is_made_leaves_the_item_or_nothing) {
  using testing::FailPoint;
  for (const FailPoint point : {FailPoint::insert_taken, FailPoint::insert_windows, FailPoint::insert_hung,
                                FailPoint::insert_word, FailPoint::publish_leaf, FailPoint::insert_done,
                                FailPoint::record_ended, FailPoint::record_word, FailPoint::record_unhung}) {
    Small small({.max_items = 4});
    (void)small.rig.insert({small.item(0, 20), small.item(1, 21), small.item(2, 22), small.item(3, 23)});
    die_at(point, small.rig.table(), [&] { (void)small.rig.insert({small.item(4, 24)}); });
    const Status checked = relive::check(small.rig.table());
    if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
    CHECK_EQ(relive::num_items(small.rig.table(), 1), point == FailPoint::insert_done ? 4 : 3);
    // The ring continues, whether or not the dead process moved its cursor.
    for (int k = 0; k < 9; ++k) {
      std::vector<int64_t> keys;
      size_t stored = 0;
      CHECK(small.rig.try_insert({small.item(5, 25)}, {}, &keys, &stored).ok());
      CHECK(relive::check(small.rig.table()).ok());
    }
    CHECK_EQ(relive::num_items(small.rig.table(), 1), 4);
  }
}

TEST(a_death_while_items_end_with_their_row_leaves_the_row_or_neither) {
  using testing::FailPoint;
  for (const FailPoint point : {FailPoint::record_ended, FailPoint::record_word, FailPoint::record_unhung,
                                FailPoint::record_rows, FailPoint::evict_range}) {
    Small small;
    (void)small.rig.insert({small.item(0, 20), small.item(0, 25), small.item(11, 22)});
    small.append(24);
    die_at(point, small.rig.table(), [&] { small.append(1); });
    const Status checked = relive::check(small.rig.table());
    if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
    CHECK_EQ(small.rig.is_row_there(small.rig.rig.keys[0]), point != FailPoint::evict_range);
    CHECK_EQ(relive::num_items(small.rig.table(), 1), point == FailPoint::evict_range ? 1 : 2);
  }
}

TEST(a_death_in_recovery_is_recovered_from) {
  Small small({.max_items = 50});
  for (size_t k = 0; k < 20; ++k) (void)small.rig.insert({small.item(k, 20)});
  testing::fail_point_hook = nullptr;
  die_at(
      testing::FailPoint::recover_records, small.rig.table(),
      [&] {
        Locked locked(small.rig.table().door(), Deadline::after(1.0));
        recover(locked.held(), small.rig.table().door().scratch);
      },
      7);
  small.rig.verify();
  CHECK_EQ(small.rig.num_live(), 20);
}

TEST_MAIN()
