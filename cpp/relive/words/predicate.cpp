#include "relive/words/predicate.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>

#include "relive/words/config_check.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr size_t kFew = 8;  // up to so many items get a small stack

// The name of each code, in the order of OpCode, and the values that it takes. Each leaves one value.
struct CodeRow {
  const char* name;
  uint32_t takes;
};
constexpr CodeRow kCodes[] = {
    {"whole", 0},          {"real", 0},         {"column", 0},      {"lane", 0},       {"episode_step", 0},
    {"policy_version", 0}, {"staleness", 0},    {"num_steps", 0},   {"first", 0},      {"terminated", 0},
    {"truncated", 0},      {"to_real", 1},      {"negate", 1},      {"not", 1},        {"add", 2},
    {"subtract", 2},       {"multiply", 2},     {"divide", 2},      {"less_whole", 2}, {"less_real", 2},
    {"at_most_whole", 2},  {"at_most_real", 2}, {"equal_whole", 2}, {"equal_real", 2}, {"unequal_whole", 2},
    {"unequal_real", 2},   {"and", 2},          {"or", 2},
};
static_assert(std::size(kCodes) == static_cast<size_t>(OpCode::kNumCodes));

struct LoadedRow {
  const char* dtype;  // without its byte order
  Loaded loaded;
};
constexpr LoadedRow kLoaded[] = {
    {"b1", Loaded::kBool},    {"i1", Loaded::kInt8},    {"i2", Loaded::kInt16},  {"i4", Loaded::kInt32},
    {"i8", Loaded::kInt64},   {"u1", Loaded::kUint8},   {"u2", Loaded::kUint16}, {"u4", Loaded::kUint32},
    {"f4", Loaded::kFloat32}, {"f8", Loaded::kFloat64},
};

Status not_a_program(const std::string& expected, int64_t got) {
  return invalid("program of a condition", expected, got);
}

const ColumnLayout* find_column(const ColumnLayout* columns, uint32_t count, const std::string& name) {
  for (uint32_t c = 0; c < count; ++c)
    if (name == columns[c].name) return &columns[c];
  return nullptr;
}

Status find_loaded(const ColumnLayout& column, Loaded* loaded) {
  const bool is_plain = column.num_dims == 0 && column.area != Area::kBulk && column.kind != ColumnKind::kState &&
                        column.kind != ColumnKind::kStart;
  for (const LoadedRow& row : kLoaded) {
    if (!is_plain || std::strcmp(row.dtype, column.dtype + 1) != 0) continue;
    *loaded = row.loaded;
    return {};
  }
  return not_a_program(std::string("a plain number in column ") + column.name, 0);
}

// The columns that a program may name: those of rows; those of records; or, of groups, the column by which groups form,
// whose value is the first word of the record.
struct Known {
  const ColumnLayout* columns;
  uint32_t num_columns;
  const char* group_column;  // null if the items are no groups
  bool is_explicit;
};

Known known_of(const Region& r, uint32_t index) {
  if (!r.map(index).is_explicit) return {r.columns, r.geometry->num_columns, nullptr, false};
  const Records& records = r.records[index];
  if (records.are_groups()) return {nullptr, 0, r.columns[r.header->indexes[index].group.column].name, true};
  return {records.columns, records.geometry->num_columns, nullptr, true};
}

Status place_column(const Known& known, const std::string& name, Operation* operation) {
  if (known.group_column != nullptr) {
    if (name != known.group_column) return not_a_program("the column that groups form by, not " + name, 0);
    operation->loaded = Loaded::kInt64;
    return {};
  }
  const ColumnLayout* column = find_column(known.columns, known.num_columns, name);
  if (column == nullptr) return not_a_program("columns of the items, not " + name, 0);
  operation->offset = column->offset;
  operation->stride = known.is_explicit ? 0 : static_cast<uint32_t>(column->stride);
  return find_loaded(*column, &operation->loaded);
}

