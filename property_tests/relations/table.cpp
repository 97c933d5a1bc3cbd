#include "property_tests/relations/table.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace equigrad::property_tests::relations {

const std::vector<Relation>& table() {
  static const std::vector<Relation> all = [] {
    std::vector<Relation> rows;
    for (const auto group : {loss_relations, pass_relations, bounded_relations, reduction_relations,
                             gather_relations, lattice_relations, fingerprint_relations,
                             station_relations, step_relations, checkpoint_relations}) {
      auto some = group();
      std::move(some.begin(), some.end(), std::back_inserter(rows));
    }
    std::sort(rows.begin(), rows.end(),
              [](const Relation& a, const Relation& b) { return a.number < b.number; });
    return rows;
  }();
  return all;
}

std::vector<json> grid() {
  std::vector<json> all;
  for (int i = 0; i < 12; ++i) {
    const int dtype = i % 3;
    const int gases[] = {2, 1, 3, 4};
    const int64_t buckets[] = {20, 1000, 7, 45};
    all.push_back({{"world", 2 + (i / 2) % 3},
                   {"stage", i % 4},
                   {"accumulation", gases[i / 3]},
                   {"dtype", dtype},
                   {"wide_sums", dtype == kFp32 || i % 2 == 0},
                   {"model", i % 5 % 3},
                   {"rule", i / 4},
                   {"clip", i % 2 == 0 ? 0.05 : 0.0},
                   {"decay", 0.1},
                   {"momentum", i % 2 == 0 ? 0.0 : 0.9},
                   {"schedule", {buckets[i % 4], buckets[(i + 1) % 4], 40, i % 2 * 10, 1000, 1000}},
                   {"seed", 100 + 7 * i}});
  }
  // Two ranks of stage 0 gather nothing: relations of gathers whose guard takes the first setting's
  // model only are tried on three ranks of stage 2.
  all.push_back(all[0]);
  all.back().update({{"world", 3}, {"stage", 2}});
  return all;
}

}  // namespace equigrad::property_tests::relations
