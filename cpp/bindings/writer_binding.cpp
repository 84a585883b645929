// CoreWriter: writes rows from arrays and scalars. Exact C-contiguous arrays and Python or numpy scalars are read in
// place; every other value goes through the normalise callable, which converts it or raises.
//
// Owner:   a CoreWriter owns its Writer, and shares the Table.
// Locking: the GIL guards its fields. The core call runs without it; another thread that comes meanwhile makes its own
//          Call.
// Cost:    no allocation for exact values.
#include <cstring>

#include "module.hpp"

namespace relive::bindings {
namespace {

// One input of append: a declared column, or terminated, truncated, discount, priority.
struct Input {
  nb::object name;
  nb::object next_name;  // state columns only
  int type_number = NPY_FLOAT;
  std::vector<npy_intp> dims;
  size_t num_bytes = 0;
  bool is_state = false;
  bool is_late = false;  // comes later, by table.complete
  size_t slot = 0;       // place of its value in Call::given
  size_t next_slot = 0;  // state columns only
};

// Rows and lanes of one call. single: no lane axis; extend: a time axis.
struct Shape {
  npy_intp num_rows = 1;
  npy_intp num_lanes = 1;
  bool single = false;
  bool extend = false;

  int num_axes() const { return (extend ? 1 : 0) + (single ? 0 : 1); }
  nb::object leading(npy_intp rows) const {
    if (extend && single) return nb::make_tuple(rows);
    if (extend) return nb::make_tuple(rows, num_lanes);
    if (single) return nb::make_tuple();
    return nb::make_tuple(num_lanes);
  }
};

bool matches(PyArrayObject* array, const Input& input, const Shape& shape, npy_intp rows) {
  if (PyArray_TYPE(array) != input.type_number || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISNOTSWAPPED(array))
    return false;
  const int axes = shape.num_axes();
  if (PyArray_NDIM(array) != axes + static_cast<int>(input.dims.size())) return false;
  const npy_intp* dims = PyArray_DIMS(array);
  int at = 0;
  if (shape.extend && dims[at++] != rows) return false;
  if (!shape.single && dims[at++] != shape.num_lanes) return false;
  for (npy_intp dim : input.dims)
    if (dims[at++] != dim) return false;
  return true;
}

class CoreWriter final {
 public:
  CoreWriter(std::shared_ptr<Table> table, std::unique_ptr<Writer> writer, bool single, nb::object normalise)
      : table_(std::move(table)), writer_(std::move(writer)), single_(single), normalise_(std::move(normalise)) {
    const Region& r = table_->region();
    for (uint32_t c = 0; c < r.geometry->num_columns; ++c) inputs_.push_back(make_input(r.columns[c]));
    terminated_ = flag("terminated", NPY_BOOL, 1);
    truncated_ = flag("truncated", NPY_BOOL, 1);
    discount_ = flag("discount", NPY_FLOAT, 4);
    priority_ = flag("priority", NPY_DOUBLE, 8);
    for (Input& input : inputs_) {
      if (input.is_late) continue;
      input.slot = add_slot(input.name);
      if (input.is_state) input.next_slot = add_slot(input.next_name);
    }
    for (Input* input : {&terminated_, &truncated_, &discount_}) input->slot = add_slot(input->name);
  }

  nb::object append(const nb::dict& columns, nb::object lanes, nb::object priority, double timeout_s) {
    return write(columns, lanes, priority, timeout_s, false);
  }
  nb::object append_alike(const nb::dict& columns, double timeout_s) {
    std::unique_ptr<Call> call = take_call();
    nb::object none = nb::none();
    if (take_given(columns, &step_names_, call.get()) && are_checked_)
      return write_given(std::move(call), none, none, timeout_s);
    are_checked_ = false;
    keep_call(std::move(call));
    return none;
  }
  nb::object extend(const nb::dict& columns, nb::object lanes, nb::object priority, double timeout_s) {
    return write(columns, lanes, priority, timeout_s, true);
  }