bool is_truncated(const Region& r, const Subject& item) {
  const uint32_t head = load_head(item.base + item.row * r.geometry->record_stride);
  if ((head & (kTerminatedBit | kTruncatedBit)) != 0) return (head & kTruncatedBit) != 0;
  if (r.geometry->has_state == 0) return false;
  uint64_t page = r.page_of(item.slot);  // if the end came after the step, the next row is a tail
  uint32_t row = item.row + 1;
  if (row == r.page_len) {
    page = r.alive(r.pages[page].next.load(std::memory_order_acquire));
    if (page == kNoPage) return false;
    row = 0;
  }
  const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));
  return row < range.step_end && r.is_tail(page, row);
}

// A whole or a real number. Not a union, because compilers do not vectorise loops over unions.
struct Value {
  int64_t whole;
  double real() const { return std::bit_cast<double>(whole); }
  void set(double real) { whole = std::bit_cast<int64_t>(real); }
};

// Consecutive rows of one page.
struct Rows {
  Subject first;
  Subject operator[](size_t k) const { return {first.slot + k, first.base, first.row + static_cast<uint32_t>(k), 0}; }
};

// One value for all items.
struct Same {
  Value value;
  Value operator[](size_t) const { return value; }
};

bool is_constant(const Operation& operation) {
  return operation.code == OpCode::kWhole || operation.code == OpCode::kReal;
}
Value constant_of(const Operation& operation) {
  Value value;
  std::memcpy(&value, &operation.whole, sizeof value);  // whole and real constants lie in the same place
  return value;
}

// Computes one operation for all items. If there is one item, no loop is left.
template <bool kIsOne, class Items>
struct Evaluation {
  const Region& r;
  const Items& items;
  size_t any;

  size_t count() const { return kIsOne ? 1 : any; }

  template <class Each>
  void wholes(Value* out, Each&& each) const {
    const size_t size = count();
    for (size_t k = 0; k < size; ++k) out[k].whole = static_cast<int64_t>(each(items[k]));
  }
  template <class T>
  RELIVE_ROW_COPY static T load(const Subject& item, const Operation& operation) {
    T value;
    const std::byte* from = item.base + operation.offset + uint64_t{item.row} * operation.stride;
    copy_bytes(reinterpret_cast<std::byte*>(&value), from, sizeof value);
    return value;
  }
  template <class T>
  void whole_column(const Operation& operation, Value* out) const {
    wholes(out, [&](const Subject& item) { return load<T>(item, operation); });
  }
  template <class T>
  void real_column(const Operation& operation, Value* out) const {
    const size_t size = count();
    for (size_t k = 0; k < size; ++k) out[k].set(static_cast<double>(load<T>(items[k], operation)));
  }

  void column(const Operation& operation, Value* out) const {
    switch (operation.loaded) {
      case Loaded::kBool:
        return wholes(out, [&](const Subject& item) { return load<uint8_t>(item, operation) != 0; });
      case Loaded::kInt8:
        return whole_column<int8_t>(operation, out);
      case Loaded::kInt16:
        return whole_column<int16_t>(operation, out);
      case Loaded::kInt32:
        return whole_column<int32_t>(operation, out);
      case Loaded::kInt64:
        return whole_column<int64_t>(operation, out);
      case Loaded::kUint8:
        return whole_column<uint8_t>(operation, out);
      case Loaded::kUint16:
        return whole_column<uint16_t>(operation, out);
      case Loaded::kUint32:
        return whole_column<uint32_t>(operation, out);
      case Loaded::kFloat32:
        return real_column<float>(operation, out);
      case Loaded::kFloat64:
        return real_column<double>(operation, out);
    }
  }

