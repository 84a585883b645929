#include "relive/save/saver.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "relive/index/leaves.hpp"
#include "relive/pages/late.hpp"
#include "relive/pages/page_rows.hpp"
#include "relive/pages/publish.hpp"
#include "relive/tiers/tier.hpp"
#include "relive/words/row_bytes.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// The page of a lane that ends with the lane's last row, and that row, if the lane is LIVE and its last row is a step.
LastRow last_row_of(const Region& r, const Lane& lane) {
  if (lane.state.load(kRelaxed) != LaneState::kLive) return {};
  uint64_t page = r.alive(lane.open.load(kRelaxed));
  if (page != kNoPage && range_of(r, page).step_end == 0) page = r.alive(r.pages[page].prev.load(kRelaxed));
  if (page == kNoPage) return {};
  const Range range = range_of(r, page);
  if (range.step_end == 0 || range.step_end - 1 < range.step_begin) return {};
  const uint64_t slot = r.slot_of(page, range.step_end - 1);
  return {slot + 1, r.head_of(slot).load(kRelaxed), std::bit_cast<uint32_t>(r.marks[slot].discount.load(kRelaxed))};
}

}  // namespace

Status Saver::begin(const SavedImage* known, size_t count) {
  const Entered entered(table_, true);
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table_.region();
  form_.emplace(r, table_.plain_layout());
  known_.assign(r.geometry->num_pages, Known{});
  for (size_t k = 0; k < count; ++k)
    if (known[k].page < known_.size()) known_[known[k].page] = {known[k].ref, known[k].ticket};
  words_.reserve(r.geometry->num_pages);
  tickets_.reserve(r.geometry->num_pages);
  last_rows_.resize(r.geometry->max_lanes);
  live_ = areas_ = saved_areas(r);
  for (uint32_t i = 0; i < r.num_indexes; ++i) {
    if (!Leaves(r, i).is_ranked()) continue;
    const uint64_t num_leaves = r.map(i).num_leaves;
    RankCopy copy{i, nullptr, {}, {}};
    RELIVE_RETURN_IF_ERROR(Storage::create_local(Ranks::num_bytes(num_leaves), &copy.memory));
    copy.ranks.bind(copy.memory->base(), num_leaves);
    copy.ranks.touch_members();
    ranks_.push_back(std::move(copy));
  }
  memory_.resize(areas_.size());
  record_words_.resize(r.num_indexes);
  for (size_t k = 0; k < areas_.size(); ++k) {
    memory_[k].resize(areas_[k].num_bytes());  // touched: filled with zeros
    areas_[k].at = memory_[k].data();
    if (areas_[k].is_large) copy_large(live_[k], &areas_[k]);
  }
  return {};
}

// Windows and values of records, as they are before the cut. Those that change meanwhile are copied again.
void Saver::copy_large(const SavedArea& live, SavedArea* copy) {
  const Region& r = table_.region();
  std::vector<uint64_t>& words = record_words_[live.index];
  const Leaves leaves(r, live.index);
  const bool is_first = words.empty();
  words.resize(live.num_entries);
  for (uint64_t record = 0; record < live.num_entries; ++record) {
    // The windows come first, the values after them: a record that changed in between has another word then. A record
    // that is no item yet may still get windows while its word stays, so its word does not count.
    if (is_first) {
      const uint64_t word = r.records[live.index].words[record].load(std::memory_order_acquire);
      words[record] = leaves.is_published(record) ? word : 0;
    }
    copy_bytes(copy->at + record * live.entry_bytes, live.at + record * live.entry_bytes, live.entry_bytes);
  }
}

// Under the table lock: the records that have changed since, and those that were no items when they were copied.
void Saver::copy_large_again(const SavedArea& live, SavedArea* copy) {
  const Region& r = table_.region();
  for (uint64_t record = 0; record < live.num_entries; ++record) {
    const uint64_t word = r.records[live.index].words[record].load(kRelaxed);
    if (!Region::is_used(word) || word == record_words_[live.index][record]) continue;
    std::memcpy(copy->at + record * live.entry_bytes, live.at + record * live.entry_bytes, live.entry_bytes);
  }
}

bool Saver::is_missing(uint64_t page, uint64_t word, uint64_t ticket) const {
  if (!Region::is_used(word)) return false;
  const bool is_closed = Region::state_of(word) == PageState::kClosed;
  const Known& known = known_[page];
  return !is_closed || known.ref != table_.region().ref_of(page, word) || known.ticket != ticket || ticket == 0;
}