  // An end that is not terminated is truncated.
  void end_episode(const nb::dict& columns, bool terminated, nb::object lanes, double timeout_s) {
    std::unique_ptr<Call> call = take_call();
    take_lanes(lanes, call.get());
    call->block.num_rows = 1;
    take_given(columns, &end_names_, call.get());
    take_next(call.get());
    without_gil([&] { return writer_->end_episode(call->block, terminated, timeout_s); });
    keep_call(std::move(call));
  }

  void abandon(nb::object lanes, double timeout_s) {
    std::unique_ptr<Call> call = take_call();
    take_lanes(lanes, call.get());
    without_gil([&] { return writer_->abandon(call->block, timeout_s); });
    keep_call(std::move(call));
  }

  void set_policy_version(nb::object version) {
    writer_->set_policy_version(version.is_none() ? -1 : nb::cast<int64_t>(version));
  }
  void close() {
    without_gil([&] { return writer_->close(); });
  }
  bool closed() const { return writer_->is_closed() || table_->is_closed(); }
  uint32_t num_lanes() const { return writer_->num_lanes(); }

 private:
  // The values of one call: cells, the arrays into which they point, and scalars. The writer keeps one Call between
  // calls, because five allocations are a tenth of an append. A call that comes while it is in use makes another one.
  struct Call {
    void begin(size_t num_columns) {
      StepBlock fresh;
      fresh.columns.swap(block.columns);
      fresh.next.swap(block.next);
      fresh.columns.assign(num_columns, Cells{});
      fresh.next.assign(num_columns, Cells{});
      block = std::move(fresh);
      rooms.resize(2 * num_columns + 4);
      given.assign(2 * num_columns + 3, nullptr);
      shape = Shape{};
      num_rooms = 0;
    }
    StepBlock block;
    Shape shape;
    std::vector<ScalarRoom> rooms;
    size_t num_rooms = 0;
    std::vector<PyObject*> given;  // by slot; null: not given
    std::vector<nb::object> kept;
    std::vector<float> priorities;
  };
  // A name that a call gave. The name is kept alive, so that no other name can get its address.
  struct Name {
    nb::object name;
    size_t slot;
  };
  static constexpr size_t kNoSlot = ~size_t{0};

  std::unique_ptr<Call> take_call() {
    std::unique_ptr<Call> call = spare_ == nullptr ? std::make_unique<Call>() : std::move(spare_);
    call->begin(inputs_.size());
    call->shape.single = single_;
    return call;
  }
  void keep_call(std::unique_ptr<Call> call) {
    call->kept.clear();
    call->priorities = {};
    spare_ = std::move(call);
  }

  static Input make_input(const ColumnLayout& column) {
    Input input;
    input.name = nb::steal(PyUnicode_InternFromString(column.name));
    input.is_state = column.kind == ColumnKind::kState;
    input.is_late = column.kind == ColumnKind::kLate;
    if (input.is_state)
      input.next_name = nb::steal(PyUnicode_InternFromString((std::string("next_") + column.name).c_str()));
    PyArray_Descr* descr = descr_of(column.dtype);
    input.type_number = descr->type_num;
    Py_DECREF(descr);
    input.dims.assign(column.dims, column.dims + column.num_dims);
    input.num_bytes = column.num_bytes;
    return input;
  }
  static Input flag(const char* name, int type_number, size_t num_bytes) {
    Input input;
    input.name = nb::steal(PyUnicode_InternFromString(name));
    input.type_number = type_number;
    input.num_bytes = num_bytes;
    return input;
  }

  size_t add_slot(const nb::object& name) {
    const size_t slot = nb::len(slots_);
    slots_[name] = slot;
    return slot;
  }

