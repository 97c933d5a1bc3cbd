// Relations 16 and 24 to 30: of sums over ranks.
//
// Lattice probes are networks of small whole numbers in which every intermediate is exact, whatever
// the order of additions, so that every run gives the same bits. The certificate is an analysis of
// widths: a partial sum of products, in any order, is a whole number no larger than the sum of the
// products' magnitudes; the same network on magnitudes, with relu's derivative taken as 1, bounds
// them all, forward and backward, over all micro-batches and ranks. Below 2^p, p the bits of the
// significand, each is a number of the dtype.
//
// Where sums are exact any rank may have any micro-batch, ranks may be passes, at any stage and
// bucket size, and their number may change between two steps.
//
// Invariants: a gradient is compared before clipping wherever the relation changes its size. Losses
// are of one micro-batch, so a gradient does not depend on who computes it. What fp64 computes
// agrees with every element of a lattice, or the certificate is worthless.
// Units: the certificate's are bits.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "conformance/oracle/bits.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

json exact_of(const json& one) { return changed(changed(one, "exact", true), "wide_sums", true); }

// The same micro-batches, dealt out anew, at another stage, in other buckets.
std::string dealt_anew(const json& drawn, Runs& runs) {
  const auto one = exact_of(drawn);
  const int world = world_of(one), accumulation = accumulation_of(one), seed = one.at("seed");
  auto other = changed(one, "stage", (stage_of(one) + 1 + seed % 3) % 4);
  other["schedule"][0] = one.at("schedule").at(0) > 30 ? 7 : 1000;
  Way way;
  way.reversed = true;
  way.source = [=](Source at) {
    const int all = world * accumulation, dealt = (at.micro * world + at.rank + seed) % all;
    return Source{at.step, dealt / accumulation, dealt % accumulation};
  };
  return parted(runs.train(other, way), runs.train(one));
}

Source of_all_ranks(const Source& at, int accumulation) {
  return {at.step, at.micro / accumulation, at.micro % accumulation};
}

std::string exact_ranks_for_passes(const json& drawn, Runs& runs) {
  const auto one = exact_of(drawn);
  const int accumulation = accumulation_of(one), seed = one.at("seed");
  auto many = changed(one, "accumulation", accumulation * world_of(one));
  many["stage"] = (stage_of(one) + seed) % 4;
  Way passes;
  passes.world = 1;
  passes.source = [accumulation](Source at) { return of_all_ranks(at, accumulation); };
  return parted(runs.train(many, passes), runs.train(one));
}

// One step on all ranks; masters and states are read, and a new engine on one rank goes on.
std::string ranks_change(const json& drawn, Runs& runs) {
  auto one = exact_of(drawn);
  if (is_fp16(one)) return "";  // a new engine has a new loss scale
  one["rule"] = 0;              // its states say all: Adam counts steps, too
  one["momentum"] = 0.9;
  const auto whole = runs.train(one);
  const int accumulation = accumulation_of(one);
  Way later;
  later.world = 1;
  later.source = [accumulation](Source at) { return of_all_ranks(at, accumulation); };
  std::map<std::string, at::Tensor> momenta;
  {
    Session before(one, runs.context, {});
    before.step(0);
    for (const auto& [name, tensor, module] : before.network.parameters) {
      if (!tensor.requires_grad() || tensor.numel() == 0) continue;
      later.start[name] = before.engine->access().full_master(name);
      momenta[name] = before.engine->access().full_optimizer_state(name, "momentum_buffer");
    }
  }
  if (runs.context.rank() > 0) return "";
  Session after(changed(one, "accumulation", accumulation * world_of(one)), runs.context, later);
  for (const auto& [name, momentum] : momenta) {
    if (name == "unused") continue;
    after.engine->access().set_full_optimizer_state(name, "momentum_buffer", momentum);
  }
  after.step(1);
  return parted(after.finish(), whole,
                [](const std::string& key) { return key.starts_with("2 "); });
}

