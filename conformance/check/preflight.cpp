#include "conformance/check/preflight.hpp"

#include <ATen/ATen.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "conformance/cases/device.hpp"
#include "conformance/check/check.hpp"
#include "conformance/check/operators.hpp"
#include "conformance/oracle/digest.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance {
namespace {

using Digests = std::map<std::string, uint64_t>;

uint64_t digest_of(const at::Tensor& tensor) {
  return oracle::digest("", 0, 0, tensor.detach().cpu());
}

[[noreturn]] void refuse(const std::string& expected, const std::string& got,
                         const std::string& remedy) {
  throw CheckRefused("check", "expected " + expected + ", got " + got + ". " + remedy);
}

std::vector<NamedParameter> unique(Subject& subject) {
  std::vector<NamedParameter> all;
  std::set<const void*> seen;
  for (const auto& parameter : subject.parameters())
    if (seen.insert(parameter.tensor.unsafeGetTensorImpl()).second) all.push_back(parameter);
  return all;
}

std::string shape_text(const at::Tensor& tensor) {
  std::string text = "[";
  for (const auto size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "] " + c10::toString(tensor.scalar_type());
}

void require_same_model(Subject& first, Subject& second) {
  const auto a = first.parameters(), b = second.parameters();
  const std::string remedy =
      "The factory is called once on every rank: it must not depend on "
      "anything but the generator that was seeded before it.";
  if (a.size() != b.size())
    refuse("the same model of every call of the factory",
           std::to_string(a.size()) + " parameters, then " + std::to_string(b.size()), remedy);
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].name != b[i].name)
      refuse("the same model of every call of the factory",
             "the parameter " + a[i].name + ", then " + b[i].name + " in its place", remedy);
    if (shape_text(a[i].tensor) != shape_text(b[i].tensor))
      refuse("the same model of every call of the factory",
             a[i].name + " of " + shape_text(a[i].tensor) + ", then of " + shape_text(b[i].tensor),
             remedy);
    if (digest_of(a[i].tensor) != digest_of(b[i].tensor))
      refuse("the same weights of every call of the factory, whose seed is set before it",
             "other values in " + a[i].name,
             "Draw initial weights from torch's generator, or from a seed of your own.");
  }
}

void require_trainable(Subject& subject) {
  bool has_any = false;
  for (const auto& [name, tensor, type] : subject.parameters()) {
    if (!tensor.requires_grad()) continue;
    has_any = true;
    if (tensor.scalar_type() != at::kFloat)
      refuse(
          "parameters that train in fp32, which the engine converts",
          name + " of " + shape_text(tensor),
          "Convert the model first (in Python: model.float()); precisions or the configuration say "
          "what it is trained in.");
  }
  if (!has_any)
    refuse("a parameter that trains", "a model of which none requires a gradient",
           "Set requires_grad on what is to be trained.");
}

void require_loss(const Forward& forward) {
  const auto& output = forward.output;
  if (!output.defined()) refuse("a loss", "an undefined tensor", "Return the loss.");
  if (!forward.gradient.defined() && output.numel() != 1)
    refuse("a loss of one element", "a tensor of " + shape_text(output),
           "Reduce it (mean or sum), or return the output with its gradient.");
  if (forward.gradient.defined() && forward.gradient.sizes() != output.sizes())
    refuse("a gradient of its output's shape " + shape_text(output), shape_text(forward.gradient),
           "Return d loss / d output.");
  if (!output.requires_grad())
    refuse("a loss with a graph to the parameters", "a tensor that requires no gradient",
           "Compute it from the model's output, without detach() and without NoGradGuard.");
  const double loss = forward.loss().item<double>();
  if (!std::isfinite(loss))
    refuse("a finite loss on the weights as they are made", std::to_string(loss),
           "Look at the data and the initial weights.");
}

// A pass on the weights as they were made, with the generator of the first pass.
class Looker {
 public:
  Looker(const MakeSubject& make, const CheckCase& widest)
      : subject_(make_seeded(make, widest.seed)),
        setting_(setting_of(widest)),
        made_(copy_buffers(*subject_)),
        parameters_(unique(*subject_)) {
    setting_.overflowing.reset();
  }

  Subject& subject() { return *subject_; }

