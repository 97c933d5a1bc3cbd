#include "conformance/cli/explain.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <sstream>
#include <utility>
#include <vector>

#include "conformance/cases/recipe.hpp"
#include "conformance/cli/records.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/selected_cases.hpp"
#include "conformance/cli/terminal_text.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "conformance/generator/draw.hpp"
#include "conformance/oracle/bound.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::cli {
namespace {

using Words = std::vector<std::pair<std::string, std::string>>;

// A row each, the second column below itself. Lines that have the id are to be pasted: they stay.
std::string rows_of(const Words& words, std::size_t columns, const std::string& id) {
  const std::string below(17, ' ');
  std::string text;
  for (const auto& [what, says] : words) {
    std::string front = "  " + what;
    front += below.substr(std::min(front.size(), below.size() - 1));
    std::istringstream lines(says);
    for (std::string line; std::getline(lines, line); front = below)
      text += line.find(id) != std::string::npos ? front + line + "\n"
                                                 : reports::wrapped(front + line, columns, below);
  }
  return text;
}

std::string stage_words(int stage) {
  const char* const sharded[] = {"nothing is sharded", "optimizer state is sharded",
                                 "optimizer state and gradients are sharded",
                                 "optimizer state, gradients and parameters are sharded"};
  return std::to_string(stage) + ": " + sharded[stage] + "; gradients are reduced " +
         (stage < 2 ? "at the boundary" : "after every backward pass");
}

std::string type_word(at::ScalarType type) {
  if (type == at::kFloat) return "fp32";
  if (type == at::kDouble) return "fp64";
  return type == at::kHalf ? "fp16" : "bf16";
}

std::string scale_words(const reference::LossScaleSpec& scale) {
  using Policy = reference::LossScaleSpec::Policy;
  if (scale.policy == Policy::None) return "";
  const auto initial = reports::scale_text(scale.initial);
  if (scale.policy == Policy::Static) return "; a static loss scale of " + initial;
  return std::string("; a dynamic loss scale by ") +
         (scale.policy == Policy::DeepSpeed ? "DeepSpeed's" : "torch GradScaler's") +
         " rule, from " + initial;
}

std::string types_of(const CaseSpec& spec, const reference::Recipe& recipe) {
  const auto& precision = recipe.precision;
  std::string text = word(spec.precision) + ": parameters " + type_word(recipe.compute_dtype) +
                     ", masters " + type_word(precision.master_dtype) + ", optimizer states " +
                     type_word(precision.state_dtype);
  text += sums_exactly(spec.precision)
              ? "; gradients are added exactly, in no order"
              : "; gradients are added in " + type_word(recipe.accumulate_dtype);
  if (precision.communication_dtype)
    text += " and sent in " + type_word(*precision.communication_dtype);
  if (precision.autocast) text += "; autocast in " + type_word(precision.autocast->dtype);
  return text + scale_words(precision.loss_scale);
}

std::string ranks_words(const CaseSpec& spec, const reference::Recipe& recipe) {
  std::string text = std::to_string(spec.world);
  if (spec.tensor() > 1)
    text += ": " + std::to_string(spec.tensor()) + " share a model, " +
            std::to_string(spec.data()) + " have data of their own";
  if (recipe.sequence > 1)
    text += ": " + std::to_string(recipe.sequence) + " have parts of one sequence";
  return text;
}

std::string style_words(Style style) {
  switch (style) {
    case Style::EngineBackward:
      return "engine.backward(loss)";
    case Style::ScaleBackward:
      return "engine.scale(loss), then backward() of that";
    case Style::LossBackward:
      return "loss.backward()";
    case Style::TensorBackward:
      return "output.backward(gradient), without a loss";
  }
  return {};
}

std::string clip_words(Clip clip) {
  switch (clip) {
    case Clip::Off:
      return "off";
    case Clip::Below:
      return "on, with a norm far below the threshold: it must change nothing";
    case Clip::Above:
      return "on, with a norm above the threshold";
    case Clip::AboveInf:
      return "on, by the infinity norm, above the threshold";
  }
  return {};
}

// That of a gradient which was not clipped and is sent as all are.
std::string bound_words(const CaseSpec& spec, const reference::Recipe& recipe) {
  oracle::Reduction reduction{.world = recipe.world,
                              .accumulation_steps = recipe.accumulation_steps,
                              .param_dtype = recipe.compute_dtype,
                              .accumulate_dtype = recipe.accumulate_dtype,
                              .master_dtype = recipe.precision.master_dtype,
                              .communication_dtype = recipe.precision.communication_dtype,
                              .predivide_factor = recipe.precision.predivide_factor};
  reduction.sequence = recipe.sequence;
  reduction.averaging = static_cast<oracle::Averaging>(recipe.precision.averaging);
  reduction.order = sums_exactly(spec.precision) ? oracle::SumOrder::ExactGrid
                    : spec.stage < 2             ? oracle::SumOrder::AddThenReduce
                                                 : oracle::SumOrder::ReduceThenAdd;
  const auto bound = oracle::reduction_bound(reduction);
  return "off by at most " + reports::formatted("%.3g", bound.relative) +
         " x the average of |contributions| from the average that a plain run's own\n" +
         "contributions have, and no further from the fp64 gradient than a plain run is but for "
         "that:\nthe roundings of " +
         reports::count_of(recipe.world * recipe.accumulation_steps, "contribution") +
         " on the way, each of at most " +
         reports::formatted("%.3g", oracle::unit_roundoff(recipe.accumulate_dtype)) +
         " (unit roundoff of " + type_word(recipe.accumulate_dtype) +
         "); computed for each case, never chosen: conformance/oracle/bound.hpp";
}

std::string joined_lines(const std::vector<std::string>& lines) {
  return reports::joined(lines, "\n");
}

Words words_of(const CaseSpec& spec) {
  const auto recipe = recipe_of(spec, 1, 0, order_of(spec));
  const auto model = model_words(spec.model);
  Words words = {
      {"what", "a case of the matrix: " + std::to_string(kSteps) +
                   " optimizer steps, looked at after every pass and step"},
      {"model", spec.model + ": " + (model.empty() ? "one of your own, of --model" : model)},
      {"stage", stage_words(spec.stage)},
      {"precision", types_of(spec, recipe)},
      {"ranks", ranks_words(spec, recipe)},
      {"micro-batches", std::to_string(spec.accumulation) + " a step and rank"},
      {"clipping", clip_words(spec.clip)},
      {"optimizer", spec.optimizer == Rule::Sgd ? "SGD" : "AdamW"},
      {"call style", style_words(spec.style)}};
  if (spec.is_refused()) {
    words.emplace_back("compared",
                       "nothing: this precision is not defined at this stage, and the "
                       "case passes if initialize() refuses it and names " +
                           reports::joined(refusal_keys(spec.precision, spec.stage), " or "));
    return words;
  }
  words.emplace_back("exact",
                     "losses, gradients, norm, loss scale, masters, optimizer states and "
                     "parameters, bit for bit, with the twin: plain autograd on one device, in "
                     "this precision and the engine's order of additions. 0 differing bits are "
                     "allowed");
  words.emplace_back("bounded",
                     "the first gradient that is applied is " + bound_words(spec, recipe));
  words.emplace_back("cross", "bits of the other stages and call styles of " + spec.tuple() +
                                  ", where the run has them");
  return words;
}

Words words_of(const contract::Spec& spec) {
  const auto& one = *spec.of;
  std::string section;
  for (const auto& line : contract::sections())
    if (line.number == one.section) section = line.sentence;
  std::vector<std::string> answers;
  for (const auto& id : one.answers) {
    const auto& mistake = contract::known_mistake(id);
    answers.push_back(mistake.name + ": " + mistake.words);
  }
  Words words = {{"what", "a case of the contract, line " + one.section + ": " + section},
                 {"it says", one.sentence},
                 {"models", reports::joined(one.models, ", ")},
                 {"stage", stage_words(spec.stage)},
                 {"precision", contract::word(spec.precision)},
                 {"ranks", std::to_string(spec.world)},
                 {"micro-batches", std::to_string(spec.accumulation) + " a step and rank"},
                 {"exact",
                  "one program, played by the engine and by the reference on one device: "
                  "every number that it reports, bit for bit"}};
  if (!answers.empty()) words.emplace_back("answers", joined_lines(answers));
  if (!one.fault.empty())
    words.emplace_back("seen to fail", "when " + one.fault + ": --fault " + one.family());
  return words;
}

// Nothing where every rank has a model and batches of its own.
std::string mesh_words(const Workload& workload) {
  if (!workload.core) return {};
  return ": data x sequence x tensor " + std::to_string(workload.data_ranks()) + " x " +
         std::to_string(workload.sequence_ranks()) + " x " +
         std::to_string(workload.tensor_ranks());
}

Words words_of(const GeneratedCase& one) {
  const auto& [workload, execution, id] = one;
  return {{"what", "a case drawn at random from three numbers: seed, workload, execution"},
          {"model", std::to_string(workload.tensors.size()) + " tensors of its own" +
                        (workload.core ? ", and a network that ranks share" : "")},
          {"stage", stage_words(execution.stage)},
          {"ranks", std::to_string(workload.world) + mesh_words(workload)},
          {"micro-batches", std::to_string(workload.accumulation) + " a step and rank, " +
                                std::to_string(workload.steps) + " steps"},
          {"configuration", engine_config(one, 1).dump()},
          {"exact",
           "every number of every step, bit for bit, with a twin that reads the "
           "configuration by itself"}};
}

Words words_of(const std::string& id) {
  if (is_generated_id(id)) return words_of(case_of_id(id));
  if (id.starts_with("Contract.")) return words_of(contract::parse_contract_id(id));
  return words_of(parse_id(id));
}

struct LastReport {
  std::string text;    // what became of the case
  std::string replay;  // the line that repeats it as that run made it; empty: the report has none
};

// A report that is not there or cannot be read is said so.
LastReport last_report(const std::string& report, const std::string& id) {
  if (access(report.c_str(), R_OK) != 0) return {"none in " + report, ""};
  try {
    const auto record = read_record(report);
    for (const auto& one : record.run.cases) {
      if (one.id != id) continue;
      auto text = reports::spoken(one.verdict) + " in " + report + ", of commit " +
                  record.run.environment.commit + ", " + record.run.environment.time;
      if (!reports::passed(one.verdict) || reports::vacuous(one))
        text += "\n" + reports::clean(reports::message_of(one));
      return {text, reports::clean(one.replay)};
    }
    return {report + " does not have it", ""};
  } catch (const ConfigError& error) {
    return {error.what(), ""};
  }
}

}  // namespace

