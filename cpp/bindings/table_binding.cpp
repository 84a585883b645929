// CoreTable and CoreSelection: a table is made from its configuration, and read and changed by arrays.
#include <algorithm>
#include <cstring>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.hpp"
#include "relive/index/leaves.hpp"
#include "relive/table/changing.hpp"
#include "relive/table/hooks.hpp"
#include "relive/table/inspect.hpp"
#include "relive/table/kept_file.hpp"
#include "relive/table/listing.hpp"
#include "relive/table/reading.hpp"
#include "relive/table/settings.hpp"
#include "relive/words/power.hpp"

namespace relive::bindings {

Outputs::Outputs(const CoreSelection& selection, size_t n, size_t extra)
    : buffer([&] {
        size_t sum = extra;
        for (const Output& output : selection.plan.outputs)
          sum = checked_sum(sum, BatchBuffer::room_for(checked_product(output.item_bytes, n)));
        return sum;
      }()),
      data(selection.plan.outputs.size()) {
  for (size_t o = 0; o < data.size(); ++o) data[o] = buffer.take(selection.plan.outputs[o].item_bytes * n);
}

nb::object output_array(const CoreSelection& selection, size_t o, const BatchBuffer& buffer, std::byte* data, size_t n,
                        size_t num_rows) {
  const Per per = per_what(selection.plan, selection.plan.outputs[o]);
  std::vector<npy_intp> dims = selection.dims[o];
  dims[selection.axis(o)] = static_cast<npy_intp>(per == Per::kRow ? num_rows : per == Per::kOffset ? n + 1 : n);
  return buffer.array(selection.descrs[o], static_cast<int>(dims.size()), dims.data(), data);
}

nb::list Outputs::arrays(const CoreSelection& selection, size_t n) const {
  PyObject* list = PyList_New(static_cast<Py_ssize_t>(data.size()));
  if (list == nullptr) throw nb::python_error();
  nb::list made = nb::steal<nb::list>(list);
  for (size_t o = 0; o < data.size(); ++o) {
    nb::object array = output_array(selection, o, buffer, data[o], n, 0);
    PyList_SetItem(list, static_cast<Py_ssize_t>(o), array.release().ptr());
  }
  return made;
}

AskedDraw asked_draw(nb::handle request) {
  constexpr Py_ssize_t kFields = 4;
  AskedDraw asked;
  const CoreWhere* condition = nullptr;
  const bool is_tuple = PyTuple_Check(request.ptr()) && PyTuple_Size(request.ptr()) == kFields;
  const auto field = [&](Py_ssize_t at) { return nb::handle(PyTuple_GetItem(request.ptr(), at)); };
  if (!is_tuple || !nb::try_cast(field(0), asked.index) || !nb::try_cast(field(1), asked.num_items) ||
      !(field(2).is_none() || nb::try_cast(field(2), asked.selection)) ||
      !(field(3).is_none() || nb::try_cast(field(3), condition)))
    throw nb::type_error("a DrawRequest is expected");
  if (asked.selection != nullptr) asked.index = asked.selection->plan.index;
  asked.where = where_of(condition, asked.index);
  return asked;
}

DrawRequest draw_request(const AskedDraw& asked) {
  DrawRequest request;
  request.index = asked.index;
  request.num_items = asked.num_items;
  request.where = asked.where;
  if (asked.selection != nullptr) request.plan = &asked.selection->plan;
  return request;
}

namespace {

// A Table has one CoreTable, but it outlives that CoreTable while writers use it.
CoreTable* own(std::unique_ptr<Table> table) {
  auto made = std::make_unique<CoreTable>(std::shared_ptr<Table>(std::move(table)));
  close_at_exit(made->table);
  return made.release();
}

CoreTable* create_table(const nb::dict& from, nb::object path) {
  const TableConfig config = table_config(from);
  const std::string name = path.is_none() ? std::string() : nb::cast<std::string>(path);
  std::unique_ptr<Table> table;
  without_gil([&] { return Table::create(config, name, &table); });
  return own(std::move(table));
}

CoreTable* attach_table(const std::string& path, bool read_only, std::optional<uint64_t> stream, double timeout_s) {
  std::unique_ptr<Table> table;
  without_gil([&] {
    return Table::attach(path, read_only ? Access::kReadOnly : Access::kReadWrite, stream, timeout_s, &table);
  });
  return own(std::move(table));
}

CoreSelection* make_selection(const CoreTable& self, uint32_t index, const std::vector<std::string>& names) {
  auto made = std::make_unique<CoreSelection>();
  without_gil([&] { return relive::make_plan(*self.table, index, names, &made->plan); });
  for (const Output& output : made->plan.outputs) {
    made->descrs.push_back(descr_of(output.dtype));
    std::vector<npy_intp> dims(output.shape.begin(), output.shape.end());
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(item_axis(made->plan, output)), 0);
    made->dims.push_back(std::move(dims));
  }
  return made.release();
}

nb::tuple draw_rows(const CoreTable& self, const AskedDraw& asked, double timeout_s, CoreHold* hold) {
  const CoreSelection& selection = *asked.selection;
  const size_t n = asked.num_items;
  Outputs outputs(selection, n, 2 * BatchBuffer::room_for(8 * n));
  std::byte* keys = outputs.buffer.take(8 * n);
  std::byte* probabilities = outputs.buffer.take(8 * n);
  int64_t num_live = 0;
  DrawRequest request = draw_request(asked);
  request.out = outputs.data.data();
  request.keys = reinterpret_cast<int64_t*>(keys);
  request.probabilities = reinterpret_cast<double*>(probabilities);
  request.num_live_items = &num_live;
  if (hold != nullptr) hold->prepare(&request);
  without_gil([&] { return relive::sample(*self.table, request, timeout_s); });
  if (hold != nullptr) hold->begin(self, request);
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  return nb::make_tuple(outputs.arrays(selection, n), outputs.buffer.array(descr_of_int64(), 1, dims, keys),
                        outputs.buffer.array(descr_of_float64(), 1, dims, probabilities), num_live);
}

nb::tuple draw_keys(const CoreTable& self, const AskedDraw& asked, double timeout_s, CoreHold* hold) {
  const npy_intp dims[1] = {static_cast<npy_intp>(asked.num_items)};
  void* keys = nullptr;
  void* probabilities = nullptr;
  nb::object key_array = new_array(NPY_INT64, 1, dims, &keys);
  nb::object probability_array = new_array(NPY_DOUBLE, 1, dims, &probabilities);
  int64_t num_live = 0;
  DrawRequest request = draw_request(asked);
  request.keys = static_cast<int64_t*>(keys);
  request.probabilities = static_cast<double*>(probabilities);
  request.num_live_items = &num_live;
  if (hold != nullptr) hold->prepare(&request);
  without_gil([&] { return relive::sample(*self.table, request, timeout_s); });
  if (hold != nullptr) hold->begin(self, request);
  return nb::make_tuple(nb::list(), key_array, probability_array, num_live);
}

nb::tuple draw(const CoreTable& self, nb::handle request, double timeout_s, CoreHold* hold) {
  const AskedDraw asked = asked_draw(request);
  if (asked.selection == nullptr) return draw_keys(self, asked, timeout_s, hold);
  if (asked.selection->plan.is_ragged) return draw_ragged(self, asked, timeout_s, hold);
  return draw_rows(self, asked, timeout_s, hold);
}

template <class From>
nb::object array_of(const std::vector<From>& from, int type_number) {
  const npy_intp dims[1] = {static_cast<npy_intp>(from.size())};
  void* data = nullptr;
  nb::object array = new_array(type_number, 1, dims, &data);
  if (!from.empty()) std::memcpy(data, from.data(), sizeof(From) * from.size());
  return array;
}

nb::tuple list_items(const CoreTable& self, uint32_t index, uint64_t first, uint64_t count, const CoreWhere* where) {
  Listing found;
  const Where* const asked = where_of(where, index);
  without_gil([&] { return relive::list_items(*self.table, index, first, count, asked, &found); });
  return nb::make_tuple(array_of(found.keys, NPY_INT64), array_of(found.ages, NPY_UINT64),
                        array_of(found.ranks, NPY_DOUBLE), found.next_leaf);
}

struct Given {
  nb::object object;
  const void* data;
  size_t size;
};

Given given(nb::handle value, int type_number) {
  nb::object array = as_contiguous(value, type_number);
  auto* raw = reinterpret_cast<PyArrayObject*>(array.ptr());
  return {array, PyArray_DATA(raw), static_cast<size_t>(PyArray_SIZE(raw))};
}

// Priorities are float32. An array of float32 is read in place, every other value is narrowed. A number that does not
// fit becomes infinite, which the core refuses.
Given given_floats(nb::handle value, std::vector<float>* narrowed) {
  if (PyArray_Check(value.ptr()) && PyArray_TYPE(reinterpret_cast<PyArrayObject*>(value.ptr())) == NPY_FLOAT)
    return given(value, NPY_FLOAT);
  Given wide = given(value, NPY_DOUBLE);
  const auto* from = static_cast<const double*>(wide.data);
  narrowed->resize(wide.size);
  for (size_t i = 0; i < wide.size; ++i) (*narrowed)[i] = static_cast<float>(from[i]);
  return {nb::object(), narrowed->data(), wide.size};
}

// Takes the caller's arrays instead of pooled ones. ValueError unless dtype and shape are exact and the order is C.
void take_out(const CoreSelection& selection, size_t n, const nb::list& out, std::vector<std::byte*>* data) {
  const auto refuse = [](const char* what) {
    PyErr_Format(PyExc_ValueError, "out: %s", what);
    throw nb::python_error();
  };
  if (out.size() != selection.plan.outputs.size()) refuse("one array a column is expected");
  for (size_t o = 0; o < data->size(); ++o) {
    PyObject* value = PyList_GetItem(out.ptr(), static_cast<Py_ssize_t>(o));
    auto* array = reinterpret_cast<PyArrayObject*>(value);
    std::vector<npy_intp> dims = selection.dims[o];
    dims[selection.axis(o)] = static_cast<npy_intp>(n);
    if (!PyArray_Check(value) || !PyArray_ISCARRAY(array) ||
        !PyArray_EquivTypes(PyArray_DESCR(array), selection.descrs[o]))
      refuse("writable C-contiguous arrays of the columns' dtypes are expected");
    bool fits = PyArray_NDIM(array) == static_cast<int>(dims.size());
    for (size_t d = 0; fits && d < dims.size(); ++d) fits = PyArray_DIM(array, static_cast<int>(d)) == dims[d];
    if (!fits) refuse("arrays of shape [len(keys), ...], or [T, len(keys), ...], are expected");
    (*data)[o] = static_cast<std::byte*>(PyArray_DATA(array));
  }
}

nb::tuple gather(const CoreTable& self, const CoreSelection& selection, nb::handle keys, nb::object out) {
  const Given wanted = given(keys, NPY_INT64);
  const size_t n = wanted.size;
  if (selection.plan.is_ragged) return gather_ragged(self, selection, static_cast<const int64_t*>(wanted.data), n);
  Outputs outputs(selection, out.is_none() ? n : 0, 0);
  if (!out.is_none()) take_out(selection, n, nb::list(out), &outputs.data);
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  void* present = nullptr;
  nb::object present_array = new_array(NPY_BOOL, 1, dims, &present);
  without_gil([&] {
    return relive::gather(*self.table, selection.plan, static_cast<const int64_t*>(wanted.data), n, outputs.data.data(),
                          static_cast<uint8_t*>(present));
  });
  return nb::make_tuple(out.is_none() ? outputs.arrays(selection, n) : nb::list(out), present_array);
}

int64_t update_priorities(const CoreTable& self, uint32_t index, nb::handle keys, nb::handle priorities) {
  const Given wanted = given(keys, NPY_INT64);
  std::vector<float> narrowed;
  const Given values = given_floats(priorities, &narrowed);
  if (values.size != wanted.size && values.size != 1) {
    PyErr_Format(PyExc_ValueError, "update_priorities: %zu keys, but %zu priorities", wanted.size, values.size);
    throw nb::python_error();
  }
  const float* data = static_cast<const float*>(values.data);
  if (values.size != wanted.size) {
    narrowed.assign(wanted.size, data[0]);
    data = narrowed.data();
  }
  int64_t applied = 0;
  without_gil([&] {
    return relive::update_priorities(*self.table, index, static_cast<const int64_t*>(wanted.data), data, wanted.size,
                                     &applied);
  });
  return applied;
}

// For a draw whose keys the caller chose: which of the keys were claimed, and the number of live items.
nb::tuple claim(const CoreTable& self, uint32_t index, nb::handle keys, double timeout_s) {
  const Given wanted = given(keys, NPY_INT64);
  std::vector<int64_t> chosen(static_cast<const int64_t*>(wanted.data),
                              static_cast<const int64_t*>(wanted.data) + wanted.size);
  const npy_intp dims[1] = {static_cast<npy_intp>(wanted.size)};
  void* taken = nullptr;
  nb::object taken_array = new_array(NPY_BOOL, 1, dims, &taken);
  int64_t num_live = 1;
  DrawRequest request;
  request.index = index;
  request.num_items = wanted.size;
  request.keys = chosen.data();
  request.taken = static_cast<uint8_t*>(taken);
  request.num_live_items = &num_live;
  without_gil([&] { return relive::claim(*self.table, request, timeout_s); });
  return nb::make_tuple(taken_array, num_live);
}

void set_limiter(const CoreTable& self, uint32_t index, nb::handle numbers) {
  const Given wanted = given(numbers, NPY_DOUBLE);
  LimiterConfig limiter;
  raise_if_error(limiter_of(static_cast<const double*>(wanted.data), wanted.size, &limiter));
  without_gil([&] { return relive::set_limiter(*self.table, index, limiter); });
}

int64_t delete_items(const CoreTable& self, nb::handle keys) {
  const Given wanted = given(keys, NPY_INT64);
  int64_t deleted = 0;
  without_gil([&] {
    return relive::delete_items(*self.table, static_cast<const int64_t*>(wanted.data), wanted.size, &deleted);
  });
  return deleted;
}

int64_t complete_rows(const CoreTable& self, nb::handle keys, nb::handle cells) {
  const Given wanted = given(keys, NPY_INT64);
  const Given bytes = given(cells, NPY_UINT8);
  int64_t applied = 0;
  without_gil([&] {
    return relive::complete_rows(*self.table, static_cast<const int64_t*>(wanted.data), wanted.size,
                                 static_cast<const std::byte*>(bytes.data), bytes.size, &applied);
  });
  return applied;
}

// w_i = (N p_i)^-beta, divided by the batch's maximum if normalize (Schaul et al. 2016, section 3.4). float32[B].
nb::object importance_weights(nb::handle probabilities, int64_t num_items, double beta, bool normalize) {
  const Given from = given(probabilities, NPY_DOUBLE);
  const auto* p = static_cast<const double*>(from.data);
  const npy_intp dims[1] = {static_cast<npy_intp>(from.size)};
  void* out = nullptr;
  nb::object array = new_array(NPY_FLOAT, 1, dims, &out);
  auto* weights = static_cast<float*>(out);
  const double scale = normalize ? 1.0 / least_of(p, from.size)
                                 : static_cast<double>(num_items);  // the largest weight is the rarest item's
  powers_of(p, from.size, scale, -beta, weights);
  return array;
}

// A forked child joins the table first, because its stream is not that of its parent. A closed handle returns its last
// one.
uint64_t stream_of(const CoreTable& self) {
  const ReleasedGil released;
  const Entered entered(*self.table, false);
  return self.table->stream();
}

// For a draw over several tables: mass, live items, largest priority, items inserted as limiters count them (section 0
// of protocol-items.md), sampled, pending, policy version.
nb::tuple root(const CoreTable& self, uint32_t index) {
  const OpenRegion open(self);
  const IndexState& state = open->header->index_state[index];
  return nb::make_tuple(Leaves(*open, index).total(), state.live_items.load(), state.max_priority.load(),
                        open->inserted(index), open->sampled(index), state.pending.load(),
                        open->header->policy_version.load());
}

uint64_t move_all_pages(const CoreTable& self) {
  uint64_t moved = 0;
  without_gil([&] { return relive::move_all_pages(*self.table, &moved); });
  return moved;
}

// The offset of the packed record of a key's row, in bytes from the start of the region.
uint64_t address_of(const CoreTable& self, int64_t key) {
  const OpenRegion open(self);
  const Region& r = *open;
  if (!r.is_row_key(key)) raise_if_error(Status(Code::kForeignKey).with_int("position", 0).with_int("key", key));
  const uint64_t slot = r.key_slot(key);
  const std::byte* record = r.page_base(r.page_of(slot)) + r.offset_of(slot) * r.geometry->record_stride;
  return static_cast<uint64_t>(record - r.base);
}

// The whole mapping, read-only. It is valid until close().
nb::object region_bytes(const CoreTable& self) {
  const OpenRegion open(self);
  const Region& r = *open;
  return nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(r.base),
                                           static_cast<Py_ssize_t>(r.geometry->region_bytes), PyBUF_READ));
}

