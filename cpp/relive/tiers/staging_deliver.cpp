// Delivers staged units to a batch.
#include <algorithm>
#include <chrono>
#include <cstring>

#include "relive/tiers/staging.hpp"
#include "relive/words/sync.hpp"

namespace relive {
namespace {

constexpr double kSlice_s = 0.1;  // between checks of the deadline, the caller's cancel and signals

}  // namespace

// Processes one group whose unit has arrived, was freed or could not be read. Releases the mutex during the copy.
Status Staging::settle(std::unique_lock<std::mutex>& lock, uint64_t ticket, Group& group,
                       const std::vector<Piece>& pieces, uint8_t* stale, bool* is_done) {
  Unit* unit = group.unit;
  *is_done = unit->state == State::kReady || unit->state == State::kGone;
  if (unit->state == State::kFailed) {
    if (!group.began_before) return last_error_;
    group.began_before = false;
    unit->state = State::kAbsent;
    file(unit);
    return {};
  }
  if (!*is_done) return {};
  if (unit->state == State::kGone) {
    for (size_t k = group.first; k < group.first + group.count; ++k) stale[pieces[k].window] = 1;
  } else {
    ++unit->pins;
    lock.unlock();
    for (size_t k = group.first; k < group.first + group.count; ++k) {
      const Piece& piece = pieces[k];
      uint64_t offset = piece.offset, left = piece.num_bytes;
      for (std::byte* to = piece.to; left > 0;) {
        const uint64_t in_block = offset % block_bytes_;
        const uint64_t size = std::min(left, block_bytes_ - in_block);
        std::memcpy(to, memory_ + unit->blocks[offset / block_bytes_] * block_bytes_ + in_block, size);
        to += size;
        offset += size;
        left -= size;
      }
    }
    lock.lock();
    --unit->pins;
  }
  set_fresh(unit, false);
  --unit->waiters;
  group.unit = nullptr;
  use_ends(unit, ticket);
  return {};
}

class Staging::Wanted final {
 public:
  // The mutex is taken at both ends of its life, and during add().
  explicit Wanted(Staging& staging, size_t most) : staging_(staging) { groups.reserve(most); }
  ~Wanted() {
    for (const Group& group : groups) {
      if (group.unit == nullptr) continue;
      --group.unit->waiters;
      staging_.file(group.unit);
    }
    staging_.wake_readers();
  }
  Wanted(const Wanted&) = delete;
  Wanted& operator=(const Wanted&) = delete;

  void add(const UnitId& id, size_t piece) {
    Unit* const unit = staging_.find_or_make(id);
    if (unit->state == State::kFailed && unit->waiters == 0) unit->state = State::kAbsent;  // one more try
    staging_.counters_.units_wanted.fetch_add(1, std::memory_order_relaxed);
    if (unit->state == State::kReady) staging_.counters_.units_here.fetch_add(1, std::memory_order_relaxed);
    ++unit->waiters;
    groups.push_back({unit, piece, 1, unit->state == State::kReading});
    staging_.file(unit);
  }

  std::vector<Group> groups;

 private:
  Staging& staging_;
};

Status Staging::deliver(uint64_t ticket, std::vector<Piece>* pieces, const Deadline& deadline,
                        const std::atomic<bool>* cancelled, uint8_t* stale) {
  if (pieces->empty()) return {};
  std::sort(pieces->begin(), pieces->end(), [](const Piece& a, const Piece& b) { return a.id < b.id; });
  std::unique_lock<std::mutex> lock(mutex_);
  Wanted wanted(*this, pieces->size());  // its end comes before that of the lock
  std::vector<Group>& groups = wanted.groups;
  for (size_t k = 0; k < pieces->size(); ++k) {
    if (k > 0 && (*pieces)[k].id == (*pieces)[k - 1].id) {
      ++groups.back().count;
    } else {
      wanted.add((*pieces)[k].id, k);
    }
  }
  wake_readers();
  Status status;
  while (status.ok()) {
    bool some = false;
    for (Group& group : groups) {
      bool is_done = false;
      status = settle(lock, ticket, group, *pieces, stale, &is_done);
      some |= is_done;
      if (!status.ok()) break;
    }
    std::erase_if(groups, [](const Group& group) { return group.unit == nullptr; });
    if (groups.empty() || !status.ok()) break;
    if (is_stopping_) {
      status = Status(Code::kTableClosed);
    } else if (cancelled != nullptr && cancelled->load()) {
      status = Status(Code::kInterrupted);
    } else if (deadline.passed()) {
      status = Status(Code::kDeadlineExceeded)
                   .with_text("needs", std::to_string(groups.size()) + " pieces of spilled pages")
                   .with_text("has", "reads under way")
                   .with_double("waited_s", deadline.waited_s());
    } else if (some) {
      wake_readers();
    } else {
      wake_readers();
      unit_came_.wait_for(lock, std::chrono::duration<double>(std::min(kSlice_s, deadline.remaining_s())));
      if (cancelled == nullptr) {
        lock.unlock();
        const bool ends = is_interrupted();
        lock.lock();
        if (ends) status = Status(Code::kInterrupted);
      }
    }
  }
  return status;
}

}  // namespace relive
