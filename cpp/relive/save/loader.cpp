#include "relive/save/loader.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "relive/index/leaf_areas.hpp"
#include "relive/index/leaves.hpp"
#include "relive/pages/bulk.hpp"
#include "relive/pages/cells.hpp"
#include "relive/pages/changed_rows.hpp"
#include "relive/pages/max_items.hpp"
#include "relive/pages/pages.hpp"
#include "relive/pages/publish.hpp"
#include "relive/save/image.hpp"
#include "relive/save/sound.hpp"
#include "relive/tiers/tier.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
// A load takes this part of all generations for keys of steps that were appended after the save (rule J4).
constexpr uint64_t kPartOfGenerations = 1024;
constexpr size_t kSpilledAtOnce = 64;  // pages

uint64_t num_generations(const Region& r) { return uint64_t{1} << (kLeafBits - r.geometry->slot_bits); }

Status damaged(const std::string& what) { return Status(Code::kDamagedSave).with_text("what", what); }

}  // namespace

// A load that failed leaves words that recovery has not seen, or refused: closing the table would follow them.
Loader::~Loader() {
  if (table_ != nullptr) table_->discard();
}

const LoadedArea* Loader::area(const std::string& name, uint32_t index) const {
  for (const LoadedArea& one : state_.areas)
    if (one.index == index && one.name == name) return &one;
  return nullptr;
}

Status Loader::make(const TableConfig& asked, const std::string& path, const SavedState& state,
                    std::unique_ptr<Loader>* out) {
  std::unique_ptr<Loader> loader(new Loader(state));
  if (const char* wrong = unsound_shape(state); wrong != nullptr) return damaged(wrong);
  const auto* words = reinterpret_cast<const uint64_t*>(loader->area("page words", 0)->bytes);
  const uint64_t used = std::count_if(words, words + state.shape.num_pages, Region::is_used);
  TableConfig config = asked;
  config.slot_bits = asked.slot_bits != 0 ? state.shape.slot_bits : 0;
  config.epoch = state.entropy;  // if keys are new, a key of the save leads to nothing here, as in rule A2
  Status made = Table::make(config, path, used, &loader->table_);
  // Keys have no place for so many slots, as after a load that grew; or there are fewer pages than before.
  const bool lacks_place = !made.ok() || loader->table_->region().geometry->num_pages < state.shape.num_pages;
  if (config.slot_bits != 0 && lacks_place) {
    config.slot_bits = 0;
    loader->table_.reset();
    made = Table::make(config, path, used, &loader->table_);
  }
  RELIVE_RETURN_IF_ERROR(made);
  const Region& r = loader->table_->region();
  loader->form_.emplace(r, loader->table_->plain_layout());
  if (state.shape.max_lanes > r.geometry->max_lanes)
    return Status(Code::kInvalidConfig)
        .with_text("what", "max_lanes")
        .with_int("expected", state.shape.max_lanes)
        .with_int("got", r.geometry->max_lanes);
  RELIVE_RETURN_IF_ERROR(loader->check_state());
  loader->choose_pages(config);
  loader->set_floor();
  loader->place_pages();
  loader->place_leaves();
  loader->place_records();
  loader->place_lanes();
  *out = std::move(loader);
  return {};
}

// The areas have the sizes that this table expects of them, and every id in them is in its bounds.
Status Loader::check_state() {
  const Region& r = table_->region();
  for (const SavedArea& expected : saved_areas(r)) {
    const LoadedArea* const got = area(expected.name, expected.index);
    const uint64_t entries = expected.per == EntryOf::kPage   ? state_.shape.num_pages
                             : expected.per == EntryOf::kLane ? state_.shape.max_lanes
                                                              : expected.num_entries;
    if (got == nullptr) return damaged("no section '" + expected.name + "'");
    if (got->num_bytes != entries * expected.entry_bytes)
      return damaged("the length of section '" + expected.name + "'");
  }
  if (const char* wrong = wrong_number(r, state_.numbers); wrong != nullptr) return damaged(wrong);
  const char* wrong =
      unsound_pages(r, state_.shape, entries<uint64_t>("page words", 0), entries<PageRecord>("pages", 0));
  if (wrong == nullptr) wrong = unsound_lanes(state_.shape, entries<Lane>("lanes", 0), state_.numbers.next_uid);
  for (uint32_t i = 0; i < r.num_indexes && wrong == nullptr; ++i)
    if (r.map(i).is_explicit)
      wrong = unsound_records(r, i, entries<uint64_t>("record words", i), entries<ItemWindow>("windows", i));
  return wrong == nullptr ? Status() : damaged(wrong);
}