nb::dict probe(const std::string& path) {
  Probe found;
  without_gil([&] { return probe_region(path, &found); });
  nb::dict d;
  d["num_bytes"] = found.num_bytes;
  d["num_steps"] = found.num_steps;
  d["capacity"] = found.capacity;
  d["attached"] = found.is_attached;
  d["num_attached"] = found.num_attached;
  d["is_lost"] = found.is_lost;
  d["uuid"] = found.uuid;
  return d;
}

void bind_core_table(nb::module_& module) {
  nb::class_<CoreTable> table(module, "CoreTable");
  table
      .def_prop_ro("metadata",
                   [](const CoreTable& self) {
                     const OpenRegion open(self);
                     const Geometry& g = *open->geometry;
                     return nb::bytes(reinterpret_cast<const char*>(open->base + g.metadata_offset), g.metadata_bytes);
                   })
      .def_prop_ro("path",
                   [](const CoreTable& self) {
                     return self.table->path().empty() ? nb::object(nb::none())
                                                       : nb::object(nb::str(self.table->path().c_str()));
                   })
      .def_prop_ro("read_only", [](const CoreTable& self) { return self.table->is_read_only(); })
      .def_prop_ro("closed", [](const CoreTable& self) { return self.table->is_closed(); })
      .def_prop_rw(
          "timeout_s", [](const CoreTable& self) { return self.table->timeout_s(); },
          [](const CoreTable& self, double timeout_s) { self.table->set_timeout(timeout_s); })
      .def_prop_ro("stream", &stream_of)
      .def_prop_ro("geometry", &geometry)
      .def_prop_ro("layout", &layout)
      .def_prop_ro("policy_version",
                   [](const CoreTable& self) { return OpenRegion(self)->header->policy_version.load(); })
      .def("open_writer", &open_writer, nb::arg("num_lanes"), nb::arg("single"), nb::arg("normalise"))
      .def("select", &make_selection, nb::arg("index"), nb::arg("names"), nb::rv_policy::take_ownership)
      .def("draw", &draw, nb::arg("request"), nb::arg("timeout_s"), nb::arg("hold").none() = nb::none())
      .def("claim", &claim, nb::arg("index"), nb::arg("keys"), nb::arg("timeout_s"))
      .def("list_items", &list_items, nb::arg("index"), nb::arg("first"), nb::arg("count"),
           nb::arg("where").none() = nb::none())
      .def("gather", &gather, nb::arg("selection"), nb::arg("keys"), nb::arg("out").none())
      .def_prop_ro("next_call", [](const CoreTable& self) { return self.table->next_draw(); })
      .def("set_next_call", [](const CoreTable& self, uint64_t call) { self.table->set_next_draw(call); })
      .def("return_call", [](const CoreTable& self, uint64_t call) { return self.table->give_back_draw(call); })
      .def("update_priorities", &update_priorities, nb::arg("index"), nb::arg("keys"), nb::arg("priorities"))
      .def("delete", &delete_items, nb::arg("keys"))
      .def("complete", &complete_rows, nb::arg("keys"), nb::arg("cells"))
      .def("clear", [](const CoreTable& self) { without_gil([&] { return relive::clear(*self.table); }); })
      .def(
          "take_lock",
          [](const CoreTable& self, double timeout_s) {
            without_gil([&] { return relive::take_lock(*self.table, timeout_s); });
          },
          nb::arg("timeout_s"))
      .def("num_steps",
           [](const CoreTable& self) {
             const OpenRegion open(self);
             return relive::num_steps(*self.table);
           })
      .def("num_items",
           [](const CoreTable& self, uint32_t index) {
             const OpenRegion open(self);
             return relive::num_items(*self.table, index);
           })
      .def("total",
           [](const CoreTable& self, uint32_t index) {
             const OpenRegion open(self);
             return Leaves(*open, index).total();
           })
      .def("root", &root, nb::arg("index"))
      .def("stats", &stats)
      .def("check", [](const CoreTable& self) { without_gil([&] { return relive::check(*self.table); }); })
      .def("set_policy_version",
           [](const CoreTable& self, uint32_t version) {
             without_gil([&] { return relive::set_policy_version(*self.table, version); });
           })
      .def("set_limiter", &set_limiter, nb::arg("index"), nb::arg("numbers"))
      .def("set_priority_exponent",
           [](const CoreTable& self, uint32_t index, double exponent) {
             without_gil([&] { return relive::set_priority_exponent(*self.table, index, exponent); });
           })
      .def("priority_exponent",
           [](const CoreTable& self, uint32_t index) { return exponent_of(OpenRegion(self)->header->indexes[index]); })
      // Twice the changes of exponents so far; odd during a change.
      .def_prop_ro("num_raised", [](const CoreTable& self) { return OpenRegion(self)->header->num_raised.load(); })
      .def("limiter",
           [](const CoreTable& self, uint32_t index) {
             return limiter_list(OpenRegion(self)->header->index_state[index].limiter.load());
           })
      .def("close",
           [](CoreTable& self) {
             without_gil([&] { return self.table->close(); });
             self.memory.close();
           })
      .def("set_keeps_file",
           [](const CoreTable& self, bool keeps) { OpenRegion(self)->header->keeps_file.store(keeps ? 1 : 0); })
      .def("becomes_saver",
           [](const CoreTable& self) {
             const OpenRegion open(self);
             return self.table->storage().try_lock_byte(kSaverByte, true);
           })
      .def("is_last_writer",
           [](const CoreTable& self) {
             const OpenRegion open(self);
             return self.table->is_last_writer();
           })
      .def("move_all_pages", &move_all_pages)
      .def("pin_page", [](const CoreTable& self,
                          int64_t key) { without_gil([&] { return relive::pin_page(*self.table, key, true); }); })
      .def("unpin_page", [](const CoreTable& self,
                            int64_t key) { without_gil([&] { return relive::pin_page(*self.table, key, false); }); })
      .def("address_of", &address_of, nb::arg("key"))
      .def("region_bytes", &region_bytes, nb::keep_alive<0, 1>());
  bind_items(table);
  bind_where(module, table);
  bind_tier(module, table);
}

}  // namespace

