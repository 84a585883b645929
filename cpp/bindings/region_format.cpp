// The numbers of the region format and of the random numbers, for code that shares no C++ with the core: kernels of a
// device, and readers of a peer's memory. Each number is computed from the constants of words/, and written nowhere
// else.
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "module.hpp"
#include "relive/read/draw.hpp"
#include "relive/words/region.hpp"
#include "relive/words/rng.hpp"

namespace relive::bindings {
namespace {

// Bytes of one entry of an array of the region.
template <class Entry>
constexpr size_t bytes_of(Entry*) {
  return sizeof(Entry);
}

void add_keys_and_words(nb::dict* format) {
  nb::dict& d = *format;
  const Region r;
  d["leaf_bits"] = kLeafBits;  // of a key: generation and slot; above them its shard
  d["word_bytes"] = bytes_of(r.words);
  d["state_bits"] = kStateBits;
  d["state_mask"] = (uint32_t{1} << kStateBits) - 1;
  d["page_free"] = static_cast<uint32_t>(PageState::kFree);
  d["page_open"] = static_cast<uint32_t>(PageState::kOpen);
  d["page_closed"] = static_cast<uint32_t>(PageState::kClosed);
  d["page_retired"] = static_cast<uint32_t>(PageState::kRetired);
  d["move_bits"] = kMoveBits;
  d["generation_shift"] = kGenerationShift;
  d["frame_number_bytes"] = bytes_of(r.frames);
  d["tail_word_bytes"] = bytes_of(r.tails);
  d["tail_word_rows"] = 8 * bytes_of(r.tails);  // a row is one bit
}

void add_structs(nb::dict* format) {
  nb::dict& d = *format;
  d["header_bytes"] = sizeof(Header);
  d["policy_version_at"] = offsetof(Header, policy_version);
  d["policy_version_bytes"] = sizeof Header{}.policy_version;
  d["page_bytes"] = sizeof(PageRecord);
  d["page_range_at"] = offsetof(PageRecord, range);
  d["range_end_shift"] = std::countr_zero(Range{0, 1}.pack());
  d["page_prev_at"] = offsetof(PageRecord, prev);
  d["page_next_at"] = offsetof(PageRecord, next);
  d["page_lane_uid_at"] = offsetof(PageRecord, lane_uid);
  d["page_lane_slot_at"] = offsetof(PageRecord, lane_slot);
  d["lane_bytes"] = sizeof(Lane);
  d["lane_state_at"] = offsetof(Lane, state);
  d["lane_uid_at"] = offsetof(Lane, uid);
  d["mark_bytes"] = sizeof(Mark);
  d["mark_version_at"] = offsetof(Mark, policy_version);
  d["mark_discount_at"] = offsetof(Mark, discount);
  d["mark_priority_at"] = offsetof(Mark, pending_priority);
  d["mark_lane_at"] = offsetof(Mark, lane);
}

void add_rows(nb::dict* format) {
  nb::dict& d = *format;
  d["head_bytes"] = kRecordHead;
  d["terminated_bit"] = kTerminatedBit;
  d["truncated_bit"] = kTruncatedBit;
  d["discount_bit"] = kDiscountBit;
  d["late_bit"] = kLateBit;
  d["step_mask"] = kStepMask;
  d["cell_number_at"] = kCellWord;  // in a record, of a table that has start cells
  d["cell_number_bytes"] = sizeof kNoCell;
  d["no_cell"] = kNoCell;
}

void add_leaves(nb::dict* format) {
  nb::dict& d = *format;
  d["fanout"] = Tree::kFanout;
  d["most_levels"] = Tree::kMaxLevels;
  d["node_bytes"] = sizeof(double);
  d["leaf_state_bytes"] = sizeof kMostUses;
  d["most_uses"] = kMostUses;  // states up to this one are those of items
  d["state_dropped"] = kStateDropped;
  d["state_unfilled"] = kStateUnfilled;
  d["state_pending"] = kStatePending;
  d["state_awaiting"] = kStateAwaiting;
  d["state_removed"] = kStateRemoved;
  d["state_ended"] = kStateEnded;
  d["no_priority"] = kNoPriority;
}

nb::dict region_format() {
  nb::dict format;
  format["magic"] = std::bit_cast<uint64_t>(kMagic);
  format["format_version"] = kFormatVersion;
  add_keys_and_words(&format);
  add_structs(&format);
  add_rows(&format);
  add_leaves(&format);
  return format;
}

nb::dict random_format() {
  nb::dict format;
  format["golden"] = SplitMix64::kGolden;
  format["first_shift"] = SplitMix64::kShifts[0];
  format["first_factor"] = SplitMix64::kFactors[0];
  format["second_shift"] = SplitMix64::kShifts[1];
  format["second_factor"] = SplitMix64::kFactors[1];
  format["third_shift"] = SplitMix64::kShifts[2];
  format["permutation_from"] = kPermutation;  // the number of a call that its shuffle begins at
  return format;
}

uint64_t splitmix64(uint64_t state) { return SplitMix64::next(&state); }

uint64_t random_base(uint64_t seed, uint64_t stream, uint64_t call, uint64_t attempt) {
  return CounterRng(seed, stream, call, attempt).base();
}

// The finaliser of each word, in a new array of the same shape.
nb::object mix_words(nb::handle words) {
  nb::object given = as_contiguous(words, NPY_UINT64);
  auto* from = reinterpret_cast<PyArrayObject*>(given.ptr());
  void* out = nullptr;
  nb::object mixed = new_array(NPY_UINT64, PyArray_NDIM(from), PyArray_DIMS(from), &out);
  const auto* word = static_cast<const uint64_t*>(PyArray_DATA(from));
  for (npy_intp i = 0; i < PyArray_SIZE(from); ++i) static_cast<uint64_t*>(out)[i] = SplitMix64::mix(word[i]);
  return mixed;
}

}  // namespace

void bind_region_format(nb::module_& module) {
  module.def("region_format", &region_format);
  module.def("random_format", &random_format);
  module.def("splitmix64", &splitmix64, nb::arg("state"));
  module.def("random_base", &random_base, nb::arg("seed"), nb::arg("stream"), nb::arg("call"), nb::arg("attempt"));
  module.def("mix_words", &mix_words, nb::arg("words"));
}

}  // namespace relive::bindings
