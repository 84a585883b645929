// Mixes the batches of several tables into one pooled buffer, at the positions of one permutation.
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

// The batch of one table: (arrays, keys, probabilities, share).
struct Part {
  size_t num_items = 0;
  std::vector<const std::byte*> arrays;
  const int64_t* keys = nullptr;
  const double* probabilities = nullptr;
  double share = 0.0;
};

Part part_of(nb::handle given, const CoreSelection* selection) {
  const auto from = nb::cast<nb::tuple>(given);
  if (from.size() != 4 || !PyArray_Check(nb::object(from[1]).ptr())) refuse("(arrays, keys, probabilities, share)");
  Part part;
  part.num_items = static_cast<size_t>(PyArray_SIZE(reinterpret_cast<PyArrayObject*>(nb::object(from[1]).ptr())));
  part.keys = reinterpret_cast<const int64_t*>(bytes_of(nb::object(from[1]).ptr(), 8 * part.num_items));
  part.probabilities = reinterpret_cast<const double*>(bytes_of(nb::object(from[2]).ptr(), 8 * part.num_items));
  part.share = nb::cast<double>(from[3]);
  if (selection == nullptr) return part;
  const auto arrays = nb::cast<nb::list>(from[0]);
  const std::vector<Output>& outputs = selection->plan.outputs;
  if (arrays.size() != outputs.size()) refuse("one array a column is expected");
  for (size_t o = 0; o < outputs.size(); ++o)
    part.arrays.push_back(bytes_of(nb::object(arrays[o]).ptr(), outputs[o].item_bytes * part.num_items));
  return part;
}

// Copies the items of one column to their positions; num_blocks times if an axis of time comes before that of items.
void scatter(const std::byte* from, std::byte* to, size_t item_bytes, size_t num_blocks, const uint32_t* positions,
             size_t num_items, size_t batch) {
  for (size_t block = 0; block < num_blocks; ++block, to += batch * item_bytes)
    for (size_t k = 0; k < num_items; ++k, from += item_bytes)
      std::memcpy(to + positions[k] * item_bytes, from, item_bytes);
}

nb::tuple mix_batches(std::optional<const CoreSelection*> selected, const nb::list& parts, uint64_t seed,
                      uint64_t stream, uint64_t call) {
  const CoreSelection* const selection = selected.value_or(nullptr);
  if (selection != nullptr && selection->plan.is_ragged) refuse("items that lie end to end are not mixed");
  std::vector<Part> given;
  size_t n = 0;
  for (const nb::handle part : parts) {
    given.push_back(part_of(part, selection));
    n += given.back().num_items;
  }
  if (n > UINT32_MAX) refuse("too many items");
  static const CoreSelection kNoColumns;
  Outputs outputs(selection == nullptr ? kNoColumns : *selection, n, 2 * BatchBuffer::room_for(8 * n));
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
      for (size_t o = 0; o < part.arrays.size(); ++o) {
        const Output& output = selection->plan.outputs[o];
        const size_t num_blocks = selection->axis(o) == 0 ? 1 : static_cast<size_t>(selection->dims[o][0]);
        scatter(part.arrays[o], outputs.data[o], output.item_bytes / num_blocks, num_blocks, mine, part.num_items, n);
      }
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
             nb::arg("stream"), nb::arg("call"));
}

}  // namespace relive::bindings