std::string model_words(const std::string& model) {
  static const std::vector<std::pair<std::string, std::string>> words = {
      {"gpt", "a byte-level GPT of 2 layers"},
      {"irregular",
       "odd sizes, a tensor under two names, a module used twice, branches "
       "that are "
       "used now and then or never, a frozen, an empty and a 0-dim parameter"},
      {"vision", "an encoder of image patches, with a criterion on its embeddings"},
      {"conv", "two convolutions and a linear layer, for 10 classes of images"},
      {"gated",
       "a small transformer with grouped keys and a gated layer, cut "
       "over tensor ranks"},
      {"dropout", "the same with a dropout of what each has in parts, and of what all have whole"},
      {"ulysses", "a small transformer of which every rank has a part of the sequence"}};
  for (const auto& [name, says] : words) {
    const auto rest = model.starts_with(name) ? model.substr(name.size()) : "none";
    if (rest.find_first_not_of("0123456789x") == std::string::npos && rest != "x") return says;
  }
  return {};
}

std::string explanation(const std::string& id, const std::string& program,
                        const std::string& replay, std::size_t columns) {
  auto words = words_of(id);
  words.emplace_back("runs alone", replay.empty() ? program + " run " + id : replay);
  return id + "\n" + rows_of(words, columns, id);
}

void add_explain(CLI::App& app, ExplainCommand& command) {
  app.add_option("CASE", command.id,
                 "The id of a case, or words that one case alone has: equigrad list")
      ->required();
  app.add_option("--report", command.report,
                 "A run.json, or the folder that has it, to say what became of the case");
}

int explain_command(const ExplainCommand& command) {
  const auto [id, problem, near] = one_case(command.id);
  if (!problem.empty()) {
    std::cerr << "equigrad: " << problem << "\n" << (near.empty() ? "" : "near it are\n");
    for (const auto& other : near) std::cerr << "  " << other << "\n";
    return kUsage;
  }
  const auto last = last_report(command.report, id);
  const auto columns = columns_of(STDOUT_FILENO);
  std::cout << explanation(id, shell_word(command.program), last.replay, columns)
            << rows_of({{"last report", last.text}}, columns, id);
  return kHeld;
}

}  // namespace equigrad::conformance::cli
