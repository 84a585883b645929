// Bounds of one critical section (rule C3): the number of lanes that are cut and of episodes that end, in every call,
// and that waiting calls get the lock in between. A hook of the test build sees critical sections; no test depends on a
// clock.
#include <array>

#include "core_rig.hpp"
#include "processes.hpp"

using namespace rig;

namespace {

// Lanes cut, and rows or ends of episodes committed, in critical sections of this process since the last read.
struct Seen {
  uint32_t sections = 0, cut = 0, ended = 0, most_cut = 0, most_ended = 0, written = 0, written_in_section = 0;
};
Seen seen;
uint32_t cut_now = 0, ended_now = 0;
bool is_in_section = false;

void on_section(bool begins) {
  is_in_section = begins;
  if (begins) {
    ++seen.sections;
    cut_now = ended_now = 0;
    return;
  }
  seen.most_cut = std::max(seen.most_cut, cut_now);
  seen.most_ended = std::max(seen.most_ended, ended_now);
}

void on_point(testing::FailPoint point) {
  if (point == testing::FailPoint::close_lane) ++seen.cut, ++cut_now;
  if (point == testing::FailPoint::commit_begin) ++seen.ended, ++ended_now;
  if (point == testing::FailPoint::cells_written) ++(is_in_section ? seen.written_in_section : seen.written);
}

struct Watched {
  Watched() {
    seen = Seen{};
    testing::section_hook = on_section;
    testing::fail_point_hook = on_point;
  }
  ~Watched() {
    testing::section_hook = nullptr;
    testing::fail_point_hook = nullptr;
  }
};

constexpr uint32_t kLanes = 300;
constexpr uint32_t kShare = 64;

Spec many_lanes() {
  Spec spec;
  spec.capacity = 8000;
  spec.max_lanes = kLanes;
  spec.num_lanes = kLanes;
  spec.indexes = {{.n_step = 3}, {.n_step = 2, .prioritized = true}};
  return spec;
}

std::string shared_path(const char* name) {
  return "/dev/shm/relive-test-sections-" + std::string(name) + "-" + std::to_string(process_id());
}

const std::array<std::byte, 64> kZeros{};  // any cell of these tables

StepBlock zeros_for(const Writer& writer, const Region& r, size_t num_rows, bool has_next) {
  StepBlock block;
  block.num_rows = num_rows;
  block.num_lanes = writer.num_lanes();
  block.has_next = has_next;
  block.columns.assign(r.geometry->num_columns, Cells{kZeros.data(), 0, 0});
  if (has_next) block.next = block.columns;
  block.terminated = block.truncated = Cells{kZeros.data(), 0, 0};
  return block;
}

void write_rows(Writer& writer, const Region& r, size_t num_rows, bool has_next = true) {
  std::vector<int64_t> keys(num_rows * writer.num_lanes());
  CHECK(writer.write(zeros_for(writer, r, num_rows, has_next), 5.0, keys.data()).ok());
}

// A process that opens all lanes of the table, writes rows, calls `before`, and dies with its lanes open.
template <class Before>
void die_with_lanes(const std::string& path, Before&& before) {
  processes::Signal ready;
  const pid_t child = processes::spawn([&] {
    std::unique_ptr<Table> table;
    if (!Table::attach(path, Access::kReadWrite, std::nullopt, 5.0, &table).ok()) return 1;
    std::unique_ptr<Writer> writer;
    if (!Writer::open(table.get(), kLanes, &writer).ok()) return 2;
    write_rows(*writer, table->region(), 2);
    before(*table);
    ready.give();
    processes::sleep_s(60.0);
    return 3;
  });
  CHECK(ready.take());
  processes::kill_and_wait(child);
}

struct Shared {
  explicit Shared(const char* name) : path(shared_path(name)) {
    CHECK(Table::create(make_config(many_lanes()), path, &table).ok());
  }
  ~Shared() { CHECK(table->close().ok()); }
  uint32_t open_lanes() const {
    TableStats stats;
    CHECK(relive::stats(*table, &stats).ok());
    return static_cast<uint32_t>(stats.num_open_lanes);
  }
  std::string path;
  std::unique_ptr<Table> table;
};

void nothing(Table&) {}

}  // namespace

TEST(the_lanes_of_the_dead_are_cut_in_several_critical_sections) {
  Shared shared("sweep");
  die_with_lanes(shared.path, nothing);
  CHECK_EQ(shared.open_lanes(), kLanes);
  std::unique_ptr<Writer> writer;
  {
    const Watched watched;
    CHECK(Writer::open(shared.table.get(), kLanes, &writer).ok());
  }
  CHECK_EQ(seen.cut, kLanes);
  CHECK_EQ(seen.most_cut, kShare);
  CHECK(seen.sections >= kLanes / kShare + 1);
  CHECK(relive::check(*shared.table).ok());
  CHECK_EQ(shared.table->region().header->counters.swept.load(), 1u);
}

