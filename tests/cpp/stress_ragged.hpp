// Draws and gathers ragged batches and converts them to padded ones, so that the same code verifies both.
#pragma once

#include "relive/read/ragged.hpp"
#include "stress_world.hpp"

namespace stress {

class RaggedItems final : public RowRoom {
 public:
  // names: of the padded outputs, in their order.
  Status prepare(Table* table, uint32_t index, std::vector<std::string> names, size_t num_items) {
    num_items_ = num_items;
    names.push_back("offsets");
    RELIVE_RETURN_IF_ERROR(relive::make_plan(*table, index, names, &plan_));
    batch_ = std::make_unique<RaggedBatch>(plan_, *this);
    return {};
  }
  // Frees the memory of the call before the last one; the sanitizers report a reader that still uses it.
  std::byte* const* make(size_t num_rows) override {
    Made& made = made_[num_made_++ % 2];
    made = Made{};
    for (const Output& output : plan_.outputs) {
      made.buffers.emplace_back(output_bytes(plan_, output, num_items_, num_rows), std::byte{0xcc});
      made.pointers.push_back(made.buffers.back().data());
    }
    return made.pointers.data();
  }
  Status sample(Table& table, DrawRequest request, double timeout_s) {
    request.plan = &plan_;
    request.ragged = batch_.get();
    return relive::sample_ragged(table, request, timeout_s);
  }
  Status gather(Table& table, const int64_t* keys, uint8_t* present) {
    return relive::gather_ragged(table, plan_, keys, num_items_, batch_.get(), present);
  }
  // Copies into the buffers of a padded batch, with zeros after the rows of an item. Returns "" or the fault of the
  // offsets.
  std::string lay_out(const GatherPlan& padded, std::byte* const* to) const {
    const auto* offsets = reinterpret_cast<const int64_t*>(batch_->out()[padded.outputs.size()]);
    if (offsets[0] != 0 || offsets[num_items_] != batch_->num_rows()) return "offsets that do not span the rows";
    for (size_t item = 0; item < num_items_; ++item) {
      const int64_t num_rows = offsets[item + 1] - offsets[item];
      if (num_rows < 0 || num_rows > padded.num_rows) return "offsets of an item that cannot be";
      for (size_t o = 0; o < padded.outputs.size(); ++o) {
        const Output& output = padded.outputs[o];
        const uint64_t row_bytes = output.row_bytes;
        std::byte* const into = to[o] + item * output.item_bytes;
        const uint64_t begin =
            row_bytes == 0 ? item * output.item_bytes : static_cast<uint64_t>(offsets[item]) * row_bytes;
        const uint64_t num_bytes = row_bytes == 0 ? output.item_bytes : static_cast<uint64_t>(num_rows) * row_bytes;
        std::memcpy(into, batch_->out()[o] + begin, num_bytes);
        std::memset(into + num_bytes, 0, output.item_bytes - num_bytes);
      }
    }
    return {};
  }

 private:
  struct Made {
    std::vector<std::vector<std::byte>> buffers;
    std::vector<std::byte*> pointers;
  };

  size_t num_items_ = 0, num_made_ = 0;
  GatherPlan plan_;
  Made made_[2];
  std::unique_ptr<RaggedBatch> batch_;
};

inline Status Batch::prepare_ragged(Table* table, uint32_t index, const std::vector<std::string>& names) {
  ragged = std::make_shared<RaggedItems>();
  return ragged->prepare(table, index, names, keys.size());
}

inline Status Batch::sample(Table& table, DrawRequest request, double timeout_s) {
  request.plan = &plan;
  request.out = pointers.data();
  request.keys = keys.data();
  request.probabilities = probabilities.data();
  wrong_offsets.clear();
  if (ragged == nullptr) return relive::sample(table, request, timeout_s);
  const Status status = ragged->sample(table, request, timeout_s);
  if (status.ok()) wrong_offsets = ragged->lay_out(plan, pointers.data());
  return status;
}

inline Status Batch::gather(Table& table, const std::vector<int64_t>& of) {
  wrong_offsets.clear();
  if (ragged == nullptr) return relive::gather(table, plan, of.data(), of.size(), pointers.data(), present.data());
  const Status status = ragged->gather(table, of.data(), present.data());
  if (status.ok()) wrong_offsets = ragged->lay_out(plan, pointers.data());
  return status;
}

}  // namespace stress
