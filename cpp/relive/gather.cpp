#include "relive/gather.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

// gcc's ThreadSanitizer ignores fences: row bytes are copied outside its sight there, the generation checks stay in it.
#ifdef RELIVE_TSAN
#define RELIVE_ROW_COPY __attribute__((no_sanitize("thread"), noinline))
#else
#define RELIVE_ROW_COPY inline
#endif

namespace relive {
namespace {

constexpr uint8_t kPrevLoaded = 1;
constexpr uint8_t kNextLoaded = 2;

// A row seen from a window: frame and row inside it. Rows before the page lie in the page before, rows after it in
// the next one; a window never reaches further (page_len >= history + n_step).
struct Row {
  const std::byte* base;
  uint32_t offset;
};

inline Row row_at(const Windows& w, uint32_t i, int32_t offset, uint32_t page_len) {
  if (offset < 0) return {w.prev_bases[i], static_cast<uint32_t>(offset + static_cast<int32_t>(page_len))};
  if (static_cast<uint32_t>(offset) < page_len) return {w.bases[i], static_cast<uint32_t>(offset)};
  return {w.next_bases[i], static_cast<uint32_t>(offset) - page_len};
}

RELIVE_ROW_COPY void copy_bytes(std::byte* to, const std::byte* from, size_t num_bytes) {
#ifdef RELIVE_TSAN
  for (size_t i = 0; i < num_bytes; ++i) to[i] = from[i];
#else
  std::memcpy(to, from, num_bytes);
#endif
}

// A size that stays the same over a batch: kWords whole words, the last one overlapping the one before it.
template <size_t kWord, size_t kWords>
RELIVE_ROW_COPY void copy_words(std::byte* to, const std::byte* from, size_t num_bytes) {
  for (size_t word = 0; word + 1 < kWords; ++word) copy_bytes(to + word * kWord, from + word * kWord, kWord);
  copy_bytes(to + num_bytes - kWord, from + num_bytes - kWord, kWord);
}

RELIVE_ROW_COPY RecordHeader load_header(const std::byte* base, uint64_t stride, uint32_t offset) {
  RecordHeader header;
  copy_bytes(reinterpret_cast<std::byte*>(&header), base + offset * stride, sizeof header);
  return header;
}

RELIVE_ROW_COPY double load_reward(const ColumnLayout& column, Row row) {
  const std::byte* from = row.base + column.offset + row.offset * column.stride;
  if (column.dtype[2] == '8') {
    double value;
    copy_bytes(reinterpret_cast<std::byte*>(&value), from, sizeof value);
    return value;
  }
  float value;
  copy_bytes(reinterpret_cast<std::byte*>(&value), from, sizeof value);
  return value;
}

// Follows a link of the window's page; notes the neighbour's word for recheck(). False where it is gone.
bool follow(const Region& r, const std::atomic<uint64_t>& link, Touched* touched, const std::byte** base) {
  const uint64_t ref = link.load(std::memory_order_acquire);
  if (ref == 0) return false;
  const uint64_t page = r.ref_page(ref);
  if (page >= r.geometry->num_pages) return false;
  const uint64_t word = r.words[page].load(std::memory_order_acquire);
  if (!Region::is_used(word)) return false;
  if (RELIVE_RULE(A1_link_generation) && Region::generation_of(word) != r.ref_generation(ref)) return false;
  touched->page = static_cast<uint32_t>(page);
  touched->word = word;
  *base = r.page_base(page);
  return true;
}

bool need_next(const Region& r, Windows* w, uint32_t i) {
  if ((w->neighbours[i] & kNextLoaded) != 0) return true;
  if (!follow(r, r.pages[r.page_of(w->slots[i])].next, &w->next_pages[i], &w->next_bases[i])) return false;
  w->neighbours[i] |= kNextLoaded;
  return true;
}

// Whether row `offset` of the window's page or the next one holds a step of the same episode so far.
bool is_step(const Region& r, const Windows& w, uint32_t i, uint32_t offset) {
  const uint64_t page = offset < r.page_len ? r.page_of(w.slots[i]) : w.next_pages[i].page;
  const uint32_t row = offset & (r.page_len - 1);
  const Range range = Range::unpack(r.pages[page].range.load(std::memory_order_acquire));
  return row < range.step_end && !r.is_tail(page, row);
}

// Whether the lane of a page that has no next page is still being written: a full page is CLOSED before the next opens.
bool lane_goes_on(const Region& r, uint64_t page) {
  const Lane& lane =
      r.lanes[std::min(r.pages[page].lane_slot.load(std::memory_order_relaxed), r.geometry->max_lanes - 1)];
  return lane.state.load(std::memory_order_acquire) == LaneState::kLive &&
         lane.uid.load(std::memory_order_acquire) == r.pages[page].lane_uid.load(std::memory_order_relaxed);
}

// Walks the window's steps up to n, to the end of the episode or of the lane, and sums the return on the way.
bool walk(const Region& r, const IndexConfig& config, bool needs_end, Windows* w, uint32_t i) {
  const Geometry& g = *r.geometry;
  const uint32_t offset = r.offset_of(w->slots[i]);
  double sum = 0.0, product = 1.0;
  uint32_t m = 0;
  uint8_t ends = 0;
  while (m < config.n_step) {
    const uint32_t at = offset + m;
    if (at >= r.page_len && !need_next(r, w, i)) break;
    if (m > 0 && !is_step(r, *w, i, at)) break;
    const Row row = row_at(*w, i, static_cast<int32_t>(at), r.page_len);
    const RecordHeader header = load_header(row.base, g.record_stride, row.offset);
    if (m == 0) w->episode_steps[i] = header.step_and_ends & kStepMask;
    if (g.reward_column >= 0 && config.n_step > 1) {
      const ColumnLayout& column = r.columns[g.reward_column];
      if (column.num_dims == 0) sum += product * load_reward(column, row);
    }
    product *= config.gamma * header.discount;
    ++m;
    ends = static_cast<uint8_t>((header.step_and_ends & kTerminatedBit ? 1 : 0) |
                                (header.step_and_ends & kTruncatedBit ? 2 : 0));
    if (ends != 0) break;
  }
  if (needs_end && ends == 0) {
    const uint32_t after = offset + m;
    const bool has_row = after < r.page_len || need_next(r, w, i);
    if (!has_row) {
      ends = g.has_state != 0 || lane_goes_on(r, r.page_of(w->slots[i])) ? 0 : 2;
    } else {
      const uint64_t page = after < r.page_len ? r.page_of(w->slots[i]) : w->next_pages[i].page;
      const uint64_t word = after < r.page_len ? w->words[i] : w->next_pages[i].word;
      const uint32_t step_end = Range::unpack(r.pages[page].range.load(std::memory_order_acquire)).step_end;
      const uint32_t row = after & (r.page_len - 1);
      const bool is_over = row >= step_end && Region::state_of(word) == PageState::kClosed;
      if ((row < step_end && r.is_tail(page, row)) || is_over) ends = 2;
    }
  }
  w->num_steps[i] = m;
  w->rewards[i] = sum;
  w->discounts[i] = product;
  w->ends[i] = ends;
  return g.has_state == 0 || offset + m < r.page_len || need_next(r, w, i);
}

bool resolve_one(const Region& r, const GatherPlan& plan, Windows* w, uint32_t i) {
  const IndexConfig& config = r.header->indexes[plan.index];
  const uint64_t page = r.page_of(w->slots[i]);
  const uint32_t offset = r.offset_of(w->slots[i]);
  w->neighbours[i] = 0;
  if (plan.needs_walk || plan.needs_end) {
    if (!walk(r, config, plan.needs_end, w, i)) return false;
  } else {
    w->num_steps[i] = 1;
    if (r.geometry->has_state != 0 && offset + 1 >= r.page_len && !need_next(r, w, i)) return false;
    if (plan.needs_history) {
      const RecordHeader header = load_header(w->bases[i], r.geometry->record_stride, offset);
      w->episode_steps[i] = header.step_and_ends & kStepMask;
    }
  }
  if (!plan.needs_history) return true;
  if (offset >= std::min(r.geometry->history, w->episode_steps[i])) return true;
  if (!follow(r, r.pages[page].prev, &w->prev_pages[i], &w->prev_bases[i])) return false;
  w->neighbours[i] |= kPrevLoaded;
  return true;
}

template <class SourceRow, class Copy>
void for_each_row(const Windows& w, const uint32_t* which, size_t count, const ColumnLayout& column, std::byte* out,
                  uint64_t item_bytes, SourceRow&& source_row, Copy&& copy) {
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    if (!w.ok[i]) continue;
    const Row row = source_row(i);
    copy(out + w.rows[i] * item_bytes, row.base + column.offset + row.offset * column.stride);
  }
}

template <class SourceRow>
void copy_column(const Windows& w, const uint32_t* which, size_t count, const ColumnLayout& column, std::byte* out,
                 SourceRow&& source_row) {
  const size_t num_bytes = column.num_bytes;
  const auto run = [&](auto&& copy) { for_each_row(w, which, count, column, out, num_bytes, source_row, copy); };
  if (num_bytes == 4) return run([](std::byte* to, const std::byte* from) { copy_bytes(to, from, 4); });
  if (num_bytes == 8) return run([](std::byte* to, const std::byte* from) { copy_bytes(to, from, 8); });
  const auto run_words = [&]<size_t kWord, size_t kWords>() {
    run([num_bytes](std::byte* to, const std::byte* from) { copy_words<kWord, kWords>(to, from, num_bytes); });
  };
  if (num_bytes > 4 && num_bytes < 8) return run_words.template operator()<4, 2>();
  if (num_bytes > 8 && num_bytes < 16) return run_words.template operator()<8, 2>();
  if (num_bytes >= 16 && num_bytes <= 32) return run_words.template operator()<16, 2>();
  if (num_bytes > 32 && num_bytes <= 48) return run_words.template operator()<16, 3>();
  if (num_bytes > 48 && num_bytes <= 64) return run_words.template operator()<16, 4>();
  if (num_bytes > 64 && num_bytes <= 96) return run_words.template operator()<32, 3>();
  if (num_bytes > 96 && num_bytes <= 128) return run_words.template operator()<32, 4>();
  run([num_bytes](std::byte* to, const std::byte* from) { copy_bytes(to, from, num_bytes); });
}

// Frames newest last; before the episode's first frame that frame again, or zeros.
void copy_stack(const Region& r, const Windows& w, uint32_t i, const Output& output, StackPad pad, std::byte* out) {
  const ColumnLayout& column = r.columns[output.column];
  const uint32_t ahead = output.source == Source::kNext ? w.num_steps[i] : 0;
  const int32_t newest = static_cast<int32_t>(r.offset_of(w.slots[i]) + ahead);
  const uint32_t before = w.episode_steps[i] + ahead;  // frames of the episode before the newest
  std::byte* to = out + w.rows[i] * output.item_bytes;
  for (uint32_t back = output.stack; back-- > 0; to += column.num_bytes) {
    if (back > before && pad == StackPad::kZeros) {
      std::memset(to, 0, column.num_bytes);
      continue;
    }
    const Row row = row_at(w, i, newest - static_cast<int32_t>(std::min(back, before)), r.page_len);
    copy_bytes(to, row.base + column.offset + row.offset * column.stride, column.num_bytes);
  }
}

template <class T, class Value>
void fill(const Windows& w, const uint32_t* which, size_t count, std::byte* out, Value&& value) {
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    if (!w.ok[i]) continue;
    const T number = static_cast<T>(value(i));
    std::memcpy(out + w.rows[i] * sizeof(T), &number, sizeof(T));
  }
}

