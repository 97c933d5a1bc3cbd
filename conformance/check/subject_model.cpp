#include "conformance/check/subject_model.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <map>
#include <set>
#include <utility>

#include "conformance/on_rank/backward.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

uint64_t seed_of(const PassSetting& setting, const Pass& pass) {
  uint64_t seed = reference::hash(setting.seed);
  for (const int part : {pass.step, pass.rank, pass.micro_batch})
    seed = reference::hash(seed ^ static_cast<uint64_t>(part));
  return seed;
}

// torch.nn.Linear -> torch::nn::LinearImpl, as the reference knows classes.
std::string class_name(std::string type) {
  const bool is_torch = type.starts_with("torch.nn.");
  for (auto at = type.find('.'); at != std::string::npos; at = type.find('.'))
    type.replace(at, 1, "::");
  return is_torch ? type + "Impl" : type;
}

class Shell : public reference::Model {
 public:
  explicit Shell(const std::string& type) : reference::Model(type) {}
  at::Tensor output(const reference::Batch&) override { return {}; }
  at::Tensor criterion(const at::Tensor&, const reference::Batch&) override { return {}; }
};

// One rank's buffers are those of the subject while it runs.
class SubjectCaseModel : public CaseModel {
 public:
  SubjectCaseModel(std::unique_ptr<Subject> subject, const PassSetting& setting)
      : subject_(std::move(subject)),
        setting_(setting),
        shell_(shell_of(*subject_)),
        made_(copy_buffers(*subject_)) {}

  std::shared_ptr<reference::Model> model() override { return shell_; }

  Forward forward(const Pass& pass, at::ScalarType dtype) override {
    if (pass.rank != running_) {
      auto values = buffers(pass.rank);
      buffers_[running_] = copy_buffers(*subject_);
      put(values);
      running_ = pass.rank;
    }
    return seeded_forward(*subject_, setting_, pass, dtype);
  }

  // A backward pass may change them too, where it runs a forward again.
  reference::TensorMap buffers(int rank) override {
    if (rank == running_) return copy_buffers(*subject_);
    const auto found = buffers_.find(rank);
    return found == buffers_.end() ? made_ : found->second;
  }
  void set_buffers(int rank, const reference::TensorMap& values) override {
    if (rank == running_)
      put(values);
    else
      buffers_[rank] = values;
  }

 private:
  void put(const reference::TensorMap& values) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, buffer] : subject_->buffers()) {
      const auto value = values.find(name);
      if (value != values.end()) buffer.copy_(value->second.view_as(buffer));
    }
  }

  std::unique_ptr<Subject> subject_;
  PassSetting setting_;
  std::shared_ptr<reference::Model> shell_;
  reference::TensorMap made_;
  int running_ = 0;                              // the rank whose buffers are the subject's now
  std::map<int, reference::TensorMap> buffers_;  // of the others that have run
};

class SubjectRankModel : public RankModel {
 public:
  SubjectRankModel(std::unique_ptr<Subject> subject, const PassSetting& setting,
                   const RankPasses& passes)
      : subject_(std::move(subject)), setting_(setting), passes_(passes) {}

  std::vector<NamedTensors> groups() override {
    NamedTensors all;
    std::set<const void*> seen;
    for (const auto& parameter : subject_->parameters())
      if (seen.insert(parameter.tensor.unsafeGetTensorImpl()).second)
        all.emplace_back(parameter.name, parameter.tensor);
    return {all};
  }

  std::unique_ptr<Engine> make_engine(const std::string& config, comm::Mesh ranks) override {
    return subject_->make_engine(config, ranks.world());
  }

