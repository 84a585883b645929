// create_items: from arrays of windows, priorities and own columns to keys.
#include <utility>
#include <vector>

#include "module.hpp"
#include "relive/table/changing.hpp"

namespace relive::bindings {
namespace {

// The arrays of create_items, read in place. Each is checked to have as many bytes as the core will read.
class GivenItems final {
 public:
  GivenItems(const Region& r, uint32_t index, nb::handle windows, const nb::list& rows, nb::handle priorities,
             const nb::list& columns) {
    if (index >= r.num_indexes || !r.map(index).is_explicit) return;  // the core refuses such an index
    const Records& records = r.records[index];
    const uint32_t num_windows = records.geometry->max_windows;
    const auto* pairs = static_cast<const int64_t*>(keep(windows, NPY_INT64));
    items_.num_items = size_ / (2 * num_windows);
    if (size_ % (2 * num_windows) != 0 || nb::len(rows) != num_windows ||
        nb::len(columns) != records.geometry->num_columns)
      refuse("one array a window and a column is expected");
    windows_.reserve(items_.num_items * num_windows);
    for (size_t k = 0; k < items_.num_items * num_windows; ++k) windows_.push_back({pairs[2 * k], pairs[2 * k + 1]});
    for (uint32_t w = 0; w < num_windows; ++w)
      if (!rows[w].is_none()) name_rows(rows[w], w, num_windows);
    for (uint32_t c = 0; c < records.geometry->num_columns; ++c) {
      auto* raw = reinterpret_cast<PyArrayObject*>(columns[c].ptr());
      if (!PyArray_Check(columns[c].ptr()) || !PyArray_IS_C_CONTIGUOUS(raw)) refuse("C-contiguous arrays are expected");
      kept_.push_back(nb::borrow(columns[c]));
      data_.push_back(static_cast<const std::byte*>(PyArray_DATA(raw)));
      if (static_cast<size_t>(PyArray_NBYTES(raw)) != items_.num_items * records.columns[c].num_bytes)
        refuse("a column has not one value an item");
    }
    items_.windows = windows_.data();
    items_.columns = data_.data();
    if (priorities.is_none()) return;
    items_.priorities = static_cast<const float*>(keep(priorities, NPY_FLOAT));
    if (size_ != items_.num_items) refuse("one priority an item is expected");
  }

  const NewItems& items() const { return items_; }

 private:
  [[noreturn]] static void refuse(const char* what) {
    PyErr_Format(PyExc_ValueError, "create_items: %s", what);
    throw nb::python_error();
  }

  const void* keep(nb::handle value, int type_number) {
    kept_.push_back(as_contiguous(value, type_number));
    auto* raw = reinterpret_cast<PyArrayObject*>(kept_.back().ptr());
    size_ = static_cast<size_t>(PyArray_SIZE(raw));
    return PyArray_DATA(raw);
  }

  // Keys [items, rows] of one window. An item uses the first keys of its row, as many as its window has rows.
  void name_rows(nb::handle keys, uint32_t window, uint32_t num_windows) {
    const auto* data = static_cast<const int64_t*>(keep(keys, NPY_INT64));
    const size_t each = items_.num_items == 0 ? 0 : size_ / items_.num_items;
    for (size_t k = 0; k < items_.num_items; ++k) {
      WindowRows& rows = windows_[k * num_windows + window];
      if (rows.num_rows < 0 || static_cast<size_t>(rows.num_rows) > each) refuse("more rows than keys of them");
      rows.rows = data + k * each;
    }
  }

  std::vector<nb::object> kept_;
  size_t size_ = 0;  // of the array that was kept last
  std::vector<WindowRows> windows_;
  std::vector<const std::byte*> data_;
  NewItems items_;
};

nb::object create_items(const CoreTable& self, uint32_t index, nb::handle windows, const nb::list& rows,
                        nb::object priorities, const nb::list& columns, double timeout_s) {
  const GivenItems given = [&] {
    const OpenRegion open(self);
    return GivenItems(*open, index, windows, rows, priorities, columns);
  }();
  const NewItems& items = given.items();
  const npy_intp dims[1] = {static_cast<npy_intp>(items.num_items)};
  void* keys = nullptr;
  nb::object key_array = new_array(NPY_INT64, 1, dims, &keys);
  size_t stored = 0;
  without_gil(
      [&] { return relive::insert_items(*self.table, index, items, timeout_s, static_cast<int64_t*>(keys), &stored); },
      key_array);
  return keys_of_stored(key_array, dims[0]);
}

}  // namespace

// windows: int64[N, windows, 2], a key and a number of rows each, as in WindowRows. rows: for each window its keys
// int64[N, R], or None. priorities: float32[N] or None. columns: the bytes of each own column.
void bind_items(nb::class_<CoreTable>& table) {
  table.def("create_items", &create_items, nb::arg("index"), nb::arg("windows"), nb::arg("rows"),
            nb::arg("priorities").none(), nb::arg("columns"), nb::arg("timeout_s"));
}

}  // namespace relive::bindings