void copy_derived(const Region& r, const GatherPlan& plan, const Output& output, const Windows& w,
                  const uint32_t* which, size_t count, std::byte* out) {
  const IndexConfig& config = r.header->indexes[plan.index];
  const bool walked = plan.needs_walk || plan.needs_end;
  const auto header = [&](uint32_t i) {
    return load_header(w.bases[i], r.geometry->record_stride, r.offset_of(w.slots[i]));
  };
  const auto end_bit = [&](uint32_t i, uint8_t bit) {
    if (walked) return (w.ends[i] & bit) != 0;
    return (header(i).step_and_ends & (bit == 1 ? kTerminatedBit : kTruncatedBit)) != 0;
  };
  switch (output.source) {
    case Source::kDiscount:
      return walked ? fill<float>(w, which, count, out, [&](uint32_t i) { return w.discounts[i]; })
                    : fill<float>(w, which, count, out, [&](uint32_t i) { return config.gamma * header(i).discount; });
    case Source::kTerminated:
      return fill<uint8_t>(w, which, count, out, [&](uint32_t i) { return end_bit(i, 1); });
    case Source::kTruncated:
      return fill<uint8_t>(w, which, count, out, [&](uint32_t i) { return end_bit(i, 2); });
    case Source::kEpisodeStep:
      return fill<int64_t>(w, which, count, out, [&](uint32_t i) { return header(i).step_and_ends & kStepMask; });
    case Source::kFirst:
      return fill<uint8_t>(w, which, count, out,
                           [&](uint32_t i) { return (header(i).step_and_ends & kStepMask) == 0; });
    case Source::kLane:
      return fill<int64_t>(w, which, count, out, [&](uint32_t i) {
        return r.pages[r.page_of(w.slots[i])].lane_uid.load(std::memory_order_relaxed);
      });
    case Source::kPolicyVersion:
      return fill<int64_t>(w, which, count, out, [&](uint32_t i) { return header(i).policy_version; });
    case Source::kStaleness: {
      const int64_t now = r.header->policy_version.load(std::memory_order_relaxed);
      return fill<int64_t>(w, which, count, out, [&](uint32_t i) { return now - int64_t{header(i).policy_version}; });
    }
    default:
      return fill<int64_t>(w, which, count, out, [&](uint32_t i) { return w.num_steps[i]; });
  }
}

