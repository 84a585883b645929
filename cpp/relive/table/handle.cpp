// A handle's life: born by creating or attaching, attached anew in the child of a fork, closed (rules E1 to E4, E7, J).
#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>
#include <vector>

#include "relive/index/leaves.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/max_items.hpp"
#include "relive/table/table.hpp"
#include "relive/tiers/tier.hpp"
#include "relive/words/predicate.hpp"
#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr double kLeaveWait_s = 1.0;  // what a handle does not get to end itself, a sweep ends

// Every handle of this process. The mutex is held over a fork and over whatever opens or closes descriptors of locks:
// so the child knows them all and closes them, and finds no handle in the middle of a change of its storage.
struct Handles {
  std::mutex mutex;
  std::vector<Table*> all;
};

Handles& handles() {
  static Handles& made = *new Handles;  // handles may live until the process is gone
  return made;
}

std::atomic<uint64_t> epoch{1};

// Streams of handles that were told none, beside those that programs count from 0; bit 63 is the device readers'.
constexpr uint64_t kOwnStreams = uint64_t{1} << 62;

// How often the region was attached to for writing, this time included; under the table lock.
uint64_t attaches(const Region& r) {
  uint64_t sum = 0;
  for (uint32_t p = 0; p < r.geometry->max_participants; ++p) sum += r.participants[p].epoch.load(kRelaxed);
  return sum;
}

// Who changes nothing cannot be counted: a number that no other handle of the machine is likely to have.
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

// Gives the region its first frames: all of them where memory is only promised (local), else the first few.
uint64_t first_frames(const Geometry& g, bool is_local) {
  return is_local ? g.num_frames : std::min(g.grow_frames, g.num_frames);
}

uint64_t end_of_frame(const Geometry& g, uint64_t frame) {
  const uint64_t mask = (uint64_t{1} << g.frames_per_slab_shift) - 1;
  return g.slabs_offset + (frame >> g.frames_per_slab_shift) * g.slab_bytes + ((frame & mask) + 1) * g.frame_bytes;
}

// Start cells that rows up to the capacity have at least, in windows that begin every so often.
uint64_t least_cells(const TableConfig& config) {
  uint64_t cells = 0;
  for (const IndexConfig& index : config.indexes)
    if (index.sequence.period != 0) cells = std::max(cells, config.capacity / index.sequence.period);
  return cells;
}

void offer_frames(Region& r, uint64_t count) {
  for (uint64_t f = 0; f < count; ++f) r.free_frames[f].store(static_cast<uint32_t>(count - 1 - f), kRelaxed);
  r.header->num_free_frames.store(count, kRelaxed);
  r.header->frames_committed.store(count, kRelaxed);
}

// A leftover of that name which nobody is attached to makes way (rule J2).
Status replace_leftover(const std::string& path) {
  std::unique_ptr<Storage> leftover;
  Status status = Storage::open_file(path, Access::kReadWrite, 1, &leftover);
  if (status.code() == Code::kNoSuchTable) return {};
  RELIVE_RETURN_IF_ERROR(std::move(status));
  if (!leftover->try_lock_byte(kAttachedByte, true)) return Status(Code::kNameTaken).with_text("path", path);
  return leftover->unlink();
}

}  // namespace

uint64_t fork_epoch() { return epoch.load(kRelaxed); }

Table::Table() {
  static const bool once = [] {
    on_fork([] { handles().mutex.lock(); }, [] { handles().mutex.unlock(); },
            [] {
              epoch.fetch_add(1);
              for (Table* table : handles().all) table->become_a_childs();
              handles().mutex.unlock();
            });
    return true;
  }();
  (void)once;
  const std::lock_guard<std::mutex> guard(handles().mutex);
  handles().all.push_back(this);
}

Table::~Table() {
  // A handle that is dropped without close() still gives its slot back; what a kill would leave, a sweep cleans.
  close_at_last();
  const std::lock_guard<std::mutex> guard(handles().mutex);
  std::erase(handles().all, this);
}

