#include "engine/comm/levels.hpp"

namespace equigrad::comm {

std::vector<Level> levels_of(int world_size, int local_ranks) {
  const bool is_power = local_ranks > 1 && (local_ranks & (local_ranks - 1)) == 0;
  if (!is_power || local_ranks >= world_size || world_size % local_ranks != 0)
    return {{world_size, 1}};
  std::vector<Level> levels{{local_ranks, 1}};
  int stride = local_ranks;
  for (; world_size / stride % 2 == 0; stride *= 2) levels.push_back({2, stride});
  if (stride < world_size) levels.push_back({world_size / stride, stride});
  return levels;
}

}  // namespace equigrad::comm
