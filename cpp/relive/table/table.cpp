#include "relive/table/table.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "relive/index/leaves.hpp"
#include "relive/pages/publish.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr double kJoinTimeout_s = 10.0;

// Every storage of this process, so that a forked child can drop the inherited lock descriptors at once. Slots, not a
// list: the child's hook may run while another thread of the parent was in the middle of a change.
std::array<std::atomic<Storage*>, 4096> storages;
std::atomic<uint64_t> epoch{1};

void child_after_fork() {
  epoch.fetch_add(1);
  for (auto& slot : storages)
    if (Storage* storage = slot.load()) storage->forget_locks_in_child();
}

void remember(Storage* storage) {
  static const bool once = (on_fork_in_child(&child_after_fork), true);
  (void)once;
  for (auto& slot : storages) {
    Storage* expected = nullptr;
    if (slot.compare_exchange_strong(expected, storage)) return;
  }
}

void forget(Storage* storage) {
  for (auto& slot : storages) {
    Storage* expected = storage;
    if (slot.compare_exchange_strong(expected, nullptr)) return;
  }
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

Table::Table() = default;

uint64_t fork_epoch() { return epoch.load(kRelaxed); }

Status Table::create(const TableConfig& asked, const std::string& path, std::unique_ptr<Table>* out) {
  TableConfig config = asked;
  for (IndexConfig& index : config.indexes) RELIVE_RETURN_IF_ERROR(settle_kinds(&index));
  Layout layout;
  RELIVE_RETURN_IF_ERROR(make_layout(config, &layout));
  const Geometry& g = layout.geometry;
  std::unique_ptr<Table> table(new Table);
  const bool is_local = path.empty();
  const uint64_t frames = first_frames(g, is_local);
  if (is_local) {
    RELIVE_RETURN_IF_ERROR(Storage::create_local(g.region_bytes, &table->storage_));
  } else {
    const uint64_t expected = g.slabs_offset + g.capacity * g.row_bytes;
    RELIVE_RETURN_IF_ERROR(
        Storage::create_file(path, g.region_bytes, end_of_frame(g, frames - 1), expected, &table->storage_));
  }
  remember(table->storage_.get());
  table->fork_epoch_ = fork_epoch();
  table->path_ = path;
  table->region_.create(table->storage_->base(), config, layout);
  table->door_.scratch.reserve(layout.geometry);
  offer_frames(table->region_, frames);
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

Status Table::attach(const std::string& path, Access access, uint64_t stream, double timeout_s,
                     std::unique_ptr<Table>* out) {
  std::unique_ptr<Table> table(new Table);
  table->path_ = path;
  table->access_ = access;
  table->stream_ = stream;
  RELIVE_RETURN_IF_ERROR(table->join(timeout_s));
  *out = std::move(table);
  return {};
}

Status Table::join(double timeout_s) {
  const Deadline deadline = Deadline::after(std::max(timeout_s, kLeastLockWait_s));
  while (true) {
    RELIVE_RETURN_IF_ERROR(Storage::open_file(path_, access_, sizeof(Header), &storage_));
    Storage& storage = *storage_;
    const bool alone = access_ == Access::kReadWrite && storage.try_lock_byte(kAttachedByte, true);
    if (!alone && !storage.lock_byte(kAttachedByte, false, deadline))
      return Status(Code::kDeadlineExceeded)
          .with_text("needs", "to attach")
          .with_double("waited_s", deadline.waited_s());
    if (storage.is_unlinked()) {
      storage_.reset();
      if (deadline.passed()) return Status(Code::kNoSuchTable).with_text("path", path_);
      continue;
    }
    RELIVE_RETURN_IF_ERROR(with_path(region_.open(storage.base(), storage.num_bytes()), path_));
    fork_epoch_ = fork_epoch();
    remember(storage_.get());
    door_.scratch.reserve(*region_.geometry);
    if (access_ == Access::kReadOnly) return {};
    if (alone) {  // nobody else lives: whatever the words of waiting say is from the dead
      Header& h = *region_.header;
      h.lock.store(0);
      h.items_event.waiters.store(0);
      h.room_event.waiters.store(0);
      h.clean.store(0);
      Alone alone_here(door_);
      recover(alone_here.held(), door_.scratch);
      for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
        if (region_.participants[p].live.load() != 0) end_participant(alone_here.held(), p);
      Leaves::flush_all(alone_here.held());
      storage.lock_byte(kAttachedByte, false, deadline);
    }
    return take_slot(deadline);
  }
}

Status Table::take_slot(const Deadline& deadline) {
  Storage& storage = *storage_;
  const uint32_t nobody = region_.geometry->max_participants;
  me_ = nobody;
  if (!storage.lock_byte(kAttachingByte, true, deadline))
    return Status(Code::kDeadlineExceeded)
        .with_text("needs", "the attach lock")
        .with_double("waited_s", deadline.waited_s());
  RELIVE_FAIL_POINT(attach_byte);
  uint32_t slot = nobody;
  {
    Locked locked(door_, deadline);
    if (!locked.status().ok()) {
      storage.unlock_byte(kAttachingByte);
      return locked.status();
    }
    locked.sweep_dead();
    for (uint32_t p = 0; p < nobody && slot == nobody; ++p)
      if (region_.participants[p].live.load() == 0 && storage.try_lock_byte(kLifeByte + p, true)) slot = p;
    RELIVE_FAIL_POINT(attach_slot);
    if (slot != nobody) {
      Participant& me = region_.participants[slot];
      me.epoch.fetch_add(1);
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

Status Table::reattach_in_child() {
  if (path_.empty())
    return Status(Code::kForkedHandle).with_text("what", is_tiered() ? "a Tiered table" : "a LocalMemory table");
  forget(storage_.get());
  storage_.reset();
  joined_ = false;
  open_writers_.store(0);
  active_.store(1);  // this call; other threads of the parent do not exist here
  Status status = join(kJoinTimeout_s);
  if (!status.ok()) active_.store(0);
  return status;
}

Status Table::enter(bool needs_write) {
  active_.fetch_add(1, std::memory_order_acquire);
  Status status;
  if (closed_.load(std::memory_order_acquire)) {
    status = Status(Code::kTableClosed);
  } else if (needs_write && access_ == Access::kReadOnly) {
    status = Status(Code::kReadOnly);
  } else if (fork_epoch_ != fork_epoch()) {
    return reattach_in_child();
  }
  if (!status.ok()) leave();
  return status;
}

Table::~Table() {
  // A handle that is dropped without close() still gives its slot back; what a kill would leave, a sweep cleans.
  (void)close();
}

Status Table::close() {
  if (storage_ == nullptr || closed_.exchange(true)) return {};
  if (fork_epoch_ != fork_epoch()) (void)tier_.release();  // its threads are the parent's
  if (tier_ != nullptr) tier_->stop();
  if (joined_ && fork_epoch_ == fork_epoch()) {
    const Deadline patience = Deadline::after(5.0);
    while (active_.load(std::memory_order_acquire) > 0 && !patience.passed()) {
      notify(&region_.header->items_event);
      notify(&region_.header->room_event);
      std::atomic<uint32_t> nobody{0};
      futex_wait(&nobody, 0, 0.001);
    }
    (void)leave_region();
  }
  forget(storage_.get());
  if (active_.load(std::memory_order_acquire) > 0 && fork_epoch_ == fork_epoch()) {
    (void)tier_.release();
    storage_.release();  // a call that never came back still stands on the mapping: better to leave it mapped
    return {};
  }
  tier_.reset();
  storage_.reset();
  return {};
}

Status Table::leave_region() {
  {
    Locked locked(door_, Deadline::after(1.0));
    if (locked.status().ok()) {
      end_participant(locked.held(), me_);
      locked.items_came();
      locked.room_came();
    }
  }
  if (storage_->is_local()) return {};
  storage_->unlock_byte(kLifeByte + me_);
  if (!storage_->try_lock_byte(kAttachedByte, true)) return {};
  region_.header->clean.store(1);
  return storage_->unlink();
}

bool Table::is_alone() {
  if (storage_->is_local()) return true;
  for (uint32_t p = 0; p < region_.geometry->max_participants; ++p)
    if (p != me_ && region_.participants[p].live.load(kRelaxed) != 0) return false;
  return true;
}

Status Table::make_plan(uint32_t index, const std::vector<std::string>& names, GatherPlan* plan) {
  Entered entered(*this, false);
  RELIVE_RETURN_IF_ERROR(entered.status());
  return relive::make_plan(region_, index, names, plan);
}

Status Table::set_policy_version(uint32_t version) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  region_.header->policy_version.store(version, std::memory_order_release);
  return {};
}

Status Table::check() {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  Locked locked(door_, Deadline::after(10.0));
  RELIVE_RETURN_IF_ERROR(locked.status());
  const std::string broken = broken_invariant(region_);
  return broken.empty() ? Status() : Status(Code::kCheckFailed).with_text("invariant", broken);
}

Status Table::move_all_pages(uint64_t* moved) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  *moved = 0;
  for (uint64_t page = 0; page < region_.geometry->num_pages; ++page) {
    Locked locked(door_, Deadline::after(10.0));
    RELIVE_RETURN_IF_ERROR(locked.status());
    *moved += move_page(locked.held(), page) ? 1 : 0;
  }
  return {};
}

Status Table::pin_page(int64_t key, bool pin) {
  Entered entered(*this, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  RELIVE_RETURN_IF_ERROR(check_keys(&key, 1));
  Locked locked(door_, Deadline::after(10.0));
  RELIVE_RETURN_IF_ERROR(locked.status());
  const uint64_t page = region_.page_of(region_.key_slot(key));
  const uint64_t ref = region_.key_generation(key) << region_.page_bits | page;
  for (auto& slot : region_.participants[me_].pins) {
    if (slot.load(kRelaxed) != (pin ? 0 : ref)) continue;
    if (pin && region_.alive(ref) == kNoPage)
      return Status(Code::kForeignKey).with_int("position", 0).with_int("key", key);
    if (pin) {
      region_.header->num_pins.fetch_add(1, kRelaxed);  // first: where it is 0 nobody looks at the pins
      slot.store(ref, kRelaxed);
    } else {
      unpin(locked.held(), slot);
    }
    return {};
  }
  return Status(Code::kRequestTooLarge).with_int("requested", 1).with_int("window", pin ? kPins : 0);
}

Status probe_region(const std::string& path, Probe* out) {
  std::unique_ptr<Storage> storage;
  RELIVE_RETURN_IF_ERROR(Storage::open_file(path, Access::kReadOnly, sizeof(Header), &storage));
  Region region;
  RELIVE_RETURN_IF_ERROR(with_path(region.open(storage->base(), storage->num_bytes()), path));
  const Header& h = *region.header;
  out->num_bytes = end_of_frame(*region.geometry, std::max<uint64_t>(1, h.frames_committed.load()) - 1);
  out->num_steps = h.live_steps.load() - h.removed_steps.load();
  out->capacity = region.geometry->capacity;
  for (uint32_t p = 0; p < region.geometry->max_participants; ++p)
    out->num_attached += region.participants[p].live.load() != 0 && !storage->is_byte_free(kLifeByte + p) ? 1 : 0;
  out->is_attached = !storage->is_byte_free(kAttachedByte);
  return {};
}

Status remove_region(const std::string& path) {
  std::unique_ptr<Storage> storage;
  RELIVE_RETURN_IF_ERROR(Storage::open_file(path, Access::kReadWrite, sizeof(Header), &storage));
  Region region;
  RELIVE_RETURN_IF_ERROR(with_path(region.open(storage->base(), storage->num_bytes()), path));
  if (!storage->try_lock_byte(kAttachedByte, true)) return Status(Code::kInUse).with_text("path", path);
  return storage->unlink();
}

}  // namespace relive