// Every page if keys keep their meaning; else the youngest pages, as many as there is room for.
void Loader::choose_pages(const TableConfig& config) {
  const Region& r = table_->region();
  const uint64_t num_saved = state_.shape.num_pages;
  const auto* words = entries<uint64_t>("page words", 0);
  const auto* pages = entries<PageRecord>("pages", 0);
  const bool keeps = config.slot_bits != 0 && r.geometry->shard == state_.shape.shard;
  std::vector<uint32_t> used;
  for (uint32_t page = 0; page < num_saved; ++page)
    if (Region::is_used(words[page])) used.push_back(page);
  std::vector<uint32_t> page_of(num_saved, kNoPage);
  if (keeps) {
    for (const uint32_t page : used) page_of[page] = page;
  } else {
    std::sort(used.begin(), used.end(), [pages](uint32_t a, uint32_t b) {
      return pages[a].order.load(kRelaxed) > pages[b].order.load(kRelaxed);
    });
    const uint64_t spare = std::min<uint64_t>(r.geometry->num_pages / 2, 2 * uint64_t{r.geometry->max_lanes} + 2);
    used.resize(std::min<uint64_t>(used.size(), r.geometry->num_pages - spare));
    std::sort(used.begin(), used.end());
    for (uint32_t k = 0; k < used.size(); ++k) page_of[used[k]] = k;
  }
  num_pages_in_use_ = used.size();
  has_image_.assign(num_saved, 0);
  names_.emplace(state_.shape, r, words, std::move(page_of), keeps ? 0 : r.first_generation(config.epoch));
}

// No key from the time between the save and this load comes again: pages and records that open from now on have a
// generation above the floor (rule J4).
void Loader::set_floor() {
  Region& r = table_->region();
  if (!names_->keeps_keys() || !RELIVE_RULE(J4_floor)) return;
  uint64_t most = 0;
  const auto* words = entries<uint64_t>("page words", 0);
  for (uint64_t page = 0; page < state_.shape.num_pages; ++page)
    most = std::max(most, Region::generation_of(words[page]));
  for (const uint32_t i : r.record_indexes())
    for (uint64_t record = 0; record < r.map(i).num_leaves; ++record)
      most = std::max(most, Region::generation_of(entries<uint64_t>("record words", i)[record]));
  const uint64_t step = std::max<uint64_t>(1, num_generations(r) / kPartOfGenerations);
  r.header->floor = most + step + state_.entropy % step;
  const uint64_t free = r.freed_word(0);
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) r.words[page].store(free, kRelaxed);
  for (const uint32_t i : r.record_indexes())
    for (uint64_t record = 0; record < r.map(i).num_leaves; ++record) r.records[i].words[record].store(free, kRelaxed);
}

void Loader::place_pages() {
  Region& r = table_->region();
  const auto* words = entries<uint64_t>("page words", 0);
  const auto* pages = entries<PageRecord>("pages", 0);
  const auto* tails = entries<uint64_t>("tails", 0);
  const auto* lanes = entries<Lane>("lanes", 0);
  uint32_t frame = 0;
  for (uint64_t page = 0; page < state_.shape.num_pages; ++page) {
    const uint32_t to = names_->page(page);
    if (to == kNoPage) continue;
    const PageRecord& from = pages[page];
    PageRecord& record = r.pages[to];
    const uint64_t ref = Region::generation_of(words[page]) << state_.shape.page_bits() | page;
    const Lane& lane = lanes[from.lane_slot.load(kRelaxed)];
    const bool is_open = lane.state.load(kRelaxed) == LaneState::kLive &&
                         Region::state_of(words[page]) == PageState::kOpen &&
                         (lane.open.load(kRelaxed) == ref || lane.ahead.load(kRelaxed) == ref);
    const PageState state = is_open ? PageState::kOpen : PageState::kClosed;
    if (!is_open && Region::state_of(words[page]) == PageState::kOpen) closed_.push_back(to);
    r.words[to].store(names_->generation(Region::generation_of(words[page])) << kGenerationShift |
                      static_cast<uint64_t>(state));
    r.frames[to].store(frame++);
    record.range.store(from.range.load(kRelaxed));
    record.prev.store(names_->ref(from.prev.load(kRelaxed)));
    record.next.store(names_->ref(from.next.load(kRelaxed)));
    record.order.store(from.order.load(kRelaxed));
    record.lane_uid.store(from.lane_uid.load(kRelaxed));
    record.first_t = from.first_t;
    record.ticket.store(from.ticket.load(kRelaxed));
    record.lane_slot.store(from.lane_slot.load(kRelaxed));
    record.flags.store(from.flags.load(kRelaxed));
    record.first_step = from.first_step;
    for (uint32_t word = 0; word < r.geometry->tail_words; ++word)
      r.tails[to * uint64_t{r.geometry->tail_words} + word].store(tails[page * r.geometry->tail_words + word]);
  }
}

