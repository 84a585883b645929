// Groups of episodes (rules Y1 to Y5): the episodes of a group and their order. A death at any store leaves each ended
// episode in at most one group, and in none only if that group has ended.

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/pages/records.hpp"

using namespace rig;

namespace {

constexpr uint32_t kMost = 16;  // steps of an episode
constexpr uint32_t kSize = 3;   // episodes of a group

IndexConfig group_index(uint32_t column, uint64_t max_groups) {
  IndexConfig index{};
  std::snprintf(index.name, sizeof index.name, "groups");
  index.n_step = 1;
  index.gamma = 0.5;
  index.sampling = Sampling::kUniform;
  index.initial = Initial::kMax;
  index.limiter = make_min_size(1);
  for (uint32_t& frames : index.stack) frames = 1;
  index.map = LeafMap::kExplicit;
  index.max_items = max_groups;
  index.num_windows = 1;
  index.windows[0].length = kMost;
  index.windows[0].stride = 1;
  index.group.size = kSize;
  index.group.column = column;
  return index;
}

struct World {
  std::unique_ptr<Table> table;
  std::vector<std::unique_ptr<Writer>> writers;
  bool has_state = false, has_late = false;
  std::vector<std::vector<int64_t>> keys;  // of each writer's last episode

  World(bool state, bool late, uint64_t capacity = 64, uint64_t max_groups = 4) : has_state(state), has_late(late) {
    TableConfig config;
    if (state) config.columns.push_back(column("observation", "<f4", {}, 4, ColumnKind::kState));
    config.columns.push_back(column("prompt", "<i8", {}, 8, ColumnKind::kEpisode));
    config.columns.push_back(column("action", "<i4", {}, 4, ColumnKind::kStep));
    if (late) config.columns.push_back(column("reward", "<f4", {}, 4, ColumnKind::kLate));
    config.indexes = {group_index(state ? 1 : 0, max_groups)};
    config.capacity = capacity;
    config.max_lanes = 3;
    config.max_participants = 4;
    CHECK(Table::create(config, "", &table).ok());
  }

  void open_writer() {
    writers.emplace_back();
    keys.emplace_back();
    CHECK(Writer::open(table.get(), 1, &writers.back()).ok());
  }

  // Writes steps of an episode. The last step ends it, in its row or (late_end) by a second call.
  Status write(size_t w, int64_t prompt, size_t num_rows, bool ends) {
    std::vector<float> observations(num_rows + 1, 1.0f);
    std::vector<int64_t> prompts(num_rows, prompt);
    std::vector<int32_t> actions(num_rows, static_cast<int32_t>(prompt));
    std::vector<uint8_t> terminated(num_rows, 0);
    terminated.back() = ends ? 1 : 0;
    StepBlock block;
    block.num_rows = num_rows;
    block.num_lanes = 1;
    const auto cells = [](const auto& values) {
      return Cells{reinterpret_cast<const std::byte*>(values.data()), sizeof values[0], 0};
    };
    if (has_state) block.columns.push_back(cells(observations));
    block.columns.push_back(cells(prompts));
    block.columns.push_back(cells(actions));
    if (has_late) block.columns.push_back({});
    block.terminated = cells(terminated);
    std::vector<int64_t> written(num_rows);
    const Status status = writers[w]->write(block, 1.0, written.data());
    keys[w].insert(keys[w].end(), written.begin(), written.end());
    return status;
  }

