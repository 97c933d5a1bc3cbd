#include "conformance/faults/fault.hpp"

#include <algorithm>

#include "conformance/faults/fault_groups.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::faults {
namespace {

std::vector<Fault> all_groups() {
  std::vector<Fault> all;
  for (const auto group :
       {comm_faults, layout_faults, bucket_faults, reduction_faults, gradient_faults, loss_faults,
        shard_faults, optimizer_faults, schedule_faults, parameter_faults, parallel_faults,
        sequence_faults, completion_faults, checkpoint_faults, mutant_faults}) {
    auto faults = group();
    std::move(faults.begin(), faults.end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

const std::vector<std::string> kSeams = {"communicator", "partition",  "bucket",     "reduction",
                                         "accumulation", "loss_scale", "clip",       "optimizer",
                                         "parameter",    "parallel",   "completion", "checkpoint"};
const std::vector<std::string> kPhases = {"forward", "gradient",  "norm", "clip",
                                          "update",  "parameter", "scale"};

nlohmann::json Act::to_json() const {
  return {{"times", times},
          {"step", first.step},
          {"micro_batch", first.micro_batch},
          {"parameters", parameters}};
}

FaultContext::FaultContext(int rank, int world_size, std::shared_ptr<const Moment> moment,
                           std::vector<std::string> parameters)
    : rank_(rank),
      world_size_(world_size),
      moment_(std::move(moment)),
      parameters_(std::move(parameters)) {}

void FaultContext::acted() {
  if (act_.times++ == 0) act_.first = *moment_;
}

void FaultContext::acted_on(std::size_t parameter) {
  acted();
  const bool is_first =
      act_.first.step == moment_->step && act_.first.micro_batch == moment_->micro_batch;
  if (is_first && parameter < parameters_.size()) act_.parameters.insert(parameters_[parameter]);
}

const std::vector<Fault>& catalogue() {
  static const std::vector<Fault> faults = all_groups();
  return faults;
}

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const auto& fault : catalogue()) names.push_back(fault.name);
  return names;
}

const Fault& fault_named(const std::string& name) {
  const auto found = std::find_if(catalogue().begin(), catalogue().end(),
                                  [&](const Fault& fault) { return fault.name == name; });
  if (found != catalogue().end()) return *found;
  throw Error("faults", "expected the name of a fault, got \"" + name +
                            "\". equigrad list --faults has all names.");
}

Planted::Planted(const std::string& name, int rank, int world_size,
                 std::shared_ptr<const Moment> moment, std::vector<std::string> parameters)
    : fault_(fault_named(name)),
      context_(rank, world_size, std::move(moment), std::move(parameters)) {
  if (fault_.plant) fault_.plant(context_);
}

Planted::~Planted() { seams() = {}; }

std::shared_ptr<comm::Communicator> Planted::wrap(std::shared_ptr<comm::Communicator> real) {
  return fault_.wrap ? fault_.wrap(std::move(real), context_) : real;
}

}  // namespace equigrad::conformance::faults
