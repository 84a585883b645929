#include "relive/pages/cells.hpp"

#include <algorithm>
#include <atomic>

#include "relive/pages/changed_rows.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

void push_free(Region& r, uint32_t cell) {
  const uint64_t free = r.cells.state->num_free.load(kRelaxed);
  r.cells.free[free].store(cell, kRelaxed);
  r.cells.state->num_free.store(free + 1, kRelaxed);
}

// Calls each(cell) for the cells linked to a page. Returns false if the list is a ring, which more entries than cells
// prove.
template <class Each>
bool for_each_cell(const Region& r, uint64_t page, Each&& each) {
  uint64_t left = r.cells.geometry->num_cells;
  for (uint32_t next = r.pages[page].first_cell.load(kRelaxed); next != 0; --left) {
    if (left == 0 || next > r.cells.geometry->num_cells) return false;
    const uint32_t cell = next - 1;
    next = r.cells.links[cell].load(kRelaxed);
    each(cell);
  }
  return true;
}

// Unlinks a cell from one page and links it to another. A death between the two stores leaves a cell that is linked to
// no page and named by no row, so the cell is free. Cost: one step for each cell that its owner took after this one.
void rehang(Region& r, uint64_t from, uint64_t to, uint32_t cell) {
  std::atomic<uint32_t>* link = &r.pages[from].first_cell;
  for (uint32_t next = link->load(kRelaxed); next != cell + 1; next = link->load(kRelaxed)) {
    if (next == 0) return;  // only if a rule is switched off
    link = &r.cells.links[next - 1];
  }
  link->store(r.cells.links[cell].load(kRelaxed), kRelaxed);
  RELIVE_FAIL_POINT(cell_unhung);
  r.cells.links[cell].store(r.pages[to].first_cell.load(kRelaxed), kRelaxed);
  r.pages[to].first_cell.store(cell + 1, std::memory_order_release);
  RELIVE_FAIL_POINT(cell_moved);
}

}  // namespace

void store_cell_word(std::byte* record, uint32_t cell) {
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(record + kCellWord)).store(cell, kRelaxed);
}

uint32_t load_cell_word(const std::byte* record) {
  uint32_t cell;
  copy_bytes(reinterpret_cast<std::byte*>(&cell), record + kCellWord, sizeof cell);
  return cell;
}

uint32_t take_cell(Held& held, uint64_t page) {
  Region& r = held.region;
  const uint64_t free = r.cells.state->num_free.load(kRelaxed);
  if (free == 0) return kNoCell;
  const uint32_t cell = r.cells.free[free - 1].load(kRelaxed);
  // The link comes first: a death afterwards leaves a cell that becomes free with the page, and never a cell that two
  // rows name.
  r.cells.links[cell].store(r.pages[page].first_cell.load(kRelaxed), kRelaxed);
  r.pages[page].first_cell.store(cell + 1, std::memory_order_release);
  RELIVE_FAIL_POINT(cell_hung);
  r.cells.state->num_free.store(free - 1, kRelaxed);
  return cell;
}

void name_cell(Held& held, uint64_t from, uint32_t cell, uint64_t slot) {
  Region& r = held.region;
  const uint64_t page = r.page_of(slot);
  if (page != from && RELIVE_RULE(B4_page)) rehang(r, from, page, cell);
  change_rows(held, page, [&] {
    store_cell_word(r.page_base(page) + r.offset_of(slot) * r.geometry->record_stride, cell);
    RELIVE_FAIL_POINT(cell_named);
  });
}

void offer_cells(Held& held, uint64_t from, uint64_t to) {
  Region& r = held.region;
  r.cells.state->committed.store(to, std::memory_order_release);
  RELIVE_FAIL_POINT(grow_cells);
  for (uint64_t cell = to; cell-- > from;) push_free(r, static_cast<uint32_t>(cell));
}

void release_cells(Held& held, uint64_t page) {
  Region& r = held.region;
  if (r.pages[page].first_cell.load(kRelaxed) == 0) return;
  (void)for_each_cell(r, page, [&r](uint32_t cell) { push_free(r, cell); });
  RELIVE_FAIL_POINT(cells_given_back);
  r.pages[page].first_cell.store(0, kRelaxed);
}

void recover_cells(Held& held, uint8_t* taken) {
  Region& r = held.region;
  if (!RELIVE_RULE(B4_recover)) return;
  const uint64_t committed = r.cells.state->committed.load(kRelaxed);
  std::fill_n(taken, r.cells.geometry->num_cells, uint8_t{0});
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (Region::is_used(r.words[page].load(kRelaxed))) {
      (void)for_each_cell(r, page, [taken](uint32_t cell) { taken[cell] = 1; });
    } else {
      r.pages[page].first_cell.store(0, kRelaxed);
    }
  }
  uint64_t num_free = 0;
  for (uint64_t cell = committed; cell-- > 0;)
    if (taken[cell] == 0) r.cells.free[num_free++].store(static_cast<uint32_t>(cell), kRelaxed);
  r.cells.state->num_free.store(num_free, kRelaxed);
}

const char* broken_cells(const Region& r, uint32_t* owner) {
  const uint64_t committed = r.cells.state->committed.load(kRelaxed);
  std::fill_n(owner, r.cells.geometry->num_cells, uint32_t{0});
  bool is_shared = false, is_ring = false;
  for (uint64_t page = 0; page < r.geometry->num_pages && !is_ring; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) {
      if (r.pages[page].first_cell.load(kRelaxed) != 0) return "start cells hang at a page that is free";
      continue;
    }
    is_ring = !for_each_cell(r, page, [&](uint32_t cell) {
      is_shared |= owner[cell] != 0 || cell >= committed;
      owner[cell] = static_cast<uint32_t>(page) + 1;
    });
  }
  if (is_shared || is_ring) return "a start cell hangs at two pages, or has no memory";
  // A row names a cell of its own page, and no other row names that cell.
  constexpr uint32_t kNamed = ~0u;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    if (!Region::is_used(r.words[page].load(kRelaxed))) continue;
    for (uint32_t offset = 0; offset < r.page_len; ++offset) {
      if (!r.is_step(page, offset)) continue;
      const uint32_t cell = load_cell_word(r.page_base(page) + offset * r.geometry->record_stride);
      if (cell == kNoCell) continue;
      if (cell >= committed || owner[cell] != page + 1) return "a row names a start cell that is not its page's own";
      owner[cell] = kNamed;
    }
  }
  for (uint64_t f = 0; f < r.cells.state->num_free.load(kRelaxed); ++f) {
    const uint32_t cell = r.cells.free[f].load(kRelaxed);
    if (cell >= committed || owner[cell] != 0) return "a start cell is free and taken, or free twice";
    owner[cell] = kNamed;
  }
  for (uint64_t cell = 0; cell < committed; ++cell)
    if (owner[cell] == 0) return "a start cell is lost";
  return nullptr;
}

}  // namespace relive
