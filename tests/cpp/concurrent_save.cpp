// The workers of concurrent.cpp beside a thread that saves their table again and again, and verifies each save.
// RELIVE_WITHOUT=rule switches one rule off; the programme must then fail.
#include "concurrent_rig.hpp"
#include "stress_saver.hpp"

using namespace stress;

namespace {

void run_saving(Options options) {
  options.capacity = 300;
  options.saves = true;
  const char* without = std::getenv("RELIVE_WITHOUT");
  for (uint32_t rule = 0; without != nullptr && rule < static_cast<uint32_t>(testing::Rule::kCount); ++rule)
    if (std::strcmp(without, testing::rule_name(rule)) == 0) testing::rule_switched_off[rule] = true;
  testing::copy_hook = [](bool) { usleep(20); };  // the heads of a page, its rows, and their end are apart
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<UpdaterWorker>();
  if (options.late) rig.start<CompleterWorker>();
  if (options.explicit_items) rig.start<InserterWorker>();
  rig.start<SaverWorker>();
  const auto all_seen = [&rig] { return rig.control->saves_loaded.load() > 5 && rig.control->images_kept.load() > 0; };
  rig.run(all_seen);
  testing::copy_hook = nullptr;
  CHECK(all_seen());
}

}  // namespace

TEST(saves_beside_writers) { run_saving(Options{}); }

TEST(saves_of_late_columns) {
  Options options;
  options.late = options.two_indexes = true;
  run_saving(options);
}

TEST(saves_without_state_columns) {
  Options options;
  options.stateless = options.short_lanes = true;
  run_saving(options);
}

TEST(saves_of_sequences_with_start_values) {
  Options options;
  options.sequences = "shift";
  run_saving(options);
}

TEST(saves_of_explicit_items_and_groups) {
  Options options;
  options.explicit_items = options.groups = options.abandons = true;
  run_saving(options);
}

TEST_MAIN()
