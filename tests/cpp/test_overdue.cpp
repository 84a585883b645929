// Items that wait too long (rules T1 to T3): what goes and when, that all of it is counted once whoever dies at any store,
// and that a hold drops no more than it may.

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/overdue.hpp"

using namespace rig;

namespace {

constexpr double kBegin_s = 1000.0, kRowsWait_s = 5.0, kGroupsWait_s = 8.0;
constexpr int64_t kNoKey = -1;

// A table of rows with a late column and two timed indexes: of its rows, and of groups of three episodes.
struct World {
  std::unique_ptr<Table> table;
  std::unique_ptr<Writer> writer;

  explicit World(uint64_t capacity = 64) {
    set_clock_s(kBegin_s);
    TableConfig config;
    config.columns.push_back(column("prompt", "<i8", {}, 8, ColumnKind::kEpisode));
    config.columns.push_back(column("reward", "<f4", {}, 4, ColumnKind::kLate));
    IndexConfig index{};
    std::snprintf(index.name, sizeof index.name, "rows");
    index.n_step = 1;
    index.gamma = 0.5;
    index.limiter = make_min_size(1);
    index.max_wait_s = kRowsWait_s;
    for (uint32_t& frames : index.stack) frames = 1;
    config.indexes.push_back(index);
    std::snprintf(index.name, sizeof index.name, "groups");
    index.map = LeafMap::kExplicit;
    index.max_items = 6;
    index.num_windows = 1;
    index.windows[0].length = 16;
    index.windows[0].stride = 1;
    index.group = {3, 0};
    index.max_wait_s = kGroupsWait_s;
    config.indexes.push_back(index);
    config.capacity = capacity;
    config.max_lanes = 2;
    config.max_participants = 4;
    CHECK(Table::create(config, "", &table).ok());
    CHECK(Writer::open(table.get(), 1, &writer).ok());
  }
  ~World() { set_clock_s(std::nan("")); }

  std::vector<int64_t> write(int64_t prompt, size_t num_rows) {
    std::vector<int64_t> prompts(num_rows, prompt), keys(num_rows, kNoKey);
    std::vector<uint8_t> terminated(num_rows, 0);
    terminated.back() = 1;
    StepBlock block;
    block.num_rows = num_rows;
    block.num_lanes = 1;
    block.columns.push_back({reinterpret_cast<const std::byte*>(prompts.data()), sizeof(int64_t), 0});
    block.columns.push_back({});
    block.terminated = {reinterpret_cast<const std::byte*>(terminated.data()), 1, 0};
    CHECK(writer->write(block, 1.0, keys.data()).ok());
    return keys;
  }
  int64_t complete(const std::vector<int64_t>& keys) {
    const std::vector<float> rewards(keys.size(), 1.0f);
    int64_t applied = 0;
    const auto* given = reinterpret_cast<const std::byte*>(rewards.data());
    CHECK(complete_rows(*table, keys.data(), keys.size(), given, keys.size() * sizeof(float), &applied).ok());
    return applied;
  }
  const IndexState& of(uint32_t index) const { return table->region().header->index_state[index]; }
  uint64_t timed_out(uint32_t index) const { return of(index).timed_out.load(); }
  int64_t pending(uint32_t index) const { return of(index).pending.load(); }
  void check() const {
    const Status checked = relive::check(*table);
    if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
  }
  // Episodes of two values: of one as many as a group has.
  void write_some() {
    for (int k = 0; k < 3; ++k) write(9, 2);
    write(8, 2);
  }
};

// The thread that held the lock is gone, and nobody else goes by its name: the next one recovers.
void forget_holder(const World& world) {
  testing::locks_held = 0;
  if (world.table->region().header->lock.load() != 0) world.table->region().header->lock.store(4);
}

void test_times() {
  World world;
  world.write_some();
  CHECK_EQ(world.pending(0), 8);
  CHECK_EQ(world.pending(1), 1);  // the other one waits for members
  CHECK_EQ(next_due_s(world.table->region()), kBegin_s + kRowsWait_s);
  set_clock_s(kBegin_s + kRowsWait_s - 0.25);
  world.check();
  CHECK_EQ(world.timed_out(0), 0u);
  set_clock_s(kBegin_s + kRowsWait_s);
  world.check();
  CHECK_EQ(world.timed_out(0), 8u);
  CHECK_EQ(world.pending(0), 0);
  CHECK_EQ(next_due_s(world.table->region()), kBegin_s + kGroupsWait_s);
  set_clock_s(kBegin_s + kGroupsWait_s);
  world.check();
  CHECK_EQ(world.timed_out(1), 2u);
  CHECK_EQ(world.table->region().header->counters.dropped_groups.load(), 0u);
  CHECK_EQ(world.table->region().header->counters.incomplete_items.load(), 0u);
  CHECK(std::isinf(next_due_s(world.table->region())));
}

// What comes in time waits no more, and what it left goes when its own time is over.
void test_in_time() {
  World world;
  const auto first = world.write(9, 2);
  set_clock_s(kBegin_s + 3.0);
  const auto second = world.write(9, 2);
  CHECK_EQ(world.complete({first[0], second[1]}), 2);
  set_clock_s(kBegin_s + kRowsWait_s);
  world.check();
  CHECK_EQ(world.timed_out(0), 1u);
  CHECK_EQ(relive::num_items(*world.table, 0), 2);
  CHECK_EQ(world.complete({first[1], second[0]}), 2);  // a row of no item is filled all the same
  world.check();
  CHECK_EQ(relive::num_items(*world.table, 0), 3);
  set_clock_s(kBegin_s + 100.0);
  world.check();
  CHECK_EQ(world.timed_out(0), 1u);
  CHECK_EQ(world.timed_out(1), 1u);
}

void test_hold_drops_its_share() {
  World world(2000);
  world.write(9, 16);
  for (int k = 0; k < 50; ++k) world.write(100 + k % 2, 16);
  set_clock_s(kBegin_s + kRowsWait_s);
  uint64_t before = 0;
  for (int hold = 0; hold < 4; ++hold) {
    world.check();
    CHECK(world.timed_out(0) - before <= 256);
    before = world.timed_out(0);
  }
  CHECK_EQ(before, 51u * 16);
}

// Who drops dies at each store in turn: all is dropped and counted all the same, each once.
void test_deaths() {
  int deaths = 0;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    const auto at = static_cast<testing::FailPoint>(point);
    for (int passages = 1; passages < 24 && has_way_out(at); ++passages) {
      World world;
      world.write_some();
      set_clock_s(kBegin_s + 100.0);
      if (!dies_at(point, passages, [&] { world.check(); })) break;
      ++deaths;
      forget_holder(world);
      world.check();
      if (world.timed_out(0) != 8 || world.timed_out(1) != 2 || world.pending(0) != 0 || world.pending(1) != 0)
        harness::fail(__FILE__, __LINE__,
                      std::to_string(world.timed_out(0)) + " of 8 rows, " + std::to_string(world.timed_out(1)) +
                          " of 2 groups after a death at " + testing::fail_point_name(point));
    }
  }
  CHECK(deaths > 40);
}