Status Saver::bytes_missing(uint64_t* num_bytes) const {
  const Entered entered(table_, true);  // another thread may close the table
  RELIVE_RETURN_IF_ERROR(entered.status());
  const Region& r = table_.region();
  const uint64_t bytes_a_row = form_->most_image_bytes() / r.page_len;
  uint64_t bytes = 0;
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    const uint64_t word = r.words[page].load(std::memory_order_acquire);
    if (is_missing(page, word, r.pages[page].ticket.load(std::memory_order_acquire)))
      bytes += range_of(r, page).step_end * bytes_a_row;
  }
  *num_bytes = bytes;
  return {};
}

// The bulk of a page: its bulk frame, or a copy that is read from the disk. A page that goes or moves meanwhile may show
// any bytes, so a caller without a pin compares the page's word afterwards.
Status Saver::read_bulk(uint64_t page, std::byte** bulk) {
  const Bulk& of = table_.region().bulk;
  if (!of) return {};
  const BulkPlace place = of.place(page);
  if (place.kind == BulkKind::kRam) *bulk = of.frame(place.number);
  if (place.kind != BulkKind::kDisk) return {};
  const auto num_bytes = static_cast<size_t>(of.geometry->frame_bytes);
  if (bulk_ == nullptr) RELIVE_RETURN_IF_ERROR(Storage::create_local(num_bytes, &bulk_));
  *bulk = bulk_->base();
  return table_.tier()->file().read(place.number * num_bytes, {{*bulk, num_bytes}});
}

Status Saver::copy_page(uint64_t page, const ImageRows& rows, uint64_t ref, std::byte* to, size_t room,
                        Copied* copied) {
  const bool has_bulk = static_cast<bool>(table_.region().bulk);
  copied->is_full = has_bulk && room < form_->most_image_bytes();  // the disk is read once
  if (copied->is_full) return {};
  PagePlace place{page};
  RELIVE_RETURN_IF_ERROR(read_bulk(page, &place.bulk));
  if (has_bulk && place.bulk == nullptr) return {};  // the page went
  copied->num_bytes = copy_out(*form_, place, rows, ref, to, room);
  copied->is_full = copied->num_bytes == 0;
  return {};
}

Status Saver::copy_closed(uint64_t page, std::byte* to, size_t room, Copied* copied) {
  const Region& r = table_.region();
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  const uint64_t ticket = r.pages[page].ticket.load(std::memory_order_acquire);
  if (Region::state_of(word) != PageState::kClosed || !is_missing(page, word, ticket)) return {};
  const uint32_t step_end = Range::unpack(r.pages[page].range.load(std::memory_order_acquire)).step_end;
  if (step_end > r.page_len) return {};
  const uint64_t ref = r.ref_of(page, word);
  RELIVE_RETURN_IF_ERROR(copy_page(page, {step_end, step_end}, ref, to, room, copied));
  acquire_fence();
  const bool is_same =
      r.words[page].load(kRelaxed) >> kStateBits == word >> kStateBits && r.pages[page].ticket.load(kRelaxed) == ticket;
  if (copied->num_bytes == 0 || !is_same) return {};
  known_[page] = {ref, ticket};
  copied->image = SavedImage{page, ref, ticket, 0, copied->num_bytes, cells_of(to)};
  return {};
}

// The rows of a page at the cut, and the frozen cell after them.
ImageRows Saver::rows_of_cut(uint64_t page, uint64_t word) const {
  const Region& r = table_.region();
  const auto* pages = reinterpret_cast<const PageRecord*>(areas_[1].at);
  const auto* lanes = reinterpret_cast<const Lane*>(areas_[3].at);
  const uint32_t step_end = Range::unpack(pages[page].range.load(kRelaxed)).step_end;
  ImageRows rows{step_end, step_end};
  const uint32_t lane = pages[page].lane_slot.load(kRelaxed);
  if (lane >= r.geometry->max_lanes) return rows;
  const bool has_last = last_rows_[lane].slot != 0 && r.page_of(last_rows_[lane].slot - 1) == page;
  if (has_last && RELIVE_RULE(J5_last_row)) rows.last = last_rows_[lane];
  const uint64_t seam = lanes[lane].seam.load(kRelaxed);
  const bool has_cell = step_end < r.page_len && seam != 0 && lanes[lane].state.load(kRelaxed) == LaneState::kLive &&
                        seam == static_cast<uint64_t>(r.key_of(r.slot_of(page, step_end), word));
  rows.num_rows += has_cell && RELIVE_RULE(J5_frozen_cell) ? 1 : 0;
  return rows;
}