void copy_reward(const Region& r, const Output& output, const Windows& w, const uint32_t* which, size_t count,
                 std::byte* out) {
  if (r.columns[output.column].dtype[2] == '8')
    return fill<double>(w, which, count, out, [&](uint32_t i) { return w.rewards[i]; });
  fill<float>(w, which, count, out, [&](uint32_t i) { return w.rewards[i]; });
}

}  // namespace

void Windows::resize(size_t n) {
  if (slots.size() >= n) return;
  slots.resize(n);
  masses.resize(n);
  words.resize(n);
  rows.resize(n);
  ok.resize(n);
  bases.resize(n);
  prev_bases.resize(n);
  next_bases.resize(n);
  prev_pages.resize(n);
  next_pages.resize(n);
  neighbours.resize(n);
  num_steps.resize(n);
  episode_steps.resize(n);
  ends.resize(n);
  rewards.resize(n);
  discounts.resize(n);
}

void locate(const Region& r, const GatherPlan& plan, Windows* w, const uint32_t* which, size_t count) {
  const uint64_t stride = r.geometry->record_stride;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    if (!w->ok[i]) continue;
    w->bases[i] = r.page_base(r.page_of(w->slots[i]));
    const std::byte* record = w->bases[i] + r.offset_of(w->slots[i]) * stride;
    for (uint32_t at = 0; at < plan.record_span; at += 64) __builtin_prefetch(record + at);
    __builtin_prefetch(record + plan.record_span - 1);
  }
}

