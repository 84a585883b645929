// The lanes of one actor: rows in, keys out.
//
// Owner:   a Writer borrows its Table and owns its lanes in the region until close(). One thread at a time; a second
//          one waits for the first.
// Locking: pages are opened and rows committed under the table lock, the rows themselves are written without it
//          (only the owner of a lane writes rows at or above step_end).
// Cost:    about 0.15 us for one row of 64 bytes, 30 ns a row for many; large rows at the speed of memory.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "relive/pages/publish.hpp"
#include "relive/table/table.hpp"

namespace relive {

// Values of one column for a block of rows: row t of lane m lies at base + t * row_stride + m * lane_stride.
struct Cells {
  const std::byte* base = nullptr;  // null: not given
  int64_t row_stride = 0;
  int64_t lane_stride = 0;

  const std::byte* at(size_t row, size_t lane) const {
    return base + static_cast<int64_t>(row) * row_stride + static_cast<int64_t>(lane) * lane_stride;
  }
};

// Rows for several lanes, T a lane, all checked for shape and dtype by the caller.
struct StepBlock {
  size_t num_rows = 0;             // T
  size_t num_lanes = 0;            // M
  const int32_t* lanes = nullptr;  // [M] numbers within the writer; null: 0 .. M - 1
  std::vector<Cells> columns;      // [num_columns], each given
  std::vector<Cells> next;         // [num_columns], given for all state columns or for none
  bool has_next = false;           // next cells, one a row
  bool has_last_state = false;     // state columns carry T + 1 rows
  Cells terminated, truncated;     // uint8
  Cells discount;                  // float32, may be absent: 1 - terminated
  Cells priority;                  // float32; may be absent
};

// What writing a cell asks of its column's layout: all columns of a table in few lines of memory.
struct ColumnCell {
  uint64_t offset, stride, num_bytes;
  uint32_t column;
  bool is_state, is_bulk;

  // `bulk`: the page's bulk frame, where the table is tiered.
  std::byte* at(std::byte* frame, std::byte* bulk, uint32_t row) const {
    return (is_bulk ? bulk : frame) + offset + row * stride;
  }
};

class Writer final {
 public:
  // Takes num_lanes free lanes. kTooManyLanes, kCapacityTooSmall.
  static Status open(Table* table, uint32_t num_lanes, std::unique_ptr<Writer>* out);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // keys[T x M], row-major. Everything is checked before the first row is written; blocks while a limiter refuses.
  // A block goes in whole where it can: its frames are taken and the limiters asked before its first row. One that the
  // limiters let in by parts, or that takes several holds, may fail after some of them: then the status has the fields
  // stored, num_rows, and the first `stored` rows and keys are there, row-major. The rest may be written next.
  Status write(const StepBlock& block, double timeout_s, int64_t* keys);
  // Ends the current episode of the lanes after its last row, so many in a hold as one may cut; lanes whose episode has
  // ended are passed over, so a call that met its deadline can be made again. next: [num_columns] state cells or absent.
  Status end_episode(const StepBlock& block, bool terminated, double timeout_s);
  // Drops the open episodes of the lanes (block.lanes, block.num_lanes): see pages/abandon.hpp. Where the deadline passed
  // in between the next call of these lanes, whichever, goes on with it first.
  Status abandon(const StepBlock& block, double timeout_s);
  void set_policy_version(int64_t version) { policy_version_ = version; }  // -1: the table's
  // Cuts the lanes and gives them back. Where the table lock was not to be had in the handle's own deadline the writer
  // stays open: close() may be called again. A writer that is dropped leaves that to the next one, or to the table's end.
  Status close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  uint32_t num_lanes() const { return static_cast<uint32_t>(lanes_.size()); }

