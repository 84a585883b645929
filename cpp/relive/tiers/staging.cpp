// The life of a unit: requested, queued, given memory, read, forgotten. Delivery is in staging_deliver.cpp.
#include "relive/tiers/staging.hpp"

#include <algorithm>
#include <new>
#include <tuple>

#include "relive/words/rng.hpp"

namespace relive {
namespace {

constexpr uint64_t kMostRun = 8 << 20;  // bytes read in one call
constexpr uint64_t kFreshPart = 3;      // 1 / this part of the memory may contain units before their first use

}  // namespace

bool Staging::Earlier::operator()(const Unit* a, const Unit* b) const {
  return std::tie(a->key, a->at, a->id) < std::tie(b->key, b->at, b->id);
}

size_t Staging::Hash::operator()(const UnitId& id) const {
  return static_cast<size_t>(SplitMix64::mix((id.ref + SplitMix64::kGolden) ^ (uint64_t{id.unit} << 40)));
}

Staging::Unit::Unit(const UnitId& which, size_t num_blocks) : id(which), idle_node{nullptr} {
  Order order{nullptr};
  node = order.extract(order.begin());
  Places places{{0, nullptr}};
  place_node = places.extract(places.begin());
  blocks.reserve(num_blocks);
}

Staging::Staging(const Region& region, PageFile& file, std::byte* memory, uint32_t num_threads)
    : r_(region), file_(file), memory_(memory), block_bytes_(region.bulk.geometry->block_bytes) {
  const BulkGeometry& bulk = *region.bulk.geometry;
  for (uint32_t c = 0; c < bulk.num_columns; ++c) {
    if (bulk.first_unit[c] == ~0u) continue;
    const uint64_t area = (region.page_len * region.columns[c].stride + block_bytes_ - 1) / block_bytes_ * block_bytes_;
    for (uint64_t at = 0; at < area; at += bulk.unit_bytes(c)) {
      unit_offsets_.push_back(region.columns[c].offset + at);
      unit_blocks_.push_back(bulk.unit_blocks[c]);
    }
  }
  const uint32_t largest = unit_blocks_.empty() ? 0 : *std::max_element(unit_blocks_.begin(), unit_blocks_.end());
  most_fresh_ = std::max<uint64_t>(bulk.num_blocks / kFreshPart, largest);
  const uint32_t smallest = unit_blocks_.empty() ? 1 : *std::min_element(unit_blocks_.begin(), unit_blocks_.end());
  for (uint64_t block = bulk.num_blocks; block-- > 0;) free_blocks_.push_back(static_cast<uint32_t>(block));
  try {
    for (uint32_t i = 0; i < num_threads; ++i) {
      Run run;
      run.reserve(kMostRun / (smallest * block_bytes_) + 1);
      threads_.emplace_back([this, run = std::move(run)]() mutable { read_loop(&run); });
    }
  } catch (...) {  // a thread that cannot start: those that have started end before the members that they use
    stop();
    throw;
  }
}

void Staging::stop() {
  {
    const std::lock_guard<std::mutex> guard(mutex_);
    is_stopping_ = true;
  }
  work_came_.notify_all();
  unit_came_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

Staging::Unit* Staging::find(const UnitId& id) {
  const auto found = units_.find(id);
  return found == units_.end() ? nullptr : &found->second;
}

Staging::Unit* Staging::find_or_make(const UnitId& id) {
  const auto [found, is_new] = units_.try_emplace(id, id, blocks_of(id.unit));
  Unit* const unit = &found->second;
  if (is_new) unit->node.value() = unit->place_node.mapped() = unit->idle_node.front() = unit;
  return unit;
}

bool Staging::is_alive(const Unit* unit) const {
  const uint64_t word = r_.words[r_.ref_page(unit->id.ref)].load(std::memory_order_acquire);
  return Region::is_used(word) && Region::generation_of(word) == r_.ref_generation(unit->id.ref);
}

void Staging::unfile(Unit* unit) {
  if (unit->filed == Filed::kPending) {
    unit->node = pending_.extract(unit);
    unit->place_node = pending_at_.extract(unit->at);
  } else if (unit->filed == Filed::kReady) {
    unit->node = ready_.extract(unit);
  } else if (unit->filed == Filed::kIdle) {
    unit->idle_node.splice(unit->idle_node.begin(), idle_, unit->idle_at);
  }
  unit->filed = Filed::kNowhere;
}

// Puts a unit into the list that its state and its uses require. Deletes a unit that no batch wants and that is not in
// memory.
void Staging::file(Unit* unit) {
  unfile(unit);
  const bool is_wanted = unit->waiters > 0 || !unit->uses.empty();
  unit->key = unit->waiters > 0 || unit->uses.empty() ? 0 : unit->uses.front();
  if (unit->state == State::kReading || unit->pins > 0) return;
  if (unit->state == State::kReady) {
    if (unit->waiters > 0) return;
    if (is_wanted) {
      ready_.insert(std::move(unit->node));
      unit->filed = Filed::kReady;
    } else {
      unit->idle_at = unit->idle_node.begin();
      idle_.splice(idle_.end(), unit->idle_node);
      unit->filed = Filed::kIdle;
    }
    return;
  }
  if (!is_wanted) {
    units_.erase(unit->id);
    return;
  }
  if (unit->state != State::kAbsent) return;
  const uint64_t page = r_.ref_page(unit->id.ref);
  const BulkPlace place = r_.bulk.place(page);
  if (!is_alive(unit)) {  // read after the place: another generation has another place
    unit->state = State::kGone;
    unit_came_.notify_all();
    return;
  }
  if (place.kind != BulkKind::kDisk) return;  // in memory; spilled() will queue it
  unit->at = place.number * r_.bulk.geometry->frame_bytes + unit_offsets_[unit->id.unit];
  // A freed page leaves its units queued until they are visited, and one of them may have this very place on disk.
  if (const auto other = pending_at_.find(unit->at); other != pending_at_.end()) {
    Unit* const gone = other->second;
    unfile(gone);
    gone->state = State::kGone;
    unit_came_.notify_all();
  }
  unit->place_node.key() = unit->at;
  pending_at_.insert(std::move(unit->place_node));
  pending_.insert(std::move(unit->node));
  unit->filed = Filed::kPending;
}

void Staging::wake_readers() {
  if (sleeping_ == 0 || pending_.empty()) return;
  if (pending_.size() == 1) {
    work_came_.notify_one();
  } else {
    work_came_.notify_all();
  }
}

void Staging::expect(uint64_t ticket, const std::vector<UnitId>& units) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const UnitId& id : units) {
    Unit* unit = find_or_make(id);
    unit->uses.insert(std::upper_bound(unit->uses.begin(), unit->uses.end(), ticket), ticket);
    file(unit);
  }
  wake_readers();
}

