// Staging: units of spilled pages on their way from disk into batches. Batches are drawn before their gather and have a
// ticket each, so staging knows which units will be wanted, and in which order.
//
// Owns:    a Staging owns its reading threads, and borrows the region, the page file and its memory from the Tier.
// Locking: one mutex of this process. The mutex is free during each read and copy, and is never taken under the table
//          lock.
// Memory:  the thread that announces or wants a unit allocates everything that the unit will need. A reading thread
//          allocates for its call of the page file only, and a lack of memory there is a read that failed: nothing is
//          thrown in a thread that no caller waits for.
// Cost:    O(log n) for each step in the life of a unit.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "relive/tiers/page_file.hpp"
#include "relive/words/region.hpp"

namespace relive {

// A unit of a page of one generation. Rows of a CLOSED page do not change within a generation, so staged bytes are
// valid as long as the generation. A read counts only if the generation is the same after it, because the position may
// have a new owner; gather checks once more (rule G4).
struct UnitId {
  uint64_t ref;   // of the page
  uint32_t unit;  // of the page's bulk

  auto operator<=>(const UnitId&) const = default;
};

// Bytes of one unit, and the memory of the batch that receives them.
struct Piece {
  UnitId id;
  uint64_t offset;  // in the unit
  uint64_t num_bytes;
  std::byte* to;
  uint32_t window;  // of the batch
};

struct StagingCounters {
  std::atomic<uint64_t> bytes_read{0}, reads{0}, units_read{0}, units_wanted{0}, units_here{0}, evicted_planned{0};
};

class Staging final {
 public:
  // Order of reads: a unit with a waiting batch first, then by ticket, then by position on disk; neighbours on disk are
  // read together. Order of the units that give up memory for a read: units without a planned use, least recently used
  // first; then the unit whose next use is farthest, if that use is later than the new one (Belady's rule over the
  // planned uses). Units before their first use may fill only a part of the memory: otherwise units that are read too
  // early would push out units that are wanted again sooner.
  // memory: num_blocks x block_bytes of the region's bulk geometry.
  Staging(const Region& region, PageFile& file, std::byte* memory, uint32_t num_threads);
  ~Staging() { stop(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void stop();  // finishes reads under way; every waiter gets kTableClosed

  uint64_t take_ticket() { return next_ticket_.fetch_add(1, std::memory_order_relaxed); }
  // Announces that the batch of this ticket will want these units, each listed once. Pages in memory are included,
  // because they may be spilled before.
  void expect(uint64_t ticket, const std::vector<UnitId>& units);
  // Takes the announcement back. deliver() has done so for delivered units; a second call is harmless.
  void forget(uint64_t ticket, const std::vector<UnitId>& units);
  // Copies the pieces, in the order in which their units arrive. Sorts the pieces. Sets stale[window] = 1 if a page was
  // freed. Returns kDeadlineExceeded, kTableClosed, kInterrupted (cancelled or a signal), or the error of a read; some
  // pieces are then copied.
  Status deliver(uint64_t ticket, std::vector<Piece>* pieces, const Deadline& deadline,
                 const std::atomic<bool>* cancelled, uint8_t* stale);
  // Call this after the page was spilled: queues its announced units for reading.
  void spilled(uint64_t ref);

  const StagingCounters& counters() const { return counters_; }
  uint64_t bytes_staged();

 private:
  enum class State : uint32_t { kAbsent, kReading, kReady, kGone, kFailed };
  enum class Filed : uint32_t { kNowhere, kPending, kReady, kIdle };
  struct Unit;
  struct Earlier {
    bool operator()(const Unit* a, const Unit* b) const;
  };
  using Order = std::set<Unit*, Earlier>;
  using Places = std::map<uint64_t, Unit*>;
  struct Unit {
    Unit(const UnitId& which, size_t num_blocks);
    UnitId id{};
    State state = State::kAbsent;
    Filed filed = Filed::kNowhere;
    uint32_t waiters = 0;        // batches that are being gathered and want it now
    uint32_t pins = 0;           // copies under way
    bool is_fresh = false;       // read, not used yet
    uint64_t key = 0;            // the ticket of its place in the queue; 0 = now
    uint64_t at = 0;             // byte in the page file
    std::vector<uint64_t> uses;  // tickets, ascending
    std::vector<uint32_t> blocks;
    Order::node_type node;         // its place in pending_ or ready_, while it is in neither
    Places::node_type place_node;  // its place in pending_at_, while it is not there
    std::list<Unit*> idle_node;    // its place in idle_, while it is not there
    std::list<Unit*>::iterator idle_at;
  };
  struct Hash {
    size_t operator()(const UnitId& id) const;
  };
  struct Group {
    Unit* unit;
    size_t first, count;
    // The read was under way when the call began. If that read fails, the unit is read once more.
    bool began_before;
  };

  // The waiting batch of one deliver(): what it still wants. Its end takes the wishes back.
  class Wanted;

  using Run = std::vector<Unit*>;  // has room for the longest run, and never grows beyond it
  void read_loop(Run* run);
  void pick_run(Run* run);
  void add_neighbours(Run* run);
  void finish_run(const Run& run, Status status);
  Status read_run(const Run& run);
  void begin_read(Unit* unit);
  bool is_too_early(const Unit* unit) const;
  void set_fresh(Unit* unit, bool is_fresh);
  bool take_blocks(Unit* unit);
  void give_blocks(Unit* unit);
  void file(Unit* unit);
  void unfile(Unit* unit);
  void use_ends(Unit* unit, uint64_t ticket);
  Unit* find(const UnitId& id);
  Unit* find_or_make(const UnitId& id);
  uint32_t blocks_of(uint32_t unit) const { return unit_blocks_[unit]; }
  uint64_t bytes_of(const Unit* unit) const { return blocks_of(unit->id.unit) * block_bytes_; }
  bool is_alive(const Unit* unit) const;
  void wake_readers();
  Status settle(std::unique_lock<std::mutex>& lock, uint64_t ticket, Group& group, const std::vector<Piece>& pieces,
                uint8_t* stale, bool* is_done);

  const Region& r_;
  PageFile& file_;
  std::byte* const memory_;
  const uint64_t block_bytes_;
  std::vector<uint64_t> unit_offsets_;  // of each unit of a page, in its bulk frame
  std::vector<uint32_t> unit_blocks_;

  std::mutex mutex_;
  std::condition_variable work_came_, unit_came_;
  bool is_stopping_ = false;
  uint32_t sleeping_ = 0;
  std::unordered_map<UnitId, Unit, Hash> units_;
  Order pending_;          // to be read
  Places pending_at_;      // the same, by place on disk
  Order ready_;            // in memory, with a planned use
  std::list<Unit*> idle_;  // in memory, without one; least recently used first
  std::vector<uint32_t> free_blocks_;
  uint64_t fresh_blocks_ = 0;  // of units that were read and not used yet
  uint64_t most_fresh_ = 0;
  Status last_error_;
  std::atomic<uint64_t> next_ticket_{1};
  StagingCounters counters_;
  std::vector<std::thread> threads_;
};

}  // namespace relive