 private:
  // Rows of an open episode that lie in one page, from `first` on.
  struct EpisodePart {
    uint64_t ref;
    uint32_t first;
  };
  // What the owner of a lane knows of the start values of its rows, in tables that keep them in cells.
  struct LaneStarts {
    std::vector<uint32_t> cells;  // of the page, those that no committed row names yet, in the order of rows
    uint32_t run_cells = 0;       // of them, what the run names
    std::vector<uint32_t> moved;  // steps where windows begin that the run's end moves back, if no others begin there
    std::unique_ptr<std::byte[]> recent;  // values of the episode's last steps, those without a cell
    uint32_t fresh = 0;                   // steps just committed that are not among them yet
  };
  // What the owner of a lane knows of it. Only the owner moves step_end and the open page, so none of this is read back
  // from the region on the way of an append. A step of many lanes reads all of it, so it is small.
  struct LaneWriter {
    uint32_t slot = 0;
    uint32_t uid = 0;  // its low half
    uint32_t episode_step = 0;
    uint64_t lane_step = 0;  // steps that it has
    bool has_last = false;   // a row of the current episode was committed
    bool is_frozen = false;  // the state cell of row `end` is written already (the seam)
    uint64_t last_slot = 0;  // where the last row lies
    uint64_t last_word = 0;
    size_t done = 0;  // rows of the block already committed
    StepRun run;
    uint64_t page = kNoPage;  // the next row's; kNoPage: one has to be opened first
    uint64_t word = 0;
    uint32_t end = 0;                  // step_end of the page
    std::byte* frame = nullptr;        // of the page
    std::byte* ahead_frame = nullptr;  // of the page opened ahead, null where there is none
    std::byte* bulk = nullptr;         // as frame and ahead_frame, for the large columns of a tiered table
    std::byte* ahead_bulk = nullptr;
    std::unique_ptr<LaneStarts> starts;  // null where rows keep their start values themselves
    std::vector<std::byte> said;         // of the open episode's columns of kind episode, one behind the other
    std::vector<EpisodePart> parts;      // of the open episode, oldest first
    bool is_given_up = false;            // it was begun to drop it
    bool moves_back() const { return starts != nullptr && !starts->moved.empty(); }
  };

  // A call by the lanes' owner, for one scope: of this process, one at a time, with the writer and its table open.
  class Call final {
   public:
    Call(Writer& writer, const Deadline& deadline) : status_(begin(writer, deadline)) {}
    const Status& status() const { return status_; }

   private:
    Status begin(Writer& writer, const Deadline& deadline);

    std::optional<Turn> turn_;
    std::optional<Entered> entered_;
    Status status_;
  };

  static constexpr uint32_t kAnyLength = ~0u;

