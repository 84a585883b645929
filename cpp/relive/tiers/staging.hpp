// Rows of spilled pages on their way into batches: what is wanted, what is being read, what is here.
//
// Batches are drawn ahead of their gather, so it is known which units will be wanted and in which order (each batch
// has a ticket). Reads follow the tickets, inside a ticket the position on disk; neighbours on disk are read together.
// What is here stays until its last planned use: room is made of units without a planned use first (least recently
// used), then of the one whose next use is farthest, and only if that is farther than the use room is made for
// (Belady's rule over the planned part of the future). Only a part of the memory is given to units that were read for
// their first use: read much earlier than needed, they would push out what was used and will be wanted sooner again. A batch that somebody waits for goes before everything.
//
// Owner:   a Staging borrows the region, the page file and its memory from the Tier; it owns its reading threads.
// Locking: one mutex of this process, never held during a read or a copy and never taken under the table lock.
// Truth:   a unit belongs to a page of one generation. Rows of a CLOSED page do not change within a generation, so
//          staged bytes stay true as long as the generation does; a read is only believed if the generation is the
//          same after it (the position may have changed hands meanwhile), and gather looks once more (rule G4).
// Cost:    O(log n) a unit in each step of its life.
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

// A unit of a page of one generation.
struct UnitId {
  uint64_t ref;   // of the page
  uint32_t unit;  // of the page's bulk

  auto operator<=>(const UnitId&) const = default;
};

// Bytes of one unit and where a batch wants them.
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
  // memory: num_blocks x block_bytes of the region's bulk geometry.
  Staging(const Region& region, PageFile& file, std::byte* memory, uint32_t num_threads);
  ~Staging() { stop(); }
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  void stop();  // reads under way are finished, everybody who waits gets kTableClosed

  uint64_t take_ticket() { return next_ticket_.fetch_add(1, std::memory_order_relaxed); }
  // The batch of this ticket will want these units (pages in memory too: they may be spilled before). Each once.
  void expect(uint64_t ticket, const std::vector<UnitId>& units);
  // It does not want them any more. What deliver() delivered is forgotten already; twice is harmless.
  void forget(uint64_t ticket, const std::vector<UnitId>& units);
  // Copies the pieces, in whatever order their units come in. Sorts them. stale[window] = 1 where a page has gone.
  // kDeadlineExceeded, kTableClosed, kInterrupted (cancelled or a signal), or what a read said; then some are copied.
  Status deliver(uint64_t ticket, std::vector<Piece>* pieces, const Deadline& deadline,
                 const std::atomic<bool>* cancelled, uint8_t* stale);
  // The page was spilled: what was expected of it is to be read now.
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
  struct Unit {
    UnitId id{};
    State state = State::kAbsent;
    Filed filed = Filed::kNowhere;
    uint32_t waiters = 0;        // batches that are being gathered and want it now
    uint32_t pins = 0;           // copies under way
    bool is_fresh = false;       // read, not used yet
    uint64_t key = 0;            // the ticket it is filed under; 0 = now
    uint64_t at = 0;             // byte in the page file
    std::vector<uint64_t> uses;  // tickets, ascending
    std::vector<uint32_t> blocks;
    std::list<Unit*>::iterator idle_at;
  };
  struct Hash {
    size_t operator()(const UnitId& id) const;
  };
  struct Group {
    Unit* unit;
    size_t first, count;
    bool began_before;  // its read was under way when the call came: should that fail, it is read once more
  };

  void read_loop();
  std::vector<Unit*> pick_run();
  void add_neighbours(std::vector<Unit*>* run);
  void finish_run(const std::vector<Unit*>& run, const Status& status);
  Status read_run(const std::vector<Unit*>& run);
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
  std::set<Unit*, Earlier> pending_;      // to be read
  std::map<uint64_t, Unit*> pending_at_;  // the same, by their place on disk
  std::set<Unit*, Earlier> ready_;        // here, with a planned use
  std::list<Unit*> idle_;                 // here, without one; least recently used first
  std::vector<uint32_t> free_blocks_;
  uint64_t fresh_blocks_ = 0;  // of units that were read and not used yet
  uint64_t most_fresh_ = 0;
  Status last_error_;
  std::atomic<uint64_t> next_ticket_{1};
  StagingCounters counters_;
  std::vector<std::thread> threads_;
};

}  // namespace relive
