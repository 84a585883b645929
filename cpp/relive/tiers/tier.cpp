#include "relive/tiers/tier.hpp"

#include <algorithm>
#include <new>
#include <system_error>
#include <vector>

#include "relive/pages/parked.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kSpillBytes = 8 << 20;  // bytes of one write
constexpr size_t kMostPages = 256;
constexpr double kIdle_s = 0.5;
// Every page in memory is open. A writer that closes a page wakes the thread.
constexpr double kNothingToSpill_s = 0.02;
constexpr double kAfterError_s = 0.05;
constexpr double kWait_s = 0.02;

// Counts a waiting writer for as long as the object lives.
class Waiting {
 public:
  explicit Waiting(std::atomic<uint32_t>* count) : count_(count) { count_->fetch_add(1); }
  ~Waiting() { count_->fetch_sub(1); }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<uint32_t>* count_;
};

// The limit of threads is reached.
Status no_thread(const std::system_error& problem) {
  return Status(Code::kSystemError)
      .with_text("what", "starting a thread of a tier")
      .with_int("errno", problem.code().value());
}

}  // namespace

Status Tier::create(const TierConfig& config, const BulkGeometry& geometry, Door& door, std::unique_ptr<Tier>* out) {
  std::unique_ptr<Tier> tier(new Tier(door, geometry));
  RELIVE_RETURN_IF_ERROR(PageFile::create(config.directory, &tier->file_));
  const uint64_t frames = geometry.num_frames * geometry.frame_bytes;
  RELIVE_RETURN_IF_ERROR(Storage::create_local(frames + geometry.num_blocks * geometry.block_bytes, &tier->memory_));
  bind_bulk(door.region, &tier->geometry_, tier->memory_->base());
  door.scratch.reserve_bulk(tier->geometry_);
  try {
    tier->staging_ =
        std::make_unique<Staging>(door.region, *tier->file_, tier->memory_->base() + frames, config.num_io_threads);
  } catch (const std::system_error& problem) {
    tier->stop();
    return no_thread(problem);
  }
  *out = std::move(tier);
  return {};
}

Status Tier::start() try {
  spill_thread_ = std::thread([this] { spill_loop(); });
  return {};
} catch (const std::system_error& problem) {
  return no_thread(problem);
}

void Tier::stop() {
  is_stopping_.store(true);
  notify(&low_event_);
  notify(&frames_event_);
  if (spill_thread_.joinable()) spill_thread_.join();
  if (staging_ != nullptr) staging_->stop();
}

bool Tier::is_low() const { return door_.region.bulk.state->num_free_frames.load(kRelaxed) < geometry_.reserve; }

void Tier::wake_if_low() {
  if (is_low()) notify(&low_event_);
}

Status Tier::write_run(const Leaving* pages, size_t count) try {
  std::vector<Stretch> from;
  for (size_t k = 0; k < count; ++k)
    from.push_back({door_.region.bulk.frame(pages[k].frame), static_cast<size_t>(geometry_.frame_bytes)});
  RELIVE_RETURN_IF_ERROR(file_->write(pages[0].position * geometry_.frame_bytes, from));
  counters_.bytes_written.fetch_add(count * geometry_.frame_bytes, kRelaxed);
  counters_.writes.fetch_add(1, kRelaxed);
  return {};
} catch (const std::bad_alloc&) {
  return Status(Code::kNoMemory);
}