// The same of who writes what then waits.
void test_deaths_of_writers() {
  int deaths = 0;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    const auto at = static_cast<testing::FailPoint>(point);
    for (int passages = 1; passages < 24 && has_way_out(at); ++passages) {
      World world;
      world.write_some();
      if (!dies_at(point, passages, [&] { world.write(8, 2); })) break;
      ++deaths;
      recover_all(*world.table);
      world.check();
      end_writers(*world.table);
      world.check();
      const auto rows = static_cast<uint64_t>(world.pending(0));
      CHECK(rows == 8 || rows == 10);
      set_clock_s(kBegin_s + 100.0);
      world.check();
      CHECK_EQ(world.timed_out(0), rows);
      CHECK_EQ(world.timed_out(1), 2u);
    }
  }
  CHECK(deaths > 10);
}

// Another boot's clock begins again: whoever is the first to attach then lets all that waits begin anew.
void test_mended_times() {
  World world;
  world.write_some();
  set_clock_s(10.0);
  {
    Alone alone(world.table->door());
    mend_times(alone.held(), false);
    Leaves::flush_all(alone.held());
  }
  CHECK_EQ(next_due_s(world.table->region()), 10.0 + kRowsWait_s);
  set_clock_s(10.0 + kGroupsWait_s);
  world.check();
  CHECK_EQ(world.timed_out(0), 8u);
  CHECK_EQ(world.timed_out(1), 2u);
}

}  // namespace

TEST(what_waits_too_long_goes_when_its_time_is_over) { test_times(); }
TEST(what_comes_in_time_waits_no_more) { test_in_time(); }
TEST(a_hold_drops_256_items_of_an_index) { test_hold_drops_its_share(); }
TEST(each_item_that_is_dropped_is_counted_once_whoever_dies) { test_deaths(); }
TEST(who_dies_writing_leaves_what_waits_with_its_time) { test_deaths_of_writers(); }
TEST(times_that_are_to_come_begin_anew) { test_mended_times(); }

TEST_MAIN()