// The first of them that is broken. All are tried: other ranks may see only a later one, and meet.
std::string first_of(const json& one, Runs& runs,
                     const std::vector<std::string (*)(const json&, Runs&)>& checks) {
  std::string first;
  for (const auto check : checks) {
    const auto wrong = check(one, runs);
    if (first.empty() && wrong != kDoesNotApply) first = wrong;
  }
  return first;
}

// First gradients, by name, in fp64, summed over ranks and micro-batches.
class Lattice {
 public:
  // `magnitudes`: of absolute values, an upper bound of every intermediate's magnitude.
  Lattice(const json& one, bool magnitudes) : network_(one), magnitudes_(magnitudes) {
    for (int rank = 0; rank < world_of(one); ++rank)
      for (int micro = 0; micro < accumulation_of(one); ++micro) add({0, rank, micro});
    for (const auto& [name, sum] : sums) see(sum);
  }
  std::map<std::string, at::Tensor> sums;
  double largest = 0;

 private:
  at::Tensor wide(const at::Tensor& x) const {
    const auto y = x.detach().to(at::kDouble);
    return magnitudes_ ? y.abs() : y;
  }
  const at::Tensor& see(const at::Tensor& x) {
    largest = std::max(largest, x.abs().max().item<double>());
    return x;
  }
  void add(const Source& from) {
    const auto x = see(wide(network_.input(from, at::kFloat))),
               up = see(wide(network_.target(from)));
    const auto first = wide(network_["first"]), second = wide(network_["second"]);
    const auto before = see(x.matmul(first.t()) + wide(network_["bias"]));
    const auto hidden = before.clamp_min(0);
    see(hidden.matmul(second.t()) + wide(network_["last bias"]));
    auto down = see(up.matmul(second));
    if (!magnitudes_) down = down * (before > 0);
    sum("second", up.t().matmul(hidden));
    sum("last bias", up.sum(0));
    sum("first", down.t().matmul(x));
    sum("bias", down.sum(0));
  }
  void sum(const std::string& name, const at::Tensor& gradient) {
    auto& sum = sums[name];
    sum = sum.defined() ? sum + gradient : gradient;
  }

  ProbeNetwork network_;
  bool magnitudes_;
};

int significand_bits(const json& one) { return one.at("dtype") == kBf16 ? 8 : 24; }

json lattice_of(const json& one) {
  return changed(changed(changed(one, "model", kLattice), "clip", 0.0), "decay", 0.0);
}
bool is_certified(const json& one) {
  return Lattice(lattice_of(one), true).largest <= std::ldexp(1.0, significand_bits(one));
}

// Every element is what fp64 says, times the one factor that is rounded.
std::string against_fp64(const json& one, const Record& got) {
  const auto sums = Lattice(one, false).sums;
  const auto factor = static_cast<float>(1.0 / (accumulation_of(one) * world_of(one)));
  for (const auto& [name, sum] : sums) {
    const auto& shard = got.gradients.at(name);
    const auto want = sum.flatten().slice(0, shard.begin, shard.end).to(at::kFloat) * factor;
    const auto report = conformance::oracle::compare(shard.gradient.flatten(), want);
    if (!report.equal()) return name + ", against fp64: " + describe(report);
  }
  return "";
}

std::string any_order(const json& drawn, Runs& runs) {
  const auto one = lattice_of(drawn);
  const int world = world_of(one), accumulation = accumulation_of(one), seed = one.at("seed");
  Way plain, other;
  plain.steps = other.steps = 1;
  other.source = [=](Source at) {
    return Source{at.step, (at.rank + seed) % world, (at.micro + seed) % accumulation};
  };
  other.reversed = true;
  const auto want = runs.train(one, plain);
  auto wrong = against_fp64(one, want);
  if (!wrong.empty()) return wrong;
  auto changes = changed(changed(one, "stage", (stage_of(one) + 1 + seed % 3) % 4), "native", true);
  changes["schedule"][0] = 1 + seed % 40;
  return parted(runs.train(changes, other), want, is_gradient);
}