  explicit Writer(Table* table);
  const LaneWriter& lane_of(const StepBlock& block, size_t m) const {
    return lanes_[block.lanes == nullptr ? m : block.lanes[m]];
  }
  LaneWriter& lane_of(const StepBlock& block, size_t m) { return lanes_[block.lanes == nullptr ? m : block.lanes[m]]; }
  Status check_block(const StepBlock& block);
  Status check_capacity();
  Status check_rows(const StepBlock& block, size_t m) const;
  void note_episode(const StepBlock& block, LaneWriter& lane, size_t m) const;
  const ColumnCell* other_episode(const StepBlock& block, size_t m) const;
  const ColumnCell* other_seam(const StepBlock& block, size_t m) const;
  const ColumnCell* other_frozen(const StepBlock& block, const std::vector<Cells>& given, size_t m) const;
  Status seam_mismatch(const StepBlock& block, uint32_t column, size_t m) const;
  bool has_next_cell(const StepBlock& block, size_t row, bool ends) const;
  bool ends_at(const StepBlock& block, size_t row, size_t m) const;
  void plan_run(const StepBlock& block, size_t m, size_t most);
  size_t plan_round(const StepBlock& block, size_t stored, size_t upto);
  Status write_round(const StepBlock& block, const Deadline& deadline, int64_t* keys);
  // What the limiters say to the rows of a block that are left.
  struct Admission {
    int64_t rows = 0;      // let in now
    int64_t asked = 0;     // how many must be let in at once
    int64_t items = 0;     // that they can begin in the index that does not let them in
    uint32_t refused = 0;  // which one that is
    bool never = false;    // nor ever will
  };
  int64_t most_items(const StepBlock& block, uint32_t index, size_t stored, size_t rows) const;
  int64_t rows_of_items(const StepBlock& block, uint32_t index, size_t stored, size_t rows, int64_t allowed) const;
  Admission ask_limiters(const StepBlock& block, size_t stored) const;
  void split_admission(const StepBlock& block, size_t stored, Admission* admission) const;
  Status admit(const StepBlock& block, size_t stored, const Deadline& deadline, size_t* upto);
  Status wait_for_room(const StepBlock& block, size_t stored, const Deadline& deadline);
  Status room_error(Code code, const Admission& admission, const Deadline& deadline) const;
  size_t pages_needed(const StepBlock& block) const;
  Status take_frames(const StepBlock& block, const Deadline& deadline);
  Status cut_lanes(const Deadline& deadline);
  void note_part(LaneWriter& lane) const;
  Status finish_abandoning(const StepBlock& block, const Deadline& deadline);
  Status abandon_lane(LaneWriter& lane, const Deadline& deadline);
  template <class Each>
  Status for_each_part(const LaneWriter& lane, const Deadline& deadline, Each&& each);
  Status remove_all_in_front(const LaneWriter& lane, bool are_tails, const Deadline& deadline);
  Status outwait_holders(const Deadline& deadline);
  Status begin_lane_anew(LaneWriter& lane, const Deadline& deadline);
  bool end_lane(Held& held, LaneWriter& lane, bool terminated);
  Status open_pages(const StepBlock& block, const Deadline& deadline);
  bool needs_page(const LaneWriter& lane, bool* ahead) const;
  void take_page(LaneWriter& lane, bool ahead, uint64_t ref);
  void take_lane(Held& held, LaneWriter& lane, uint32_t slot);
  void advance(LaneWriter& lane, bool has_tail);
  Status relieve(OpenResult result, Locked* locked, const Deadline& deadline);
  Status wait_for_holders(const Deadline& deadline);
  Status grow(const Deadline& deadline);
  Status grow_cells(const Deadline& deadline);
  bool starts_at(uint32_t episode_step, uint64_t lane_step) const;
  bool has_cell(const LaneWriter& lane, uint32_t k) const;
  void set_up_starts();
  void plan_starts(LaneWriter& lane) const;
  std::byte* recent_at(const LaneWriter& lane, uint32_t step) const;
  template <class Each>
  void for_each_moved(uint32_t num_steps, uint64_t lane_begin, bool is_cut, Each&& each) const;
  void plan_moved(LaneWriter& lane, uint32_t num_steps, bool is_cut) const;
  void write_moved(LaneWriter& lane) const;
  void name_moved(Held& held, LaneWriter& lane) const;
  void note_recent(const StepBlock& block, LaneWriter& lane, size_t m) const;
  Status prepare_cut(const Deadline& deadline);
  uint32_t cells_of_run(const LaneWriter& lane) const;
  uint64_t cells_of_block(const StepBlock& block, uint64_t most_rows) const;
  Status take_cells(const StepBlock& block, const Deadline& deadline);
  void write_start(const StepBlock& block, LaneWriter& lane, uint32_t k, size_t m) const;
  void keep_cells(LaneWriter& lane) const;
  void note_priorities(const StepBlock& block, const LaneWriter& lane, size_t m) const;
  void write_rows(const StepBlock& block, size_t m);
  void write_next_cell(const StepBlock& block, LaneWriter& lane, size_t row, size_t m);
  void ask_for_words(const LaneWriter& lane) const;
  void ask_for_row(const LaneWriter& lane) const;
  size_t rows_of_hold(const StepBlock& block, size_t m);
  Status commit(const StepBlock& block, const Deadline& deadline, int64_t* keys);
  Status with_rows_stored(const StepBlock& block, Status status);
  Status note_given_priorities(const StepBlock& block, const Deadline& deadline);

  Table* table_;
  std::vector<ColumnCell> cells_;          // of all columns, in their order
  std::vector<ColumnCell> state_cells_;    // of those that are of kind state
  std::vector<ColumnCell> episode_cells_;  // of those that are of kind episode
  std::vector<ColumnCell> start_cells_;    // of those that only some rows have; in none of the others
  uint32_t num_recent_ = 0;  // start values that a lane keeps, for windows that an end moves back; 0: none does
  std::vector<LaneWriter> lanes_;
  size_t num_given_up_ = 0;  // lanes with an episode that it was begun to drop
  size_t num_cut_ = 0;       // of them, by a close() that may not have come to its end
  TurnWord turn_;
  uint64_t fork_epoch_ = 0;
  uint32_t longest_episode_ = kAnyLength;  // steps that some index lets an episode have
  int64_t policy_version_ = -1;
  int64_t rows_left_admitted_ = 0;
  std::atomic<bool> closed_{false};
};

}  // namespace relive