  void derived(OpCode code, Value* out) const {
    const auto head = [this](const Subject& item) {
      return load_head(item.base + item.row * r.geometry->record_stride);
    };
    const auto version = [this](const Subject& item) {
      return int64_t{r.marks[item.slot].policy_version.load(kRelaxed)};
    };
    switch (code) {
      case OpCode::kLane:
        return wholes(out, [&](const Subject& item) { return r.lane_of(item.slot); });
      case OpCode::kEpisodeStep:
        return wholes(out, [&](const Subject& item) { return head(item) & kStepMask; });
      case OpCode::kFirst:
        return wholes(out, [&](const Subject& item) { return (head(item) & kStepMask) == 0; });
      case OpCode::kTerminated:
        return wholes(out, [&](const Subject& item) { return (head(item) & kTerminatedBit) != 0; });
      case OpCode::kTruncated:
        return wholes(out, [&](const Subject& item) { return is_truncated(r, item); });
      case OpCode::kPolicyVersion:
        return wholes(out, version);
      case OpCode::kStaleness: {
        const int64_t now = r.header->policy_version.load(kRelaxed);
        return wholes(out, [&](const Subject& item) { return now - version(item); });
      }
      default:
        return wholes(out, [](const Subject& item) { return item.num_steps; });
    }
  }

  void load(const Operation& operation, Value* out) const {
    if (operation.code == OpCode::kColumn) return column(operation, out);
    if (!is_constant(operation)) return derived(operation.code, out);
    const Value value = constant_of(operation);
    for (size_t k = 0; k < count(); ++k) out[k] = value;
  }

  void of_one(OpCode code, Value* a) const {
    for (size_t k = 0; k < count(); ++k) {
      if (code == OpCode::kToReal) a[k].set(static_cast<double>(a[k].whole));
      if (code == OpCode::kNegate) a[k].set(-a[k].real());
      if (code == OpCode::kNot) a[k].whole = a[k].whole == 0;
    }
  }

  template <class A, class B, class Each>
  void pairs(const A& a, const B& b, Value* out, Each&& each) const {
    const size_t size = count();  // once: a compiler may think that the stores below change it
    for (size_t k = 0; k < size; ++k) out[k] = each(a[k], b[k]);
  }
  // The result of `each` is: a real number from two real numbers; a truth from two real numbers; any whole number from
  // two.
  template <class A, class B, class Each>
  void reals(const A& a, const B& b, Value* out, Each each) const {
    pairs(a, b, out, [each](Value x, Value y) { return Value{std::bit_cast<int64_t>(each(x.real(), y.real()))}; });
  }
  template <class A, class B, class Each>
  void whether(const A& a, const B& b, Value* out, Each each) const {
    pairs(a, b, out, [each](Value x, Value y) { return Value{each(x.real(), y.real())}; });
  }
  template <class A, class B, class Each>
  void both(const A& a, const B& b, Value* out, Each each) const {
    pairs(a, b, out, [each](Value x, Value y) { return Value{each(x.whole, y.whole)}; });
  }
  // a[k] and b[k]: the first and the second value. out may be either of them.
  template <class A, class B>
  void of_two(OpCode code, const A& a, const B& b, Value* out) const {
    switch (code) {
      case OpCode::kAdd:
        return reals(a, b, out, std::plus());
      case OpCode::kSubtract:
        return reals(a, b, out, std::minus());
      case OpCode::kMultiply:
        return reals(a, b, out, std::multiplies());
      case OpCode::kDivide:
        return reals(a, b, out, std::divides());
      case OpCode::kLessWhole:
        return both(a, b, out, std::less());
      case OpCode::kLessReal:
        return whether(a, b, out, std::less());
      case OpCode::kAtMostWhole:
        return both(a, b, out, std::less_equal());
      case OpCode::kAtMostReal:
        return whether(a, b, out, std::less_equal());
      case OpCode::kEqualWhole:
        return both(a, b, out, std::equal_to());
      case OpCode::kEqualReal:
        return whether(a, b, out, std::equal_to());
      case OpCode::kUnequalWhole:
        return both(a, b, out, std::not_equal_to());
      case OpCode::kUnequalReal:
        return whether(a, b, out, std::not_equal_to());
      case OpCode::kAnd:
        return both(a, b, out, std::bit_and());
      default:
        return both(a, b, out, std::bit_or());
    }
  }
};

}  // namespace

