// numpy arrays of the bindings: buffers that return to a pool when their last array dies, and fast checks of a caller's
// values.
//
// Owner:   the pool owns free blocks; a block that is in use belongs to a BatchBlock, then to the arrays over it.
// Locking: callers have the GIL, except for BatchBlock. The pool has a mutex of its own.
// Cost:    O(log sizes) to take a block; no allocation if a block of that size is free.
#pragma once

#include <nanobind/nanobind.h>

#define PY_ARRAY_UNIQUE_SYMBOL relive_numpy
#ifndef RELIVE_IMPORTS_NUMPY
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <cstddef>
#include <string>
#include <vector>

#include "relive/words/status.hpp"

namespace relive::bindings {

namespace nb = nanobind;

// Raises the relive.errors exception of a status, unless the status is ok. keys: those of all rows of a block, if
// given. The error of a block that stopped half way gets the keys of the stored rows.
void raise_if_error(const Status& status, const nb::handle& keys = nb::handle());

// Returns the keys of a call that has stored all of its rows. If a signal came during the call, its handler runs here:
// the error of the handler then says that the rows are stored. Later, in Python, the error could not say so.
nb::object keys_of_stored(nb::object keys, int64_t num_rows);

// A dtype from numpy's str ("<f4"); a new reference.
PyArray_Descr* descr_of(const std::string& dtype);
// The dtypes of keys and probabilities, made once; borrowed references.
PyArray_Descr* descr_of_int64();
PyArray_Descr* descr_of_float64();

// Stands for an open handle. While there is one, the pool keeps blocks that no array uses. The last handle frees them;
// a block whose arrays outlive that handle is freed with the arrays.
class BatchMemory final {
 public:
  BatchMemory();
  ~BatchMemory() { close(); }
  BatchMemory(const BatchMemory&) = delete;
  BatchMemory& operator=(const BatchMemory&) = delete;
  void close();  // twice is harmless

 private:
  bool open_ = true;
};
size_t kept_batch_bytes();

// Frees the kept blocks, and returns how many bytes they had. Later batches take new memory.
size_t free_batch_memory();

// A block of the pool that no array uses yet. Needs no GIL.
class BatchBlock final {
 public:
  explicit BatchBlock(size_t num_bytes);  // throws std::bad_alloc
  ~BatchBlock();
  BatchBlock(const BatchBlock&) = delete;
  BatchBlock& operator=(const BatchBlock&) = delete;
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  friend class BatchBuffer;
  void* memory_;
  size_t num_bytes_;
};

// Rounds the size of a block that differs from call to call: few sizes remain, each at most an eighth larger.
size_t size_class(size_t num_bytes);

// One block of memory for the arrays of one batch. A new array of 7 MB for every batch would cost its page faults each
// time, so blocks are kept by size and used again once no array uses them.
class BatchBuffer final {
 public:
  explicit BatchBuffer(size_t num_bytes) : BatchBuffer(BatchBlock(room_for(num_bytes == 0 ? 1 : num_bytes))) {}
  explicit BatchBuffer(BatchBlock&& block);
  // The next num_bytes of the block, 64-byte aligned.
  std::byte* take(size_t num_bytes);
  // An array over memory of this buffer, which it keeps alive. Takes a reference of its own to descr.
  nb::object array(PyArray_Descr* descr, int num_dims, const npy_intp* dims, std::byte* data) const;
  static size_t room_for(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

 private:
  nb::object owner_;  // a capsule; its end gives the block back
  std::byte* next_ = nullptr;
};

// A plain new array.
nb::object new_array(int type_number, int num_dims, const npy_intp* dims, void** data);

// A C-contiguous array of this type: a new reference, converted only if necessary. Raises numpy's errors.
nb::object as_contiguous(nb::handle value, int type_number);

// One value of any column.
union ScalarRoom {
  double f8;
  float f4;
  int64_t i8;
  int32_t i4;
  uint8_t u1;
};

// Copies a Python or numpy scalar of exactly the column's type into `room`. False: let normalise decide.
bool take_scalar(PyObject* value, int type_number, ScalarRoom* room);

}  // namespace relive::bindings
