// Everything that can be wrong with a block of rows, found before anything changes.
//
// Owner:   nothing; the block and its lanes are the caller's.
// Locking: the writer's mutex. The table lock is taken only if the capacity looks too small for one more row of each
//          lane.
// Cost:    O(rows x lanes) if the block has priorities or ends, else O(lanes); state columns given twice are compared.
#pragma once

#include <vector>

#include "relive/table/table.hpp"
#include "relive/table/writer_columns.hpp"
#include "relive/table/writer_lane.hpp"

namespace relive {

// kCapacityTooSmall, kEpisodeTooLong, kMissingNext, kInvalidPriority, kSeamMismatch, kEpisodeMismatch.
Status check_block(Table& table, const WriterColumns& columns, LaneBlock block);

// Compares the frozen state cell of `lane`, column m of the block, with the first row of `given`. Returns the first
// column that differs, or null.
const ColumnCell* differs_from_seam(const WriterColumns& columns, const WriterLane& lane,
                                    const std::vector<Cells>& given, size_t m);
Status seam_mismatch(const Region& r, const StepBlock& steps, uint32_t column, size_t m);

}  // namespace relive