// So many micro-batches more on so many ranks fewer.
std::string ranks_for_passes(const json& drawn, Runs& runs) {
  const auto one = lattice_of(drawn);
  const int accumulation = accumulation_of(one);
  Way ranks, passes;
  ranks.steps = passes.steps = 1;
  passes.world = 1;
  passes.source = [accumulation](Source at) {
    return Source{at.step, at.micro / accumulation, at.micro % accumulation};
  };
  const auto alone = runs.train(changed(one, "accumulation", accumulation * world_of(one)), passes);
  return parted(alone, runs.train(one, ranks), is_gradient);
}

std::string other_stage(const json& one, Runs& runs) {
  const int stage = stage_of(one), seed = one.at("seed");
  const int other = accumulation_of(one) == 1 ? (stage + 1 + seed % 3) % 4 : stage ^ 1;
  return parted(runs.train(changed(one, "stage", other)), runs.plain());
}

std::string other_buckets(const json& one, Runs& runs) {
  auto other = one;
  other["schedule"][0] = one.at("schedule").at(0) > 30 ? 7 : 1000;
  Way way;
  way.reversed = true;
  return parted(runs.train(other, way), runs.plain());
}

std::string neighbours(const json& one, Runs& runs) {
  Way way;
  way.source = [](Source at) { return Source{at.step, at.rank ^ 1, at.micro}; };
  return parted(runs.train(one, way), runs.plain());
}

std::string same_data(const json& one, Runs& runs) {
  Way same, alone;
  same.source = alone.source = [](Source at) { return Source{at.step, 0, at.micro}; };
  alone.world = 1;
  return parted(runs.train(one, alone), runs.train(one, same));
}

std::string one_rank(const json& one, Runs& runs) {
  const auto setting = unclipped(one);
  const int only = one.at("seed").get<int>() % world_of(one);
  Way of_all, alone;
  of_all.steps = alone.steps = 1;
  of_all.pass = [only](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) * (from.rank == only ? 1.0 : 0.0));
  };
  of_all.factor = world_of(one);
  alone.source = [only](Source at) { return Source{at.step, only, at.micro}; };
  alone.world = 1;
  return parted(runs.train(setting, alone), runs.train(setting, of_all), is_gradient);
}

}  // namespace

std::vector<Relation> lattice_relations() {
  const auto certified = [](const json& one) { return !is_fp16(one) && is_certified(one); };
  return {
      {16,
       "on a lattice any order gives the bits of fp64",
       Class::Exact,
       certified,
       any_order,
       {"shard_off_by_one"}},
      {30,
       "passes may be ranks, on a lattice or where sums are exact",
       Class::Guarded,
       [](const json& one) { return world_of(one) > 1; },
       [certified](const json& one, Runs& runs) {
         if (!certified(one)) return first_of(one, runs, {exact_ranks_for_passes, ranks_change});
         return first_of(one, runs, {ranks_for_passes, exact_ranks_for_passes, ranks_change});
       },
       {"averaged_twice"}},
  };
}

std::vector<Relation> reduction_relations() {
  const auto pairs = [](const json& one) { return world_of(one) == 2 || world_of(one) == 4; };
  return {
      {24,
       "stages agree: all with one micro-batch, otherwise 0 with 1 and 2 with 3",
       Class::Exact,
       always,
       other_stage,
       {"tail", "norm of shards"}},
      {25,
       "bucket size and the order of parameters change nothing",
       Class::Exact,
       always,
       other_buckets,
       {"later slots"}},
      {26,
       "neighbouring ranks may change their data, all of them where sums are exact",
       Class::Guarded,
       [](const json& one) { return world_of(one) > 1; },
       [pairs](const json& one, Runs& runs) {
         if (!pairs(one)) return dealt_anew(one, runs);
         return first_of(one, runs, {neighbours, dealt_anew});
       },
       {"micro_batch_dropped"}},
      {28,
       "the same data on every rank train as on one rank",
       Class::Guarded,
       pairs,
       same_data,
       {"averaged_twice"}},
      {29,
       "the gradient of one rank alone is averaged to its share",
       Class::Guarded,
       pairs,
       one_rank,
       {"averaged_twice"}},
  };
}

}  // namespace equigrad::property_tests::relations