  // Puts the values of a call in the order of slots. Calls mostly name the same columns in the same order by the same
  // strings, so each name is compared with the name at its place in the last call; look-ups for every input cost 0.1 us
  // a row. Returns whether all names were the same. A look-up may run Python (a subclass of str with its own hash),
  // which may call this function again: no reference is kept across a look-up, and such a name never equals the last
  // one.
  bool take_given(const nb::dict& columns, std::vector<Name>* names, Call* call) {
    PyObject *name, *value;
    Py_ssize_t at = 0;
    size_t k = 0;
    bool alike = true;
    for (; PyDict_Next(columns.ptr(), &at, &name, &value) != 0; ++k) {
      size_t slot = k < names->size() ? (*names)[k].slot : kNoSlot;
      if (k >= names->size() || (*names)[k].name.ptr() != name) {
        alike = false;
        slot = slot_of(name);
        if (k >= names->size()) names->resize(k + 1, {nb::none(), kNoSlot});
        (*names)[k] = {PyUnicode_CheckExact(name) ? nb::borrow(name) : nb::none(), slot};
      }
      if (slot != kNoSlot) call->given[slot] = value;
    }
    return alike && k == names->size();
  }
  size_t slot_of(PyObject* name) const {
    PyObject* slot = PyDict_GetItemWithError(slots_.ptr(), name);
    if (slot == nullptr && PyErr_Occurred()) throw nb::python_error();
    return slot == nullptr ? kNoSlot : nb::cast<size_t>(nb::handle(slot));
  }

  // The cells of one input. rows: its length along time.
  Cells take(PyObject* value, const Input& input, const nb::object& name, npy_intp rows, Call* call) {
    const auto num_bytes = static_cast<int64_t>(input.num_bytes);
    const int64_t lanes = call->shape.num_lanes;
    if (PyArray_Check(value)) {
      auto* array = reinterpret_cast<PyArrayObject*>(value);
      if (PyArray_CheckExact(value) && matches(array, input, call->shape, rows))  // a subclass may hide values
        return {static_cast<const std::byte*>(PyArray_DATA(array)), lanes * num_bytes, num_bytes};
    } else if (input.dims.empty() && !call->shape.extend && (call->shape.single || input.type_number == NPY_BOOL)) {
      const bool speaks_of_all = call->shape.single || &input == &terminated_ || &input == &truncated_;
      ScalarRoom* room = &call->rooms[call->num_rooms];
      if (speaks_of_all && take_scalar(value, input.type_number, room)) {
        ++call->num_rooms;
        return {reinterpret_cast<const std::byte*>(room), 0, 0};
      }
    }
    const PythonInside inside;
    nb::object array = normalise_(name, nb::handle(value), call->shape.leading(rows));
    auto* made = reinterpret_cast<PyArrayObject*>(array.ptr());
    if (!PyArray_Check(array.ptr()) || !matches(made, input, call->shape, rows)) {
      PyErr_Format(PyExc_TypeError, "normalise(%R) returned an array that does not fit the column", name.ptr());
      throw nb::python_error();
    }
    call->kept.push_back(array);
    return {static_cast<const std::byte*>(PyArray_DATA(made)), lanes * num_bytes, num_bytes};
  }

  void take_lanes(const nb::object& lanes, Call* call) {
    call->shape.num_lanes = writer_->num_lanes();
    if (!lanes.is_none()) {
      nb::object ids = as_contiguous(lanes, NPY_INT32);
      auto* array = reinterpret_cast<PyArrayObject*>(ids.ptr());
      call->shape.num_lanes = PyArray_SIZE(array);
      call->block.lanes = static_cast<const int32_t*>(PyArray_DATA(array));
      for (npy_intp m = 0; m < call->shape.num_lanes; ++m) {
        if (call->block.lanes[m] >= 0 && call->block.lanes[m] < static_cast<int64_t>(writer_->num_lanes())) continue;
        PyErr_Format(PyExc_IndexError, "lane %d of %u", call->block.lanes[m], writer_->num_lanes());
        throw nb::python_error();
      }
      call->kept.push_back(ids);
    }
    call->block.num_lanes = static_cast<size_t>(call->shape.num_lanes);
  }

