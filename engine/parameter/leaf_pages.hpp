// Leaf pages: which pages come and go together, those of a leaf module.
//
// Invariants: a page is in one leaf at most; whole() keeps the order of what it is given, with a
// leaf's other pages right behind the first of them; without leaves it changes nothing.
// Shapes: none.   Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace equigrad::parameter {

class LeafPages {
 public:
  // `leaves` of parameters; `page_of` by parameter, nothing for one without a page.
  LeafPages(const std::vector<std::vector<std::size_t>>& leaves,
            const std::vector<std::optional<std::size_t>>& page_of, std::size_t pages);

  std::optional<std::size_t> leaf_of(std::size_t page) const { return leaf_of_[page]; }
  // These pages and all that come with them, each once.
  std::vector<std::size_t> whole(const std::vector<std::size_t>& pages) const;

  // The operators of a leaf in a row are one use of all its pages, however many there are: that may
  // depend on data.
  struct Next {
    std::vector<std::size_t> uses;  // of pages, that this operator begins
    std::vector<std::size_t> left;  // pages of a leaf that is over
  };
  // Of an operator that reads these pages, which are whole().
  Next next(const std::vector<std::size_t>& pages);
  void end_cycle() { leaf_.reset(); }

 private:
  std::vector<std::vector<std::size_t>> pages_;      // by leaf
  std::vector<std::optional<std::size_t>> leaf_of_;  // by page
  std::optional<std::size_t> leaf_;                  // of the operator before
};

}  // namespace equigrad::parameter
