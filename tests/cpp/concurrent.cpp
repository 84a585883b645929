// Threads on one LocalMemory table: every window is verified in every byte while pages are evicted, moved and deleted.
// Runs in ctest and under the sanitizers. stress.cpp has longer runs and other processes.
#include <thread>

#include "concurrent_rig.hpp"

using namespace stress;

TEST(prioritized) { run_all_workers(Options{}); }

TEST(uniform) {
  Options options;
  options.uniform = true;
  run_all_workers(options);
}

TEST(use_counts) {
  Options options;
  options.max_times = 3;
  run_all_workers(options);
}

// Every draw and every gather pins all pages and reads the rows that it has chosen: none of them may be gone.
TEST(pages_are_pinned) {
  Options options;
  options.rounds = 0;
  run_all_workers(options);
  options.max_times = 3;
  run_all_workers(options);
}

TEST(windows_over_many_pages) {
  Options options;
  options.n_step = 20;
  options.stack = 12;
  options.two_indexes = true;
  run_all_workers(options);
}

TEST(no_state_columns_and_each_item_once) {
  Options options;
  options.stateless = true;
  options.n_step = 6;
  options.max_times = 1;
  run_all_workers(options);
}

TEST(short_lanes) {
  Options options;
  options.short_lanes = true;
  run_all_workers(options);
}

TEST(short_lanes_without_state_columns) {
  Options options;
  options.short_lanes = options.stateless = true;
  options.n_step = 20;
  run_all_workers(options);
}

TEST(explicit_items) {
  Options options;
  options.explicit_items = true;
  run_all_workers(options);
}

TEST(explicit_items_each_a_few_times) {
  Options options;
  options.explicit_items = options.stateless = true;
  options.max_times = 3;
  run_all_workers(options);
}

TEST(samples_per_insert) {
  Options options;
  options.samples_per_insert = 8.0;
  run_all_workers(options);
}

TEST(every_page_to_another_frame_while_samplers_run) {
  Options options;
  options.capacity = 2000;
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<SamplerWorker>();
  const double end = now_s() + seconds();
  uint64_t moved = 0, rounds = 0;
  while (now_s() < end && rig.control->num_bad() == 0) {
    uint64_t count = 0;
    CHECK(relive::move_all_pages(*rig.table, &count).ok());
    moved += count;
    ++rounds;
    usleep(500);
  }
  rig.finish();
  CHECK(rounds > 1 && moved > 100);
}

TEST(threads_share_one_writer) {
  Options options;
  ThreadRig rig(options);
  std::unique_ptr<Writer> writer;
  CHECK(Writer::open(rig.table.get(), 2, &writer).ok());
  const Region& r = rig.table->region();
  std::vector<std::vector<int64_t>> keys(2);
  std::vector<std::thread> threads;
  for (int32_t lane = 0; lane < 2; ++lane) {
    threads.emplace_back([&, lane] {
      std::vector<std::byte> cell(4096);
      StepBlock block;
      block.num_rows = block.num_lanes = 1;
      block.lanes = &lane;
      block.columns.assign(r.geometry->num_columns, Cells{cell.data(), 0, 0});
      block.next.resize(r.geometry->num_columns);
      for (int step = 0; step < 300; ++step) {
        int64_t key = 0;
        if (!writer->write(block, 10.0, &key).ok()) harness::fail(__FILE__, __LINE__, "a write was refused");
        keys[static_cast<size_t>(lane)].push_back(key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(relive::num_steps(*rig.table), 600u);
  std::sort(keys[0].begin(), keys[0].end());
  for (int64_t key : keys[1]) CHECK(!std::binary_search(keys[0].begin(), keys[0].end(), key));
  CHECK(writer->close().ok());
  CHECK(relive::check(*rig.table).ok());
}

TEST(close_ends_a_wait) {
  ThreadRig rig(Options{});
  std::atomic<uint32_t> code{0};
  std::thread waiter([&] {
    int64_t keys[4];
    double probabilities[4];
    DrawRequest request;
    request.num_items = 4;
    request.keys = keys;
    request.probabilities = probabilities;
    code.store(static_cast<uint32_t>(relive::sample(*rig.table, request, 30.0).code()));
  });
  usleep(30000);
  const double begin = now_s();
  CHECK(rig.table->close().ok());
  waiter.join();
  CHECK(now_s() - begin < 10.0);
  CHECK_EQ(code.load(), static_cast<uint32_t>(Code::kTableClosed));
}

TEST_MAIN()
