// The lanes of one actor: rows in, keys out.
//
// Owner:   a Writer borrows its Table and owns its lanes in the region until close(). The state of a lane is a
//          WriterLane; the steps of a call are free functions over it: checks (writer_check), admission by the limiters
//          (writer_admission), room (writer_room), rows (writer_rows, start_values), commits (writer_commit), ends
//          (writer_ends), abandoned episodes (writer_abandon).
// Locking: a mutex lets one thread call at a time. Pages are opened and rows committed under the table lock. Rows are
//          written without it, because only the owner of a lane writes rows at or above step_end (protocol.md, table
//          B).
// Cost:    about 0.15 us for one row of 64 bytes, 30 ns a row for many; large rows at the speed of memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "relive/table/start_values.hpp"
#include "relive/table/step_block.hpp"
#include "relive/table/table.hpp"
#include "relive/table/writer_abandon.hpp"
#include "relive/table/writer_admission.hpp"
#include "relive/table/writer_columns.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

class Writer final {
 public:
  // Takes num_lanes free lanes. kTooManyLanes, kCapacityTooSmall.
  static Status open(Table* table, uint32_t num_lanes, std::unique_ptr<Writer>* out);
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // keys: [T x M], row-major. Checks the whole block before the first row is written. Blocks while a limiter refuses. A
  // block is stored whole if it can be: its memory is committed and the limiters are asked before its first row. A
  // block that the limiters admit in parts, or that takes several critical sections, may fail after some of its rows.
  // Then the status has the fields `stored` and `num_rows`, the first `stored` rows and keys (row-major) are there, and
  // the next call may write the rest.
  Status write(const StepBlock& block, double timeout_s, int64_t* keys);
  // Ends the open episode of the block's lanes after its last row. A lane whose episode has ended is passed over, so a
  // call that met its deadline can be made again. next: [num_columns] state cells, or absent.
  Status end_episode(const StepBlock& block, bool terminated, double timeout_s);
  // Drops the open episodes of the lanes (block.lanes, block.num_lanes): see pages/abandon.hpp. If the deadline passes
  // before that is done, the next call of these lanes, of any kind, continues with it first.
  Status abandon(const StepBlock& block, double timeout_s);
  void set_policy_version(int64_t version) { policy_version_ = version; }  // -1: the table's
  // Cuts the lanes and gives them back. If the table lock is not available within the handle's own deadline, the writer
  // stays open and close() may be called again. The destructor leaves lanes that it cannot cut at once to the next
  // writer that opens, or to the end of the table's handle.
  Status close();
  bool is_closed() const { return closed_.load(std::memory_order_acquire); }
  uint32_t num_lanes() const { return static_cast<uint32_t>(lanes_.size()); }

 private:
  // The scope of a call by the lanes' owner: in the process that opened the writer, one thread at a time, while writer
  // and table are open.
  class Call final {
   public:
    Call(Writer& writer, const Deadline& deadline) : status_(begin(writer, deadline)) {}
    const Status& status() const { return status_; }

   private:
    Status begin(Writer& writer, const Deadline& deadline);

    std::optional<TimedLock> lock_;
    std::optional<Entered> entered_;
    Status status_;
  };

  explicit Writer(Table* table);
  Status take_lanes(const Deadline& deadline);
  Status give_back_lanes(const Deadline& deadline);
  Status write_round(LaneBlock block, const Deadline& deadline, ReservedRows* reserved, int64_t* keys);

  Table* table_;
  WriterColumns columns_;
  StartValues starts_;
  std::vector<WriterLane> lanes_;
  Abandoning abandoning_;
  size_t num_cut_ = 0;  // lanes that a close() has cut, which may not have come to its end
  TimedMutex mutex_;
  uint64_t fork_epoch_ = 0;
  int64_t policy_version_ = -1;
  std::atomic<bool> closed_{false};
};

}  // namespace relive
