#include "relive/read/row_source.hpp"

#include <algorithm>

#include "relive/index/leaves.hpp"

namespace relive {

Status FrameSource::read(const GatherPlan& plan, Window* windows, const uint32_t* which, size_t count, size_t batch,
                         Runs* runs, std::byte* const* out) {
  locate(r_, plan, windows, which, std::min(count, kBlock));
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t size = std::min(kBlock, count - begin);
    const size_t after = begin + size;
    locate(r_, plan, windows, which + after, std::min(kBlock, count - after));
    resolve(r_, plan, windows, which + begin, size, runs);
    copy_rows(r_, plan, windows, *runs, which + begin, size, batch, out);
  }
  return {};
}

size_t look_up(const Region& r, uint32_t index, const int64_t* keys, Window* windows, uint32_t* which, size_t count) {
  const Leaves leaves(r, index);
  const ItemMap map = r.map(index);
  size_t found = 0;
  for (size_t k = 0; k < count; ++k) {
    const uint32_t i = which[k];
    Window& w = windows[i];
    w.word = map.word_of(w.slot, r.key_generation(keys[i]));
    w.ok = w.word != 0 && leaves.is_published(w.slot);
    if (w.ok) which[found++] = i;
  }
  return found;
}

}  // namespace relive