TEST(an_attach_sweeps_in_several_critical_sections) {
  Shared shared("attach");
  die_with_lanes(shared.path, nothing);
  std::unique_ptr<Table> other;
  {
    const Watched watched;
    CHECK(Table::attach(shared.path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
  }
  CHECK_EQ(seen.cut, kLanes);
  CHECK_EQ(seen.most_cut, kShare);
  CHECK_EQ(shared.open_lanes(), 0u);
  CHECK(other->close().ok());
}

TEST(recovery_leaves_the_sweep_to_the_next_critical_sections) {
  Shared shared("recover");
  die_with_lanes(shared.path, [](Table& table) {
    new Locked(table.door(), Deadline::after(5.0));  // never released: the process dies as the owner
  });
  const Watched watched;
  for (uint32_t section = 1; section <= kLanes / kShare + 1; ++section) {
    Locked locked(shared.table->door(), Deadline::after(5.0));
    CHECK(locked.status().ok());
    const uint32_t cut = seen.cut;
    CHECK_EQ(cut, section * kShare < kLanes ? section * kShare : kLanes);
  }
  CHECK_EQ(seen.most_cut, kShare);
  CHECK_EQ(shared.open_lanes(), 0u);
  CHECK(!shared.table->door().has_dead);
}

TEST(any_handle_continues_a_sweep_that_stopped_in_the_middle) {
  Shared shared("half");
  die_with_lanes(shared.path, nothing);
  uint32_t num_cut = 0;
  {
    Locked locked(shared.table->door(), Deadline::after(5.0));
    const Storage* storage = shared.table->door().storage.get();
    CHECK(!sweep(locked.held(), *storage, shared.table->door().me, &num_cut).is_done);
  }
  CHECK_EQ(num_cut, kShare);
  CHECK_EQ(shared.open_lanes(), kLanes - kShare);
  CHECK(relive::check(*shared.table).ok());
  TableStats stats;
  CHECK(relive::stats(*shared.table, &stats).ok());
  CHECK_EQ(stats.num_participants, 2u);  // its slot is free once its last lane is cut
  std::unique_ptr<Table> other;
  CHECK(Table::attach(shared.path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
  CHECK_EQ(shared.open_lanes(), 0u);
  CHECK(relive::check(*shared.table).ok());
  CHECK(other->close().ok());
}

TEST(a_closing_handle_ends_its_lanes_in_several_critical_sections) {
  Shared shared("close");
  std::unique_ptr<Table> other;
  CHECK(Table::attach(shared.path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(other.get(), kLanes, &writer).ok());
  write_rows(*writer, other->region(), 2);
  {
    const Watched watched;
    CHECK(other->close().ok());
  }
  CHECK_EQ(seen.cut, kLanes);
  CHECK_EQ(seen.most_cut, kShare);
  CHECK_EQ(shared.open_lanes(), 0u);
  CHECK(relive::check(*shared.table).ok());
}

TEST(a_closing_writer_cuts_its_lanes_in_several_critical_sections) {
  Rig rig(many_lanes());
  std::vector<int32_t> all;
  for (uint32_t m = 0; m < kLanes; ++m) all.push_back(static_cast<int32_t>(m));
  CHECK(rig.write(all, 2, std::vector<int>(2 * kLanes, 0), NextGiven::kYes) == Code::kOk);
  {
    const Watched watched;
    rig.close_writer();
  }
  CHECK_EQ(seen.cut, kLanes);
  CHECK_EQ(seen.most_cut, kShare);
  CHECK_EQ(seen.written_in_section, 0u);
  rig.verify();
}

TEST(the_lanes_of_a_dropped_writer_are_cut_in_several_critical_sections) {
  Shared shared("left");
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(shared.table.get(), kLanes, &writer).ok());
  write_rows(*writer, shared.table->region(), 2);
  {
    std::unique_ptr<Table> other;
    CHECK(Table::attach(shared.path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
    Locked locked(other->door(), Deadline::after(5.0));  // the dropped writer then does not get the lock
    CHECK(locked.status().ok());
    writer.reset();
  }
  CHECK_EQ(shared.open_lanes(), kLanes);
  {
    const Watched watched;
    CHECK(Writer::open(shared.table.get(), kLanes, &writer).ok());
  }
  CHECK_EQ(seen.cut, kLanes);
  CHECK_EQ(seen.most_cut, kShare);
  CHECK(relive::check(*shared.table).ok());
}

TEST(episodes_end_in_several_critical_sections) {
  Rig rig(many_lanes());
  std::vector<int32_t> all;
  for (uint32_t m = 0; m < kLanes; ++m) all.push_back(static_cast<int32_t>(m));
  CHECK(rig.write(all, 2, std::vector<int>(2 * kLanes, 0), NextGiven::kNo) == Code::kOk);
  {
    const Watched watched;
    CHECK(rig.end_episode(all, false, true) == Code::kOk);
  }
  CHECK_EQ(seen.ended, kLanes);
  CHECK_EQ(seen.most_ended, kShare);
  CHECK_EQ(seen.written, kLanes);  // the state after each last step
  CHECK_EQ(seen.written_in_section, 0u);
  rig.verify();
}

namespace {

Table* thief = nullptr;
std::unique_ptr<Locked> stolen;

// After the second critical section another handle has the lock, and keeps it.
void steal(testing::FailPoint point) {
  if (point != testing::FailPoint::commit_unlocked || seen.sections != 2 || stolen != nullptr) return;
  stolen = std::make_unique<Locked>(thief->door(), Deadline::after(5.0));
}

}  // namespace

// A call that meets its deadline between two critical sections has ended the first lanes. The next call ends the
// others.
TEST(an_end_of_episodes_that_met_its_deadline_continues) {
  Shared shared("again");
  std::unique_ptr<Table> other;
  CHECK(Table::attach(shared.path, Access::kReadWrite, std::nullopt, 5.0, &other).ok());
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(shared.table.get(), kLanes, &writer).ok());
  const Region& r = shared.table->region();
  for (int row = 0; row < 7; ++row)
    write_rows(*writer, r, 1, false);  // pages of 8: the end falls on the page's last row
  const StepBlock block = zeros_for(*writer, r, 1, true);
  uint32_t ended_first = 0;
  {
    const Watched watched;
    thief = other.get();
    testing::fail_point_hook = [](testing::FailPoint point) {
      on_point(point);
      steal(point);
    };
    const Status status = writer->end_episode(block, false, 0.0);
    CHECK(status.code() == Code::kDeadlineExceeded);
    CHECK(stolen != nullptr);
    ended_first = seen.ended;
    CHECK(ended_first > 0 && ended_first < kLanes);
  }
  const int64_t items_first = relive::num_items(*shared.table, 0);
  CHECK(items_first < 7 * kLanes);
  stolen.reset();
  CHECK(relive::check(*shared.table).ok());
  {
    const Watched watched;
    CHECK(writer->end_episode(block, false, 5.0).ok());
    CHECK_EQ(seen.ended, kLanes - ended_first);
    CHECK(writer->end_episode(block, false, 5.0).ok());  // none is open: nothing happens twice
    CHECK_EQ(seen.ended, kLanes - ended_first);
  }
  CHECK_EQ(relive::num_steps(*shared.table), 7u * kLanes);
  CHECK_EQ(relive::num_items(*shared.table, 0), int64_t{7} * kLanes);
  CHECK_EQ(r.header->index_state[0].inserted.load(), int64_t{7} * kLanes);
  CHECK(relive::check(*shared.table).ok());
  write_rows(*writer, r, 1);
  CHECK_EQ(relive::num_steps(*shared.table), 8u * kLanes);
  CHECK(relive::check(*shared.table).ok());
  CHECK(writer->close().ok());
  CHECK(other->close().ok());
}

namespace {

// Rows evicted in the critical sections of the watched table.
const Region* pressed = nullptr;
uint64_t evicted_at_begin = 0, most_evicted = 0;

void on_pressed_section(bool begins) {
  const uint64_t evicted = pressed->header->counters.evicted.load();
  if (begins) evicted_at_begin = evicted;
  most_evicted = std::max(most_evicted, evicted - evicted_at_begin);
}

}  // namespace

TEST(pool_pressure_takes_a_bounded_number_of_rows) {
  // Episodes of one step take two rows each, so this table runs out of pages before it is full. Each page has more rows
  // than one critical section may evict.
  Spec spec;
  spec.capacity = 40000;
  spec.max_lanes = spec.num_lanes = 1;
  Rig rig(spec);
  const Region& r = rig.table->region();
  CHECK(r.page_len > 4 * 256);
  const std::vector<uint8_t> ones(100, 1);
  std::vector<int64_t> keys(100);
  pressed = &r;
  most_evicted = 0;
  testing::section_hook = on_pressed_section;
  for (int round = 0; round < 500; ++round) {
    StepBlock block = zeros_for(*rig.writer, r, keys.size(), true);
    block.terminated = Cells{reinterpret_cast<const std::byte*>(ones.data()), 1, 0};
    CHECK(rig.writer->write(block, 5.0, keys.data()).ok());
  }
  testing::section_hook = nullptr;
  CHECK(r.header->counters.pool_pressure.load() > 0);
  CHECK(most_evicted > 100 && most_evicted <= 256 + 100);  // plus the rows for the commit of a block
  CHECK(relive::check(*rig.table).ok());
}

TEST_MAIN()
