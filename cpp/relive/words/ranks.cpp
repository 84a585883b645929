#include "relive/words/ranks.hpp"

#include <algorithm>
#include <cstring>

#include "relive/words/sync.hpp"
#include "relive/words/testing.hpp"

namespace relive {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kALine = 16;   // members
constexpr size_t kTogether = 64;  // leaves that are prefetched before the first of them is worked on

constexpr uint64_t round_up(uint64_t value, uint64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace

// Members fill all blocks of a class but the last. A class has a directory of a level only if it has more members than
// one block of the level below, so few classes have a directory.
uint64_t Ranks::num_blocks(uint64_t num_leaves) {
  uint64_t blocks = num_leaves / kRoom + std::min<uint64_t>(num_leaves, kClasses) + 1;
  for (uint64_t below = kRoom; below < num_leaves; below *= kRoom)
    blocks += num_leaves / (below * kRoom) + std::min<uint64_t>(num_leaves / below, kClasses) + 1;
  return blocks;
}

size_t Ranks::num_bytes(uint64_t num_leaves) {
  return sizeof(Head) + sizeof(Entry) * (kSizes[0] + kSizes[1] + kSizes[2]) + sizeof(Chain) * kSizes[0] +
         round_up(sizeof(Place) * num_leaves, 64) + sizeof(Entry) * kRoom * num_blocks(num_leaves);
}

void Ranks::bind(void* memory, uint64_t num_leaves) {
  auto* at = static_cast<std::byte*>(memory);
  const auto take = [&at](uint64_t num_bytes) {
    std::byte* const here = at;
    at += round_up(num_bytes, 64);
    return here;
  };
  num_leaves_ = num_leaves;
  num_blocks_ = num_blocks(num_leaves);
  head_ = reinterpret_cast<Head*>(take(sizeof(Head)));
  for (uint32_t level = 0; level < kLevels; ++level)
    counts_[level] = reinterpret_cast<Entry*>(take(sizeof(Entry) * kSizes[level]));
  chains_ = reinterpret_cast<Chain*>(take(sizeof(Chain) * kSizes[0]));
  places_ = reinterpret_cast<Place*>(take(sizeof(Place) * num_leaves));
  entries_ = reinterpret_cast<Entry*>(at);
}

uint32_t Ranks::take_block() {
  if (head_->free == 0) return head_->made++;
  const uint32_t block = head_->free - 1;
  head_->free = entry(block, 0).load(kRelaxed);
  return block;
}

void Ranks::free_block(uint32_t block) {
  entry(block, 0).store(head_->free, kRelaxed);
  head_->free = block + 1;
}

// May be num_blocks_ or more while another process changes the class.
uint32_t Ranks::block_of(uint32_t root, uint64_t position, uint32_t levels) const {
  uint32_t block = root;
  for (uint32_t level = levels; level > 0 && block < num_blocks_; --level)
    block = entry(block, child(position, level)).load(kRelaxed);
  return block;
}

void Ranks::change_counts(uint32_t ordinal, int32_t change) {
  uint32_t node = ordinal - 1;
  for (Entry* counts : counts_) {
    counts[node].store(counts[node].load(kRelaxed) + static_cast<uint32_t>(change), kRelaxed);
    node /= kFan;
  }
}

void Ranks::push(uint32_t ordinal, uint32_t slot) {
  Chain& chain = this->chain(ordinal);
  const uint32_t position = count(ordinal).load(kRelaxed);
  if (position % kRoom == 0) {
    const uint32_t levels = height(uint64_t{position} + 1);
    if (position == 0) {
      chain.root.store(chain.tail = take_block(), kRelaxed);
    } else if (levels > height(position)) {
      const uint32_t root = take_block();
      entry(root, 0).store(chain.root.load(kRelaxed), kRelaxed);
      chain.root.store(root, kRelaxed);
    }
    uint32_t block = chain.root.load(kRelaxed);
    for (uint32_t level = levels; level > 0; --level) {
      Entry& next = entry(block, child(position, level));
      if (begins_block(position, level)) next.store(take_block(), kRelaxed);
      block = next.load(kRelaxed);
    }
    chain.tail = block;
  }
  entry(chain.tail, position % kRoom).store(slot, kRelaxed);
  places_[slot] = {ordinal, chain.tail * kRoom + position % kRoom};
  RELIVE_FAIL_POINT(rank_pushed);
  change_counts(ordinal, 1);
}

// Frees the last block of a class that now has so many members, and the directories above it that are empty.
void Ranks::drop_tail(uint32_t ordinal, uint32_t members) {
  Chain& chain = this->chain(ordinal);
  const uint32_t position = members;  // of the member that went
  const uint32_t root = chain.root.load(kRelaxed), levels = height(uint64_t{position} + 1);
  uint32_t block = root;
  bool is_empty = position == 0;
  for (uint32_t level = levels; level > 0; --level) {
    const uint32_t next = entry(block, child(position, level)).load(kRelaxed);
    if (is_empty) free_block(block);
    is_empty = is_empty || begins_block(position, level);
    block = next;
  }
  free_block(block);
  if (members == 0) return;
  const uint32_t left = height(members);
  if (left < levels) {
    chain.root.store(entry(root, 0).load(kRelaxed), kRelaxed);
    free_block(root);
  }
  chain.tail = block_of(chain.root.load(kRelaxed), members - 1, left);
}

void Ranks::remove(uint32_t slot) {
  const Place place = places_[slot];
  const uint32_t left = count(place.ordinal).load(kRelaxed) - 1;
  const uint32_t last = entry(chain(place.ordinal).tail, left % kRoom).load(kRelaxed);
  entries_[place.at].store(last, kRelaxed);
  places_[last].at = place.at;
  places_[slot].ordinal = 0;
  RELIVE_FAIL_POINT(rank_removed);
  change_counts(place.ordinal, -1);
  if (left % kRoom == 0) drop_tail(place.ordinal, left);
}

void Ranks::follow(const Tree& tree, const uint64_t* slots, size_t count) {
  // A process died in a change. Recovery ends items before it calls rebuild(), and blocks may be half linked until
  // then.
  if (head_->is_changing.load(kRelaxed) != 0) return;
  head_->is_changing.store(1, kRelaxed);
  release_fence();
  for (size_t begin = 0; begin < count; begin += kTogether) {
    const size_t end = std::min(count, begin + kTogether);
    for (size_t i = begin; i < end; ++i) __builtin_prefetch(places_ + slots[i], 1);
    for (size_t i = begin; i < end; ++i) {
      const Place& place = places_[slots[i]];
      const uint32_t ordinal = ordinal_of(tree.leaf(slots[i]));
      if (place.ordinal == ordinal) continue;
      if (ordinal != 0) __builtin_prefetch(&this->count(ordinal), 1);
      if (place.ordinal == 0) continue;
      __builtin_prefetch(&entries_[place.at], 1);
      // The last member will take the place. Others of the class may go first, so this prefetch is a good guess.
      const uint32_t left = this->count(place.ordinal).load(kRelaxed) - 1;
      __builtin_prefetch(&places_[entry(chain(place.ordinal).tail, left % kRoom).load(kRelaxed)], 1);
    }
    for (size_t i = begin; i < end; ++i) {
      const auto slot = static_cast<uint32_t>(slots[i]);
      const uint32_t before = places_[slot].ordinal, ordinal = ordinal_of(tree.leaf(slot));
      if (before == ordinal) continue;
      if (before != 0) remove(slot);
      if (ordinal != 0) push(ordinal, slot);
    }
  }
  head_->is_changing.store(0, std::memory_order_release);
}

// Builds the directories of a class whose members lie in consecutive blocks from `first` on.
void Ranks::link_blocks(uint32_t ordinal, uint32_t first, uint32_t members) {
  Chain& chain = this->chain(ordinal);
  uint32_t begin = first, blocks = (members - 1) / kRoom + 1;
  chain.tail = first + blocks - 1;
  while (blocks > 1) {
    const uint32_t above = (blocks - 1) / kRoom + 1, next = head_->made;
    head_->made += above;
    for (uint32_t i = 0; i < blocks; ++i) entries_[uint64_t{next} * kRoom + i].store(begin + i, kRelaxed);
    begin = next;
    blocks = above;
  }
  chain.root.store(begin, kRelaxed);
}

void Ranks::copy_members(const Ranks& to) const {
  const auto copy = [](auto* from, auto* into, uint64_t count) {
    std::memcpy(static_cast<void*>(into), static_cast<const void*>(from), count * sizeof *from);
  };
  copy(head_, to.head_, 1);
  copy(counts_[0], to.counts_[0], kSizes[0]);
  copy(chains_, to.chains_, kSizes[0]);
  copy(entries_, to.entries_, uint64_t{head_->made} * kRoom);
}

void Ranks::touch_members() const {
  auto* const first = reinterpret_cast<std::byte*>(head_);
  std::memset(first, 0, static_cast<size_t>(reinterpret_cast<std::byte*>(places_) - first));
  std::memset(static_cast<void*>(entries_), 0, num_blocks_ * kRoom * sizeof(Entry));
}

void Ranks::list_members(std::vector<uint32_t>* order) const {
  for (uint32_t ordinal = 1; ordinal <= kClasses; ++ordinal) {
    const Class one{ordinal, count(ordinal).load(kRelaxed), 0};
    for (uint64_t position = 0; position < one.members; ++position)
      order->push_back(static_cast<uint32_t>(member(one, position)));
  }
}

void Ranks::rebuild(const Tree& tree, const uint32_t* order, size_t num_ordered) {
  head_->is_changing.store(1, kRelaxed);
  release_fence();
  for (uint32_t level = 0; level < kLevels; ++level)
    for (uint32_t i = 0; i < kSizes[level]; ++i) counts_[level][i].store(0, kRelaxed);
  Entry* const counts = counts_[0];
  const Tree::HeldLeaves leaves = tree.held_leaves();
  for (uint64_t slot = 0; slot < num_leaves_; ++slot) {
    const uint32_t ordinal = ordinal_of(leaves[slot]);
    if (ordinal != 0) counts[ordinal - 1].store(counts[ordinal - 1].load(kRelaxed) + 1, kRelaxed);
  }
  head_->free = head_->made = 0;
  // Until link_blocks() runs, tail is the place of the next member.
  for (uint32_t ordinal = 1; ordinal <= kClasses; ++ordinal) {
    chain(ordinal).tail = head_->made * kRoom;
    head_->made += (count(ordinal).load(kRelaxed) + kRoom - 1) / kRoom;
  }
  Chain* const chains = chains_;
  Place* const places = places_;
  Entry* const entries = entries_;
  const auto put = [&](uint64_t slot) {
    const uint32_t ordinal = ordinal_of(leaves[slot]);
    const uint32_t at = ordinal == 0 ? 0 : chains[ordinal - 1].tail++;
    places[slot] = {ordinal, at};
    if (ordinal == 0) return;
    entries[at].store(static_cast<uint32_t>(slot), kRelaxed);
    __builtin_prefetch(entries + at + kALine, 1);
  };
  std::vector<bool> is_put(num_ordered == 0 ? 0 : num_leaves_);
  for (size_t k = 0; k < num_ordered; ++k) {
    if (order[k] >= num_leaves_ || is_put[order[k]]) continue;
    is_put[order[k]] = true;
    put(order[k]);
  }
  for (uint64_t slot = 0; slot < num_leaves_; ++slot)
    if (is_put.empty() || !is_put[slot]) put(slot);
  uint32_t first = 0;
  for (uint32_t ordinal = 1; ordinal <= kClasses; ++ordinal) {
    const uint32_t members = count(ordinal).load(kRelaxed);
    if (members == 0) continue;
    link_blocks(ordinal, first, members);
    first += (members - 1) / kRoom + 1;
  }
  for (uint32_t level = 1; level < kLevels; ++level)
    for (uint32_t i = 0; i < kSizes[level - 1]; ++i)
      counts_[level][i / kFan].store(counts_[level][i / kFan].load(kRelaxed) + counts_[level - 1][i].load(kRelaxed),
                                     kRelaxed);
  head_->is_changing.store(0, std::memory_order_release);
}

uint64_t Ranks::size() const {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < kFan; ++i) sum += counts_[kLevels - 1][i].load(kRelaxed);
  return sum;
}

Ranks::Class Ranks::class_at(uint64_t rank) const {
  uint64_t before = 0;
  uint32_t node = 0;
  for (uint32_t level = kLevels; level-- > 0;) {
    const Entry* const counts = counts_[level];
    const uint32_t end = node * kFan + kFan;
    node *= kFan;
    while (true) {
      if (node == end) return {0, 0, 0};
      const uint64_t through = before + counts[node].load(kRelaxed);
      if (rank < through) break;
      before = through;
      ++node;
    }
  }
  return {node + 1, counts_[0][node].load(kRelaxed), before};
}

uint64_t Ranks::member(const Class& of, uint64_t position) const {
  const uint32_t block = block_of(chain(of.ordinal).root.load(kRelaxed), position, height(of.members));
  if (block >= num_blocks_) return kNoLeaf;
  const uint32_t slot = entry(block, child(position, 0)).load(kRelaxed);
  return slot < num_leaves_ ? slot : kNoLeaf;
}

uint64_t Ranks::blocks_below(uint64_t members) const {
  uint64_t blocks = 0, level = members;
  do {
    level = (level + kRoom - 1) / kRoom;
    blocks += level;
  } while (level > 1);
  return blocks;
}

const char* Ranks::broken(const Tree& tree) const {
  if (head_->is_changing.load(kRelaxed) != 0) return "a process died while classes changed, and they were not rebuilt";
  uint64_t blocks = 0, members = 0;
  for (uint32_t level = 1; level < kLevels; ++level)
    for (uint32_t node = 0; node < kSizes[level]; ++node) {
      uint64_t sum = 0;
      for (uint32_t i = 0; i < kFan; ++i) sum += counts_[level - 1][node * kFan + i].load(kRelaxed);
      if (sum != counts_[level][node].load(kRelaxed)) return "a count of classes differs from those below it";
    }
  for (uint32_t ordinal = 1; ordinal <= kClasses; ++ordinal) {
    const uint32_t count = this->count(ordinal).load(kRelaxed);
    if (count > num_leaves_) return "a class has more members than there are leaves";
    members += count;
    blocks += count == 0 ? 0 : blocks_below(count);
    const Class one{ordinal, count, 0};
    for (uint32_t position = 0; position < count; ++position) {
      const uint64_t slot = member(one, position);
      if (slot == kNoLeaf || places_[slot].ordinal != ordinal) return "a class lists what is not of it";
      if (entries_[places_[slot].at].load(kRelaxed) != slot) return "a member does not stand where it says";
    }
  }
  uint64_t there = 0;
  for (uint64_t slot = 0; slot < num_leaves_; ++slot) {
    const uint32_t ordinal = ordinal_of(tree.leaf(slot));
    there += ordinal != 0 ? 1 : 0;
    if (places_[slot].ordinal != ordinal) return "a leaf stands in another class than that of its priority";
  }
  if (there != members) return "classes have other members than there are items";
  uint64_t num_free = 0;
  for (uint32_t free = head_->free; free != 0 && num_free <= num_blocks_; ++num_free)
    free = free <= num_blocks_ ? entry(free - 1, 0).load(kRelaxed) : 0;
  return blocks + num_free == head_->made ? nullptr : "blocks of classes are neither in use nor free";
}

}  // namespace relive