  // Of the model's own forward nothing is judged but that the guard around it leaves autocast as it
  // was; of a backward pass, in which code of the model's may run, all but what it draws.
  at::Tensor run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) override {
    const auto forward = caller.around(
        "a forward pass and its autocast()", {Share::Setting, Share::Generator, Share::Callback},
        [&] {
          auto guard =
              caller.around("autocast()", {Share::Autocast}, [&] { return engine.autocast(); });
          auto result = seeded_forward(*subject_, setting_, pass, passes_.dtype);
          caller.around("the end of autocast()", {Share::Autocast}, [&] { guard.reset(); });
          return result;
        });
    const auto loss = forward.loss();
    caller.around("a backward pass", {Share::Generator}, [&] {
      if (forward.gradient.defined())
        backward_of_output(engine, forward);
      else
        backward_of_loss(engine, forward.output);
    });
    return loss;
  }

  reference::TensorMap buffers() override { return copy_buffers(*subject_); }

 private:
  void backward_of_output(Engine& engine, const Forward& forward) {
    if (passes_.style != Style::TensorBackward && passes_.style != Style::LossBackward)
      throw Error("check", "expected a loss for the call style " + word(passes_.style) +
                               ", got an output and its gradient. Choose tensor_backward.");
    const auto gradient = passes_.is_scaled ? reference::widen(forward.gradient) : forward.gradient;
    if (passes_.style == Style::TensorBackward || passes_.is_scaled)
      engine.scale(forward.output).backward(gradient);
    else
      at::Tensor(forward.output).backward(gradient);
  }

  void backward_of_loss(Engine& engine, const at::Tensor& loss) {
    if (passes_.style == Style::EngineBackward) {
      engine.backward(loss);
    } else if (passes_.style == Style::ScaleBackward) {
      engine.scale(loss).backward();
    } else if (passes_.style == Style::TensorBackward) {
      const auto scaled = engine.scale(loss);
      scaled.backward(at::ones_like(scaled));
    } else if (passes_.is_scaled) {
      require_refusal(loss);
      torch::autograd::backward({engine.scale(loss)});
    } else {
      loss.backward();
    }
  }

  std::unique_ptr<Subject> subject_;
  PassSetting setting_;
  RankPasses passes_;
};

// What a twin's file can hold; undefined: it cannot.
at::Tensor storable(const at::Tensor& tensor) {
  if (tensor.is_complex()) return {};
  if (tensor.is_floating_point() || tensor.scalar_type() == at::kByte) return tensor.clone();
  return tensor.to(tensor.scalar_type() == at::kBool ? at::kByte : at::kLong, false, /*copy=*/true);
}

}  // namespace

Forward seeded_forward(Subject& subject, const PassSetting& setting, const Pass& pass,
                       at::ScalarType dtype) {
  const Which which{.step = pass.step,
                    .rank = pass.rank,
                    .micro_batch = pass.micro_batch,
                    .world = setting.world,
                    .dtype = dtype,
                    .seed = seed_of(setting, pass),
                    .device = device()};
  set_generator(which.seed);
  auto forward = subject.forward(which);
  const OverflowingBatch now{pass.step, pass.rank, pass.micro_batch};
  if (setting.overflowing != now) return forward;
  if (forward.gradient.defined())
    forward.gradient = reference::widen(forward.gradient) * kOverflowFactor;
  else
    forward.output = reference::widen(forward.output) * kOverflowFactor;
  return forward;
}

reference::TensorMap copy_buffers(Subject& subject) {
  const at::NoGradGuard no_grad;
  reference::TensorMap copies;
  for (const auto& [name, buffer] : subject.buffers()) {
    auto copy = storable(buffer.detach());
    if (copy.defined()) copies[name] = std::move(copy);
  }
  return copies;
}

std::shared_ptr<reference::Model> shell_of(Subject& subject) {
  const auto parameters = subject.parameters();
  std::map<std::string, std::string> types;  // by the module's name
  const auto split = [](const std::string& name) {
    const auto dot = name.rfind('.');
    return dot == std::string::npos ? std::pair{std::string(), name}
                                    : std::pair{name.substr(0, dot), name.substr(dot + 1)};
  };
  for (const auto& parameter : parameters)
    types[split(parameter.name).first] = class_name(parameter.module_type);
  std::map<std::string, std::shared_ptr<torch::nn::Module>> modules;
  const auto root = std::make_shared<Shell>(types[""]);
  modules[""] = root;
  const auto module_at = [&](const std::string& path, const auto& self) -> torch::nn::Module& {
    auto& module = modules[path];
    if (module) return *module;
    module = std::make_shared<torch::nn::Module>(types[path]);
    const auto [parent, name] = split(path);
    self(parent, self).register_module(name, module);
    return *modules.at(path);
  };
  for (const auto& parameter : parameters) {
    const auto [path, name] = split(parameter.name);
    module_at(path, module_at)
        .register_parameter(name, parameter.tensor, parameter.tensor.requires_grad());
  }
  for (const auto& [full_name, buffer] : subject.buffers()) {
    const auto [path, name] = split(full_name);
    module_at(path, module_at).register_buffer(name, buffer);
  }
  return root;
}

MakeCaseModel case_model_of(const MakeSubject& make, const PassSetting& setting) {
  return [make, setting] {
    return std::make_unique<SubjectCaseModel>(make_seeded(make, setting.seed), setting);
  };
}

std::unique_ptr<RankModel> rank_model_of(std::unique_ptr<Subject> subject,
                                         const PassSetting& setting, const RankPasses& passes) {
  return std::make_unique<SubjectRankModel>(std::move(subject), setting, passes);
}

}  // namespace equigrad::conformance
