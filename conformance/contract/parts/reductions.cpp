// 16. Sums over ranks, and the memory that they travel through.
#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/kernels/exact_tensor.hpp"

namespace equigrad::conformance::contract {
namespace {

using comm::Communicator;
using comm::Reduction;
using comm::Workspace;

// By the page of tree_sum.hpp: neighbours in fp32, an odd last one is carried up.
float added_as_a_tree(std::vector<float> terms) {
  for (; terms.size() > 1;) {
    std::vector<float> next;
    for (std::size_t i = 0; i + 1 < terms.size(); i += 2) next.push_back(terms[i] + terms[i + 1]);
    if (terms.size() % 2 == 1) next.push_back(terms.back());
    terms = std::move(next);
  }
  return terms.front();
}

at::Tensor sums_as_trees(const at::Tensor& contributions, at::ScalarType dtype) {
  const auto terms = contributions.to(at::kFloat).t().contiguous();
  const auto sums = at::empty({terms.size(0)});
  for (int64_t i = 0; i < terms.size(0); ++i) {
    const auto* begin = terms[i].const_data_ptr<float>();
    sums.mutable_data_ptr<float>()[i] =
        added_as_a_tree(std::vector<float>(begin, begin + terms.size(1)));
  }
  return sums.to(dtype);
}

// Of many sizes, so that the order of additions is seen.
at::Tensor drawn_rows(const Play& play, int64_t count, int64_t numel, at::ScalarType dtype) {
  std::mt19937_64 draw(play.context().seed + static_cast<uint64_t>(1000 * count + numel));
  const auto all = at::empty({count, numel});
  for (auto* at = all.mutable_data_ptr<float>(); at != all.mutable_data_ptr<float>() + all.numel();
       ++at) {
    const auto bits = draw();
    *at = std::ldexp(static_cast<float>(bits >> 44) - 524'288.5F, static_cast<int>(bits % 24) - 30);
  }
  return all.to(dtype);
}

// Whole numbers that any order adds to the same; below `most`, so that 16 bits hold their sums.
at::Tensor whole_rows(int64_t count, int64_t numel, at::ScalarType dtype, int64_t most) {
  const auto pattern = at::arange(numel).remainder(most);
  std::vector<at::Tensor> all;
  for (int64_t row = 0; row < count; ++row) all.push_back((pattern * (row + 1)).to(dtype));
  return at::stack(all);
}

struct Summed {
  ReductionOrder order;
  at::Tensor contributions;  // [W, W * n]
  at::Tensor want;           // [W * n], in the type of the result
};

void check_sum(Play& play, Communicator& group, const Summed& one) {
  const int rank = group.rank();
  const auto& want = one.want;
  const auto dtype = want.scalar_type();
  const int64_t numel = want.numel() / group.world_size();
  const std::string of = " of " + std::to_string(want.numel()) + " elements, order " +
                         std::to_string(static_cast<int>(one.order)) + ", " + c10::toString(dtype);
  auto all = Reduction::all_reduce_sum(group, one.order, one.contributions[rank].clone(), dtype);
  auto mine =
      Reduction::reduce_scatter_sum(group, one.order, one.contributions[rank].clone(), dtype);
  const auto into = at::full({numel}, -7, at::TensorOptions(dtype));
  const bool is_native = one.order == ReductionOrder::Native;
  if (numel > 0)
    play.refuse("a sum is written into its own shape and type",
                [&] { mine.finish(at::zeros({numel + 1}, at::TensorOptions(dtype))); });
  play.refuse("a sum is written into its own shape and type", [&] {
    all.finish(at::zeros({numel * group.world_size()}, at::TensorOptions(at::kLong)));
  });
  const auto slice = is_native ? mine.finish() : mine.finish(into);
  play.check("a reduce-scatter" + of, at::equal(slice, want.narrow(0, numel * rank, numel)) &&
                                          slice.scalar_type() == dtype &&
                                          (is_native || slice.is_same(into)));
  const auto into_all = at::full({want.numel()}, -7, at::TensorOptions(dtype));
  const auto sum = is_native ? all.finish() : all.finish(into_all);
  play.check("an all-reduce" + of, at::equal(sum, want) && sum.scalar_type() == dtype &&
                                       (is_native || sum.is_same(into_all)));
  play.refuse("a reduction is finished once", [&] { all.finish(); });
}

void check_pinned(Play& play, Communicator& group) {
  const int world = group.world_size();
  const std::vector<std::pair<at::ScalarType, at::ScalarType>> types = {{at::kFloat, at::kFloat},
                                                                        {at::kBFloat16, at::kFloat},
                                                                        {at::kFloat, at::kBFloat16},
                                                                        {at::kHalf, at::kHalf}};
  for (const auto& [from, to] : types)
    for (const int64_t numel : {0, 1, 19}) {
      const auto terms = drawn_rows(play, world, world * numel, from);
      check_sum(play, group, {ReductionOrder::Pinned, terms, sums_as_trees(terms, to)});
      if (numel == 0) continue;
      const auto whole = whole_rows(world, world * numel, from, 25);
      const auto want = whole.to(at::kFloat).sum(0).to(to);
      check_sum(play, group, {ReductionOrder::Native, whole, want});
    }
}

// A large one, small ones and the large one taken away: what is left is small, and exact. All are
// multiples of 2^-10, so those 30 bits below the large one are kept.
void check_exact(Play& play, Communicator& group) {
  const int world = group.world_size();
  for (const int64_t numel : {1, 19}) {
    const auto drawn = drawn_rows(play, world, world * numel, at::kFloat);
    const auto small = at::ceil(drawn.frac() * 0x1p20F) * 0x1p-10F;
    const auto large = at::full({world * numel}, 0x1p20F);
    auto terms = small.clone();
    if (world > 2) terms[0] = large, terms[world - 1] = -large;
    const auto sum_of = [&](int from, int to) {
      return small.narrow(0, from, to - from).to(at::kDouble).sum(0).to(at::kFloat);
    };
    const auto want = world > 2 ? sum_of(1, world - 1) : sum_of(0, world);
    check_sum(play, group, {ReductionOrder::Exact, terms, want});
    std::vector<at::Tensor> running;
    for (int rank = 0; rank < world; ++rank) {
      const auto sums = kernels::exact_of(large);
      kernels::exact_add_(sums, small[rank]);
      kernels::exact_add_(sums, -large);
      running.push_back(sums);
    }
    check_sum(play, group, {ReductionOrder::Exact, at::stack(running), sum_of(0, world)});
  }
}

// Of more pieces than are on their way at once, and a rest.
void check_pieces(Play& play, Communicator& group) {
  const int world = group.world_size();
  if (world > 2) return;
  const int64_t piece = Reduction::kPieceNumel;
  for (const int64_t row : {piece, piece + 1, (Reduction::kInFlight + 1) * piece + 3}) {
    const auto all = whole_rows(world, row * world, at::kBFloat16, 61);
    const auto want = all[0].to(at::kFloat) * (world * (world + 1) / 2);
    check_sum(play, group, {ReductionOrder::Pinned, all, want});
  }
}

void check_order_of_calls(Play& play, Communicator& group) {
  const int world = group.world_size(), rank = group.rank();
  const auto terms = whole_rows(world, 6 * world, at::kFloat, 25);
  const auto want = terms.sum(0);
  const auto start = [&](double factor) {
    return Reduction::all_reduce_sum(group, ReductionOrder::Pinned, terms[rank] * factor,
                                     at::kFloat);
  };
  auto first = start(1), dropped = start(5), second = start(2);
  const auto twice = second.finish();
  dropped.drop();
  play.check("sums are finished in another order than begun, and one is dropped",
             at::equal(twice, want * 2) && at::equal(first.finish(), want));
  play.refuse("a reduction is finished once", [&] { dropped.finish(); });
  for (const auto& wrong : {at::zeros({world + 1}), at::zeros({1, world})})
    if (world > 1 || wrong.dim() > 1)
      play.refuse("a buffer is flat and padded to a multiple of the ranks", [&] {
        Reduction::all_reduce_sum(group, ReductionOrder::Pinned, wrong, at::kFloat);
      });
}

void sums_over_ranks(Play& play) {
  if (const auto group = play.group()) {
    for (const int64_t count : {1, 2, 3, 5, 8})
      for (const int64_t numel : {1, 17}) {
        const auto terms = drawn_rows(play, count, numel, at::kFloat);
        for (const auto dtype : {at::kFloat, at::kBFloat16})
          play.check("a tree of " + std::to_string(count) + " rows",
                     at::equal(comm::tree_sum(terms, dtype), sums_as_trees(terms, dtype)) &&
                         !play.fault());
      }
    check_pinned(play, *group);
    check_exact(play, *group);
    check_pieces(play, *group);
    check_order_of_calls(play, *group);
  }
  train_along(play);
}

// A block's memory, held so that nobody else gets its address.
at::Tensor given_back(Workspace::Block block) {
  const auto memory = block.tensor();
  block.give_back();
  return memory;
}

void check_reuse(Play& play) {
  Workspace workspace;
  const auto take = [&](int64_t bytes) { return workspace.take(bytes, at::kByte); };
  const auto is_at = [](const Workspace::Block& block, const at::Tensor& memory) {
    return block.tensor().const_data_ptr() == memory.const_data_ptr();
  };
  auto a = take(100), b = take(1000), c = take(10);
  const auto at_a = given_back(std::move(a)), at_b = given_back(std::move(b)),
             at_c = given_back(std::move(c));
  auto small = take(5), exact = take(100), rest = take(101);
  play.check("the smallest that is large enough is used",
             is_at(small, at_c) && is_at(exact, at_a) && is_at(rest, at_b) && !play.fault());
  small.give_back(), small.give_back(), exact.give_back();
  play.check("a block that is given back has no memory", !small.tensor().defined());
  { const auto lost = take(5); }
  auto other = take(5);
  play.check("what was not given back is not used again, what was is used once",
             is_at(other, at_a));
  other.give_back();
  auto larger = take(2000), again = take(50);
  play.check("where none is large enough the smallest makes way", !is_at(again, at_a));
  auto typed = workspace.take(3, at::kDouble), none = workspace.take(0, at::kFloat);
  play.check("blocks have the type and size that were asked for",
             typed.tensor().scalar_type() == at::kDouble && typed.tensor().numel() == 3 &&
                 none.tensor().numel() == 0 && larger.tensor().numel() == 2000);
}

void check_limit(Play& play) {
  constexpr int64_t kMost = Workspace::kKeptBytes;
  play.check("64 MiB are kept", kMost == int64_t{64} << 20);
  Workspace workspace;
  const auto keeps = [&](const at::Tensor& memory) {
    auto block = workspace.take(memory.numel(), at::kByte);
    const bool is_kept = block.tensor().const_data_ptr() == memory.const_data_ptr();
    if (is_kept) block.give_back();
    return is_kept;
  };
  const auto take = [&](int64_t bytes) { return workspace.take(bytes, at::kByte); };
  const auto all = given_back(take(kMost));
  play.check("as much as is kept is kept, again and again", keeps(all) && keeps(all) && keeps(all));
  const auto held = take(kMost);
  play.check("a byte more is not", !keeps(given_back(take(kMost + 1))));
  auto most = take(kMost - 10), little = take(11), fits = take(10);
  const auto at_most = given_back(std::move(most)), at_little = given_back(std::move(little)),
             at_fits = given_back(std::move(fits));
  play.check("nor is what is too much together",
             keeps(at_most) && keeps(at_fits) && !keeps(at_little));
}

void works_in_its_space(Play& play) {
  if (play.group()) {
    check_reuse(play);
    check_limit(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> reductions() {
  const std::string fault = "something else is expected";
  return {of_part("sums_over_ranks", "sums of every order, type and size are those of their pages",
                  fault, sums_over_ranks, Plays::EveryWorld),
          of_part("memory_of_collectives", "memory is used again, once, and within its limit",
                  fault, works_in_its_space, Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