void Loader::place_leaves() {
  Region& r = table_->region();
  for (const SavedArea& to : saved_areas(r)) {
    if (to.name == "page words" || to.name == "pages" || to.name == "tails" || to.per == EntryOf::kLane) continue;
    const std::byte* const from = area(to.name, to.index)->bytes;
    if (to.per != EntryOf::kPage) {
      if (to.name != "record words") std::memcpy(to.at, from, to.num_bytes());
      continue;
    }
    for (uint64_t page = 0; page < state_.shape.num_pages; ++page)
      if (const uint32_t place = names_->page(page); place != kNoPage)
        std::memcpy(to.at + place * to.entry_bytes, from + page * to.entry_bytes, to.entry_bytes);
  }
}

void Loader::place_records() {
  Region& r = table_->region();
  for (const uint32_t i : r.record_indexes()) {
    const auto* words = entries<uint64_t>("record words", i);
    const Records& records = r.records[i];
    for (uint64_t record = 0; record < r.map(i).num_leaves; ++record) {
      if (!Region::is_used(words[record])) continue;
      const uint64_t generation = names_->generation(Region::generation_of(words[record]));
      records.words[record].store(generation << kGenerationShift | (words[record] & 3));
      for (uint32_t w = 0; w < records.geometry->max_windows; ++w) {
        std::atomic<int64_t>& key = records.windows_of(record)[w].key;
        key.store(static_cast<int64_t>(names_->key(static_cast<uint64_t>(key.load(kRelaxed)))));
      }
    }
  }
}

void Loader::place_lanes() {
  Region& r = table_->region();
  const auto* lanes = entries<Lane>("lanes", 0);
  for (uint32_t slot = 0; slot < state_.shape.max_lanes; ++slot) {
    const Lane& from = lanes[slot];
    Lane& lane = r.lanes[slot];
    lane.uid.store(from.uid.load(kRelaxed));
    for (const uint32_t i : r.record_indexes())
      if (r.records[i].are_groups()) r.records[i].joined[slot].store(names_->key(entries<uint64_t>("joined", i)[slot]));
    if (from.state.load(kRelaxed) != LaneState::kLive || names_->page_of_ref(from.open.load(kRelaxed)) == kNoPage)
      continue;
    lane.open.store(names_->ref(from.open.load(kRelaxed)));
    lane.ahead.store(
        names_->page_of_ref(from.ahead.load(kRelaxed)) == kNoPage ? 0 : names_->ref(from.ahead.load(kRelaxed)));
    lane.seam.store(names_->key(from.seam.load(kRelaxed)));
    lane.num_steps = from.num_steps;
    lane.state.store(LaneState::kLive);
  }
}

