// numpy arrays of the bindings: buffers that return to a pool when the last array on them dies, and quick looks at
// what a caller gave. The GIL is held in all of it.
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

// Raises the relive.errors exception of a status; does nothing where it is ok. keys, where given: those of all rows of
// a block; the error of a block that stopped half way gets the ones that are stored.
void raise_if_error(const Status& status, const nb::handle& keys = nb::handle());

// A dtype from numpy's str ("<f4"); new reference.
PyArray_Descr* descr_of(const std::string& dtype);
// Those of keys and probabilities, made once; borrowed.
PyArray_Descr* descr_of_int64();
PyArray_Descr* descr_of_float64();

// An open handle. While there is one, blocks that no array uses are kept to be handed out again; the last one frees them,
// and a block whose arrays outlive it is freed with them.
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

// Memory of the pool that no array has yet. Needs no GIL.
class BatchBlock final {
 public:
  explicit BatchBlock(size_t num_bytes);  // std::bad_alloc where there is none
  ~BatchBlock();
  BatchBlock(const BatchBlock&) = delete;
  BatchBlock& operator=(const BatchBlock&) = delete;
  std::byte* memory() const { return static_cast<std::byte*>(memory_); }

 private:
  friend class BatchBuffer;
  void* memory_;
  size_t num_bytes_;
};

// Of blocks whose size is another one each time: few sizes, each at most an eighth more than what is asked for.
size_t size_class(size_t num_bytes);

// One block of memory for the arrays of one batch. A fresh 7 MB array a batch would cost its page faults each time:
// blocks are kept by size and handed out again once no array uses them.
class BatchBuffer final {
 public:
  explicit BatchBuffer(size_t num_bytes) : BatchBuffer(BatchBlock(room_for(num_bytes == 0 ? 1 : num_bytes))) {}
  explicit BatchBuffer(BatchBlock&& block);
  // Room for num_bytes, 64-byte aligned, from the front of what is left.
  std::byte* take(size_t num_bytes);
  // An array over memory of this buffer that keeps it alive. Steals nothing of descr.
  nb::object array(PyArray_Descr* descr, int num_dims, const npy_intp* dims, std::byte* data) const;
  static size_t room_for(size_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

 private:
  nb::object owner_;  // a capsule; its end gives the block back
  std::byte* next_ = nullptr;
};

// A plain new array.
nb::object new_array(int type_number, int num_dims, const npy_intp* dims, void** data);

// A C-contiguous array of exactly this type; a new reference, converted only where needed. Raises numpy's errors.
nb::object as_contiguous(nb::handle value, int type_number);

// Room for one value of any column's kind.
union ScalarRoom {
  double f8;
  float f4;
  int64_t i8;
  int32_t i4;
  uint8_t u1;
};

// A Python or numpy scalar of exactly the column's kind, into `room`. False: let normalise decide.
bool take_scalar(PyObject* value, int type_number, ScalarRoom* room);

}  // namespace relive::bindings
