// Start values of windows that an end moves back (rule B4): each item has the value of its first row, after a death at
// any store, and no value is written under the lock.

#include <atomic>
#include <thread>

#include "core_deaths.hpp"
#include "core_rig.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/reading.hpp"

using namespace rig;

namespace {

constexpr size_t kCore = 80;  // floats of a start value: too many for the row

enum class Shape { kShift, kTail, kBoth };
enum class Way { kRow, kBlock, kEnd, kClose };

SequenceConfig shape_of(Shape shape) {
  if (shape == Shape::kTail) return {6, 0, 0, 0, AtEnd::kShift, PadSide::kRight, 1, 1, 0};
  return {5, 4, 1, 3, AtEnd::kShift, PadSide::kRight, 0, 0, 0};  // over two and three pages
}

struct World {
  std::unique_ptr<Table> table;
  std::unique_ptr<Writer> writer;
  std::vector<int64_t> keys;
  bool has_state;

  World(bool state, Shape shape, uint64_t capacity) : has_state(state) {
    TableConfig config;
    if (state) config.columns.push_back(column("observation", "<f4", {}, 4, ColumnKind::kState));
    config.columns.push_back(column("number", "<i4", {}, 4, ColumnKind::kStep));
    config.columns.push_back(column("core", "<f4", {kCore}, 4, ColumnKind::kStart));
    for (const Shape each : {Shape::kShift, Shape::kTail}) {
      if (shape != Shape::kBoth && shape != each) continue;
      IndexConfig index{};
      std::snprintf(index.name, sizeof index.name, "i%zu", config.indexes.size());
      index.n_step = 1;
      index.gamma = 0.5;
      index.initial = Initial::kMax;
      index.limiter = make_min_size(1);
      for (uint32_t& frames : index.stack) frames = 1;
      index.sequence = shape_of(each);
      config.indexes.push_back(index);
    }
    config.capacity = capacity;
    config.max_lanes = 3;
    config.max_participants = 4;
    CHECK(Table::create(config, "", &table).ok());
    CHECK(table->region().cells);
    CHECK(Writer::open(table.get(), 1, &writer).ok());
  }

  // Writes rows that continue the numbers before them. The last row ends the episode.
  Status write(size_t num_rows, bool ends) {
    std::vector<float> observations(num_rows + 1, 1.0f), cores(num_rows * kCore);
    std::vector<int32_t> numbers(num_rows);
    for (size_t row = 0; row < num_rows; ++row) {
      numbers[row] = static_cast<int32_t>(keys.size() + row);
      for (size_t at = 0; at < kCore; ++at) cores[row * kCore + at] = static_cast<float>(numbers[row] * 100 + at);
    }
    std::vector<uint8_t> terminated(num_rows, 0);
    terminated.back() = ends ? 1 : 0;
    StepBlock block;
    block.num_rows = num_rows;
    block.num_lanes = 1;
    const auto cells = [](const auto& values, size_t each) {
      return Cells{reinterpret_cast<const std::byte*>(values.data()), static_cast<int64_t>(each * sizeof values[0]), 0};
    };
    if (has_state) block.columns.push_back(cells(observations, 1));
    block.columns.push_back(cells(numbers, 1));
    block.columns.push_back(cells(cores, kCore));
    block.terminated = cells(terminated, 1);
    std::vector<int64_t> written(num_rows, -1);
    const Status status = writer->write(block, 1.0, written.data());
    keys.insert(keys.end(), written.begin(), written.end());
    return status;
  }
  Status end(Way way) {
    if (way == Way::kRow || way == Way::kBlock) return write(way == Way::kRow ? 1 : 12, true);
    if (way == Way::kClose) return writer->close();
    StepBlock block;
    block.num_lanes = 1;
    const std::vector<float> next(1, 1.0f);
    if (has_state) {
      block.has_next = true;
      block.next.assign(3, Cells{reinterpret_cast<const std::byte*>(next.data()), 0, 0});
    }
    return writer->end_episode(block, false, 1.0);
  }