Status Saver::copy_of_cut(uint64_t page, std::byte* to, size_t room, Copied* copied) {
  const Region& r = table_.region();
  const uint64_t word = words_[page];
  if (!is_missing(page, word, tickets_[page])) return {};
  const bool is_closed = Region::state_of(word) == PageState::kClosed;
  const uint64_t ref = r.ref_of(page, word);
  const uint64_t ticket = is_closed ? tickets_[page] : 0;
  RELIVE_RETURN_IF_ERROR(copy_page(page, rows_of_cut(page, word), ref, to, room, copied));
  if (copied->num_bytes == 0) return {};
  acquire_fence();
  const bool is_same = ticket != 0 && r.pages[page].ticket.load(kRelaxed) == ticket &&
                       r.header->changing_page.load(kRelaxed) != page + 1;
  if (is_same) known_[page] = {ref, ticket};
  copied->image = SavedImage{page, ref, is_same ? ticket : 0, 0, copied->num_bytes, cells_of(to)};
  return {};
}

Status Saver::fill(std::byte* to, size_t room, std::vector<SavedImage>* images) {
  std::optional<Entered> entered;
  if (!is_cut()) {
    entered.emplace(table_, true);
    RELIVE_RETURN_IF_ERROR(entered->status());
  }
  const uint64_t num_pages = known_.size();
  for (size_t used = 0; next_page_ < num_pages; ++next_page_) {
    Copied copied;
    RELIVE_RETURN_IF_ERROR(is_cut() ? copy_of_cut(next_page_, to + used, room - used, &copied)
                                    : copy_closed(next_page_, to + used, room - used, &copied));
    if (copied.is_full) return {};
    if (!copied.image) continue;
    copied.image->offset = used;
    used += copied.image->num_bytes;
    images->push_back(*copied.image);
  }
  return {};
}

// Everything PRIMARY that is no row. Under the table lock.
void Saver::copy_state(Held& held) {
  const Region& r = held.region;
  for (size_t k = 0; k < areas_.size(); ++k) {
    if (areas_[k].is_large) {
      copy_large_again(live_[k], &areas_[k]);
    } else {
      copy_bytes(areas_[k].at, live_[k].at, areas_[k].num_bytes());
    }
  }
  for (RankCopy& copy : ranks_) Leaves(r, copy.index).ranks().copy_members(copy.ranks);
  numbers_ = read_numbers(held);
  num_steps_ = r.header->live_steps.load(kRelaxed) - r.header->removed_steps.load(kRelaxed);
  for (uint32_t lane = 0; lane < r.geometry->max_lanes; ++lane) last_rows_[lane] = last_row_of(r, r.lanes[lane]);
  for (uint64_t page = 0; page < r.geometry->num_pages; ++page) {
    words_.push_back(r.words[page].load(kRelaxed));
    tickets_.push_back(r.pages[page].ticket.load(kRelaxed));
  }
}

Status Saver::cut(const Deadline& deadline) {
  entered_ = std::make_unique<Entered>(table_, true);
  RELIVE_RETURN_IF_ERROR(entered_->status());
  pin_ = std::make_unique<PinAll>(table_.door(), deadline);
  while (true) {
    Locked locked(table_.door(), deadline);
    RELIVE_RETURN_IF_ERROR(locked.status());
    if (!publish_rest(locked.held()))
      continue;  // explicit items that late columns completed: more sections finish them
    const double begin_s = clock_s();
    pin_->begin(locked);
    copy_state(locked.held());
    next_page_ = 0;
    cut_s_ = clock_s() - begin_s;
    break;
  }
  list_ranks();
  return {};
}

void Saver::list_ranks() {
  for (RankCopy& copy : ranks_) {
    copy.ranks.list_members(&copy.order);
    areas_.push_back({kRankOrder, copy.index, EntryOf::kTable, reinterpret_cast<std::byte*>(copy.order.data()),
                      sizeof(uint32_t), copy.order.size(), false});
  }
}

std::vector<SavedImage> Saver::pages() const {
  const Region& r = table_.region();
  std::vector<SavedImage> pages;
  for (uint64_t page = 0; page < words_.size(); ++page)
    if (Region::is_used(words_[page])) pages.push_back({page, r.ref_of(page, words_[page]), tickets_[page], 0, 0, 0});
  return pages;
}

void Saver::end() {
  pin_.reset();
  entered_.reset();
}

}  // namespace relive
