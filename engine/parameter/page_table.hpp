// Page table: every parameter's page, and the shards they are gathered from.
//
// Invariants: after construction no parameter holds data but its shard, and residents (page.hpp)
// memory that is to be filled; trainable shards lie side by side in the order of the bucket plan,
// the masters themselves if they have the parameters' type, a copy otherwise; those that are sent
// in another type, and frozen parameters, have shards of their own; an empty parameter has no page.
// Shards are where the parameters are, or on the CPU (offload_param).
// Shapes: shards [plan.shard_numel()] in the parameter dtype; those of their own [shard_numel].
// Errors: none.
// Depends on: parameter/page, parameter/parameters' Context.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "engine/parameter/page.hpp"
#include "engine/parameter/store.hpp"

namespace equigrad::parameter {

class PageTable {
 public:
  explicit PageTable(const Context& context);

  std::vector<Page>& pages() { return pages_; }
  const std::vector<Page>& pages() const { return pages_; }
  std::optional<std::size_t> page_of(std::size_t parameter) const { return page_of_[parameter]; }
  const std::vector<std::optional<std::size_t>>& page_of() const { return page_of_; }
  // Masters into shards: all, or elements [begin, begin + numel).
  void refresh();
  void refresh(int64_t begin, int64_t numel);
  // A frozen parameter's whole into its shard.
  void keep(const Context& context, std::size_t parameter);

 private:
  void adopt(const Context& context, std::size_t parameter);

  // A shard in a type of its own, and where its masters begin.
  struct Rounded {
    int64_t begin;
    at::Tensor shard;
  };

  at::Tensor masters_;
  at::Tensor shards_;
  std::vector<Rounded> rounded_;
  std::vector<Page> pages_;
  std::vector<std::optional<std::size_t>> page_of_;  // by parameter
};

}  // namespace equigrad::parameter
