// The program of a failure's folder.
#include <nlohmann/json.hpp>

#include "conformance/cases/recipe.hpp"
#include "conformance/cli/failure_folder.hpp"

namespace equigrad::conformance::cli {
namespace {

const char* const kHead =
    R"text(// Repeats a failure of Equigrad's engine; README.md says how to build it.
//   @ID@
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>

#include "conformance/cases/linear_model.hpp"
#include "conformance/faults/fault.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/model_groups.hpp"
#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "conformance/on_rank/backward.hpp"
#include "conformance/on_rank/sequence_part.hpp"
#include "conformance/on_rank/split_model.hpp"
#include "conformance/ranks/pool.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/engine.hpp"

using namespace equigrad;
using namespace equigrad::conformance;

const int kSteps = @STEPS@, kWorld = @WORLD@, kMicroBatches = @MICRO_BATCHES@;
const int kTensor = @TENSOR@, kSequence = @SEQUENCE@;  // ranks that share a model, or a sequence
const int kZero = kWorld / kTensor, kData = kZero / kSequence;  // that ZeRO shards over, of data
const uint64_t kSeed = @SEED@;
const std::string kFile = __FILE__, kFolder = kFile.substr(0, kFile.rfind('/'));

std::string read(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What one device computes for the first value of this rank that was wrong.
class Expected {
 public:
  explicit Expected(int rank) {
    const std::string path = kFolder + "/rank" + std::to_string(rank) + ".first.safetensors";
    if (std::ifstream(path)) file_ = oracle::read_tensors(path);
  }

  void check(int step, const std::string& what, int64_t begin, const at::Tensor& value) {
    if (file_.tensors.empty() || file_.metadata.at("begin") != std::to_string(begin)) return;
    const std::string where = "step " + std::to_string(step + 1) + " " + what;
    if (!value.defined() || file_.metadata.at("where") != where) return;
    const auto got = value.detach().flatten(), want = file_.tensors.at("want");
    const auto report = oracle::compare(got, want);
    differs = !report.equal();
    text = where + ": " + oracle::describe(report) + "\n";
    for (int64_t i = 0; report.mismatch.empty() && differs && i < got.numel(); ++i) {
      const auto one = oracle::compare(got.slice(0, i, i + 1), want.slice(0, i, i + 1));
      if (one.equal()) continue;
      char line[160];
      std::snprintf(line, sizeof line, "    first [%lld]  got %.9g  want %.9g\n",
                    static_cast<long long>(begin + i), one.worst_got, one.worst_want);
      text += line;
      break;
    }
  }

  bool differs = false;
  std::string text = "nothing that was compared here was wrong\n";

 private:
  oracle::TensorFile file_;
};

nlohmann::json run_rank(ranks::RankContext& context) {
  Expected expected(context.rank());
  const reference::Data data(@DATA@);
  const comm::MeshSizes sizes{kData, kSequence, kTensor};
  const int zero_rank = context.rank() / kTensor, data_rank = zero_rank / kSequence;
  comm::ConnectGroup connect = [&](const std::string& name, int rank, int size) {
    return context.group(name, rank, size);
  };
)text";

const char* const kFault = R"text(  auto moment = std::make_shared<faults::Moment>();
  faults::Planted fault("@FAULT@", zero_rank, kZero, moment, {});
  connect = [&, real = connect](const std::string& name, int rank, int size) {
    return fault.wrap(real(name, rank, size));
  };
)text";

const char* const kLoop =
    R"text(  const auto mesh = comm::make_mesh(context.rank(), sizes, connect);
  auto model = std::make_shared<OverflowingModel>(
      mesh.tensor()     ? split_model("@MODEL@", kSeed, mesh.tensor(), mesh.sequence())
      : mesh.sequence() ? sequence_part_model("@MODEL@", kSeed, mesh.sequence())
                        : make_case_model("@MODEL@", kSeed));
  if (zero_rank != 0) {  // every rank takes over the first one's weights
    const at::NoGradGuard no_grad;
    for (auto& parameter : model->parameters()) parameter.mul_(0.75).add_(0.125);
  }