void resolve(const Region& r, const GatherPlan& plan, Windows* w, const uint32_t* which, size_t count) {
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    if (w->ok[i] && !resolve_one(r, plan, w, i)) w->ok[i] = 0;
  }
}

void copy_rows(const Region& r, const GatherPlan& plan, const Windows& w, const uint32_t* which, size_t count,
               std::byte* const* out) {
  const StackPad pad = r.header->indexes[plan.index].stack_pad;
  for (size_t o = 0; o < plan.outputs.size(); ++o) {
    const Output& output = plan.outputs[o];
    if (output.stack > 1) continue;
    const ColumnLayout& column = r.columns[output.column];
    if (output.source == Source::kColumn) {
      copy_column(w, which, count, column, out[o],
                  [&](uint32_t i) { return Row{w.bases[i], r.offset_of(w.slots[i])}; });
    } else if (output.source == Source::kNext) {
      copy_column(w, which, count, column, out[o], [&](uint32_t i) {
        return row_at(w, i, static_cast<int32_t>(r.offset_of(w.slots[i]) + w.num_steps[i]), r.page_len);
      });
    } else if (output.source == Source::kReward) {
      copy_reward(r, output, w, which, count, out[o]);
    } else {
      copy_derived(r, plan, output, w, which, count, out[o]);
    }
  }
  if (!plan.needs_history) return;
  for (size_t k = 0; k < count; ++k) {  // window by window: neighbouring stacks share their frames in the cache
    const uint32_t i = which[k];
    if (!w.ok[i]) continue;
    for (size_t o = 0; o < plan.outputs.size(); ++o)
      if (plan.outputs[o].stack > 1) copy_stack(r, w, i, plan.outputs[o], pad, out[o]);
  }
}

void recheck(const Region& r, const GatherPlan& plan, Windows* w, const uint32_t* which, size_t count) {
  if (!RELIVE_RULE(G4_recheck)) return;
  const auto order = std::memory_order_acquire;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    if (!w->ok[i]) continue;
    bool same = r.words[r.page_of(w->slots[i])].load(order) >> kStateBits == w->words[i] >> kStateBits;
    const auto is_same = [&](const Touched& touched) {
      return r.words[touched.page].load(order) >> kStateBits == touched.word >> kStateBits;
    };
    if ((w->neighbours[i] & kPrevLoaded) != 0) same &= is_same(w->prev_pages[i]);
    if ((w->neighbours[i] & kNextLoaded) != 0) same &= is_same(w->next_pages[i]);
    if (!same) w->ok[i] = 0;
  }
  (void)plan;
}

void zero_row(const GatherPlan& plan, uint32_t row, std::byte* const* out) {
  for (size_t o = 0; o < plan.outputs.size(); ++o)
    std::memset(out[o] + row * plan.outputs[o].item_bytes, 0, plan.outputs[o].item_bytes);
}

}  // namespace relive
