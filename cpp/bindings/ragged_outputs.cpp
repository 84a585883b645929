// Ragged batches, whose items lie end to end, as numpy sees them.
#include <cstring>
#include <new>

#include "module.hpp"
#include "relive/table/reading.hpp"

namespace relive::bindings {

std::byte* const* RaggedOutputs::make(size_t num_rows) try {
  const std::vector<Output>& outputs = selection_.plan.outputs;
  std::vector<size_t> starts;
  size_t sum = 0;
  const auto add = [&](size_t num_bytes) {
    starts.push_back(sum);
    sum = checked_sum(sum, BatchBuffer::room_for(num_bytes));
  };
  for (const Output& output : outputs) add(output_bytes(selection_.plan, output, n_, num_rows));
  add(8 * n_);
  add(8 * n_);
  Made made;
  made.block = std::make_unique<BatchBlock>(size_class(sum));
  for (size_t start : starts) made.data.push_back(made.block->memory() + start);
  made.num_rows = num_rows;
  before_ = std::move(last_);
  last_ = std::move(made);
  return last_.data.data();
} catch (const std::bad_alloc&) {
  return nullptr;
}

nb::list RaggedOutputs::arrays() {
  buffer_ = std::make_unique<BatchBuffer>(std::move(*last_.block));
  nb::list made;
  for (size_t o = 0; o < selection_.plan.outputs.size(); ++o)
    made.append(output_array(selection_, o, *buffer_, last_.data[o], n_, last_.num_rows));
  return made;
}

nb::object RaggedOutputs::keys(const std::vector<int64_t>& from) const {
  std::byte* const to = last_.data[last_.data.size() - 2];
  if (n_ > 0) std::memcpy(to, from.data(), 8 * n_);
  const npy_intp dims[1] = {static_cast<npy_intp>(n_)};
  return buffer_->array(descr_of_int64(), 1, dims, to);
}

nb::object RaggedOutputs::probabilities(const std::vector<double>& from) const {
  std::byte* const to = last_.data.back();
  if (n_ > 0) std::memcpy(to, from.data(), 8 * n_);
  const npy_intp dims[1] = {static_cast<npy_intp>(n_)};
  return buffer_->array(descr_of_float64(), 1, dims, to);
}

nb::tuple draw_ragged(const CoreTable& self, const AskedDraw& asked, double timeout_s, CoreHold* hold) {
  const CoreSelection& selection = *asked.selection;
  const size_t n = asked.num_items;
  RaggedOutputs outputs(selection, n);
  RaggedBatch batch(selection.plan, outputs);
  std::vector<int64_t> keys(n);
  std::vector<double> probabilities(n);
  int64_t num_live = 0;
  DrawRequest request = draw_request(asked);
  request.ragged = &batch;
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  request.num_live_items = &num_live;
  if (hold != nullptr) hold->prepare(&request);
  raise_if_error(outputs.run([&] { return relive::sample_ragged(*self.table, request, timeout_s); }));
  if (hold != nullptr) hold->begin(self, request);
  nb::list arrays = outputs.arrays();
  return nb::make_tuple(arrays, outputs.keys(keys), outputs.probabilities(probabilities), num_live);
}

nb::tuple gather_ragged(const CoreTable& self, const CoreSelection& selection, const int64_t* keys, size_t n) {
  RaggedOutputs outputs(selection, n);
  RaggedBatch batch(selection.plan, outputs);
  const npy_intp dims[1] = {static_cast<npy_intp>(n)};
  void* present = nullptr;
  nb::object present_array = new_array(NPY_BOOL, 1, dims, &present);
  raise_if_error(outputs.run([&] {
    return relive::gather_ragged(*self.table, selection.plan, keys, n, &batch, static_cast<uint8_t*>(present));
  }));
  return nb::make_tuple(outputs.arrays(), present_array);
}

}  // namespace relive::bindings