void bind_table(nb::module_& module) {
  nb::class_<CoreSelection>(module, "CoreSelection").def_prop_ro("outputs", [](const CoreSelection& self) {
    nb::list outputs;
    for (const Output& output : self.plan.outputs) {
      nb::list shape;
      for (int64_t dim : output.shape) shape.append(dim);
      static const char* const kPer[] = {"item", "row", "offset"};
      outputs.append(nb::make_tuple(output.name, output.dtype, nb::tuple(shape), item_axis(self.plan, output),
                                    kPer[static_cast<uint32_t>(per_what(self.plan, output))]));
    }
    return outputs;
  });
  bind_core_table(module);
  module.def("create_table", &create_table, nb::arg("config"), nb::arg("path").none(), nb::rv_policy::take_ownership);
  module.def("attach_table", &attach_table, nb::arg("path"), nb::arg("read_only"), nb::arg("stream").none(),
             nb::arg("timeout_s"), nb::rv_policy::take_ownership);
  module.def("importance_weights", &importance_weights, nb::arg("probabilities"), nb::arg("num_items"), nb::arg("beta"),
             nb::arg("normalize"));
  module.def("probe", &probe, nb::arg("path"));
  module.def("file_system_kind", &file_system_kind, nb::arg("folder"));
  module.def(
      "remove", [](const std::string& path) { without_gil([&] { return remove_region(path); }); }, nb::arg("path"));
}

}  // namespace relive::bindings
