#include "engine/parameter/leaf_pages.hpp"

#include <algorithm>

namespace equigrad::parameter {

LeafPages::LeafPages(const std::vector<std::vector<std::size_t>>& leaves,
                     const std::vector<std::optional<std::size_t>>& page_of, std::size_t pages)
    : leaf_of_(pages) {
  for (const auto& leaf : leaves) {
    std::vector<std::size_t> together;
    for (const std::size_t parameter : leaf)
      if (const auto page = page_of[parameter]) together.push_back(*page);
    if (together.size() < 2) continue;
    for (const std::size_t page : together) leaf_of_[page] = pages_.size();
    pages_.push_back(std::move(together));
  }
}

std::vector<std::size_t> LeafPages::whole(const std::vector<std::size_t>& pages) const {
  if (pages_.empty()) return pages;
  std::vector<std::size_t> all;
  std::vector<bool> taken(leaf_of_.size(), false);
  const auto take = [&](std::size_t page) {
    if (!taken[page]) all.push_back(page);
    taken[page] = true;
  };
  for (const std::size_t page : pages) {
    take(page);
    if (!leaf_of_[page]) continue;
    for (const std::size_t mate : pages_[*leaf_of_[page]]) take(mate);
  }
  return all;
}

LeafPages::Next LeafPages::next(const std::vector<std::size_t>& pages) {
  Next next;
  const auto before = leaf_;
  bool stays = !before;
  for (const std::size_t page : pages) {
    leaf_ = leaf_of_[page];
    if (leaf_ && leaf_ == before)
      stays = true;
    else
      next.uses.push_back(page);
  }
  if (!stays) next.left = pages_[*before];
  return next;
}

}  // namespace equigrad::parameter