Status Table::create(const TableConfig& asked, const std::string& path, std::unique_ptr<Table>* out) {
  TableConfig config = asked;
  for (IndexConfig& index : config.indexes) RELIVE_RETURN_IF_ERROR(settle_kinds(&index));
  Layout layout;
  RELIVE_RETURN_IF_ERROR(make_layout(config, &layout));
  RELIVE_RETURN_IF_ERROR(settle_conditions(layout, &config));
  const Geometry& g = layout.geometry;
  std::unique_ptr<Table> table(new Table);
  const bool is_local = path.empty();
  const uint64_t frames = first_frames(g, is_local);
  if (is_local) {
    // What is written at birth must fit: the system promises more than it has, and kills who asks for it.
    const size_t has = physical_memory_bytes();
    if (has != 0 && g.slabs_offset > has)
      return Status(Code::kStorageFull)
          .with_text("path", "memory")
          .with_int("needs_bytes", static_cast<int64_t>(g.slabs_offset))
          .with_int("has_bytes", static_cast<int64_t>(has));
    RELIVE_RETURN_IF_ERROR(Storage::create_local(g.region_bytes, &table->storage_));
  } else {
    // Pages that hold the capacity, and one that is being written: more lanes need more.
    const uint64_t expected = g.slabs_offset + ((g.capacity + g.page_len - 1) / g.page_len + 1) * g.frame_bytes +
                              least_cells(config) * g.cells.stride;
    const std::lock_guard<std::mutex> guard(handles().mutex);
    RELIVE_RETURN_IF_ERROR(
        Storage::create_file(path, g.region_bytes, end_of_frame(g, frames - 1), expected, &table->storage_));
  }
  table->fork_epoch_.store(fork_epoch());
  table->path_ = path;
  table->region_.create(table->storage_->base(), config, layout);
  table->door_.scratch.reserve(layout.geometry);
  offer_frames(table->region_, frames);
  if (is_local && table->region_.cells) offer_cells(Alone(table->door_).held(), 0, g.cells.num_cells);
  if (has_bulk(layout.bulk))
    RELIVE_RETURN_IF_ERROR(Tier::create(config.tier, layout.bulk, table->door_, &table->tier_));
  Participant& me = table->region_.participants[0];
  me.live.store(1);
  me.pid.store(process_id());
  me.pid_namespace.store(pid_namespace());
  table->joined_ = true;
  if (!is_local) {
    table->storage_->try_lock_byte(kAttachedByte, false);
    table->storage_->try_lock_byte(kLifeByte, true);
    Status published = table->storage_->publish();
    for (int tries = 0; published.code() == Code::kNameTaken && tries < 8; ++tries) {
      RELIVE_RETURN_IF_ERROR(replace_leftover(path));
      published = table->storage_->publish();
    }
    RELIVE_RETURN_IF_ERROR(std::move(published));
  }
  *out = std::move(table);
  return {};
}

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

// Why a wait for a lock byte came back without it.
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
    if (alone) {  // nobody else lives: whatever the words of waiting say is from the dead
      Header& h = *region_.header;
      h.lock.store(0);
      h.items_event.waiters.store(0);
      h.room_event.waiters.store(0);
      h.clean.store(0);
      recover_alone();
      storage.try_lock_byte(kAttachedByte, false);
    }
    return take_slot(deadline);
  }
}

// The first to attach after all others died: there is nobody whom a long hold could keep waiting.
void Table::recover_alone() {
  Alone nobody_else(door_);
  recover(nobody_else.held(), door_.scratch);
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p) {
    if (region_.participants[p].live.load() == 0) continue;
    for (uint32_t num_cut = 0; !end_participant(nobody_else.held(), p, &num_cut);) num_cut = 0;
  }
  keep_to_most(nobody_else.held());
  Leaves::flush_all(nobody_else.held());
}

