#include "relive/read/ragged.hpp"

#include <cerrno>
#include <cstring>

namespace relive {
namespace {

// A plan of the same windows, which are whole under the same conditions, with the number of rows as its only output.
GatherPlan lengths_of(const GatherPlan& rows) {
  GatherPlan plan = rows;
  plan.is_ragged = plan.needs_bulk = false;
  Output output;
  output.name = "num_rows";
  output.dtype = "<i8";
  output.item_bytes = sizeof(int64_t);
  output.source = Source::kNumRows;
  plan.outputs.assign(1, output);
  return plan;
}

}  // namespace

RaggedBatch::RaggedBatch(const GatherPlan& plan, RowRoom& room)
    : plan_(plan), room_(room), lengths_plan_(lengths_of(plan)) {}

void RaggedBatch::begin(size_t count) {
  lengths_.assign(count, 0);
  lengths_buffer_ = reinterpret_cast<std::byte*>(lengths_.data());
  is_read_.assign(count, 0);
  offsets_.clear();
  out_ = nullptr;
}

void RaggedBatch::forget(size_t item) {
  lengths_[item] = 0;
  is_read_[item] = 0;
}

Status RaggedBatch::lay_out() {
  std::vector<int64_t> offsets(lengths_.size() + 1, 0);
  for (size_t i = 0; i < lengths_.size(); ++i) offsets[i + 1] = offsets[i] + lengths_[i];
  if (out_ != nullptr && offsets == offsets_) return {};
  std::byte* const* const to = room_.make(static_cast<size_t>(offsets.back()));
  if (to == nullptr) return Status(Code::kNoMemory);
  if (out_ != nullptr) move_to(to, offsets);
  out_ = to;
  offsets_.swap(offsets);
  return {};
}

void RaggedBatch::move_to(std::byte* const* to, const std::vector<int64_t>& offsets) const {
  for (size_t o = 0; o < plan_.outputs.size(); ++o) {
    const Output& output = plan_.outputs[o];
    if (output.source == Source::kOffsets) continue;
    if (output.row_bytes == 0) {
      std::memcpy(to[o], out_[o], lengths_.size() * output.item_bytes);
      continue;
    }
    for (size_t i = 0; i < lengths_.size(); ++i) {
      if (is_read_[i] == 0) continue;
      std::memcpy(to[o] + static_cast<uint64_t>(offsets[i]) * output.row_bytes,
                  out_[o] + static_cast<uint64_t>(offsets_[i]) * output.row_bytes,
                  static_cast<uint64_t>(lengths_[i]) * output.row_bytes);
    }
  }
}

void RaggedBatch::place(Window* windows, const uint32_t* which, size_t count) const {
  for (size_t k = 0; k < count; ++k) {
    Window& w = windows[which[k]];
    w.first_out = static_cast<uint64_t>(offsets_[w.row]);
    w.room = static_cast<uint32_t>(lengths_[w.row]);
  }
}

Status RaggedBatch::finish() {
  RELIVE_RETURN_IF_ERROR(lay_out());
  for (size_t o = 0; o < plan_.outputs.size(); ++o)
    if (plan_.outputs[o].source == Source::kOffsets)
      std::memcpy(out_[o], offsets_.data(), offsets_.size() * sizeof(int64_t));
  return {};
}

}  // namespace relive
