// The classes of relive._core that the binding files share.
//
// Owner:   a CoreTable, its writers and its plans share one Table. A CoreSelection owns its dtypes.
// Locking: the GIL guards everything here. A core call runs without it (without_gil), and OpenRegion keeps the region
//          mapped while a function reads it.
// Cost:    releasing and taking the GIL, once a call.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "relive/read/gather.hpp"
#include "relive/read/ragged.hpp"
#include "relive/read/where.hpp"
#include "relive/table/draw_batch.hpp"
#include "relive/table/table.hpp"
#include "relive/table/writer.hpp"

namespace relive::bindings {

// Releases the GIL for one core call. A daemon thread that comes back while the interpreter ends never returns: the
// interpreter would unwind the thread through C++ frames and abort the process.
class ReleasedGil final {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// Python that runs below a frame of the core: the cast of a value, or the construction of an error. Made with the GIL. If
// the process ends, a thread other than the main one releases the GIL here and never returns.
class PythonInside final {
 public:
  PythonInside();
  ~PythonInside();
  PythonInside(const PythonInside&) = delete;
  PythonInside& operator=(const PythonInside&) = delete;

 private:
  const bool is_counted_;
};

// Signals and the end of the process (exit.cpp): hooks by which the core asks Python, and tables to close at the end.
bool hear_signals();                                      // interrupt_hook
bool is_only_thread();                                    // only_thread_hook
void close_at_exit(const std::shared_ptr<Table>& table);  // if the table is still open then
void bind_exit(nb::module_& module);

// Runs a core call without the GIL and raises its error. keys: as in raise_if_error().
template <class Call>
void without_gil(Call&& call, const nb::handle& keys = nb::handle()) {
  Status status;
  const uint64_t epoch = fork_epoch();
  {
    const ReleasedGil released;
    status = call();
  }
  if (status.code() == Code::kInterrupted && epoch != fork_epoch()) [[unlikely]]
    status = Status(Code::kForkedHandle).with_text("what", "the call in which a signal's handler forked");
  raise_if_error(status, keys);
}

// The outputs of a plan as numpy sees them.
struct CoreSelection {
  GatherPlan plan;
  std::vector<PyArray_Descr*> descrs;       // owned
  std::vector<std::vector<npy_intp>> dims;  // [B, ...], [T, B, ...] or [rows, ...]; B and rows are filled in by a call
  size_t axis(size_t o) const { return item_axis(plan, plan.outputs[o]); }  // of B
  ~CoreSelection() {
    for (PyArray_Descr* descr : descrs) Py_DECREF(descr);
  }
};

// A condition on the items of a draw, of one table and index, as the core runs it.
struct CoreWhere {
  Where where;
};

// The arrays of a plan's outputs for n items, in one pooled buffer that has `extra` more bytes.
struct Outputs {
  Outputs(const CoreSelection& selection, size_t n, size_t extra);
  nb::list arrays(const CoreSelection& selection, size_t n) const;
  BatchBuffer buffer;
  std::vector<std::byte*> data;
};

// The array of one output over memory of a buffer. num_rows: of ragged outputs, whose items lie end to end.
nb::object output_array(const CoreSelection& selection, size_t o, const BatchBuffer& buffer, std::byte* data, size_t n,
                        size_t num_rows);

// The outputs of n items that lie end to end, with their keys and probabilities (ragged_outputs.cpp). The core asks for
// the memory when it knows the number of rows.
class RaggedOutputs final : public RowRoom {
 public:
  RaggedOutputs(const CoreSelection& selection, size_t n) : selection_(selection), n_(n) {}
  std::byte* const* make(size_t num_rows) override;
  // Runs a core call that fills the outputs, without the GIL.
  template <class Call>
  Status run(Call&& call) {
    const ReleasedGil released;
    return call();
  }
  nb::list arrays();  // once
  // After arrays(); in the same block.
  nb::object keys(const std::vector<int64_t>& from) const;
  nb::object probabilities(const std::vector<double>& from) const;

 private:
  struct Made {
    std::unique_ptr<BatchBlock> block;
    std::vector<std::byte*> data;  // of each output, of the keys, of the probabilities
    size_t num_rows = 0;
  };