Status Loader::put(uint64_t page, const std::byte* image, size_t num_bytes) {
  Region& r = table_->region();
  if (const char* wrong = wrong_image(*form_, image, num_bytes); wrong != nullptr) return damaged(wrong);
  ImageHead head;
  std::memcpy(&head, image, sizeof head);
  const uint64_t word = entries<uint64_t>("page words", 0)[page];
  const Range range = Range::unpack(entries<PageRecord>("pages", 0)[page].range.load(kRelaxed));
  if (head.ref != (Region::generation_of(word) << state_.shape.page_bits() | page) || head.num_rows < range.step_end)
    return damaged("an image of another page");
  if (has_image_[page] != 0) return damaged("two images of one page");
  if (head.num_cells != 0 && r.cells) {
    const CellGeometry& cells = *r.cells.geometry;
    if (num_cells_ + head.num_cells > cells.num_cells) return damaged("more start cells than there are");
    RELIVE_RETURN_IF_ERROR(
        table_->storage().commit(cells.cells_offset + num_cells_ * cells.stride, head.num_cells * cells.stride));
    num_cells_ += head.num_cells;
  }
  PagePlace to{names_->page(page)};
  if (r.bulk) {
    RELIVE_RETURN_IF_ERROR(take_bulk_frame(to.page));
    to.bulk = r.bulk.frame(r.bulk.place(to.page).number);
  }
  Alone alone(table_->door());
  copy_in(alone.held(), *form_, to, image, &next_cell_);
  has_image_[page] = 1;
  if (r.bulk && Region::state_of(r.words[to.page].load(kRelaxed)) == PageState::kClosed)
    offer_for_spill(alone.held(), to.page);
  return {};
}

// Spills pages that are loaded until a frame is free.
Status Loader::take_bulk_frame(uint64_t page) {
  while (!take_bulk(Alone(table_->door()).held(), page)) {
    size_t count = 0;
    RELIVE_RETURN_IF_ERROR(table_->tier()->spill_some(kSpilledAtOnce, table_->own_deadline(), &count));
    if (count == 0)
      return Status(Code::kInvalidConfig)
          .with_text("what", "ram_bytes of Tiered")
          .with_text("expected", "memory for every page that was open in the save, one for each lane or two")
          .with_int("got", static_cast<int64_t>(table_->region().bulk.geometry->num_frames *
                                                table_->region().bulk.geometry->frame_bytes));
  }
  return {};
}

void Loader::restore_rank_orders(Held& held) {
  const Region& r = table_->region();
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    const LoadedArea* const from = area(kRankOrder, i);
    if (from == nullptr || !Leaves(r, i).is_ranked()) continue;  // an earlier version has saved it
    Leaves::rebuild_ranks(held, i, reinterpret_cast<const uint32_t*>(from->bytes), from->num_bytes / sizeof(uint32_t));
  }
}

// Rebuilds what follows from the rest, ends the lanes that were open, and drops steps beyond the capacity.
void Loader::settle() {
  Region& r = table_->region();
  {
    Alone alone(table_->door());
    Held& held = alone.held();
    write_numbers(held, state_.numbers);
    for (uint32_t i = 0; i < r.num_indexes; ++i) shift_waits(held, i, clock_s() - state_.numbers.now_s);
    recover(held, table_->door().scratch);
    if (names_->keeps_keys()) restore_rank_orders(held);
    for (const uint32_t page : closed_) renew_ticket(held, page);
    for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) {
      if (r.lanes[lane].state.load(kRelaxed) == LaneState::kLive) cut_lane(held, lane);
      // The next lane may not continue in this page: keys of the rows after the cut were given out after the save.
      if (const uint64_t page = r.alive(r.lanes[lane].open.load(kRelaxed)); page != kNoPage && RELIVE_RULE(J4_closed)) {
        if (Region::state_of(r.words[page].load(kRelaxed)) == PageState::kOpen) close_page(held, page);
        r.lanes[lane].open.store(0);
      }
    }
    keep_to_most(held);
    Leaves::flush_all(held);
  }
  for (bool is_done = false; !is_done;) {
    Alone alone(table_->door());
    const uint64_t live = r.header->live_steps.load(kRelaxed);
    is_done = live <= r.geometry->capacity || evict_steps(alone.held(), live - r.geometry->capacity);
    Leaves::flush_all(alone.held());
  }
  r.header->counters.recoveries.fetch_sub(1);
}

Status Loader::finish(std::unique_ptr<Table>* out) {
  Region& r = table_->region();
  const auto* words = entries<uint64_t>("page words", 0);
  for (uint64_t page = 0; page < state_.shape.num_pages; ++page)
    if (Region::is_used(words[page]) && wants(page) && has_image_[page] == 0) return damaged("a page without an image");
  if (r.cells) r.cells.state->committed.store(std::max(r.cells.state->committed.load(), num_cells_));
  settle();
  {
    Alone alone(table_->door());
    const Broken broken = broken_invariant(alone.held().region, table_->door().scratch);
    if (broken) return damaged(broken.text());
  }
  RELIVE_RETURN_IF_ERROR(table_->publish());
  *out = std::move(table_);
  return {};
}

}  // namespace relive
