// RowBlock: rows that are collected, column by column, until they are sent to another process.
//
// Owner:   a block owns one pooled buffer. Its arrays keep the buffer alive after the block.
// Locking: the GIL only. put() may run Python (normalise), so callers that share a block need a lock of their own.
// Cost:    0.1 us a call and about 30 ns a column if values are exact; no allocation.
#include <cstring>

#include "module.hpp"

namespace relive::bindings {
namespace {

// One column of the block: [capacity, *dims].
struct Cell {
  nb::object name;
  nb::object dtype;
  int type_number = NPY_FLOAT;
  std::vector<npy_intp> dims;  // of a row, lanes first
  size_t num_bytes = 0;        // of a row
  std::byte* rows = nullptr;

  bool fits(PyArrayObject* array) const {
    if (PyArray_TYPE(array) != type_number || !PyArray_IS_C_CONTIGUOUS(array) || !PyArray_ISNOTSWAPPED(array))
      return false;
    if (PyArray_NDIM(array) != static_cast<int>(dims.size())) return false;
    const npy_intp* own = PyArray_DIMS(array);
    for (size_t axis = 0; axis < dims.size(); ++axis)
      if (own[axis] != dims[axis]) return false;
    return true;
  }
};

class RowBlock final {
 public:
  // cells: (name, dtype, shape of a row). normalise(name, value, leading) makes an exact array of any other value, or
  // raises.
  RowBlock(const nb::list& cells, size_t capacity, nb::object normalise, nb::object leading)
      : capacity_(capacity), normalise_(std::move(normalise)), leading_(std::move(leading)) {
    size_t num_bytes = 0;
    for (nb::handle given : cells) {
      const nb::tuple parts = nb::cast<nb::tuple>(given);
      Cell cell;
      cell.name = parts[0];
      npy_intp count = 1;
      for (nb::handle size : nb::cast<nb::tuple>(parts[2])) {
        cell.dims.push_back(nb::cast<npy_intp>(size));
        count *= cell.dims.back();
      }
      PyArray_Descr* const descr = descr_of(nb::str(parts[1]).c_str());
      cell.dtype = nb::steal(reinterpret_cast<PyObject*>(descr));
      cell.type_number = descr->type_num;
      cell.num_bytes = static_cast<size_t>(count * PyDataType_ELSIZE(descr));
      num_bytes += BatchBuffer::room_for(cell.num_bytes * capacity);
      cells_.push_back(std::move(cell));
    }
    buffer_ = std::make_unique<BatchBuffer>(num_bytes);
    for (Cell& cell : cells_) cell.rows = buffer_->take(cell.num_bytes * capacity);
  }

  // Adds one row. The row counts after all its cells are copied, so a column that is refused leaves the block
  // unchanged.
  size_t put(const nb::dict& columns) {
    if (num_rows_ == capacity_) {
      PyErr_Format(PyExc_IndexError, "a block of %zu rows is full", capacity_);
      throw nb::python_error();
    }
    for (const Cell& cell : cells_) take(columns, cell);
    return num_rows_++;
  }

  // The rows so far, [num_rows, *shape] of each cell, over the block's buffer.
  nb::list arrays() const {
    nb::list made;
    for (const Cell& cell : cells_) {
      std::vector<npy_intp> dims{static_cast<npy_intp>(num_rows_)};
      dims.insert(dims.end(), cell.dims.begin(), cell.dims.end());
      auto* const descr = reinterpret_cast<PyArray_Descr*>(cell.dtype.ptr());
      made.append(buffer_->array(descr, static_cast<int>(dims.size()), dims.data(), cell.rows));
    }
    return made;
  }

  size_t num_rows() const { return num_rows_; }
  size_t capacity() const { return capacity_; }

 private:
  void take(const nb::dict& columns, const Cell& cell) {
    PyObject* value = PyDict_GetItemWithError(columns.ptr(), cell.name.ptr());
    if (value == nullptr) {
      if (!PyErr_Occurred()) PyErr_Format(PyExc_KeyError, "column %R is missing", cell.name.ptr());
      throw nb::python_error();
    }
    std::byte* const to = cell.rows + num_rows_ * cell.num_bytes;
    if (PyArray_Check(value)) {
      auto* array = reinterpret_cast<PyArrayObject*>(value);
      if (PyArray_CheckExact(value) && cell.fits(array)) {  // a subclass may hide values
        std::memcpy(to, PyArray_DATA(array), cell.num_bytes);
        return;
      }
    } else if (cell.dims.empty()) {
      ScalarRoom room;
      if (take_scalar(value, cell.type_number, &room)) {
        std::memcpy(to, &room, cell.num_bytes);
        return;
      }
    }
    const nb::object kept = nb::borrow(value);  // Python code may remove it from the dict meanwhile
    const PythonInside inside;
    const nb::object array = normalise_(cell.name, kept, leading_);
    auto* made = reinterpret_cast<PyArrayObject*>(array.ptr());
    if (!PyArray_Check(array.ptr()) || !cell.fits(made)) {
      PyErr_Format(PyExc_TypeError, "normalise(%R) returned an array that does not fit the column", cell.name.ptr());
      throw nb::python_error();
    }
    std::memcpy(to, PyArray_DATA(made), cell.num_bytes);
  }

  size_t capacity_;
  size_t num_rows_ = 0;
  nb::object normalise_;
  nb::object leading_;
  std::vector<Cell> cells_;
  std::unique_ptr<BatchBuffer> buffer_;
};

}  // namespace

void bind_row_block(nb::module_& module) {
  nb::class_<RowBlock>(module, "RowBlock")
      .def(nb::init<const nb::list&, size_t, nb::object, nb::object>(), nb::arg("cells"), nb::arg("capacity"),
           nb::arg("normalise"), nb::arg("leading"))
      .def("put", &RowBlock::put, nb::arg("columns"))
      .def("arrays", &RowBlock::arrays)
      .def_prop_ro("num_rows", &RowBlock::num_rows)
      .def_prop_ro("capacity", &RowBlock::capacity);
}

}  // namespace relive::bindings