  // The number of steps along time, from an input that has one value a step.
  npy_intp count_rows(const Call& call) const {
    const auto length = [](PyObject* value) -> npy_intp {
      if (PyArray_Check(value)) {
        auto* array = reinterpret_cast<PyArrayObject*>(value);
        return PyArray_NDIM(array) == 0 ? -1 : PyArray_DIM(array, 0);
      }
      const Py_ssize_t size = PySequence_Check(value) ? PySequence_Size(value) : -1;
      if (size < 0) PyErr_Clear();
      return size;
    };
    npy_intp states = -1;
    for (const Input& input : inputs_) {
      if (input.is_late) continue;
      PyObject* value = call.given[input.slot];
      const npy_intp size = value == nullptr ? -1 : length(value);
      if (!input.is_state && size >= 0) return size;
      states = std::max(states, size);
    }
    for (const Input* input : {&terminated_, &truncated_, &discount_}) {
      PyObject* value = call.given[input->slot];
      const npy_intp size = value == nullptr ? -1 : length(value);
      if (size >= 0) return size;
    }
    return std::max<npy_intp>(states, 0);
  }

  npy_intp rows_of_state(PyObject* value, const Call& call) const {
    if (!call.shape.extend) return 1;
    if (!PyArray_Check(value)) {
      const Py_ssize_t size = PySequence_Check(value) ? PySequence_Size(value) : -1;
      if (size < 0) PyErr_Clear();
      return size == call.shape.num_rows + 1 ? size : call.shape.num_rows;
    }
    auto* array = reinterpret_cast<PyArrayObject*>(value);
    const bool one_more = PyArray_NDIM(array) > 0 && PyArray_DIM(array, 0) == call.shape.num_rows + 1;
    return call.shape.num_rows + (one_more ? 1 : 0);
  }

  void take_columns(Call* call) {
    npy_intp state_rows = -1;
    for (size_t c = 0; c < inputs_.size(); ++c) {
      const Input& input = inputs_[c];
      if (input.is_late) continue;
      PyObject* value = call->given[input.slot];
      if (value == nullptr) {
        PyErr_Format(PyExc_KeyError, "column %R is missing", input.name.ptr());
        throw nb::python_error();
      }
      npy_intp rows = call->shape.num_rows;
      if (input.is_state) {
        // All state columns have the same number of rows; the first column decides.
        if (state_rows < 0) state_rows = rows_of_state(value, *call);
        rows = state_rows;
      }
      call->block.columns[c] = take(value, input, input.name, rows, call);
    }
    call->block.has_last_state = call->shape.extend && state_rows == call->shape.num_rows + 1;
  }

  void take_next(Call* call) {
    for (size_t c = 0; c < inputs_.size(); ++c) {
      const Input& input = inputs_[c];
      if (!input.is_state) continue;
      PyObject* value = call->given[input.next_slot];
      if (value == nullptr) return;
      call->block.next[c] = take(value, input, input.next_name, call->shape.num_rows, call);
      call->block.has_next = true;
    }
  }

  void take_ends(Call* call) {
    const auto optional = [&](const Input& input) {
      PyObject* value = call->given[input.slot];
      return value == nullptr || value == Py_None ? Cells{}
                                                  : take(value, input, input.name, call->shape.num_rows, call);
    };
    call->block.terminated = optional(terminated_);
    call->block.truncated = optional(truncated_);
    call->block.discount = optional(discount_);
  }

  void take_priority(const nb::object& priority, Call* call) {
    if (priority.is_none()) return;
    const Cells cells = take(priority.ptr(), priority_, priority_.name, call->shape.num_rows, call);
    const auto rows = static_cast<size_t>(call->shape.num_rows);
    const auto lanes = static_cast<size_t>(call->shape.num_lanes);
    call->priorities.resize(rows * lanes);
    for (size_t t = 0; t < rows; ++t)
      for (size_t m = 0; m < lanes; ++m) {
        double wide;
        std::memcpy(&wide, cells.at(t, m), sizeof wide);
        call->priorities[t * lanes + m] = static_cast<float>(wide);
      }
    call->block.priority = {reinterpret_cast<const std::byte*>(call->priorities.data()),
                            static_cast<int64_t>(lanes * sizeof(float)), sizeof(float)};
  }