Status Table::take_slot(const Deadline& deadline) {
  Storage& storage = *storage_;
  const uint32_t nobody = region_.geometry->max_participants;
  me_ = nobody;
  if (!storage.lock_byte(kAttachingByte, true, deadline, is_over_)) return not_attached(deadline, "the attach lock");
  RELIVE_FAIL_POINT(attach_byte);
  uint32_t slot = nobody;
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
    for (uint32_t p = 0; p < nobody && slot == nobody; ++p)
      if (region_.participants[p].live.load() == 0 && storage.try_lock_byte(kLifeByte + p, true)) slot = p;
    RELIVE_FAIL_POINT(attach_slot);
    if (slot != nobody) {
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
  if (slot == nobody) return Status(Code::kTooManyParticipants).with_int("max", nobody);
  me_ = slot;
  joined_ = true;
  return {};
}

// In the child of a fork, on the thread that forked, before any other exists there (rule E3). Calls that were under way
// in the parent are the parent's.
void Table::become_a_childs() {
  active_.store(0);
  mutex_.reset();
  uncut_lanes_.forget();
  door_.owed_holds.store(0);
  if (storage_ != nullptr) storage_->close_locks();
}

// One thread attaches, the others wait for it; until fork_epoch_ says so nobody looks at the region. What is attached is
// a handle of its own, so that an attempt that fails leaves this one as it was and the next call tries again.
Status Table::reattach_in_child() {
  if (path_.empty())
    return Status(Code::kForkedHandle).with_text("what", is_tiered() ? "a Tiered table" : "a LocalMemory table");
  const Deadline deadline = Deadline::after(std::max(timeout_s(), kLeastLockWait_s));
  const TimedLock lock(mutex_, "to attach in this process", deadline);
  RELIVE_RETURN_IF_ERROR(lock.status());
  if (is_closed()) return Status(Code::kTableClosed);
  if (fork_epoch_.load() == fork_epoch()) return {};  // another thread was faster
  const std::unique_ptr<Table> made(new Table);       // on the heap: a child forked in here keeps it for ever
  Table& fresh = *made;
  fresh.path_ = path_;
  fresh.access_ = access_;
  fresh.is_over_ = &closed_;
  fresh.counts_stream_ = true;  // a copy: the stream that was asked for is the parent's
  RELIVE_RETURN_IF_ERROR(fresh.join(deadline));
  {
    const std::lock_guard<std::mutex> guard(handles().mutex);
    std::swap(storage_, fresh.storage_);  // the parent's mapping goes with `fresh`
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

bool Table::is_alone() const {
  if (storage_->is_local()) return true;
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (p != me_ && region_.participants[p].live.load(kRelaxed) != 0) return false;
  return true;
}

Status Table::enter(bool needs_write) {
  while (true) {
    active_.fetch_add(1);  // in one order with closed_: either close() counts this call or this call sees the flag
    Status status;
    if (closed_.load()) {
      status = Status(Code::kTableClosed);
    } else if (needs_write && access_ == Access::kReadOnly) {
      status = Status(Code::kReadOnly);
    } else if (fork_epoch_.load(std::memory_order_acquire) == fork_epoch()) {
      return {};
    }
    leave(fork_epoch());
    RELIVE_RETURN_IF_ERROR(std::move(status));
    RELIVE_RETURN_IF_ERROR(reattach_in_child());
  }
}

Status Table::close() {
  closed_.store(true);  // ends the waits of calls under way, refuses others
  return end(own_deadline());
}

void Table::close_at_last() { (void)end(Deadline::after(std::min(kLastPatience_s, timeout_s())).deaf()); }

// Waits for the calls under way. False where they did not come back.
bool Table::wait_for_calls(const Deadline& deadline) {
  Hearing hearing(deadline, nullptr);
  while (active_.load() > 0) {
    if (deadline.passed() || hearing.ends()) return false;
    if (access_ == Access::kReadWrite) {
      notify(&region_.header->items_event);
      notify(&region_.header->room_event);
    }
    std::atomic<uint32_t> nobody{0};
    futex_wait(&nobody, 0, 0.001);
  }
  return true;
}

Status Table::end(const Deadline& deadline) {
  closed_.store(true);
  // From a signal's handler: the call that it interrupted may be this handle's, and can not end before the handler does.
  if (is_in_interrupt() && active_.load() > 0) return {};
  const TimedLock lock(mutex_, "to close this handle", deadline);
  RELIVE_RETURN_IF_ERROR(lock.status());
  if (storage_ == nullptr) return {};
  const bool is_ours = fork_epoch_.load() == fork_epoch();
  if (!is_ours) (void)tier_.release();  // its threads are the parent's
  if (tier_ != nullptr) tier_->stop();
  if (joined_ && is_ours) {
    const bool are_back = wait_for_calls(deadline);
    if (!are_back && !deadline.passed()) return Status(Code::kInterrupted);  // close() again goes on here
    (void)leave_region();
    joined_ = false;
    if (!are_back) {
      (void)tier_.release();
      const std::lock_guard<std::mutex> guard(handles().mutex);
      (void)storage_.release();  // a call that never came back still stands on the mapping: better to leave it mapped
      return {};
    }
  }
  tier_.reset();
  drop_storage();
  return {};
}

void Table::drop_storage() {
  std::unique_ptr<Storage> old;
  const std::lock_guard<std::mutex> guard(handles().mutex);
  storage_->close_locks();
  old = std::move(storage_);
}

Status Table::leave_region() {
  const bool counts = access_ == Access::kReadWrite;
  const Deadline deadline = Deadline::after(std::min(kLeaveWait_s, timeout_s())).deaf();
  for (bool is_ended = !counts; !is_ended;) {
    Locked locked(door_, deadline);
    if (!locked.status().ok()) break;  // what is left a sweep ends
    is_ended = locked.end_me();
  }
  if (storage_->is_local()) return {};
  if (counts) storage_->unlock_byte(kLifeByte + me_);
  {
    const std::lock_guard<std::mutex> guard(handles().mutex);
    if (!storage_->become_last(kAttachedByte)) return {};
  }
  if (counts) {
    region_.header->clean.store(1);
    return storage_->unlink();
  }
  // Nobody is attached: who still has a slot was killed. A reader changes nothing, so it does not clean up after them.
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (region_.participants[p].live.load() != 0) return {};
  return storage_->unlink();
}

}  // namespace relive
