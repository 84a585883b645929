// A condition over the columns of an item: a small program in postfix order, made once, run for items some at a time.
//
// Values are whole numbers (int64; a truth is 0 or 1) or real ones (float64). Which of the two an operation works on is
// in its code: the program was typed when it was written (relive/where.py), and nothing is asked of a type here.
//
// Owner:   a Predicate is a plain value. Locking: none; who reads rows without the lock looks at their words afterwards.
// Cost:    some nanoseconds an item, beside the memory that the columns lie in; operations go over items in a loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "relive/words/region.hpp"

namespace relive {

inline constexpr uint32_t kMostOperations = 32;
inline constexpr uint32_t kMostStacked = 16;       // values that wait for their operation
inline constexpr size_t kEvaluatedTogether = 128;  // items

enum class OpCode : uint8_t {
  kWhole,  // a constant, as the next one
  kReal,
  kColumn,  // of the item's row, or its own
  kLane,    // what a row has by itself
  kEpisodeStep,
  kPolicyVersion,
  kStaleness,
  kNumSteps,  // of the item
  kFirst,
  kTerminated,
  kTruncated,
  kToReal,  // of one value
  kNegate,
  kNot,
  kAdd,  // of two
  kSubtract,
  kMultiply,
  kDivide,
  kLessWhole,
  kLessReal,
  kAtMostWhole,
  kAtMostReal,
  kEqualWhole,
  kEqualReal,
  kUnequalWhole,
  kUnequalReal,
  kAnd,
  kOr,
  kNumCodes
};

// What lies in memory where a column is loaded from.
enum class Loaded : uint8_t { kBool, kInt8, kInt16, kInt32, kInt64, kUint8, kUint16, kUint32, kFloat32, kFloat64 };

struct Operation {
  OpCode code;
  Loaded loaded;
  uint16_t reserved;
  uint32_t stride;  // from row to row; 0 of what an item has one value of
  union {
    int64_t whole;
    double real;
    uint64_t offset;  // of row 0
  };
};
static_assert(sizeof(Operation) == 16 && std::is_trivially_copyable_v<Operation>);

struct Predicate {
  uint32_t num_operations;  // 0: no condition
  uint32_t asks_length;     // whether num_steps is among them
  Operation operations[kMostOperations];
};
static_assert(std::is_trivially_copyable_v<Predicate>);

// One operation as it is written down: a name of a code, of kColumn a column, of constants a number.
struct WrittenOperation {
  std::string code;
  std::string column;
  double real = 0.0;
  int64_t whole = 0;
};

// Reads a program for the items of an index. kInvalidConfig where it is none: too long, a value too few or too many, a
// column that is not there or no plain number.
Status read_predicate(const Region& r, uint32_t index, const std::vector<WrittenOperation>& written, Predicate* out);

// An item that is asked about. base: the frame of its page and its row there, or its record's own columns and row 0.
struct Subject {
  uint64_t slot = 0;
  const std::byte* base = nullptr;
  uint32_t row = 0;
  uint32_t num_steps = 0;  // counts where asks_length
};
// base and row of the item in this slot of an index, which are to be there.
Subject subject_of(const Region& r, uint32_t index, uint64_t slot);
// Asks memory for what evaluate() will read.
void prefetch_subject(const Region& r, const Predicate& predicate, const Subject& item);

// passes[i]: whether the condition holds for items[i], i < count <= kEvaluatedTogether.
void evaluate(const Region& r, const Predicate& predicate, const Subject* items, size_t count, bool* passes);

}  // namespace relive
