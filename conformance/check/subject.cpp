#include "conformance/check/subject.hpp"

#include <ATen/Context.h>
#include <torch/types.h>

#include <map>
#include <mutex>

#include "conformance/cases/device.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad {

namespace conformance {
namespace {

// torch::nn::LinearImpl -> torch.nn.Linear
std::string engine_name(std::string type) {
  for (auto at = type.find("::"); at != std::string::npos; at = type.find("::"))
    type.replace(at, 2, ".");
  if (type.ends_with("Impl")) type.resize(type.size() - 4);
  return type;
}

class ModuleSubject : public Subject {
 public:
  ModuleSubject(std::shared_ptr<torch::nn::Module> module, ModuleForward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}

  void move_to(at::Device device) override { module_->to(device); }

  std::vector<NamedParameter> parameters() override {
    std::vector<NamedParameter> all;
    const auto add = [&](const std::string& prefix, const torch::nn::Module& module) {
      for (const auto& item : module.named_parameters(/*recurse=*/false))
        all.push_back({prefix + item.key(), item.value(), engine_name(module.name())});
    };
    add("", *module_);
    for (const auto& item : module_->named_modules("", /*include_self=*/false))
      add(item.key() + ".", *item.value());
    return all;
  }

  std::vector<std::pair<std::string, at::Tensor>> buffers() override {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& item : module_->named_buffers())
      if (item.value().defined()) all.emplace_back(item.key(), item.value());
    return all;
  }

  Forward forward(const Which& which) override { return forward_(*module_, which); }

  // The way in that users take.
  std::unique_ptr<Engine> make_engine(const std::string& config,
                                      std::shared_ptr<comm::Communicator> group) override {
    return initialize(*module_, config, std::move(group));
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  ModuleForward forward_;
};

}  // namespace

std::unique_ptr<Engine> Subject::make_engine(const std::string& config,
                                             std::shared_ptr<comm::Communicator> group) {
  const auto parsed = load_config(config, group->world_size());
  return initialize({{.parameters = parameters()}}, parsed, std::move(group), modules());
}

std::unique_ptr<Subject> subject_of(std::shared_ptr<torch::nn::Module> module,
                                    ModuleForward forward) {
  return std::make_unique<ModuleSubject>(std::move(module), std::move(forward));
}

MakeSubject subject_maker(UserModel model) {
  return [model = std::move(model)] {
    return subject_of(model.make(),
                      [pass = model.pass](torch::nn::Module& any, const Which& which) {
                        auto [output, gradient] = pass(any, which);
                        return Forward{std::move(output), std::move(gradient)};
                      });
  };
}

void set_generator(uint64_t seed) {
  for (const auto& of : {at::Device(at::kCPU), device()}) {
    auto generator = at::globalContext().defaultGenerator(of);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

std::unique_ptr<Subject> make_seeded(const MakeSubject& make, uint64_t seed) {
  set_generator(seed);
  auto subject = make();
  if (!device().is_cpu()) subject->move_to(device());
  return subject;
}

}  // namespace conformance
}  // namespace equigrad