  const CoreSelection& selection_;
  const size_t n_;
  Made last_, before_;
  std::unique_ptr<BatchBuffer> buffer_;
};

// A table handle, which its Python object, its writers and its plans share.
struct CoreTable {
  explicit CoreTable(std::shared_ptr<Table> one) : table(std::move(one)) {}
  ~CoreTable() {
    const ReleasedGil released;  // the last owner closes the table, which may wait for its lock
    table.reset();
  }
  std::shared_ptr<Table> table;
  BatchMemory memory;
};

// A draw in flight for its limiter, from the draw until commit() or give_back(). The first of these calls ends it; the
// later ones do nothing. So a signal's handler that raises between two steps of Python changes no count.
//
// Owns:    the draw, which the end of the object gives back, the uses that the draw claimed, and its positions in an
//          epoch.
// Locking: the GIL protects the members. commit and give_back wait for the table lock if the index counts uses.
class CoreHold final {
 public:
  // gives_back_uses: a draw that is given back leaves the uses of its items as they were. Otherwise they stay counted.
  explicit CoreHold(bool gives_back_uses) : gives_back_uses_(gives_back_uses) {}
  ~CoreHold() { give_back(); }
  CoreHold(const CoreHold&) = delete;
  CoreHold& operator=(const CoreHold&) = delete;

  void prepare(DrawRequest* request);                           // before the draw
  void begin(const CoreTable& of, const DrawRequest& request);  // the draw was made
  // is_read: the rows were read, so that pages may go; none: whether the draw came with rows. num_lost: items that went
  // before their rows were read, and that do not count.
  void commit(std::optional<bool> is_read, int64_t num_lost);
  void give_back();
  bool is_held() const { return table_ != nullptr; }

 private:
  void end();

  const bool gives_back_uses_;
  std::shared_ptr<Table> table_;  // null: no draw is in flight
  uint64_t epoch_ = 0;            // of the process that made the draw: in a forked child the draw is the parent's
  uint32_t index_ = 0;
  int64_t num_items_ = 0;
  bool has_rows_ = false;
  std::vector<Claimed> uses_;
  Positions positions_;
};

// The region of an open table, which stays mapped as long as this object lives. Raises TableClosed.
class OpenRegion final {
 public:
  explicit OpenRegion(const CoreTable& self) : entered_(came_back(*self.table), false) {
    raise_if_error(entered_.status());
    region_ = &self.table->region();
  }
  const Region* operator->() const { return region_; }
  const Region& operator*() const { return *region_; }

 private:
  // In the child of a fork the first call attaches again, which may wait: without the GIL.
  static Table& came_back(Table& table) {
    if (!table.is_of_this_process()) {
      const ReleasedGil released;
      const Entered once(table, false);
    }
    return table;
  }

  Entered entered_;
  const Region* region_ = nullptr;
};

// A program from relive.config.where: (code, column, number, whole number) of each operation.
std::vector<WrittenOperation> written_operations(const nb::list& operations);
// The condition of a draw from this index; null if the draw has none.
const Where* where_of(const CoreWhere* where, uint32_t index);
// A DrawRequest of relive/core/request.py, whose fields are read by their order.
struct AskedDraw {
  uint32_t index = 0;
  size_t num_items = 0;
  const CoreSelection* selection = nullptr;  // null: keys alone
  const Where* where = nullptr;              // null: every item passes
};
AskedDraw asked_draw(nb::handle request);  // TypeError for anything else
// The same for the core. The caller sets outputs, keys and probabilities.
DrawRequest draw_request(const AskedDraw& asked);
// hold: null, or keeps the draw in flight.
nb::tuple draw_ragged(const CoreTable& self, const AskedDraw& asked, double timeout_s, CoreHold* hold);
nb::tuple gather_ragged(const CoreTable& self, const CoreSelection& selection, const int64_t* keys, size_t n);
TableConfig table_config(const nb::dict& from);
nb::dict geometry(const CoreTable& self);
nb::list layout(const CoreTable& self);
nb::dict stats(const CoreTable& self);
nb::list limiter_list(const LimiterConfig& limiter);  // the numbers of the limiter, its kind first
nb::dict tier_stats(const CoreTable& self);
void bind_tier(nb::module_& module, nb::class_<CoreTable>& table);
void bind_items(nb::class_<CoreTable>& table);
void bind_where(nb::module_& module, nb::class_<CoreTable>& table);
void bind_table(nb::module_& module);
void bind_writer(nb::module_& module);
void bind_region(nb::module_& module);
void bind_row_block(nb::module_& module);
void bind_mixing(nb::module_& module);
void bind_bells(nb::module_& module);
void bind_turn(nb::module_& module);
void bind_hold(nb::module_& module);
void bind_interrupts(nb::module_& module);
void bind_region_format(nb::module_& module);
void bind_save(nb::module_& module);
nb::object open_writer(const CoreTable& table, uint32_t num_lanes, bool single, nb::object normalise);

}  // namespace relive::bindings