namespace {

Status read_program(const Known& known, const std::vector<WrittenOperation>& written, Predicate* out) {
  if (written.empty() || written.size() > kMostOperations)
    return not_a_program("1 to 32 operations", static_cast<int64_t>(written.size()));
  *out = {};
  uint32_t stacked = 0;
  for (const WrittenOperation& one : written) {
    const CodeRow* const row = std::find_if(std::begin(kCodes), std::end(kCodes),
                                            [&](const CodeRow& known) { return one.code == known.name; });
    if (row == std::end(kCodes)) return not_a_program("operations that there are, not " + one.code, 0);
    if (stacked < row->takes) return not_a_program("a value for each operation", stacked);
    stacked = stacked - row->takes + 1;
    if (stacked > kMostStacked) return not_a_program("at most 16 values that wait", stacked);
    Operation& operation = out->operations[out->num_operations++];
    operation.code = static_cast<OpCode>(row - kCodes);
    if (operation.code == OpCode::kWhole) operation.whole = one.whole;
    if (operation.code == OpCode::kReal) operation.real = one.real;
    if (operation.code == OpCode::kColumn) RELIVE_RETURN_IF_ERROR(place_column(known, one.column, &operation));
    if (operation.code == OpCode::kNumSteps) out->asks_length = 1;
    if (operation.code == OpCode::kTerminated || operation.code == OpCode::kTruncated) out->asks_end = 1;
    const bool is_derived = operation.code >= OpCode::kLane && operation.code <= OpCode::kTruncated;
    if (is_derived && known.is_explicit) return not_a_program("columns of the items, not " + one.code, 0);
  }
  return stacked == 1 ? Status() : not_a_program("one value at the end", stacked);
}

}  // namespace

Status read_predicate(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, Predicate* out) {
  return read_program(known_of(r, index), written, out);
}

Status settle_conditions(const Layout& layout, TableConfig* config) {
  for (size_t i = 0; i < config->conditions.size(); ++i) {
    const std::vector<WrittenOperation>& written = config->conditions[i];
    if (written.empty()) continue;
    IndexConfig& index = config->indexes[i];
    if (index.map == LeafMap::kExplicit) return invalid("where of an index", "items of steps, not explicit ones", 0);
    const Known known{layout.columns.data(), layout.geometry.num_columns, nullptr, false};
    RELIVE_RETURN_IF_ERROR(read_program(known, written, &index.where));
    for (const Operation& operation : index.where.operations)
      if (operation.code == OpCode::kStaleness || operation.code == OpCode::kNumSteps)
        return invalid("where of an index", "what stays as it is when an item is published", 0);
  }
  return {};
}

bool PassingRows::looks_at(uint64_t page, uint32_t offset, uint32_t end) {
  if (offset < first_ || offset >= end_) {
    if (end - offset == 1) return passes_condition(r_, index_, r_.slot_of(page, offset));
    look_ahead(page, offset, end);
  }
  return passes_[offset - first_];
}

void PassingRows::look_ahead(uint64_t page, uint32_t offset, uint32_t end) {
  const uint32_t count = std::min<uint32_t>(kEvaluatedTogether, end - offset);
  const Subject first = subject_of(r_, index_, r_.slot_of(page, offset));
  evaluate_rows(r_, r_.header->indexes[index_].where, first, count, passes_);
  first_ = offset;
  end_ = offset + count;
  are_all_ = std::memchr(passes_, 0, count) == nullptr;  // faster than a count
}

bool passes_condition(const Region& r, uint32_t index, uint64_t slot) {
  if (!has_condition(r, index)) return true;
  const Subject item = subject_of(r, index, slot);
  bool passes = false;
  evaluate(r, r.header->indexes[index].where, &item, 1, &passes);
  return passes;
}

Subject subject_of(const Region& r, uint32_t index, uint64_t slot) {
  if (r.map(index).is_explicit) return {slot, r.records[index].values_of(slot), 0, 0};
  return {slot, r.page_base(r.page_of(slot)), r.offset_of(slot), 0};
}

