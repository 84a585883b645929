#include "relive/words/region.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "relive/words/checksum.hpp"

namespace relive {
namespace {

// Byte order, word size and the sizes of the shared structs: a region of another ABI is refused, not misread.
uint32_t abi_tag() {
  const uint32_t order = std::endian::native == std::endian::little ? 1 : 2;
  return order | sizeof(PageRecord) << 8 | sizeof(void*) << 4 | static_cast<uint32_t>(sizeof(Header)) << 16;
}

// The sum of all that never changes: the words before `clean` except the magic and the boot, geometry, indexes, columns
// and metadata.
uint32_t checksum_of(const std::byte* memory) {
  const auto* h = reinterpret_cast<const Header*>(memory);
  const Geometry& g = h->geometry;
  Crc32 sum;
  sum.add(memory + sizeof h->magic, offsetof(Header, boot_id) - sizeof h->magic);
  sum.add(&h->layout_hash, sizeof h->layout_hash);
  sum.add(&h->geometry, sizeof h->geometry);
  for (const IndexConfig& index : h->indexes) {  // except the sampler's exponent, which may be changed (rule H2)
    constexpr size_t kAt = offsetof(IndexConfig, priority_exponent), kBehind = kAt + sizeof index.priority_exponent;
    const auto* const bytes = reinterpret_cast<const std::byte*>(&index);
    sum.add(bytes, kAt);
    sum.add(bytes + kBehind, sizeof index - kBehind);
  }
  sum.add(memory + g.columns_offset, sizeof(ColumnLayout) * (g.num_columns + g.num_item_columns));
  sum.add(memory + g.metadata_offset, g.metadata_bytes);
  return sum.value();
}

template <class T>
T* at(std::byte* base, uint64_t offset) {
  return reinterpret_cast<T*>(base + offset);
}

}  // namespace

void Region::bind(std::byte* memory) {
  Region* const r = this;
  r->base = memory;
  r->header = at<Header>(memory, 0);
  const Geometry& g = r->header->geometry;
  r->geometry = &g;
  r->columns = at<ColumnLayout>(memory, g.columns_offset);
  r->participants = at<Participant>(memory, g.participants_offset);
  r->credits = at<Credit>(memory, g.credits_offset);
  r->lanes = at<Lane>(memory, g.lanes_offset);
  r->words = at<std::atomic<uint64_t>>(memory, g.words_offset);
  r->frames = at<std::atomic<uint32_t>>(memory, g.frames_offset);
  r->pages = at<PageRecord>(memory, g.pages_offset);
  r->tails = at<std::atomic<uint64_t>>(memory, g.tails_offset);
  r->marks = at<Mark>(memory, g.marks_offset);
  r->free_frames = at<std::atomic<uint32_t>>(memory, g.free_frames_offset);
  r->cells = {};
  if (g.cells.stride != 0)
    r->cells = {&g.cells, memory + g.cells.cells_offset, at<CellState>(memory, g.cells.state_offset),
                at<std::atomic<uint32_t>>(memory, g.cells.links_offset),
                at<std::atomic<uint32_t>>(memory, g.cells.free_offset)};
  r->num_indexes = g.num_indexes;
  r->page_shift = g.page_shift;
  r->page_len = g.page_len;
  r->page_bits = g.page_bits;
  r->late_bytes = 0;
  for (uint32_t c = 0; c < g.num_columns; ++c)
    if (columns[c].kind == ColumnKind::kLate) r->late_bytes += static_cast<uint32_t>(columns[c].num_bytes);
  r->num_row_indexes_ = 0;
  r->num_appended_indexes_ = 0;
  r->num_bounded_indexes_ = 0;
  r->ranks = Tree();
  r->num_timed_indexes_ = r->num_aged_indexes_ = r->num_latest_indexes_ = r->num_fading_indexes_ = 0;
  r->num_given_apart_ = 0;
  r->has_groups_ = false;
  for (uint32_t i = 0; i < g.num_indexes; ++i) bind_index(i);
  r->maps_[g.num_indexes] = {r->words, 0, g.num_slots, g.page_shift, false};
}

void Region::bind_index(uint32_t index) {
  const Geometry& g = *geometry;
  const RecordGeometry& of = g.records[index];
  if (of.max_items == 0) {
    maps_[index] = {words, 0, g.num_slots, g.page_shift, false};
    cursors[index] = at<Cursor>(base, g.cursors_offset[index]);
    row_indexes_[num_row_indexes_++] = index;
  } else {
    records[index] = {&of,
                      header->indexes[index].windows,
                      columns + of.first_column,
                      at<std::atomic<uint64_t>>(base, of.words_offset),
                      at<ItemWindow>(base, of.windows_offset),
                      at<RecordNode>(base, of.nodes_offset),
                      at<uint32_t>(base, of.heads_offset),
                      at<std::byte>(base, of.values_offset),
                      at<std::atomic<uint64_t>>(base, of.joined_offset)};
    maps_[index] = {records[index].words, of.first_leaf, of.max_items, 0, true};
    record_indexes_[index - num_row_indexes_] = index;
    has_groups_ |= of.group_size != 0;
  }
  if (of.max_items == 0 || of.group_size != 0) appended_indexes_[num_appended_indexes_++] = index;
  trees_[index].bind(base + g.trees_offset[index], maps_[index].num_leaves, header->indexes[index].reduction);
  if (header->indexes[index].traits & kIsShuffled)
    visited[index] = at<std::atomic<uint64_t>>(base, g.trees_offset[index] + Tree::num_bytes(maps_[index].num_leaves));
  states_[index] = at<std::atomic<uint16_t>>(base, g.states_offset[index]);
  traits[index] = static_cast<uint16_t>(header->indexes[index].traits & (kHasPriorities | kIsOrdered | kFades));
  if ((traits[index] & kFades) != 0) fading_indexes_[num_fading_indexes_++] = index;
  if (g.orders_offset[index] != 0) {
    traits[index] |= kIsBounded;
    const uint64_t num_leaves = maps_[index].num_leaves;
    orders_[index].bind(base + g.orders_offset[index], num_leaves, header->indexes[index].order);
    if (!maps_[index].is_explicit) {
      bounded_indexes_[num_bounded_indexes_++] = index;
      if (index == 0 && header->indexes[0].chooses_pages())
        ranks.bind(base + g.orders_offset[0] + Tree::num_bytes(num_leaves), g.num_pages, Reduction::kMin);
    } else {
      traits[index] |= kHasQueue;
      queues_[index].bind(base + g.orders_offset[index] + Tree::num_bytes(num_leaves), num_leaves, Reduction::kMin);
    }
  }
  if (g.ranks_offset[index] != 0) {
    traits[index] |= kIsRanked;
    ranks_[index].bind(base + g.ranks_offset[index], maps_[index].num_leaves);
  }
  given_[index] = nullptr;
  if (g.given_offset[index] != 0) {
    given_[index] = at<std::atomic<uint32_t>>(base, g.given_offset[index]);
    given_apart_[num_given_apart_++] = index;
  }
  const auto bind_due = [&](Due due, uint64_t offset, uint8_t trait, uint32_t* indexes, uint32_t* count) {
    if (offset == 0) return;
    traits[index] |= trait;
    dues_[static_cast<uint32_t>(due)][index].bind(base + offset, maps_[index].num_leaves, Reduction::kMin);
    indexes[(*count)++] = index;
  };
  bind_due(Due::kWait, g.waits_offset[index], kIsTimed, timed_indexes_, &num_timed_indexes_);
  bind_due(Due::kAge, g.ages_offset[index], kIsAged, aged_indexes_, &num_aged_indexes_);
  bind_due(Due::kPlace, g.places_offset[index], kIsLatest, latest_indexes_, &num_latest_indexes_);
}

void Region::create(std::byte* memory, const TableConfig& config, const Layout& layout) {
  Header* h = at<Header>(memory, 0);
  h->format_version = kFormatVersion;
  h->abi_tag = abi_tag();
  random_bytes(h->uuid, sizeof h->uuid);
  const std::string boot = boot_id();
  std::memcpy(h->boot_id, boot.data(), std::min(boot.size(), sizeof h->boot_id - 1));
  h->geometry = layout.geometry;
  for (size_t i = 0; i < config.indexes.size(); ++i) h->indexes[i] = config.indexes[i];
  std::memcpy(memory + layout.geometry.columns_offset, layout.columns.data(),
              layout.columns.size() * sizeof(ColumnLayout));
  std::memcpy(memory + layout.geometry.metadata_offset, config.metadata.data(), config.metadata.size());
  bind(memory);
  h->layout_hash = relive::layout_hash(*geometry, columns);
  h->checksum = checksum_of(memory);
  const uint64_t first = first_generation(config.epoch);
  for (uint32_t i = 0; i < num_indexes; ++i) {
    trees_[i].clear();
    if (geometry->orders_offset[i] != 0) orders_[i].clear();
    if (i == 0 && chooses_pages()) ranks.clear();
    if ((traits[i] & kIsTimed) != 0) dues_[static_cast<uint32_t>(Due::kWait)][i].clear();
    if ((traits[i] & kIsAged) != 0) dues_[static_cast<uint32_t>(Due::kAge)][i].clear();
    if ((traits[i] & kIsLatest) != 0) dues_[static_cast<uint32_t>(Due::kPlace)][i].clear();
    h->index_state[i].max_priority.store(1.0, std::memory_order_relaxed);
    h->index_state[i].max_mass.store(1.0, std::memory_order_relaxed);
    h->index_state[i].limiter.store(config.indexes[i].limiter);
    for (uint64_t record = 0; record < geometry->records[i].max_items; ++record)
      records[i].words[record].store(first << kGenerationShift);
    if ((traits[i] & kHasQueue) == 0) continue;
    queues_[i].clear();
    for (uint64_t record = 0; record < queues_[i].num_leaves(); ++record) queues_[i].set_leaf(record, kFreePlace);
    queues_[i].rebuild();
  }
  h->ring_head.store(kNoPage);
  h->ring_tail.store(kNoPage);
  h->kept_head.store(kNoPage);
  h->next_order.store(1);
  h->next_ticket.store(1);
  h->next_uid.store(1);
  for (uint64_t page = 0; page < geometry->num_pages; ++page) {
    words[page].store(first << kGenerationShift);
    pages[page].free_next = page + 1 < geometry->num_pages ? static_cast<uint32_t>(page + 1) : kNoPage;
  }
  h->free_head.store(0);
  h->free_tail.store(static_cast<uint32_t>(geometry->num_pages - 1));
  h->num_free_pages.store(static_cast<uint32_t>(geometry->num_pages));
  release_fence();
  std::memcpy(h->magic, kMagic, sizeof kMagic);
}

Status Region::open(std::byte* memory, size_t num_bytes) {
  const Header* h = at<Header>(memory, 0);
  if (num_bytes < sizeof(Header) || std::memcmp(h->magic, kMagic, sizeof kMagic) != 0)
    return Status(Code::kNotARegion).with_text("what", "it does not begin like a relive region");
  const auto differs = [](const char* what, uint64_t expected, uint64_t got) {
    return Status(Code::kFormatMismatch)
        .with_text("what", what)
        .with_int("expected", static_cast<int64_t>(expected))
        .with_int("got", static_cast<int64_t>(got));
  };
  if (h->format_version != kFormatVersion) return differs("format version", kFormatVersion, h->format_version);
  if (h->abi_tag != abi_tag()) return differs("ABI tag", abi_tag(), h->abi_tag);
  if (h->geometry.region_bytes != num_bytes) return differs("file size", h->geometry.region_bytes, num_bytes);
  const std::string unsound = unsound_part(h->geometry, memory, num_bytes);
  if (!unsound.empty()) return Status(Code::kNotARegion).with_text("what", "a damaged header: " + unsound);
  if (const uint32_t sum = checksum_of(memory); sum != h->checksum)
    return differs("checksum of the header", h->checksum, sum);
  for (const IndexConfig& index : h->indexes)
    if (const double exponent = exponent_of(index); !(exponent >= 0.0 && std::isfinite(exponent)))
      return Status(Code::kNotARegion).with_text("what", "a damaged header: no exponent of priorities");
  if (h->frames_committed.load() > h->geometry.num_frames)
    return Status(Code::kNotARegion).with_text("what", "a damaged header: more frames than there are");
  bind(memory);
  if (cells && std::max(cells.state->committed.load(), cells.state->num_free.load()) > cells.geometry->num_cells)
    return Status(Code::kNotARegion).with_text("what", "a damaged header: more start cells than there are");
  const uint64_t hash = relive::layout_hash(*geometry, columns);
  if (hash != h->layout_hash) return differs("layout hash", h->layout_hash, hash);
  return {};
}

bool Region::is_own_key(int64_t key) const {
  if (is_row_key(key)) return true;
  for (const uint32_t i : record_indexes())
    if (is_item_key(i, key)) return true;
  return false;
}

uint64_t Region::alive(uint64_t ref) const {
  if (ref == 0) return kNoPage;
  const uint64_t page = ref_page(ref);
  if (page >= geometry->num_pages) return kNoPage;
  const uint64_t word = words[page].load(std::memory_order_acquire);
  if (!is_used(word)) return kNoPage;
  if (RELIVE_RULE(A1_link_generation) && generation_of(word) != ref_generation(ref)) return kNoPage;
  return page;
}

uint32_t Region::num_tails(uint64_t page, uint32_t begin, uint32_t end) const {
  uint32_t count = 0;
  for (uint32_t word = begin / 64; word * 64 < end; ++word) {
    uint64_t bits = tails[page * geometry->tail_words + word].load(std::memory_order_relaxed);
    if (word * 64 < begin) bits &= ~uint64_t{0} << (begin & 63);
    if (end < word * 64 + 64) bits &= (uint64_t{1} << (end & 63)) - 1;
    count += static_cast<uint32_t>(std::popcount(bits));
  }
  return count;
}

void Region::clear_tails_from(uint64_t page, uint32_t offset) {
  for (uint32_t word = offset / 64; word < geometry->tail_words; ++word) {
    const uint64_t kept = word * 64 < offset ? (uint64_t{1} << (offset & 63)) - 1 : 0;
    tails[page * uint64_t{geometry->tail_words} + word].fetch_and(kept, std::memory_order_release);
  }
}

LimiterConfig Region::limiter(uint32_t index) const {
  const LimiterConfig limiter = header->index_state[index].limiter.load();
  if (limiter.kind != LimiterConfig::kStalenessBudget) return limiter;
  const int64_t base = header->base_version.load(std::memory_order_acquire);
  return at_version(limiter, int64_t{header->policy_version.load(std::memory_order_acquire)} - base);
}

// Where uses are counted, an item that went without one never counts: no draw will ever balance it.
int64_t Region::inserted(uint32_t index) const {
  const IndexState& state = header->index_state[index];
  if (max_times(index) == 0 || !RELIVE_RULE(P2_unused)) return state.inserted.load(std::memory_order_relaxed);
  return state.used.load(std::memory_order_relaxed) + state.unused.load(std::memory_order_relaxed);
}

void Region::note_lack(uint32_t index) const {
  header->index_state[index].lacked.store(inserted(index) + 1, std::memory_order_relaxed);
}

bool Region::lacks_items(uint32_t index) const {
  const IndexState& state = header->index_state[index];
  const bool has_none = state.drawable() == 0 && state.massless.load(std::memory_order_relaxed) > 0;
  return has_none || state.lacked.load(std::memory_order_relaxed) == inserted(index) + 1;
}

LimiterCounts Region::drawn_counts(uint32_t index, const LimiterConfig& limiter) const {
  const IndexState& state = header->index_state[index];
  const int64_t live = state.live_items.load(std::memory_order_relaxed);
  if (limiter.kind != LimiterConfig::kSamplesPerInsert) return {live, live, 0};
  return {live, inserted(index), sampled(index)};
}

LimiterCounts Region::inserted_counts(uint32_t index, const LimiterConfig& limiter, int64_t reserved,
                                      int64_t under_way) const {
  const IndexState& state = header->index_state[index];
  const int64_t coming = state.pending.load(std::memory_order_relaxed) + reserved;
  const int64_t live = state.live_items.load(std::memory_order_relaxed) + coming;
  if (limiter.kind == LimiterConfig::kQueue) return {live, state.drawable() + coming + under_way + undecided(index), 0};
  if (limiter.kind == LimiterConfig::kSamplesPerInsert)
    return {live, inserted(index) + coming, sampled(index), lacks_items(index)};
  return {live, inserted(index) + coming + under_way, 0};
}

int64_t Region::sampled(uint32_t index) const {
  int64_t sum = 0;
  for (uint32_t p = 0; p < geometry->max_participants; ++p) {
    const Credit& c = credit(p, index);
    // in_flight is read first: a commit adds to `done` before it takes from `in_flight`, so no item is missed.
    sum += c.in_flight.load(std::memory_order_acquire);
    sum += c.done.load(std::memory_order_relaxed);
  }
  return sum;
}

int64_t Region::undecided(uint32_t index) const {
  if (max_times(index) == 0 || !RELIVE_RULE(P7_places)) return 0;
  int64_t sum = 0;
  for (uint32_t p = 0; p < geometry->max_participants; ++p)
    sum += credit(p, index).undecided.load(std::memory_order_relaxed);
  return sum;
}

int64_t Region::reserved_rows() const {
  int64_t sum = 0;
  for (uint32_t p = 0; p < geometry->max_participants; ++p)
    sum += credit(p, 0).reserved.load(std::memory_order_relaxed);
  return sum;
}

int64_t Region::refused_draw(uint32_t index) const {
  int64_t largest = 0;
  for (uint32_t p = 0; p < geometry->max_participants; ++p)
    largest = std::max(largest, credit(p, index).refused_draw.load(std::memory_order_relaxed));
  return largest;
}

}  // namespace relive
