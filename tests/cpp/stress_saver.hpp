// The saver of the stress programme saves the table again and again. Each save writes the pages that the one before it
// lacks, as a folder does. Each is loaded, and windows of the loaded table are verified in every byte.
#pragma once

#include "save_rig.hpp"
#include "stress_workers.hpp"

namespace stress {

class SaverWorker final : public Worker {
 public:
  using Worker::Worker;

 private:
  static constexpr size_t kBatch = 32;
  static constexpr int kBatches = 12;  // of each index of a loaded table

  // Fail points that this thread passes are those of a table of its own.
  struct Apart {
    Apart() { is_apart = true; }
    ~Apart() { is_apart = false; }
  };

  void step() override {
    rig::Save save;
    if (!make(&save)) return;
    const Apart apart;
    std::unique_ptr<Table> loaded;
    TableConfig config = make_config(options_);
    if (random_.below(2) == 0) config.tier = TierConfig();
    config = rig::loading_config(config, save, options_.capacity);
    const Status status = rig::load(config, save, &loaded);  // checks every invariant
    if (!status.ok()) return control_.found_violation(("a load: " + rig::text_of(status)).c_str());
    for (uint32_t i = 0; i < (options_.two_indexes ? 2 : 1); ++i) verify(*loaded, i);
    verify_ends(loaded->region());
    control_.saves_loaded.fetch_add(1);
  }

  // Saves the table. The images of this save, and of those before, are in images_.
  bool make(rig::Save* save) {
    std::vector<SavedImage> known;
    for (const auto& [page, image] : images_) known.push_back(image.note);
    Saver saver(table());
    if (!expect(saver.begin(known.data(), known.size()), "beginning a save")) return false;
    for (int round = 0; round < 2; ++round) {
      if (copy(saver) < 0) return false;
      saver.next_round();
    }
    if (!expect(timed(10.0, "a cut", [&] { return saver.cut(Deadline::after(10.0)); }), "a cut")) return false;
    cut_s_ = now_s();
    save->shape = rig::shape_of(table().region());
    save->areas = saver.areas();
    for (const SavedArea& area : saver.areas()) save->bytes.emplace_back(area.at, area.at + area.num_bytes());
    save->numbers = saver.numbers();
    save->num_steps = saver.num_steps();
    const std::vector<SavedImage> pages = saver.pages();
    usleep(static_cast<useconds_t>(random_.below(2000)));  // ends, late columns and priorities come after the cut
    const int64_t copied = copy(saver);
    saver.end();
    if (copied < 0) return false;
    for (const SavedImage& page : pages) {
      const auto image = images_.find(page.page);
      if (image == images_.end() || image->second.note.ref != page.ref ||
          (image->second.note.ticket != 0 && image->second.note.ticket != page.ticket)) {
        control_.found_violation("a page of the cut has no image");
        return false;
      }
      save->images[page.page] = image->second;
    }
    control_.images_kept.fetch_add(pages.size() - std::min<uint64_t>(static_cast<uint64_t>(copied), pages.size()));
    return true;
  }

  // Copies the images of a round, or of the cut. Returns their number; -1: the disk of a tiered table fails.
  int64_t copy(Saver& saver) {
    std::vector<rig::KeptImage> got;
    if (!expect(rig::fill_round(saver, &got), "copying pages")) return -1;
    for (rig::KeptImage& image : got) images_[image.note.page] = std::move(image);
    return static_cast<int64_t>(got.size());
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
        Identity identity;
        bool torn = false;
        const std::string wrong = batch.verify(row, &identity, &torn);
        if (!wrong.empty()) control_.found_torn(("loaded: " + wrong).c_str());
      }
      control_.windows.fetch_add(kBatch);
    }
  }

  // An end that came after its row is in the save only if it came before the cut.
  void verify_ends(const Region& r) {
    if (r.bulk) return;  // the names of steps may be on disk
    const ColumnLayout& step = r.columns[2];
    for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
      if (!Region::is_used(r.words[page].load())) continue;
      const Range range = Range::unpack(r.pages[page].range.load());
      for (uint32_t offset = range.step_begin; offset < range.step_end; ++offset) {
        if (r.is_tail(page, offset) || (r.head_of(r.slot_of(page, offset)).load() & kTerminatedBit) == 0) continue;
        const std::byte* const cell = r.page_base(page) + step.offset + offset * step.stride;
        Identity identity;
        std::memcpy(&identity.tag, cell, 8);
        std::memcpy(&identity.episode, cell + 8, 4);
        if (control_.ended_after(identity.tag, identity.episode, cut_s_))
          control_.found_violation("loaded: an end that came after the cut");
      }
    }
  }

  std::map<uint64_t, rig::KeptImage> images_;  // by page, the newest of each
  double cut_s_ = 0.0;                         // a moment after the last cut
};

}  // namespace stress
