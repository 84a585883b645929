// Mixes the batches of several tables into one pooled buffer, at the positions of one permutation.
#include <algorithm>
#include <cstring>
#include <optional>

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "module.hpp"
#include "relive/read/draw.hpp"
#include "relive/words/rng.hpp"

namespace relive::bindings {
namespace {

constexpr uint64_t kMixes = ~uint64_t{3};  // an attempt that no draw has: mixing does not shift the numbers of draws

[[noreturn]] void refuse(const char* what) {
  PyErr_Format(PyExc_ValueError, "mix_batches: %s", what);
  throw nb::python_error();
}

// The bytes of a C-contiguous array, num_bytes in all. The caller keeps the array alive.
const std::byte* bytes_of(PyObject* value, size_t num_bytes) {
  auto* const array = reinterpret_cast<PyArrayObject*>(value);
  if (!PyArray_Check(value) || !PyArray_IS_C_CONTIGUOUS(array) ||
      static_cast<size_t>(PyArray_NBYTES(array)) != num_bytes)
    refuse("arrays of the columns, as a core returned them, are expected");
  return static_cast<const std::byte*>(PyArray_DATA(array));
}

// A column of the batch that is made. An axis of time may come before that of items: num_blocks steps.
struct MixedColumn {
  std::byte* to;
  size_t item_bytes, num_blocks;  // item_bytes: of all its blocks
};

// The batch of one table: (arrays, keys, probabilities, share).
struct Part {
  size_t num_items = 0;
  std::vector<const std::byte*> arrays;
  const int64_t* keys = nullptr;
  const double* probabilities = nullptr;
  double share = 0.0;
};

size_t num_items_of(const nb::tuple& part) {
  if (part.size() != 4 || !PyArray_Check(nb::object(part[1]).ptr())) refuse("(arrays, keys, probabilities, share)");
  return static_cast<size_t>(PyArray_SIZE(reinterpret_cast<PyArrayObject*>(nb::object(part[1]).ptr())));
}

Part part_of(const nb::tuple& from, const std::vector<MixedColumn>& columns) {
  Part part;
  part.num_items = num_items_of(from);
  part.keys = reinterpret_cast<const int64_t*>(bytes_of(nb::object(from[1]).ptr(), 8 * part.num_items));
  part.probabilities = reinterpret_cast<const double*>(bytes_of(nb::object(from[2]).ptr(), 8 * part.num_items));
  part.share = nb::cast<double>(from[3]);
  if (columns.empty()) return part;
  const auto arrays = nb::cast<nb::list>(from[0]);
  if (arrays.size() != columns.size()) refuse("one array a column is expected");
  for (size_t o = 0; o < columns.size(); ++o)
    part.arrays.push_back(bytes_of(nb::object(arrays[o]).ptr(), columns[o].item_bytes * part.num_items));
  return part;
}

std::vector<MixedColumn> columns_of(const CoreSelection& selection, const Outputs& outputs) {
  std::vector<MixedColumn> columns;
  for (size_t o = 0; o < outputs.data.size(); ++o) {
    const size_t num_blocks = selection.axis(o) == 0 ? 1 : static_cast<size_t>(selection.dims[o][0]);
    columns.push_back({outputs.data[o], selection.plan.outputs[o].item_bytes, num_blocks});
  }
  return columns;
}

// The columns of arrays that the caller made: pairs of an array of n items, and its axis of items (0 or 1).
std::vector<MixedColumn> columns_of(const nb::list& into, size_t n) {
  std::vector<MixedColumn> columns;
  for (const nb::handle given : into) {
    const auto pair = nb::cast<nb::tuple>(given);
    const nb::object value = nb::object(pair[0]);
    const int axis = nb::cast<int>(pair[1]);
    auto* const array = reinterpret_cast<PyArrayObject*>(value.ptr());
    if (!PyArray_Check(value.ptr()) || !PyArray_ISCARRAY(array) || axis < 0 || axis > 1 ||
        PyArray_NDIM(array) <= axis || static_cast<size_t>(PyArray_DIM(array, axis)) != n)
      refuse("writable C-contiguous arrays of all items are expected");
    const size_t num_blocks = axis == 0 ? 1 : static_cast<size_t>(PyArray_DIM(array, 0));
    columns.push_back(
        {static_cast<std::byte*>(PyArray_DATA(array)), PyArray_NBYTES(array) / std::max<size_t>(n, 1), num_blocks});
  }
  return columns;
}

// Copies the items of one column to their positions.
void scatter(const MixedColumn& column, const std::byte* from, const uint32_t* positions, size_t num_items, size_t n) {
  if (column.item_bytes == 0) return;
  const size_t item_bytes = column.item_bytes / column.num_blocks;
  std::byte* to = column.to;
  for (size_t block = 0; block < column.num_blocks; ++block, to += n * item_bytes)
    for (size_t k = 0; k < num_items; ++k, from += item_bytes)
      std::memcpy(to + positions[k] * item_bytes, from, item_bytes);
}

nb::tuple mix_batches(std::optional<const CoreSelection*> selected, const nb::list& parts, uint64_t seed,
                      uint64_t stream, uint64_t call, const nb::list& into) {
  const CoreSelection* const selection = selected.value_or(nullptr);
  if (selection != nullptr && selection->plan.is_ragged) refuse("items that lie end to end are not mixed");
  size_t n = 0;
  for (const nb::handle part : parts) n += num_items_of(nb::cast<nb::tuple>(part));
  if (n > UINT32_MAX) refuse("too many items");
  static const CoreSelection kNoColumns;
  Outputs outputs(selection == nullptr ? kNoColumns : *selection, n, 2 * BatchBuffer::room_for(8 * n));
  const auto columns = selection == nullptr ? columns_of(into, n) : columns_of(*selection, outputs);
  std::vector<Part> given;
  for (const nb::handle part : parts) given.push_back(part_of(nb::cast<nb::tuple>(part), columns));
  auto* const keys = reinterpret_cast<int64_t*>(outputs.buffer.take(8 * n));
  auto* const probabilities = reinterpret_cast<double*>(outputs.buffer.take(8 * n));
  {
    const ReleasedGil released;
    std::vector<uint32_t> positions(n);
    shuffle_rows(CounterRng(seed, stream, call, kMixes), positions.data(), n);
    const uint32_t* mine = positions.data();
    for (const Part& part : given) {
      for (size_t k = 0; k < part.num_items; ++k) {
        keys[mine[k]] = part.keys[k];
        probabilities[mine[k]] = part.probabilities[k] * part.share;
      }
      for (size_t o = 0; o < part.arrays.size(); ++o) scatter(columns[o], part.arrays[o], mine, part.num_items, n);
      mine += part.num_items;
    }
  }
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  return nb::make_tuple(outputs.arrays(selection == nullptr ? kNoColumns : *selection, n),
                        outputs.buffer.array(descr_of_int64(), 1, dims, reinterpret_cast<std::byte*>(keys)),
                        outputs.buffer.array(descr_of_float64(), 1, dims, reinterpret_cast<std::byte*>(probabilities)));
}

}  // namespace

void bind_mixing(nb::module_& module) {
  module.def("mix_batches", &mix_batches, nb::arg("selection").none(), nb::arg("parts"), nb::arg("seed"),
             nb::arg("stream"), nb::arg("call"), nb::arg("into") = nb::list());
}

}  // namespace relive::bindings