  const std::string config = read(kFolder + "/config.json");
  auto engine = model->groups().size() > 1
                    ? initialize(groups_of(*model), parse_config(config, kWorld), mesh)
                    : initialize(*model, config, mesh);
  const auto number = [](double value) { return at::full({1}, value, at::kDouble); };
  for (int step = 0; step < kSteps; ++step) {
    engine->on_step([&](const std::vector<LocalShard>& shards) {
      expected.check(step, "norm of the gradient", 0,
                     number(engine->get_global_grad_norm().value_or(NAN)));
      for (const auto& shard : shards)
        expected.check(step, "gradient " + shard.name, shard.begin, shard.gradient);
    });
    expected.check(step, "loss_scale before it", 0, number(engine->loss_scale()));
    for (int index = 0; index < kMicroBatches; ++index) {
@MOMENT@      const auto batch = reference::to_dtype(
          make_case_batch(data, "@MODEL@", {kSeed, step, data_rank, index}), at::@DTYPE@);
@OVERFLOW@@BACKWARD@      const int64_t place = index * kZero + zero_rank;
      expected.check(step, "loss", place, loss.reshape({1}));
      engine->step();
    }
    const std::string after = "loss_scale after step " + std::to_string(step + 1);
    expected.check(std::min(step + 1, kSteps - 1), after, 0, number(engine->loss_scale()));
    expected.check(step, "skipped_steps", 0,
                   at::full({1}, engine->counters().skipped_steps, at::kLong));
    for (const auto& shard : engine->local_shards()) {
      expected.check(step, "master " + shard.name, shard.begin, shard.master);
      for (const auto& [name, state] : shard.state)
        expected.check(step, name + " " + shard.name, shard.begin, state);
    }
    for (const auto& [name, parameter] : reference::unique_parameters(*model))
      expected.check(step, "parameter " + name, 0, engine->full_parameter(name));
  }
  return {{"differs", expected.differs}, {"text", expected.text}};
}

int main() {
  const auto outcomes = ranks::run_ranks(kWorld, run_rank);
  std::cout << ranks::failures(outcomes);
  bool differs = !ranks::all_ok(outcomes);
  for (int rank = 0; rank < kWorld && ranks::all_ok(outcomes); ++rank) {
    const auto& answer = outcomes[static_cast<std::size_t>(rank)].answer;
    std::cout << "rank " << rank << ": " << answer.at("text").get<std::string>();
    differs = differs || answer.at("differs").get<bool>();
  }
  return differs ? 1 : 0;
}
)text";

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string data_text(const DataFiles& files) {
  std::string text = "reference::read_text({" + quoted(files.text) + "})";
  if (files.images.empty()) return text;
  return text + ",\n                             reference::read_images(" + quoted(files.images) +
         ",\n                                                    " + quoted(files.labels) + ")";
}

std::string dtype_text(const CaseSpec& spec) {
  const auto dtype = dtype_of(spec);
  return dtype == at::kBFloat16 ? "kBFloat16" : dtype == at::kHalf ? "kHalf" : "kFloat";
}

std::string overflow_text(const CaseSpec& spec) {
  const auto overflowing = overflowing_batch(spec);
  if (!overflowing) return {};
  return "      const bool overflows = step == " + std::to_string(overflowing->step) +
         " && data_rank == " + std::to_string(overflowing->rank) +
         " && index == " + std::to_string(overflowing->micro_batch) +
         ";\n      model->set_loss_factor(overflows ? 0x1p100 : 1);  // makes gradients overflow\n";
}

// The style of the case; the longer ones as the harness has them.
std::string backward_text(const CaseSpec& spec) {
  const bool is_plain =
      spec.style == Style::LossBackward && scaling_of(spec.precision) == Scaling::None;
  std::string call;
  if (spec.style == Style::EngineBackward) call = "engine->backward(loss)";
  if (spec.style == Style::ScaleBackward) call = "engine->scale(loss).backward()";
  if (is_plain) call = "loss.backward()";
  if (call.empty())
    return "      const auto loss = rank_backward(*engine, *model, batch, parse_id(\"" + spec.id() +
           "\"));\n";
  return "      auto autocast = engine->autocast();\n      const auto loss = model->loss(batch);\n"
         "      autocast.reset();\n      " +
         call + ";\n";
}

void replace_all(std::string& text, const std::string& word, const std::string& by) {
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
}

}  // namespace

std::string program_text(const Failure& failure) {
  const auto& spec = failure.candidate->spec;
  const bool has_fault = !failure.fault.empty();
  std::string text = kHead + std::string(has_fault ? kFault : "") + kLoop;
  const std::vector<std::pair<std::string, std::string>> words = {
      {"@ID@", failure.id},
      {"@STEPS@", std::to_string(failure.candidate->steps)},
      {"@WORLD@", std::to_string(spec.world)},
      {"@TENSOR@", std::to_string(spec.tensor())},
      {"@SEQUENCE@", std::to_string(spec.sequence())},
      {"@MICRO_BATCHES@", std::to_string(spec.accumulation)},
      {"@SEED@", std::to_string(failure.seed) + "u"},
      {"@DATA@", data_text(failure.data)},
      {"@MODEL@", spec.model},
      {"@FAULT@", failure.fault},
      {"@MOMENT@", has_fault ? "      *moment = {step, index, kMicroBatches};\n" : ""},
      {"@DTYPE@", dtype_text(spec)},
      {"@OVERFLOW@", overflow_text(spec)},
      {"@BACKWARD@", backward_text(spec)}};
  for (const auto& [word, by] : words) replace_all(text, word, by);
  return text;
}

}  // namespace equigrad::conformance::cli
