// What a tiered table has beside its region: bulk frames and staging in memory, a page file, and the spill thread.
//
// Owner:   a Table owns its Tier; the Tier owns the memory, the file and all threads, and ends them in stop().
// Locking: pages are picked under the table lock, written without it, and changed hands under it again (rules C4, D6).
// Forks:   a tiered table is not usable in a forked child; there the threads do not exist and the Tier is left alone.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "relive/pages/bulk.hpp"
#include "relive/pages/lock.hpp"
#include "relive/tiers/page_file.hpp"
#include "relive/tiers/staging.hpp"
#include "relive/words/sync.hpp"

namespace relive {

struct TierStats {
  uint64_t ram_bytes = 0, staging_bytes = 0, staged_bytes = 0, page_bytes = 0;
  uint64_t pages_in_ram = 0, pages_on_disk = 0, free_frames = 0;
  uint64_t late_batches = 0, on_demand_batches = 0, replaced_items = 0, frame_waits = 0;
  uint64_t bytes_read = 0, bytes_written = 0, reads = 0, writes = 0, disk_errors = 0;
  uint64_t rows_from_ram = 0, units_wanted = 0, staging_hits = 0, units_read = 0, planned_evicted = 0;
  bool direct_io = false;
};

struct TierCounters {
  std::atomic<uint64_t> late_batches{0}, on_demand_batches{0}, replaced_items{0}, frame_waits{0}, bytes_written{0},
      writes{0}, disk_errors{0}, rows_from_ram{0};
};

class Tier final {
 public:
  // Makes the page file and the memory, binds the region's bulk and starts the threads.
  static Status create(const TierConfig& config, const BulkGeometry& geometry, Door& door, std::unique_ptr<Tier>* out);
  ~Tier() { stop(); }
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  void stop();

  Staging& staging() { return *staging_; }
  PageFile& file() { return *file_; }
  TierCounters& counters() { return counters_; }
  const BulkGeometry& geometry() const { return geometry_; }

  // A bulk frame is free, or why none will be: what the disk said since this call began, kDeadlineExceeded,
  // kTableClosed, kInterrupted.
  Status wait_for_frame(const Deadline& deadline);
  // Called without the table lock, after frames were taken.
  void wake_if_low();
  // Spills up to `most` pages in one write. *count: how many left memory. Where a writer waits for a frame and no page
  // is CLOSED in memory, the oldest parked one is closed and goes (rule E5).
  Status spill_some(size_t most, const Deadline& deadline, size_t* count);
  void stats(TierStats* out);

 private:
  Tier(Door& door, const BulkGeometry& geometry) : door_(door), geometry_(geometry) {}
  void spill_loop();
  Status write_run(const Leaving* pages, size_t count);
  bool is_low() const;

  Door& door_;
  const BulkGeometry geometry_;
  std::unique_ptr<Storage> memory_;
  std::unique_ptr<PageFile> file_;
  std::unique_ptr<Staging> staging_;
  std::mutex error_mutex_;
  Status last_error_;
  std::atomic<uint64_t> num_errors_{0};
  std::atomic<uint32_t> num_waiting_{0};  // writers in wait_for_frame
  std::atomic<bool> is_stopping_{false};
  EventWords low_event_{};     // frames were taken
  EventWords frames_event_{};  // frames came free, or the disk failed
  TierCounters counters_;
  std::thread spill_thread_;
};

struct Where;  // read/where.hpp

// A batch that was drawn and is being read ahead.
//
// Owner:   whoever planned it; drop_batch() or gather_batch() before its end. cancel() from any thread.
struct Claimed;  // read/draw.hpp
class PlannedBatch final {
 public:
  void cancel() { cancelled.store(true); }

  uint32_t index = 0;
  const Where* where = nullptr;  // what its items must pass
  uint64_t ticket = 0;
  int64_t num_live_items = 0;
  int64_t num_held = 0;                    // in flight: what commit_held or return_held is to be told
  std::vector<Claimed>* claims = nullptr;  // of the caller: where uses are noted, and who holds them; may be null
  bool has_claims = false;
  std::vector<int64_t> keys;
  std::vector<double> probabilities;
  std::vector<double> picks;  // of hindsight
  std::vector<UnitId> expected;
  std::atomic<bool> cancelled{false};
};

}  // namespace relive