Reads reads_of(const Region& r, const Predicate& predicate) {
  constexpr uint64_t kLine = 64;
  Reads reads;
  const auto add = [&](uint64_t offset, uint32_t stride) {
    for (uint32_t k = 0; k < reads.num_cells; ++k)
      if (reads.cells[k].stride == stride && reads.cells[k].offset / kLine == offset / kLine) return;
    reads.cells[reads.num_cells++] = {offset, stride};
  };
  for (uint32_t k = 0; k < predicate.num_operations; ++k) {
    const Operation& operation = predicate.operations[k];
    switch (operation.code) {
      case OpCode::kColumn:
        add(operation.offset, operation.stride);
        break;
      case OpCode::kEpisodeStep:
      case OpCode::kFirst:
      case OpCode::kTerminated:
      case OpCode::kTruncated:
        add(0, static_cast<uint32_t>(r.geometry->record_stride));
        break;
      case OpCode::kLane:
      case OpCode::kPolicyVersion:
      case OpCode::kStaleness:
        reads.has_marks = true;
        break;
      default:
        break;
    }
  }
  return reads;
}

namespace {

// Whether operation k is a constant that is followed by a load and by an operation of both: such a constant needs no
// place on the stack.
bool is_pair_with_load(const Predicate& predicate, uint32_t k) {
  if (k + 2 >= predicate.num_operations) return false;
  const Operation& loaded = predicate.operations[k + 1];
  return loaded.code < OpCode::kToReal && !is_constant(loaded) && predicate.operations[k + 2].code >= OpCode::kAdd;
}

// Not inlined: a caller with one item must not get a stack frame for many.
template <size_t kMost, class Items>
[[gnu::noinline]] void run_program(const Region& r, const Predicate& predicate, const Items& items, size_t count,
                                   bool* passes) {
  Value stack[kMostStacked + 1][kMost];  // from 1 on
  const Evaluation<kMost == 1, Items> run{r, items, count};
  uint32_t top = 0;
  for (uint32_t k = 0; k < predicate.num_operations; ++k) {
    const Operation& operation = predicate.operations[k];
    const bool is_last = k + 1 == predicate.num_operations;
    if (top != 0 && !is_last && is_constant(operation) && predicate.operations[k + 1].code >= OpCode::kAdd) {
      Value* const only = stack[top];
      run.of_two(predicate.operations[++k].code, only, Same{constant_of(operation)}, only);
    } else if (is_constant(operation) && is_pair_with_load(predicate, k)) {
      Value* const only = stack[++top];
      run.load(predicate.operations[++k], only);
      run.of_two(predicate.operations[++k].code, Same{constant_of(operation)}, only, only);
    } else if (operation.code < OpCode::kToReal) {
      run.load(operation, stack[++top]);
    } else if (operation.code < OpCode::kAdd) {
      run.of_one(operation.code, stack[top]);
    } else {
      --top;
      Value *const first = stack[top], *const second = stack[top + 1];
      run.of_two(operation.code, first, second, first);
    }
  }
  for (size_t k = 0; k < run.count(); ++k) passes[k] = stack[top][k].whole != 0;
}

}  // namespace

void evaluate(const Region& r, const Predicate& predicate, const Subject* items, size_t count, bool* passes) {
  if (count == 1) return run_program<1>(r, predicate, items, 1, passes);
  if (count <= kFew) return run_program<kFew>(r, predicate, items, count, passes);
  run_program<kEvaluatedTogether>(r, predicate, items, count, passes);
}

void evaluate_rows(const Region& r, const Predicate& predicate, const Subject& first, size_t count, bool* passes) {
  const Rows rows{first};
  if (count <= kFew) return run_program<kFew>(r, predicate, rows, count, passes);
  run_program<kEvaluatedTogether>(r, predicate, rows, count, passes);
}

}  // namespace relive