  // The caller has checked the names: none is missing, and none is unknown.
  nb::object write(const nb::dict& columns, nb::object& lanes, nb::object& priority, double timeout_s, bool extend) {
    std::unique_ptr<Call> call = take_call();
    call->shape.extend = extend;
    step_names_.resize(nb::len(columns), {nb::none(), kNoSlot});
    take_given(columns, &step_names_, call.get());
    are_checked_ = true;
    return write_given(std::move(call), lanes, priority, timeout_s);
  }

  nb::object write_given(std::unique_ptr<Call> lent, nb::object& lanes, nb::object& priority, double timeout_s) {
    Call& call = *lent;
    const bool extend = call.shape.extend;
    take_lanes(lanes, &call);
    if (extend) call.shape.num_rows = count_rows(call);
    call.block.num_rows = static_cast<size_t>(call.shape.num_rows);
    take_columns(&call);
    take_next(&call);
    take_ends(&call);
    take_priority(priority, &call);
    const bool one = single_ && !extend;
    int64_t key = 0;
    void* data = &key;
    nb::object keys;
    if (!one) {
      npy_intp dims[2] = {call.shape.num_rows, call.shape.num_lanes};
      const int skip = extend ? 0 : 1;
      keys = new_array(NPY_INT64, extend && !single_ ? 2 : 1, dims + skip, &data);
    }
    without_gil([&] { return writer_->write(call.block, timeout_s, static_cast<int64_t*>(data)); }, keys);
    const int64_t num_stored = call.shape.num_rows * call.shape.num_lanes;
    keep_call(std::move(lent));
    return keys_of_stored(one ? nb::object(nb::int_(key)) : keys, num_stored);
  }

  std::shared_ptr<Table> table_;
  std::unique_ptr<Writer> writer_;
  bool single_;
  nb::object normalise_;
  std::vector<Input> inputs_;
  Input terminated_, truncated_, discount_, priority_;
  nb::dict slots_;                // by name, of every input that a call may give
  std::vector<Name> step_names_;  // of the last append or extend
  std::vector<Name> end_names_;   // of the last end_episode
  bool are_checked_ = false;      // whether step_names_ were checked: none is missing, and none is unknown
  std::unique_ptr<Call> spare_;   // taken and returned under the GIL
};

}  // namespace

nb::object open_writer(const CoreTable& table, uint32_t num_lanes, bool single, nb::object normalise) {
  std::unique_ptr<Writer> writer;
  without_gil([&] { return Writer::open(table.table.get(), num_lanes, &writer); });
  const OpenRegion counted_in(table);  // another thread may close the table in between
  return nb::cast(new CoreWriter(table.table, std::move(writer), single, std::move(normalise)),
                  nb::rv_policy::take_ownership);
}

void bind_writer(nb::module_& module) {
  nb::class_<CoreWriter>(module, "CoreWriter")
      .def("append", &CoreWriter::append, nb::arg("columns"), nb::arg("lanes").none(), nb::arg("priority").none(),
           nb::arg("timeout_s"))
      .def("append_alike", &CoreWriter::append_alike, nb::arg("columns"), nb::arg("timeout_s"))
      .def("extend", &CoreWriter::extend, nb::arg("columns"), nb::arg("lanes").none(), nb::arg("priority").none(),
           nb::arg("timeout_s"))
      .def("end_episode", &CoreWriter::end_episode, nb::arg("columns"), nb::arg("terminated"), nb::arg("lanes").none(),
           nb::arg("timeout_s"))
      .def("abandon", &CoreWriter::abandon, nb::arg("lanes").none(), nb::arg("timeout_s"))
      .def("set_policy_version", &CoreWriter::set_policy_version, nb::arg("version").none())
      .def("close", &CoreWriter::close)
      .def_prop_ro("closed", &CoreWriter::closed)
      .def_prop_ro("num_lanes", &CoreWriter::num_lanes);
}

}  // namespace relive::bindings