void Staging::forget(uint64_t ticket, const std::vector<UnitId>& units) {
  const std::lock_guard<std::mutex> guard(mutex_);
  for (const UnitId& id : units)
    if (Unit* unit = find(id); unit != nullptr) use_ends(unit, ticket);
  wake_readers();
}

void Staging::use_ends(Unit* unit, uint64_t ticket) {
  const auto use = std::lower_bound(unit->uses.begin(), unit->uses.end(), ticket);
  if (use != unit->uses.end() && *use == ticket) unit->uses.erase(use);
  file(unit);
}

void Staging::spilled(uint64_t ref) {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (units_.empty()) return;
  for (uint32_t unit = 0; unit < unit_offsets_.size(); ++unit) {
    Unit* found = find({ref, unit});
    if (found != nullptr && found->state == State::kAbsent) file(found);
  }
  wake_readers();
}

// Gives memory to a unit, at the cost of units that are wanted later or not at all.
bool Staging::take_blocks(Unit* unit) {
  const size_t needed = blocks_of(unit->id.unit);
  while (free_blocks_.size() < needed) {
    Unit* victim = nullptr;
    if (!idle_.empty()) {
      victim = idle_.front();
    } else if (!ready_.empty() && (*ready_.rbegin())->key > unit->key) {
      victim = *ready_.rbegin();
      counters_.evicted_planned.fetch_add(1, std::memory_order_relaxed);
    }
    if (victim == nullptr) return false;
    unfile(victim);
    give_blocks(victim);
    victim->state = State::kAbsent;
    file(victim);
  }
  unit->blocks.assign(free_blocks_.end() - static_cast<std::ptrdiff_t>(needed), free_blocks_.end());
  std::reverse(unit->blocks.begin(), unit->blocks.end());
  free_blocks_.resize(free_blocks_.size() - needed);
  return true;
}

void Staging::give_blocks(Unit* unit) {
  free_blocks_.insert(free_blocks_.end(), unit->blocks.rbegin(), unit->blocks.rend());
  unit->blocks.clear();
  set_fresh(unit, false);
}

