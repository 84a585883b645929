// The classes behind relive._core, shared between the binding files.
#pragma once

#include <memory>
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

// The GIL let go for one core call. A daemon thread that comes back while the interpreter ends stays where it is: taking
// the GIL then would unwind the thread through C++ and abort the process.
class ReleasedGil final {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil();
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

// The end of the process, seen by the bindings (exit.cpp): hooks of the core that ask Python, and what is closed at last.
bool hear_signals();                                      // interrupt_hook
bool is_only_thread();                                    // only_thread_hook
void close_at_exit(const std::shared_ptr<Table>& table);  // if it still lives then
void bind_exit(nb::module_& module);

// Runs a core call without the GIL; raises what it says. keys: raise_if_error's.
template <class Call>
void without_gil(Call&& call, const nb::handle& keys = nb::handle()) {
  Status status;
  {
    const ReleasedGil released;
    status = call();
  }
  raise_if_error(status, keys);
}

// What a plan's outputs look like to numpy.
struct CoreSelection {
  GatherPlan plan;
  std::vector<PyArray_Descr*> descrs;       // owned
  std::vector<std::vector<npy_intp>> dims;  // [B, ...], [T, B, ...] or [rows, ...], which are filled in a call
  size_t axis(size_t o) const { return item_axis(plan, plan.outputs[o]); }  // where B stands
  ~CoreSelection() {
    for (PyArray_Descr* descr : descrs) Py_DECREF(descr);
  }
};

// A condition on the items of a draw, as the core runs it; of one table and index.
struct CoreWhere {
  Where where;
};

// The arrays of a plan's outputs for n items, in one pooled buffer; `extra` bytes more behind them.
struct Outputs {
  Outputs(const CoreSelection& selection, size_t n, size_t extra);
  nb::list arrays(const CoreSelection& selection, size_t n) const;
  BatchBuffer buffer;
  std::vector<std::byte*> data;
};

// The array of one output over memory of a buffer; num_rows: where items lie end to end.
nb::object output_array(const CoreSelection& selection, size_t o, const BatchBuffer& buffer, std::byte* data, size_t n,
                        size_t num_rows);

// The same where items lie end to end (ragged_outputs.cpp): memory for n items, their keys and probabilities, which the
// core asks for when it knows how many rows they have.
class RaggedOutputs final : public RowRoom {
 public:
  RaggedOutputs(const CoreSelection& selection, size_t n) : selection_(selection), n_(n) {}
  std::byte* const* make(size_t num_rows) override;
  // Runs a core call that fills it, without the GIL. std::bad_alloc where there was no memory.
  template <class Call>
  Status run(Call&& call) {
    const ReleasedGil released;
    return call();
  }
  void raise_if_error(const Status& status) const;
  nb::list arrays();  // once
  // Behind arrays(), in the same block.
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
  bool is_without_memory_ = false;
  std::unique_ptr<BatchBuffer> buffer_;
};

// The uses that a held draw took, to be committed or given back with it.
struct CoreClaims {
  std::vector<Claimed> items;
};

// A table handle shared by its Python object, its writers and its plans.
struct CoreTable {
  explicit CoreTable(std::shared_ptr<Table> one) : table(std::move(one)) {}
  std::shared_ptr<Table> table;
  BatchMemory memory;
};

// The region of a table that is open; TableClosed otherwise. It stays mapped while the guard lives.
class OpenRegion final {
 public:
  explicit OpenRegion(const CoreTable& self) : entered_(*self.table, false) {
    raise_if_error(entered_.status());
    region_ = &self.table->region();
  }
  const Region* operator->() const { return region_; }
  const Region& operator*() const { return *region_; }

 private:
  Entered entered_;
  const Region* region_ = nullptr;
};

// A program as relive.where gives it: (code, column, number, whole number) of each operation.
std::vector<WrittenOperation> written_operations(const nb::list& operations);
// The condition of a draw from this index; null where there is none.
const Where* where_of(const CoreWhere* where, uint32_t index);
// The draw is held, and its uses are noted there. Null: nothing.
void note_claims(CoreClaims* claims, DrawRequest* request);
nb::tuple sample_ragged(const CoreTable& self, const CoreSelection& selection, size_t n, double timeout_s, bool hold,
                        const Where* where, CoreClaims* claims);
nb::tuple gather_ragged(const CoreTable& self, const CoreSelection& selection, const int64_t* keys, size_t n);
TableConfig table_config(const nb::dict& from);
nb::dict geometry(const CoreTable& self);
nb::list layout(const CoreTable& self);
nb::dict stats(const CoreTable& self);
nb::list limiter_list(const LimiterConfig& limiter);  // its numbers, its kind first
nb::dict tier_stats(const CoreTable& self);
void bind_tier(nb::module_& module, nb::class_<CoreTable>& table);
void bind_items(nb::class_<CoreTable>& table);
void bind_where(nb::module_& module, nb::class_<CoreTable>& table);
void bind_table(nb::module_& module);
void bind_writer(nb::module_& module);
void bind_device(nb::module_& module);
void bind_row_block(nb::module_& module);
void bind_mixing(nb::module_& module);
void bind_bells(nb::module_& module);
nb::object open_writer(const CoreTable& table, uint32_t num_lanes, bool single, nb::object normalise);

}  // namespace relive::bindings