  // Checks that every item of an index has the start value of its first row. Returns the number of items.
  size_t verify(uint32_t index) const {
    GatherPlan plan;
    CHECK(relive::make_plan(*table, index, {"number", "core", "mask"}, &plan).ok());
    const SequenceConfig& sequence = table->region().header->indexes[index].sequence;
    const size_t rows = sequence.num_rows(), count = keys.size();
    std::vector<int32_t> numbers(count * rows);
    std::vector<float> cores(count * kCore);
    std::vector<uint8_t> mask(count * rows), present(count);
    std::byte* out[] = {reinterpret_cast<std::byte*>(numbers.data()), reinterpret_cast<std::byte*>(cores.data()),
                        reinterpret_cast<std::byte*>(mask.data())};
    CHECK(relive::gather(*table, plan, keys.data(), count, out, present.data()).ok());
    size_t found = 0;
    for (size_t k = 0; k < count; ++k) {
      if (!present[k]) continue;
      ++found;
      size_t first = 0;
      while (first < rows && !mask[k * rows + first]) ++first;
      CHECK(first < rows);
      for (size_t at = 0; at < kCore; ++at)
        CHECK_EQ(cores[k * kCore + at], static_cast<float>(numbers[k * rows + first] * 100 + at));
    }
    return found;
  }
  size_t verify() const {
    const Status checked = relive::check(*table);
    if (!checked.ok()) harness::fail(__FILE__, __LINE__, checked.fields()[0].text);
    size_t found = 0;
    for (uint32_t i = 0; i < table->region().num_indexes; ++i) found += verify(i);
    return found;
  }
};

constexpr Way kWays[] = {Way::kRow, Way::kBlock, Way::kEnd, Way::kClose};

// The call that ends the episode dies at each of its stores.
void test_deaths(bool has_state, Shape shape, Way way) {
  int deaths = 0, named = 0;
  // The window that is moved back begins at a row where no other window begins, if possible on a page that was full
  // before.
  const size_t steps = way == Way::kRow ? 23 : way == Way::kClose && has_state ? 25 : 24;
  for (uint32_t point = 0; point < static_cast<uint32_t>(testing::FailPoint::kCount); ++point) {
    if (!has_way_out(static_cast<testing::FailPoint>(point))) continue;
    for (int passages = 1; passages < 12; ++passages) {
      World world(has_state, shape, 60);
      CHECK(world.write(25, true).ok());
      CHECK(world.write(steps, false).ok());
      if (!dies_at(point, passages, [&] { (void)world.end(way); })) break;
      ++deaths;
      named += static_cast<testing::FailPoint>(point) == testing::FailPoint::cell_named ? 1 : 0;
      recover_all(*world.table);
      CHECK(relive::check(*world.table).ok());
      end_writers(*world.table);
      std::erase(world.keys, -1);
      CHECK(world.verify() > 0);
      // The free cells go to other rows afterwards, and no item may have used them.
      std::unique_ptr<Writer> dead = std::move(world.writer);
      CHECK(Writer::open(world.table.get(), 1, &world.writer).ok());
      CHECK(world.write(30, true).ok());
      CHECK(world.verify() > 0);
    }
  }
  CHECK(deaths > 3);
  // A cut episode is no item. If the window begins with the rows that end it, no other row names the cell.
  const bool is_none = shape == Shape::kTail && way == Way::kClose;
  if (is_none) CHECK_EQ(named, 0);
  if (!is_none && (shape != Shape::kTail || way != Way::kBlock)) CHECK(named > 0);
}

}  // namespace

TEST(each_way_to_end_gives_the_window_its_value) {
  testing::broken_promise_hook = [](const char* what) { harness::fail(__FILE__, __LINE__, what); };
  for (const bool has_state : {false, true})
    for (const Shape shape : {Shape::kShift, Shape::kTail, Shape::kBoth})
      for (const Way way : kWays)
        for (size_t steps = 1; steps < 30; ++steps) {
          World world(has_state, shape, 60);
          for (size_t step = 0; step < steps; ++step) CHECK(world.write(1, false).ok());
          const size_t before = world.verify();
          CHECK(world.end(way).ok());
          const size_t after = world.verify();
          const bool is_cut = way == Way::kClose;
          if (!is_cut) CHECK(after > before);
          if (is_cut && shape == Shape::kTail) CHECK_EQ(after, 0u);
        }
  testing::broken_promise_hook = nullptr;
}

TEST(a_death_at_any_store_leaves_no_item_without_its_value) {
  for (const bool has_state : {false, true})
    for (const Shape shape : {Shape::kShift, Shape::kTail, Shape::kBoth})
      for (const Way way : kWays) test_deaths(has_state, shape, way);
}

TEST(a_dead_writers_last_window_is_none) {
  for (const bool has_state : {false, true}) {
    World world(has_state, Shape::kShift, 60);
    CHECK(world.write(22, false).ok());
    const size_t before = world.verify();
    end_writers(*world.table);
    CHECK_EQ(world.verify(), before);
  }
}

// The signal arrives while close() waits to take a cell for the window that it moves back. close() reports it, and the
// second close() succeeds.
TEST(a_signal_before_the_cut_is_reported) {
  static std::atomic<int> asked;
  asked = 0;
  World world(true, Shape::kShift, 60);
  CHECK(world.write(25, false).ok());
  Code code = Code::kOk;
  {
    Locked locked(world.table->door(), Deadline::after(60.0));
    CHECK(locked.status().ok());
    interrupt_hook = [] { return asked.fetch_add(1) == 0; };
    std::thread closing([&] { code = world.writer->close().code(); });
    while (asked == 0) std::this_thread::yield();
    locked.release();
    closing.join();
  }
  interrupt_hook = nullptr;
  CHECK(code == Code::kInterrupted && !world.writer->is_closed());
  CHECK(world.writer->close().ok());
  CHECK(world.verify() > 0);
}

TEST_MAIN()