Status Tier::spill_some(size_t most, const Deadline& deadline, size_t* count) {
  Region& r = door_.region;
  std::vector<Leaving> pages(std::clamp<size_t>(most, 1, kMostPages));
  std::vector<uint64_t> spilled;
  spilled.reserve(pages.size());  // from here on a lack of memory is a write that failed: no page stays half gone
  *count = 0;
  {
    Locked locked(door_, deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    // A page may be parked, or another writer may take the frame, while a writer waits; the waiting writer cannot check
    // again.
    const bool is_short = num_waiting_.load() > 0 && r.bulk.state->num_free_frames.load(kRelaxed) == 0;
    if (is_short && r.bulk.state->list_head == kNoPage) (void)close_oldest_parked(locked.held());
    pages.resize(pick_for_spill(locked.held(), pages.size(), pages.data()));
  }
  if (pages.empty()) return {};
  Status written = write_run(pages.data(), pages.size());
  {
    Locked locked(door_, Deadline::after(std::numeric_limits<double>::infinity()).deaf());
    RELIVE_RETURN_IF_ERROR(locked.status());
    for (size_t k = pages.size(); k-- > 0;) {
      if (!written.ok()) {
        undo_spill(locked.held(), pages[k]);
      } else if (finish_spill(locked.held(), pages[k])) {
        spilled.push_back(r.ref_of(pages[k].page, pages[k].word));
      }
    }
  }
  for (uint64_t ref : spilled) staging_->spilled(ref);
  *count = pages.size();
  if (!written.ok()) {
    counters_.disk_errors.fetch_add(1, kRelaxed);
    note_error(written);
  }
  notify(&frames_event_);
  return written;
}

void Tier::note_error(const Status& status) {
  const std::lock_guard<std::mutex> guard(error_mutex_);
  last_error_ = status;
  num_errors_.fetch_add(1);
}

Status Tier::spill_or_note(size_t most, size_t* count) try {
  // the spill thread has no deadline until the handle closes
  return spill_some(most, Deadline::after(std::numeric_limits<double>::infinity()), count);
} catch (const std::bad_alloc&) {
  note_error(Status(Code::kNoMemory));
  return Status(Code::kNoMemory);
}

void Tier::spill_loop() {
  const uint64_t at_once =
      std::max<uint64_t>(1, std::min(kSpillBytes / geometry_.frame_bytes, geometry_.num_frames / 4));
  while (!is_stopping_.load()) {
    const Deadline idle = Deadline::after(kIdle_s);
    if (!wait_slice(&low_event_, idle, kIdle_s, [this] { return is_stopping_.load() || is_low(); })) continue;
    if (is_stopping_.load()) return;
    size_t count = 0;
    const Status status = spill_or_note(at_once, &count);
    if (status.ok() && count > 0) continue;
    low_event_.waiters.store(1);
    futex_wait(&low_event_.count, low_event_.count.load(), status.ok() ? kNothingToSpill_s : kAfterError_s);
  }
}

Status Tier::wait_for_frame(const Deadline& deadline) {
  const BulkState& state = *door_.region.bulk.state;
  const uint64_t errors_before = num_errors_.load();
  counters_.frame_waits.fetch_add(1, kRelaxed);
  const Waiting waiting(&num_waiting_);
  notify(&low_event_);
  while (state.num_free_frames.load(std::memory_order_acquire) == 0) {
    if (is_stopping_.load()) return Status(Code::kTableClosed);
    if (num_errors_.load() != errors_before) {
      const std::lock_guard<std::mutex> guard(error_mutex_);
      return last_error_;
    }
    if (deadline.passed())
      return Status(Code::kDeadlineExceeded)
          .with_text("needs", "a free bulk frame in memory")
          .with_text("has", std::to_string(geometry_.num_frames) +
                                " of them, all of open pages or on their way to the disk (ram_bytes of Tiered)")
          .with_double("waited_s", deadline.waited_s());
    wait_slice(&frames_event_, deadline, kWait_s, [&] { return state.num_free_frames.load() > 0; });
    if (is_interrupted()) return Status(Code::kInterrupted);
  }
  return {};
}

void Tier::stats(TierStats* out) {
  const BulkState& state = *door_.region.bulk.state;
  const StagingCounters& staging = staging_->counters();
  out->staging_bytes = geometry_.num_blocks * geometry_.block_bytes;
  out->ram_bytes = geometry_.num_frames * geometry_.frame_bytes + out->staging_bytes;
  out->staged_bytes = staging_->bytes_staged();
  out->page_bytes = geometry_.frame_bytes;
  out->pages_in_ram = state.pages_in_ram.load(kRelaxed);
  out->pages_on_disk = state.pages_on_disk.load(kRelaxed);
  out->free_frames = state.num_free_frames.load(kRelaxed);
  out->late_batches = counters_.late_batches.load(kRelaxed);
  out->on_demand_batches = counters_.on_demand_batches.load(kRelaxed);
  out->replaced_items = counters_.replaced_items.load(kRelaxed);
  out->frame_waits = counters_.frame_waits.load(kRelaxed);
  out->bytes_written = counters_.bytes_written.load(kRelaxed);
  out->writes = counters_.writes.load(kRelaxed);
  out->disk_errors = counters_.disk_errors.load(kRelaxed);
  out->rows_from_ram = counters_.rows_from_ram.load(kRelaxed);
  out->bytes_read = staging.bytes_read.load(kRelaxed);
  out->reads = staging.reads.load(kRelaxed);
  out->units_read = staging.units_read.load(kRelaxed);
  out->units_wanted = staging.units_wanted.load(kRelaxed);
  out->staging_hits = staging.units_here.load(kRelaxed);
  out->planned_evicted = staging.evicted_planned.load(kRelaxed);
  out->direct_io = file_->is_direct();
}

}  // namespace relive