void Staging::set_fresh(Unit* unit, bool is_fresh) {
  if (unit->is_fresh == is_fresh) return;
  unit->is_fresh = is_fresh;
  fresh_blocks_ += is_fresh ? blocks_of(unit->id.unit) : 0;
  fresh_blocks_ -= is_fresh ? 0 : blocks_of(unit->id.unit);
}

// A unit that no batch waits for is read only after other such units have been used.
bool Staging::is_too_early(const Unit* unit) const {
  return unit->key != 0 && fresh_blocks_ + blocks_of(unit->id.unit) > most_fresh_;
}

void Staging::begin_read(Unit* unit) {
  set_fresh(unit, true);
  unfile(unit);
  unit->state = State::kReading;
}

// Adds wanted units that lie directly after or before the run on disk.
void Staging::add_neighbours(Run* run) {
  uint64_t num_bytes = bytes_of(run->front());
  const auto has_room = [&] { return num_bytes < kMostRun && run->size() < run->capacity(); };
  while (has_room()) {
    const Unit* last = run->back();
    const auto next = pending_at_.find(last->at + bytes_of(last));
    if (next == pending_at_.end() || !is_alive(next->second)) break;
    Unit* unit = next->second;
    if (num_bytes + bytes_of(unit) > kMostRun || is_too_early(unit) || !take_blocks(unit)) break;
    begin_read(unit);
    run->push_back(unit);
    num_bytes += bytes_of(unit);
  }
  while (has_room()) {
    const auto first = pending_at_.lower_bound(run->front()->at);
    if (first == pending_at_.begin()) break;
    Unit* unit = std::prev(first)->second;
    if (unit->at + bytes_of(unit) != run->front()->at || !is_alive(unit)) break;
    if (num_bytes + bytes_of(unit) > kMostRun || is_too_early(unit) || !take_blocks(unit)) break;
    begin_read(unit);
    run->insert(run->begin(), unit);
    num_bytes += bytes_of(unit);
  }
}

// *run: units that lie next to each other on disk, which have memory now; none if there is nothing to read.
void Staging::pick_run(Run* run) {
  run->clear();
  while (!pending_.empty()) {
    Unit* unit = *pending_.begin();
    if (!is_alive(unit)) {
      unfile(unit);
      unit->state = State::kGone;
      unit_came_.notify_all();
      continue;
    }
    if (is_too_early(unit) || !take_blocks(unit)) return;
    begin_read(unit);
    run->push_back(unit);
    return add_neighbours(run);
  }
}

Status Staging::read_run(const Run& run) try {
  std::vector<Stretch> to;
  for (const Unit* unit : run) {
    for (uint32_t block : unit->blocks) {
      std::byte* memory = memory_ + block * block_bytes_;
      if (!to.empty() && to.back().memory + to.back().num_bytes == memory) {
        to.back().num_bytes += block_bytes_;
      } else {
        to.push_back({memory, block_bytes_});
      }
    }
  }
  return file_.read(run.front()->at, to);
} catch (const std::bad_alloc&) {
  return Status(Code::kNoMemory);
}

void Staging::finish_run(const Run& run, Status status) {
  acquire_fence();
  const bool is_read = status.ok();
  if (!is_read) last_error_ = std::move(status);
  for (Unit* unit : run) {
    if (!is_read) {
      unit->state = State::kFailed;
    } else {
      unit->state = is_alive(unit) ? State::kReady : State::kGone;
      counters_.bytes_read.fetch_add(bytes_of(unit), std::memory_order_relaxed);
    }
    if (unit->state != State::kReady) give_blocks(unit);
    file(unit);
  }
  counters_.reads.fetch_add(1, std::memory_order_relaxed);
  counters_.units_read.fetch_add(run.size(), std::memory_order_relaxed);
}

void Staging::read_loop(Run* run) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_) {
    pick_run(run);
    if (run->empty()) {
      ++sleeping_;
      work_came_.wait(lock);
      --sleeping_;
      continue;
    }
    lock.unlock();
    Status status = read_run(*run);
    lock.lock();
    finish_run(*run, std::move(status));
    unit_came_.notify_all();
    wake_readers();
  }
}

uint64_t Staging::bytes_staged() {
  const std::lock_guard<std::mutex> guard(mutex_);
  return (r_.bulk.geometry->num_blocks - free_blocks_.size()) * block_bytes_;
}

}  // namespace relive
