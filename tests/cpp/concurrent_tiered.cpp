// The workers of concurrent.cpp on a table that keeps only a few pages in memory: every window is verified in every
// byte while pages are spilled, read, evicted, moved and deleted. The page file lies in TMPDIR, or else in /tmp.
// RELIVE_WITHOUT=rule switches one rule off; the programme must then fail (docs/design/tiers.md lists the rules that
// were tried).
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <new>

#include "concurrent_rig.hpp"
#include "relive/pages/pins.hpp"
#include "relive/table/tiered.hpp"
#include "stress_saver.hpp"

using namespace stress;

namespace {

// Every n-th allocation of a thread that is not a caller fails. 0: none fails.
std::atomic<uint32_t> fails_every{0};
std::atomic<uint64_t> num_allocations{0}, num_failed{0};

bool fails() {
  const uint32_t every = fails_every.load();
  if (every == 0 || is_caller || num_allocations.fetch_add(1) % every != 0) return false;
  num_failed.fetch_add(1);
  return true;
}

}  // namespace

void* operator new(size_t num_bytes) {
  void* const memory = fails() ? nullptr : std::malloc(num_bytes > 0 ? num_bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// As the library's sorts allocate. These allocations never fail here.
void* operator new(size_t num_bytes, const std::nothrow_t&) noexcept {
  return std::malloc(num_bytes > 0 ? num_bytes : 1);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }

namespace {

constexpr uint64_t kFrames = 30;  // two for each open lane, and some more

Options tiered_options(bool large_rows) {
  Options options;
  options.capacity = 300;
  options.large_rows = large_rows;
  const char* folder = std::getenv("TMPDIR");
  options.tier.directory = folder == nullptr ? "/tmp" : folder;
  options.tier.num_io_threads = 3;
  options.tier.staging_fraction = 0.1;
  options.tier.ram_bytes = kFrames * (large_rows ? 8 * 73728 : 3 * 4096);
  const char* without = std::getenv("RELIVE_WITHOUT");
  for (uint32_t rule = 0; without != nullptr && rule < static_cast<uint32_t>(testing::Rule::kCount); ++rule)
    if (std::strcmp(without, testing::rule_name(rule)) == 0) testing::rule_switched_off[rule] = true;
  return options;
}

// All workers at once, and a thread that spills every closed page.
void run_spilling(const Options& options) {
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<SamplerWorker>();
  rig.start<UpdaterWorker>();
  rig.start<CheckerWorker>();
  if (options.late) rig.start<CompleterWorker>();
  if (options.saves) rig.start<SaverWorker>();
  const double end = now_s() + seconds();
  uint64_t spilled = 0;
  const auto all_seen = [&] {
    TierStats stats;
    CHECK(relive::tier_stats(*rig.table, &stats).ok());
    const bool has_saves = rig.control->saves_loaded.load() > 5 && rig.control->images_kept.load() > 0;
    return spilled > 10 && stats.bytes_read > 0 && stats.units_wanted > 100 && (has_saves || !options.saves);
  };
  while (rig.goes_on(end, all_seen)) {
    uint64_t count = 0;
    CHECK(relive::spill_all_pages(*rig.table, &count).ok());
    spilled += count;
    usleep(2000);
  }
  CHECK(all_seen());
  rig.finish();
  TierStats stats;
  CHECK(relive::tier_stats(*rig.table, &stats).ok());
  CHECK(spilled > 10 && stats.bytes_read > 0 && stats.units_wanted > 100 && stats.disk_errors == 0);
}

// Plans batches and gathers them later, cancels or drops half of them, while all other workers run.
void plan_and_gather(Table& table, const std::atomic<bool>& is_over, std::atomic<uint64_t>* gathered) {
  constexpr size_t kItems = 16;
  GatherPlan plan;
  CHECK(relive::make_plan(table, 0, {"state", "next_picture", "step"}, &plan).ok());
  std::vector<std::vector<std::byte>> memory;
  std::vector<std::byte*> out;
  for (const Output& output : plan.outputs) memory.emplace_back(output.item_bytes * kItems);
  for (std::vector<std::byte>& one : memory) out.push_back(one.data());
  for (uint32_t round = 0; !is_over.load(); ++round) {
    std::vector<std::unique_ptr<PlannedBatch>> batches;
    for (int ahead = 0; ahead < 4; ++ahead) {
      std::unique_ptr<PlannedBatch> batch;
      if (StagedReader(table).plan_batch(plan, kItems, nullptr, 0.05, &batch).ok()) batches.push_back(std::move(batch));
    }
    for (size_t k = 0; k < batches.size(); ++k) {
      PlannedBatch& batch = *batches[k];
      if ((round + k) % 4 == 0) batch.cancel();
      const bool is_dropped = (round + k) % 4 == 1;
      const Status status =
          is_dropped ? Status() : StagedReader(table).gather_batch(batch, plan, out.data(), nullptr, 1.0);
      if (is_dropped) StagedReader(table).drop_batch(batch);
      if (status.ok() && !is_dropped) {
        CHECK(relive::commit_held(table, 0, batch.num_held).ok());
        gathered->fetch_add(1);
      } else {
        CHECK(is_dropped || status.code() == Code::kInterrupted || status.code() == Code::kDeadlineExceeded);
        CHECK(relive::return_held(table, 0, batch.num_held).ok());
      }
    }
  }
}

}  // namespace

TEST(small_rows_on_disk) { run_spilling(tiered_options(false)); }

TEST(large_rows_on_disk) { run_spilling(tiered_options(true)); }

// Each save is loaded into memory, or as a table that keeps only a few pages in memory.
TEST(saves_of_pages_on_disk) {
  for (const bool is_late : {false, true}) {
    Options options = tiered_options(false);
    options.saves = true;
    options.late = options.two_indexes = is_late;
    run_spilling(options);
  }
}

TEST(saves_of_start_values_on_disk) {
  Options options = tiered_options(false);
  options.saves = true;
  options.sequences = "shift";
  run_spilling(options);
}

TEST(use_counts_on_disk) {
  Options options = tiered_options(false);
  options.max_times = 3;
  run_spilling(options);
}

TEST(short_lanes_on_disk) {
  Options options = tiered_options(true);
  options.short_lanes = true;
  run_spilling(options);
}

// Every gather pins all pages: no spill may finish at the same time.
TEST(pages_on_disk_are_pinned) {
  Options options = tiered_options(false);
  options.rounds = 0;
  run_spilling(options);
}

// A page that is being written when all pages are pinned stays in memory, and the write has no effect.
TEST(a_spill_does_not_finish_while_pages_are_pinned) {
  ThreadRig rig(tiered_options(false));
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.run();
  Door& door = rig.table->door();
  const Region& r = rig.table->region();
  Leaving leaving[4];
  {
    Locked locked(door, Deadline::after(1.0));
    const size_t count = pick_for_spill(locked.held(), 4, leaving);
    CHECK(count > 0);
    pin_all_pages(locked.held(), door.me);
    for (size_t k = count; k-- > 0;) {
      CHECK(!finish_spill(locked.held(), leaving[k]));
      CHECK(r.bulk.place(leaving[k].page).kind == BulkKind::kRam);
    }
    CHECK_EQ(pick_for_spill(locked.held(), 4, leaving), 0u);
    unpin_all_pages(locked.held(), door.me, 1);
    CHECK(pick_for_spill(locked.held(), 1, leaving) == 1 && finish_spill(locked.held(), leaving[0]));
    CHECK(r.bulk.place(leaving[0].page).kind == BulkKind::kDisk);
  }
  CHECK(relive::check(*rig.table).ok());
}

TEST(planned_batches_with_all_other_workers) {
  Options options = tiered_options(true);
  options.max_times = 2;
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<UpdaterWorker>();
  rig.start<CheckerWorker>();
  std::atomic<bool> is_over{false};
  std::atomic<uint64_t> gathered{0};
  std::thread planner([&] { plan_and_gather(*rig.table, is_over, &gathered); });
  const double end = now_s() + seconds();
  while (rig.goes_on(end, [&] { return gathered.load() > 0; })) usleep(10000);
  is_over.store(true);
  planner.join();
  rig.finish();
  CHECK(gathered.load() > 0);
}

TEST(a_disk_that_fails_now_and_then_loses_nothing) {
  Options options = tiered_options(false);
  options.disk_fails = true;
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<CheckerWorker>();
  const double end = now_s() + seconds();
  const auto has_failed = [&] {
    TierStats stats;
    CHECK(relive::tier_stats(*rig.table, &stats).ok());
    return stats.disk_errors > 0;
  };
  for (int round = 0; rig.goes_on(end, has_failed); ++round) {
    relive::fail_disk(*rig.table, 0, round % 2 == 0 ? ENOSPC : 0);
    usleep(20000);
    uint64_t count = 0;
    (void)relive::spill_all_pages(*rig.table, &count);
  }
  relive::fail_disk(*rig.table, 0, 0);
  rig.finish();
  TierStats stats;
  CHECK(relive::tier_stats(*rig.table, &stats).ok());
  CHECK(stats.disk_errors > 0);
}

// The reading threads and the spilling thread have no caller to throw at.
TEST(threads_of_a_tier_without_memory_lose_nothing) {
  for (const uint32_t every : {1u, 2u, 3u, 7u}) {
    Options options = tiered_options(every == 3);
    options.disk_fails = true;
    ThreadRig rig(options);
    num_failed.store(0);
    fails_every.store(every);
    rig.start<WriterWorker>();
    rig.start<SamplerWorker>();
    rig.start<CheckerWorker>();
    const double end = now_s() + seconds() / 4;
    const Control& seen = *rig.control;
    const auto all_seen = [&seen] {
      return num_failed.load() > 10 && seen.windows.load() > 0 && seen.steps.load() > 0;
    };
    for (int round = 0; rig.goes_on(end, all_seen); ++round) {
      // On a busy machine a sampler may need more than one of these rounds for a window: at last memory stays.
      const bool has_memory = round % 3 == 2 || (now_s() > end && num_failed.load() > 10);
      fails_every.store(has_memory ? 0 : every);
      uint64_t count = 0;
      (void)relive::spill_all_pages(*rig.table, &count);  // by this thread, which has memory
      usleep(5000);
    }
    CHECK(num_failed.load() > 10);
    fails_every.store(0);
    rig.finish();
  }
}

TEST(close_ends_a_gather_and_leaves_no_file) {
  namespace fs = std::filesystem;
  Options options = tiered_options(false);
  const fs::path folder = fs::path(options.tier.directory) / ("relive-test-" + std::to_string(getpid()));
  fs::create_directory(folder);
  options.tier.directory = folder.string();
  {
    ThreadRig rig(options);
    CHECK(fs::is_empty(folder));
    CHECK(rig.table->close().ok());
    CHECK(rig.table->close().ok());
  }
  CHECK(fs::is_empty(folder));
  fs::remove(folder);
}

TEST_MAIN()
