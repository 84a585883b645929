// A handle joins a region that exists, in the process that asks for it or in the child of a fork (rules E1, E3).
#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "relive/index/leaf_areas.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/max_items.hpp"
#include "relive/pages/sound.hpp"
#include "relive/table/handles.hpp"
#include "relive/table/kept_file.hpp"
#include "relive/table/table.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Streams of handles that were given none begin here. Programs count theirs from 0; bit 63 marks those of device
// readers.
constexpr uint64_t kOwnStreams = uint64_t{1} << 62;

// How often the region was attached to for writing, this time included. Under the table lock.
uint64_t attaches(const Region& r) {
  uint64_t sum = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) sum += r.participants[p].epoch.load(kRelaxed);
  return sum;
}

// A read-only handle changes nothing, so it cannot be counted. It gets a number that no other handle of the machine is
// likely to have.
uint64_t uncounted_stream() {
  static std::atomic<uint64_t> count{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  const CounterRng rng(static_cast<uint64_t>(process_id()), pid_namespace(), static_cast<uint64_t>(now),
                       count.fetch_add(1));
  return kOwnStreams | (rng.bits(0) & (kOwnStreams - 1));
}

Status with_path(Status status, const std::string& path) {
  return status.ok() ? std::move(status) : std::move(status).with_text("path", path);
}

}  // namespace

Status Table::attach(const std::string& path, Access access, std::optional<uint64_t> stream, double timeout_s,
                     std::unique_ptr<Table>* out) {
  std::unique_ptr<Table> table(new Table);
  table->path_ = path;
  table->access_ = access;
  table->stream_ = stream.value_or(0);
  table->counts_stream_ = !stream.has_value();
  RELIVE_RETURN_IF_ERROR(table->join(Deadline::after(std::max(timeout_s, kLeastLockWait_s))));
  *out = std::move(table);
  return {};
}

// The reason why a wait for a lock byte ended without it.
Status Table::not_attached(const Deadline& deadline, const char* needs) const {
  if (deadline.passed())
    return Status(Code::kDeadlineExceeded).with_text("needs", needs).with_double("waited_s", deadline.waited_s());
  return Status(is_over_->load() ? Code::kTableClosed : Code::kInterrupted);
}

Status Table::join(const Deadline& deadline) {
  while (true) {
    {
      const std::lock_guard<std::mutex> guard(handles().mutex);
      RELIVE_RETURN_IF_ERROR(Storage::open_file(path_, access_, sizeof(Header), &storage_));
    }
    Storage& storage = *storage_;
    const bool alone = access_ == Access::kReadWrite && storage.try_lock_byte(kAttachedByte, true);
    if (!alone && !storage.lock_byte(kAttachedByte, false, deadline, is_over_))
      return not_attached(deadline, "to attach");
    if (storage.is_unlinked()) {
      drop_storage();
      if (deadline.passed()) return Status(Code::kNoSuchTable).with_text("path", path_);
      continue;
    }
    RELIVE_RETURN_IF_ERROR(with_path(region_.open(storage.base(), storage.num_bytes()), path_));
    fork_epoch_.store(fork_epoch());
    door_.scratch.reserve(*region_.geometry);
    if (access_ == Access::kReadOnly) {
      if (counts_stream_) stream_ = uncounted_stream();
      joined_ = true;
      return {};
    }
    if (alone) {
      RELIVE_RETURN_IF_ERROR(with_path(begin_alone(), path_));
      storage.try_lock_byte(kAttachedByte, false);
    }
    return take_slot(deadline);
  }
}

