// A Tier is the part of a tiered table outside its region: bulk frames and staging in memory, a page file, and the
// spill thread. A tiered table is not usable in a forked child; the threads do not exist there, and the child leaves
// the Tier alone.
//
// Owns:    the memory, the page file and all threads, which stop() ends. A Table owns its Tier.
// Locking: a spill picks pages under the table lock, writes them without it, and stores their place under it again
//          (rules C4, D6). error_mutex_ protects last_error_.
// Cost:    spill_some: one write, and two critical sections of O(pages).
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
  // Makes the page file and the memory, binds the region's bulk, and starts the threads that read.
  static Status create(const TierConfig& config, const BulkGeometry& geometry, Door& door, std::unique_ptr<Tier>* out);
  ~Tier() { stop(); }
  Tier(const Tier&) = delete;
  Tier& operator=(const Tier&) = delete;
  // Starts the thread that spills: before it, no other thread takes the table lock.
  Status start();
  void stop();

  Staging& staging() { return *staging_; }
  PageFile& file() { return *file_; }
  TierCounters& counters() { return counters_; }
  const BulkGeometry& geometry() const { return geometry_; }

  // Waits until a bulk frame is free. Returns the error if none will be: a write error since the call began,
  // kDeadlineExceeded, kTableClosed or kInterrupted.
  Status wait_for_frame(const Deadline& deadline);
  // Call this without the table lock, after frames were taken.
  void wake_if_low();
  // Spills up to `most` pages in one write. *count: the pages of this spill. If a writer waits for a frame and no page
  // in memory is CLOSED, the oldest parked page is closed and spilled (rule E5).
  Status spill_some(size_t most, const Deadline& deadline, size_t* count);
  void stats(TierStats* out);

 private:
  Tier(Door& door, const BulkGeometry& geometry) : door_(door), geometry_(geometry) {}
  void spill_loop();
  Status spill_or_note(size_t most, size_t* count);
  void note_error(const Status& status);
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
  EventWords frames_event_{};  // frames became free, or a write failed
  TierCounters counters_;
  std::thread spill_thread_;
};

struct Where;  // read/where.hpp

// A batch that was drawn and whose rows are being read in advance. The caller that planned the batch owns it, and calls
// gather_batch() or drop_batch() before the end of the batch. cancel() may run on any thread.
struct Claimed;  // read/draw.hpp
class PlannedBatch final {
 public:
  void cancel() { cancelled.store(true); }

  uint32_t index = 0;
  const Where* where = nullptr;  // condition of its items
  uint64_t ticket = 0;
  int64_t num_live_items = 0;
  int64_t num_held = 0;                    // in flight: the number for commit_held or return_held
  std::vector<Claimed>* claims = nullptr;  // of the caller: receives the uses in flight; may be null
  bool has_claims = false;
  uint64_t first_position = 0, end_position = 0;  // Positions of the draw (read/draw.hpp)
  std::vector<int64_t> keys;
  std::vector<double> probabilities;
  std::vector<double> picks;  // for hindsight
  std::vector<UnitId> expected;
  std::atomic<bool> cancelled{false};
};

}  // namespace relive
