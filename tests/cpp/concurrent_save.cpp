// The workers of concurrent.cpp beside a thread that saves their table again and again. Each save writes the pages that
// the one before it lacks, as a folder does. Each is loaded, and windows of the loaded table are verified in every byte.
// RELIVE_WITHOUT=rule switches one rule off; the programme must then fail.
#include "concurrent_rig.hpp"
#include "save_rig.hpp"

using namespace stress;

namespace {

class SaverWorker final : public Worker {
 public:
  using Worker::Worker;
  static inline std::atomic<uint64_t> num_loaded{0}, num_kept{0};  // saves; images of earlier saves in them

 private:
  static constexpr size_t kBatch = 32;
  static constexpr int kBatches = 12;  // of each index of a loaded table

  void step() override {
    rig::Save save;
    std::unique_ptr<Table> loaded;
    if (!make(&save)) return;
    const TableConfig config = rig::loading_config(make_config(options_), save, options_.capacity);
    const Status status = rig::load(config, save, &loaded);  // checks every invariant
    if (!status.ok()) return control_.found_violation(("a load: " + rig::text_of(status)).c_str());
    for (uint32_t i = 0; i < (options_.two_indexes ? 2 : 1); ++i) verify(*loaded, i);
    num_loaded.fetch_add(1);
  }

  // Saves the table. The images of this save, and of those before, are in images_.
  bool make(rig::Save* save) {
    std::vector<SavedImage> known;
    for (const auto& [page, image] : images_) known.push_back(image.note);
    Saver saver(table());
    if (!expect(saver.begin(known.data(), known.size()), "beginning a save")) return false;
    for (int round = 0; round < 2; ++round) {
      copy(saver);
      saver.next_round();
    }
    if (!expect(timed(10.0, "a cut", [&] { return saver.cut(Deadline::after(10.0)); }), "a cut")) return false;
    save->shape = rig::shape_of(table().region());
    save->areas = saver.areas();
    for (const SavedArea& area : saver.areas()) save->bytes.emplace_back(area.at, area.at + area.num_bytes());
    save->numbers = saver.numbers();
    save->num_steps = saver.num_steps();
    const std::vector<SavedImage> pages = saver.pages();
    usleep(static_cast<useconds_t>(random_.below(2000)));  // ends, late columns and priorities come after the cut
    const uint64_t copied = copy(saver);
    saver.end();
    for (const SavedImage& page : pages) {
      const auto image = images_.find(page.page);
      if (image == images_.end() || image->second.note.ref != page.ref ||
          (image->second.note.ticket != 0 && image->second.note.ticket != page.ticket)) {
        control_.found_violation("a page of the cut has no image");
        return false;
      }
      save->images[page.page] = image->second;
    }
    num_kept.fetch_add(pages.size() - std::min<uint64_t>(copied, pages.size()));
    return true;
  }

  // Copies the images of a round, or of the cut. Returns their number.
  uint64_t copy(Saver& saver) {
    std::vector<rig::KeptImage> got;
    rig::fill_round(saver, &got);
    for (rig::KeptImage& image : got) images_[image.note.page] = std::move(image);
    return got.size();
  }

  void verify(Table& loaded, uint32_t index) {
    Batch batch;
    if (!expect(batch.prepare(&loaded, index, kBatch, false), "planning")) return;
    for (int k = 0; k < kBatches; ++k) {
      int64_t live = 0;
      DrawRequest request;
      request.index = index;
      request.num_items = kBatch;
      request.num_live_items = &live;
      if (!batch.sample(loaded, request, 0.0).ok()) return;  // too few items, or they are used up
      for (size_t row = 0; row < kBatch; ++row) {
        Identity who;
        bool torn = false;
        const std::string wrong = batch.verify(row, &who, &torn);
        if (!wrong.empty()) control_.found_torn(("loaded: " + wrong).c_str());
      }
      control_.windows.fetch_add(kBatch);
    }
  }

  std::map<uint64_t, rig::KeptImage> images_;  // by page, the newest of each
};

void run_saving(Options options) {
  options.capacity = 300;
  const char* without = std::getenv("RELIVE_WITHOUT");
  for (uint32_t rule = 0; without != nullptr && rule < static_cast<uint32_t>(testing::Rule::kCount); ++rule)
    if (std::strcmp(without, testing::rule_name(rule)) == 0) testing::rule_switched_off[rule] = true;
  SaverWorker::num_loaded = SaverWorker::num_kept = 0;
  testing::copy_hook = [](bool) { usleep(20); };  // the heads of a page, its rows, and their end are apart
  ThreadRig rig(options);
  rig.start<WriterWorker>();
  rig.start<WriterWorker>();
  rig.start<SamplerWorker>();
  rig.start<UpdaterWorker>();
  if (options.late) rig.start<CompleterWorker>();
  if (options.explicit_items) rig.start<InserterWorker>();
  rig.start<SaverWorker>();
  rig.run([] { return SaverWorker::num_loaded.load() > 5 && SaverWorker::num_kept.load() > 0; });
  testing::copy_hook = nullptr;
  CHECK(SaverWorker::num_loaded.load() > 5 && SaverWorker::num_kept.load() > 0);
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