// For the first process that attaches after all others have ended: no other process waits, so the critical section may
// be long. Dead processes left the words of waiting as they are. A file may have been damaged on disk.
Status Table::begin_alone() {
  Header& h = *region_.header;
  if (is_lost(region_, *storage_))
    return Status(Code::kNotARegion)
        .with_text("what", "a table that the machine's stop has torn; its last save is whole");
  if (const char* const wrong = unsound_region(region_, door_.scratch); wrong != nullptr)
    return Status(Code::kNotARegion).with_text("what", std::string("damaged: ") + wrong);
  h.lock.store(0);
  h.items_event.waiters.store(0);
  h.room_event.waiters.store(0);
  double later_s = 0.0;
  RELIVE_RETURN_IF_ERROR(note_opened(region_, *storage_, &later_s));
  Alone alone(door_);
  recover(alone.held(), door_.scratch);
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    for (uint32_t num_cut = 0; !end_participant(alone.held(), p, &num_cut);) num_cut = 0;
  for (uint32_t i = 0; i < region_.num_indexes && later_s != 0.0; ++i) shift_waits(alone.held(), i, later_s);
  keep_to_most(alone.held());
  Leaves::flush_all(alone.held());
  if (h.keeps_file.load() == 0) return {};
  const Broken broken = broken_invariant(region_, door_.scratch);
  return broken ? Status(Code::kNotARegion).with_text("what", "damaged: " + broken.text()) : Status();
}

Status Table::take_slot(const Deadline& deadline) {
  Storage& storage = *storage_;
  const uint32_t no_slot = region_.geometry->max_participants;
  me_ = no_slot;
  if (!storage.lock_byte(kAttachingByte, true, deadline, is_over_)) return not_attached(deadline, "the attach lock");
  RELIVE_FAIL_POINT(attach_byte);
  uint32_t slot = no_slot;
  {
    Locked locked(door_, deadline);
    if (!locked.status().ok()) {
      storage.unlock_byte(kAttachingByte);
      return locked.status();
    }
    locked.sweep_dead();
    if (!locked.status().ok()) {
      storage.unlock_byte(kAttachingByte);
      return locked.status();
    }
    for (uint32_t p = 0; p < no_slot && slot == no_slot; ++p)
      if (region_.participants[p].live.load() == 0 && storage.try_lock_byte(kLifeByte + p, true)) slot = p;
    RELIVE_FAIL_POINT(attach_slot);
    if (slot != no_slot) {
      Participant& me = region_.participants[slot];
      me.epoch.fetch_add(1);
      if (counts_stream_) stream_ = kOwnStreams | attaches(region_);
      me.pid.store(process_id());
      me.pid_namespace.store(pid_namespace());
      me.live.store(1);
      RELIVE_FAIL_POINT(attach_live);
    }
  }
  storage.unlock_byte(kAttachingByte);
  if (slot == no_slot) return Status(Code::kTooManyParticipants).with_int("max", no_slot);
  me_ = slot;
  joined_ = true;
  return {};
}

// One thread attaches, the others wait for it. No thread looks at the region until fork_epoch_ is stored. The thread
// attaches a second handle and takes its parts over, so an attempt that fails leaves this handle as it was, and the
// next call tries again.
Status Table::reattach_in_child() {
  if (path_.empty())
    return Status(Code::kForkedHandle).with_text("what", is_tiered() ? "a Tiered table" : "a LocalMemory table");
  const Deadline deadline = Deadline::after(std::max(timeout_s(), kLeastLockWait_s));
  const TimedLock lock(mutex_, "to attach in this process", deadline);
  RELIVE_RETURN_IF_ERROR(lock.status());
  if (is_closed()) return Status(Code::kTableClosed);
  if (fork_epoch_.load() == fork_epoch()) return {};  // another thread was faster
  const std::unique_ptr<Table> made(new Table);       // on the heap: a child that is forked here keeps it for ever
  Table& fresh = *made;
  fresh.path_ = path_;
  fresh.access_ = access_;
  fresh.is_over_ = &closed_;
  fresh.counts_stream_ = true;  // the parent uses the stream that the caller asked for
  RELIVE_RETURN_IF_ERROR(fresh.join(deadline));
  {
    const std::lock_guard<std::mutex> guard(handles().mutex);
    std::swap(storage_, fresh.storage_);  // `fresh` ends the parent's mapping
  }
  region_ = fresh.region_;
  std::swap(door_.scratch, fresh.door_.scratch);
  me_ = fresh.me_;
  stream_ = fresh.stream_;
  counts_stream_ = true;
  draws_.store(0);
  joined_ = true;
  fresh.joined_ = false;
  open_writers_.store(0);
  has_sampled_.store(false);
  fork_epoch_.store(fresh.fork_epoch_.load(), std::memory_order_release);
  return {};
}

}  // namespace relive