  // The loss and every gradient, by name; "" is the loss.
  Digests run(const Pass& pass) {
    const at::AutoGradMode gradients(true);
    restore();
    for (const auto& parameter : parameters_) at::Tensor(parameter.tensor).mutable_grad().reset();
    const Which which{.step = pass.step,
                      .rank = pass.rank,
                      .micro_batch = pass.micro_batch,
                      .world = setting_.world,
                      .dtype = at::kFloat,
                      .seed = setting_.seed,
                      .device = device()};
    set_generator(which.seed);
    const auto forward = subject_->forward(which);
    require_loss(forward);
    gives_loss_ = !forward.gradient.defined();
    plain_backward(forward, 1);
    Digests digests = {{"", digest_of(forward.loss())}};
    for (const auto& parameter : parameters_) {
      const auto& gradient = parameter.tensor.grad();
      if (gradient.defined()) digests[parameter.name] = digest_of(gradient);
    }
    return digests;
  }

  bool gives_loss() const { return gives_loss_; }
  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 private:
  void restore() {
    const at::NoGradGuard no_grad;
    for (const auto& [name, buffer] : subject_->buffers()) {
      const auto value = made_.find(name);
      if (value != made_.end()) buffer.copy_(value->second.view_as(buffer));
    }
  }

  std::unique_ptr<Subject> subject_;
  PassSetting setting_;
  reference::TensorMap made_;
  std::vector<NamedParameter> parameters_;
  bool gives_loss_ = true;
};

std::string first_of(const Digests& a, const Digests& b) {
  const auto loss = a.at("") != b.at("");
  if (loss) return "the loss";
  for (const auto& [name, digest] : a)
    if (!b.contains(name) || b.at(name) != digest) return "the gradient of " + name;
  for (const auto& [name, digest] : b)
    if (!a.contains(name)) return "the gradient of " + name;
  return {};
}

void require_determinism(Looker& first, Looker& second) {
  Digests a, b;
  const OperatorTrace of_first([&] { a = first.run({}); });
  const OperatorTrace of_second([&] { b = second.run({}); });
  const auto differing = first_of(a, b);
  if (differing.empty()) return;
  const auto name = first_difference(of_first, of_second);
  refuse("the same numbers of the same pass, run twice under one seed",
         differing + " in two ways; the first operator that gave another result is " +
             (name.empty() ? "none of torch's" : name),
         "Draw random numbers from torch's own generator, or from one that you seed with step, "
         "rank and micro-batch, never with a clock, random_device or a count; and take operators "
         "that are deterministic.");
}

// Digests by [rank][micro_batch].
using AllDigests = std::vector<std::vector<Digests>>;

AllDigests run_all(Looker& looker, int world, int micro_batches) {
  AllDigests all(static_cast<std::size_t>(world));
  for (int rank = 0; rank < world; ++rank)
    for (int index = 0; index < micro_batches; ++index)
      all[static_cast<std::size_t>(rank)].push_back(looker.run({0, rank, index}));
  return all;
}

// The same batch everywhere hides a lost, doubled or swapped contribution.
void require_batches(const AllDigests& all) {
  const auto& first = all.front();
  const std::string remedy =
      "Let the batch depend on the rank and the micro-batch: a check on equal batches does "
      "not see a contribution that is lost, doubled or another rank's.";
  const bool equal_ranks = all.size() > 1 && std::all_of(all.begin(), all.end(),
                                                         [&](const auto& r) { return r == first; });
  if (equal_ranks)
    refuse("batches that differ from rank to rank",
           "equal losses and gradients on all " + std::to_string(all.size()) + " ranks", remedy);
  const bool equal_micro_batches =
      first.size() > 1 && std::all_of(all.begin(), all.end(), [](const auto& rank) {
        return std::all_of(rank.begin(), rank.end(),
                           [&](const Digests& one) { return one == rank.front(); });
      });
  if (equal_micro_batches)
    refuse("batches that differ from micro-batch to micro-batch",
           "equal losses and gradients in all " + std::to_string(first.size()) + " of every rank",
           remedy);
}

// One forward pass of the model in the precision's own dtype, by torch alone.
void require_forward_in(const MakeSubject& make, const CheckCase& one, at::ScalarType dtype) {
  const auto subject = make_seeded(make, one.seed);
  const at::NoGradGuard no_grad;
  for (const auto& parameter : unique(*subject))
    at::Tensor(parameter.tensor).set_data(parameter.tensor.to(dtype));
  try {
    seeded_forward(*subject, {.seed = one.seed, .world = one.spec.world}, {}, dtype);
  } catch (const std::exception& error) {
    const std::string text = error.what();
    refuse("a model that runs by plain autograd with parameters of " +
               std::string(c10::toString(dtype)) + ", for " + word(one.spec.precision),
           text.substr(0, text.find("\nException raised from ")),
           "Leave this precision out, or take autocast. Buffers stay as they are made (a batch "
           "normalization's in fp32), and floats that do not come from the batch, too.");
  }
}

}  // namespace