  int64_t num_items() const { return relive::num_items(*table, 0); }
  uint64_t dropped() const { return table->region().header->counters.dropped_groups.load(); }
  // The groups that wait for members, and their numbers of members.
  struct Open {
    uint32_t groups = 0, members = 0;
  };
  Open open_groups() const {
    const Region& r = table->region();
    Open count;
    for (uint64_t record = 0; record < r.records[0].geometry->max_items; ++record) {
      if (!is_open_group(r, 0, record)) continue;
      ++count.groups;
      for (uint32_t w = 0; w < kSize; ++w)
        count.members += r.records[0].windows_of(record)[w].num_rows.load() != 0 ? 1 : 0;
    }
    return count;
  }
  void check() const {
    const Status checked = relive::check(*table);
    if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
  }
};

void test_forms() {
  for (const bool has_state : {false, true}) {
    World world(has_state, false);
    for (int k = 0; k < 3; ++k) world.open_writer();
    for (size_t w = 0; w < 3; ++w) {
      CHECK_EQ(world.num_items(), 0);
      CHECK(world.write(w, 7, 2 + w, true).ok());
      CHECK(world.write(w, 8, 3, false).ok());
      world.check();
    }
    CHECK_EQ(world.num_items(), 1);
    CHECK_EQ(world.open_groups().groups, 0u);
    CHECK(world.write(0, 8, 2, true).ok());
    CHECK(world.write(1, 8, 2, true).ok());
    CHECK_EQ(world.open_groups().members, 2u);
    CHECK(world.writers[2]->close().ok());  // its episode is cut off and joins no group
    CHECK_EQ(world.open_groups().members, 2u);
    world.check();
    CHECK(world.write(0, 8, 1, true).ok());
    CHECK_EQ(world.num_items(), 2);
    CHECK_EQ(world.dropped(), 0u);
    world.check();
  }
}

void test_oldest_goes() {
  World world(true, false, 4000, 4);
  world.open_writer();
  for (int64_t prompt = 0; prompt < 7; ++prompt) CHECK(world.write(0, prompt, 2, true).ok());
  world.check();
  CHECK_EQ(world.open_groups().groups, 4u);
  CHECK_EQ(world.dropped(), 3u);
  for (int k = 0; k < 2; ++k) CHECK(world.write(0, 6, 2, true).ok());
  CHECK_EQ(world.num_items(), 1);
  CHECK_EQ(world.dropped(), 3u);
  world.check();
}

void test_rows_go() {
  World world(true, false, 32, 8);
  world.open_writer();
  for (int64_t k = 0; k < 40; ++k) {
    CHECK(world.write(0, k % 2, 3, true).ok());
    world.check();
  }
  CHECK(world.num_items() > 0);
  World slow(true, false, 40, 8);  // an episode's first steps are evicted before it ends
  slow.open_writer();
  slow.open_writer();
  CHECK(slow.write(1, 1, 1, false).ok());
  for (int64_t k = 0; k < 20; ++k) CHECK(slow.write(0, 5 + k, 3, true).ok());
  CHECK(slow.write(1, 1, 1, true).ok());
  slow.check();
}

void test_late() {
  World world(true, true);
  world.open_writer();
  for (int k = 0; k < 3; ++k) CHECK(world.write(0, 1, 2, true).ok());
  CHECK_EQ(world.num_items(), 0);
  CHECK_EQ(world.open_groups().groups, 0u);
  world.check();
}

// One call dies at each of its stores. An ended episode is then in one group, and an unended one in none.
void test_deaths(bool has_state, bool has_late, int way) {
  int deaths = 0;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    const auto at = static_cast<testing::FailPoint>(point);
    if (!has_way_out(at)) continue;
    for (int passages = 1; passages < 20; ++passages) {
      World world(has_state, has_late, 40, 2);
      world.open_writer();
      world.open_writer();
      // way 0: the first member; 1: the second; 2: the last; 3: a group that opens in the place of another; 4: a cut
      const size_t before = way == 0 ? 0 : way == 1 ? 1 : 2;
      for (size_t k = 0; k < before; ++k) CHECK(world.write(1, 9, 2, true).ok());
      if (way == 3)
        for (int64_t k = 0; k < 2; ++k) CHECK(world.write(1, 20 + k, 2, true).ok());
      if (way == 4) CHECK(world.write(0, 9, 2, false).ok());
      const World::Open was = world.open_groups();
      const uint64_t steps = relive::num_steps(*world.table);
      const auto call = [&] { way == 4 ? (void)world.writers[0]->close() : (void)world.write(0, 9, 2, true); };
      if (!dies_at(point, passages, call)) break;
      ++deaths;
      recover_all(*world.table);
      world.check();
      end_writers(*world.table);
      world.check();
      const World::Open now = world.open_groups();
      const bool has_ended = relive::num_steps(*world.table) == steps + 2;
      const int64_t full = way == 2 && has_ended ? 1 : 0;
      const bool is_item = full == 1 && !has_late;
      bool is_sound = world.num_items() == (is_item ? 1 : 0);
      if (way == 0 || way == 1)
        is_sound &= now.members == was.members + (has_ended ? 1 : 0) && now.groups == (way == 1 || has_ended);
      if (way == 2) is_sound &= now.members == (full == 1 ? 0u : 2u);
      if (way == 3) is_sound &= !has_ended || now.groups >= 1;
      if (way == 4) is_sound &= now.members == was.members && now.groups == was.groups;
      if (!is_sound)
        harness::fail(__FILE__, __LINE__,
                      "way " + std::to_string(way) + ": " + std::to_string(now.members) + " members of " +
                          std::to_string(now.groups) + " open groups after a death at " +
                          testing::fail_point_name(point));
    }
  }
  CHECK(deaths > 3);
}

}  // namespace

TEST(groups_form_by_value_of_episodes_from_any_writer) { test_forms(); }
TEST(a_new_group_takes_the_place_of_the_oldest) { test_oldest_goes(); }
TEST(a_group_ends_with_its_first_evicted_row) { test_rows_go(); }
TEST(a_complete_group_waits_for_late_columns) { test_late(); }
TEST(a_death_at_any_store_leaves_each_episode_in_one_group) {
  for (const bool has_state : {false, true})
    for (const bool has_late : {false, true})
      for (int way = 0; way < 5; ++way) test_deaths(has_state, has_late, way);
}

TEST_MAIN()
