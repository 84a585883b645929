// Files that stay after the last close (rule J7): which of them are believed, and what a close leaves.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "relive/index/leaf_areas.hpp"
#include "save_rig.hpp"

using namespace relive;
using namespace rig;

namespace {

namespace fs = std::filesystem;

// A folder that is gone at the end.
struct Folder {
  Folder() {
    uint64_t number = 0;
    random_bytes(&number, sizeof number);
    path = fs::temp_directory_path() / ("relive-kept-" + std::to_string(number));
    fs::create_directory(path);
  }
  ~Folder() { fs::remove_all(path); }
  std::string file(const char* name) const { return path / name; }
  fs::path path;
};

TableConfig kept_config(const IndexSpec& index = {}) {
  Spec spec;
  spec.capacity = 150;
  spec.num_lanes = 2;
  spec.has_state = true;
  spec.indexes = {index};
  TableConfig config = make_config(spec);
  config.keeps_file = true;
  return config;
}

std::unique_ptr<Table> made(const std::string& path, int rows) {
  std::unique_ptr<Table> table;
  CHECK(Table::create(kept_config(), path, &table).ok());
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(table.get(), 2, &writer).ok());
  std::mt19937_64 random(5);
  feed(*table, *writer, rows, random);
  return table;
}

Status attached(const std::string& path, std::unique_ptr<Table>* table) {
  return Table::attach(path, Access::kReadWrite, {}, 1.0, table);
}

uint64_t steps_in(const Table& table) { return table.region().header->live_steps.load(); }

void write_at(const std::string& path, size_t at, const std::string& bytes) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(at));
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

bool is_lost_file(const std::string& path) {
  Probe probe;
  CHECK(probe_region(path, &probe).ok());
  return probe.is_lost;
}

}  // namespace

TEST(a_file_stays_and_is_opened_again) {
  const Folder folder;
  const std::string path = folder.file("region");
  const uint64_t steps = steps_in(*made(path, 40));  // closed at once
  CHECK(fs::exists(path));
  std::unique_ptr<Table> table;
  CHECK(attached(path, &table).ok());
  CHECK_EQ(steps_in(*table), steps);
  CHECK_EQ(table->region().header->clean.load(), 0u);
  table->region().header->keeps_file.store(0);
  CHECK(table->close().ok());
  CHECK(!fs::exists(path));
}

TEST(a_file_of_another_boot_or_a_copy_is_believed_if_it_is_clean) {
  const Folder folder;
  const std::string path = folder.file("region"), copy = folder.file("copy");
  std::unique_ptr<Table> table = made(path, 40), other;
  fs::copy_file(path, copy);  // while it is in use
  CHECK(is_lost_file(copy));
  CHECK(attached(copy, &other).code() == Code::kNotARegion);
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J7_boot)] = true;
  CHECK(!is_lost_file(copy));
  testing::rule_switched_off[static_cast<uint32_t>(testing::Rule::J7_boot)] = false;
  CHECK(table->close().ok());
  const std::string second = folder.file("second");
  fs::copy_file(path, second);
  write_at(second, offsetof(Header, boot_id), std::string(sizeof(Header::boot_id), 'b'));
  CHECK(!is_lost_file(second));
  CHECK(attached(second, &other).ok());
  CHECK(std::string(other->region().header->boot_id) == boot_id());
  fs::copy_file(second, folder.file("third"));
  CHECK(is_lost_file(folder.file("third")));
  CHECK(other->close().ok());
}

TEST(waits_of_another_boot_go_on) {
  const Folder folder;
  const std::string path = folder.file("region");
  IndexSpec index;
  index.prioritized = true;
  index.initial = Initial::kGiven;
  TableConfig config = kept_config(index);
  config.indexes[0].max_wait_s = 1000.0;
  set_clock_ahead(5000.0);
  std::unique_ptr<Table> table;
  CHECK(Table::create(config, path, &table).ok());
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(table.get(), 2, &writer).ok());
  std::mt19937_64 random(5);
  feed(*table, *writer, 20, random);
  writer.reset();
  CHECK(table->close().ok());
  write_at(path, offsetof(Header, boot_id), std::string(sizeof(Header::boot_id), 'b'));
  set_clock_ahead(0.0);  // the clock of a new boot begins at 0
  CHECK(attached(path, &table).ok());
  size_t num_waiting = 0;
  for (const LeafArea& area : leaf_areas(table->region(), 0)) {
    if (std::string(area.name) != kWaitsArea) continue;
    const auto* const since = reinterpret_cast<const double*>(area.at);
    for (uint64_t slot = 0; slot < table->region().geometry->num_slots; ++slot)
      if (std::isfinite(since[slot]) && since[slot] >= 0.0) {
        ++num_waiting;
        CHECK(since[slot] <= clock_s() && since[slot] >= clock_s() - 100.0);
      }
  }
  CHECK(num_waiting > 0);
  CHECK(table->close().ok());
}

TEST(a_damaged_word_is_named) {
  const Folder folder;
  const std::string path = folder.file("region");
  size_t frames_at = 0;
  {
    const std::unique_ptr<Table> table = made(path, 40);
    frames_at = table->region().geometry->frames_offset;
  }
  write_at(path, frames_at, std::string(4, '\x7f'));
  std::unique_ptr<Table> table;
  CHECK(attached(path, &table).code() == Code::kNotARegion);
}

TEST_MAIN()