void require_precisions(const MakeSubject& make, const std::vector<CheckCase>& cases) {
  std::set<at::ScalarType> seen = {at::kFloat};
  for (const auto& one : cases) {
    const auto dtype = recipe_of(one, 0, conformance::order_of(one.spec)).compute_dtype;
    if (seen.insert(dtype).second) require_forward_in(make, one, dtype);
  }
}

Preflight look_at(const MakeSubject& make, const CheckCase& widest) {
  Looker first(make, widest), second(make, widest);
  require_same_model(first.subject(), second.subject());
  require_trainable(first.subject());
  require_determinism(first, second);
  const auto all = run_all(first, widest.spec.world, widest.spec.accumulation);
  require_batches(all);
  Preflight found;
  found.gives_loss = first.gives_loss();
  for (const auto& parameter : first.parameters()) {
    found.numel += parameter.tensor.numel();
    if (!parameter.tensor.requires_grad() || parameter.tensor.numel() == 0) continue;
    const bool is_used = std::any_of(all.begin(), all.end(), [&](const auto& rank) {
      return std::any_of(rank.begin(), rank.end(),
                         [&](const Digests& one) { return one.contains(parameter.name); });
    });
    if (!is_used) found.unused.push_back(parameter.name);
  }
  const auto copies = copy_buffers(first.subject());
  for (const auto& [name, buffer] : first.subject().buffers())
    if (!copies.contains(name)) found.unseen.push_back(name);
  return found;
}

void add_memory(Preflight& preflight, Subject& subject, const std::vector<CheckCase>& cases) {
  std::vector<layout::Registration> registrations;
  for (const auto& parameter : unique(subject))
    registrations.push_back({.name = parameter.name,
                             .identity = parameter.tensor.unsafeGetTensorImpl(),
                             .shape = parameter.tensor.sizes().vec(),
                             .trainable = parameter.tensor.requires_grad()});
  const layout::ParameterTable table(registrations);
  std::set<std::string> seen;
  for (const auto& one : cases) {
    auto any_clip = one.spec;
    any_clip.clip = Clip::Off;  // clipping takes no memory
    if (!seen.insert(any_clip.id() + one.config).second) continue;
    const auto config = parse_config(config_text(one, 1, subject), one.spec.world);
    MemoryOptions options;
    options.world_size = one.spec.world;
    options.on_cuda = !device().is_cpu();
    const auto bytes = forecast(table, config, options).most_bytes();
    if (bytes * one.spec.world <= preflight.all_bytes) continue;
    preflight.most_bytes = bytes;
    preflight.all_bytes = bytes * one.spec.world;
    preflight.most_in = one.spec.id();
  }
}

void require_memory(const Preflight& preflight, int64_t available_bytes) {
  const auto mib = [](int64_t bytes) { return std::to_string((bytes >> 20) + 1) + " MiB"; };
  if (available_bytes == 0 || preflight.all_bytes <= available_bytes) return;
  refuse("ranks that fit into " + mib(available_bytes) + " of free memory",
         mib(preflight.all_bytes) + " of engines alone in " + preflight.most_in + ", " +
             mib(preflight.most_bytes) + " a rank",
         "Check a smaller model of the same kind, or fewer ranks.");
}

nlohmann::json to_json(const Preflight& preflight) {
  return {{"gives_loss", preflight.gives_loss}, {"unused", preflight.unused},
          {"unseen", preflight.unseen},         {"numel", preflight.numel},
          {"most_bytes", preflight.most_bytes}, {"most_in", preflight.most_in},
          {"all_bytes", preflight.all_bytes}};
}

Preflight preflight_of(const nlohmann::json& json) {
  return {.gives_loss = json.at("gives_loss"),
          .unused = json.at("unused"),
          .unseen = json.at("unseen"),
          .numel = json.at("numel"),
          .most_bytes = json.at("most_bytes"),
          .most_in = json.at("most_in"),
          .all_bytes = json.at("all_bytes")};
}

// "[rank 0] [check] expected ..." -> what an Error is made of.
void refuse_model(const ranks::Outcome& outcome) {
  const std::string mark = "[check] ";
  const auto text = outcome.text.substr(0, outcome.text.find("\nException raised from "));
  const auto at = text.find(mark);
  if (text.starts_with("[ranks.")) throw Error("check", text.substr(text.find(' ') + 1));
  if (at != std::string::npos) throw CheckRefused("check", text.substr(at + mark.size()));
  const auto what = "expected the model to run by plain autograd, got: " + text +
                    (outcome.doing.empty() ? "" : " (" + outcome.doing + ")") +
                    ". Mend it before its engine is checked.";
  if (outcome.kind == ranks::Outcome::Kind::Error) throw CheckRefused("check", what);
  throw Error("check", what);
}

}  // namespace equigrad::conformance
