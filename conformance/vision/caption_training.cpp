#include "conformance/vision/caption_training.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "conformance/vision/caption_rank.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::vision {
namespace {

using nlohmann::json;

void add(Tally& tally, const json& part, std::size_t rank) {
  tally.compared += part.at("compared").get<int64_t>();
  tally.differing += part.at("differing").get<int64_t>();
  const std::string first = part.at("first");
  if (tally.first.empty() && !first.empty())
    tally.first = "rank " + std::to_string(rank) + ", " + first;
}

// One request to all ranks of a training.
class Ranks {
 public:
  Ranks(ranks::Pool& pool, const Training& training, Trained& trained)
      : pool_(pool), trained_(trained) {
    for (int rank = 0; rank < training.setting.processes(); ++rank) set_.push_back(rank);
  }
  // Empty after a failure.
  std::vector<json> ask(const json& request) {
    const auto outcomes = pool_.run(set_, request);
    std::vector<json> answers;
    if (!ranks::all_ok(outcomes)) {
      trained_.failure = ranks::failures(outcomes);
      return answers;
    }
    for (const auto& outcome : outcomes) answers.push_back(outcome.answer);
    return answers;
  }

 private:
  ranks::Pool& pool_;
  Trained& trained_;
  std::vector<int> set_;
};

void add_steps(Trained& trained, const std::vector<json>& answers, int count) {
  std::vector<double> sums(static_cast<std::size_t>(count), 0.0);
  double languages = 0;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    const auto& answer = answers[rank];
    add(trained.encoder, answer.at("encoder"), rank);
    add(trained.language, answer.at("language"), rank);
    if (rank == 0) trained.clipped += answer.at("clipped").get<int>();
    if (answer.at("losses").at(0).is_null()) continue;
    ++languages;
    for (std::size_t i = 0; i < sums.size(); ++i)
      sums[i] += answer.at("losses").at(i).get<double>();
  }
  for (const double sum : sums) trained.losses.push_back(sum / languages);
}

void add_captions(Trained& trained, const std::vector<json>& answers) {
  for (const auto& answer : answers) {
    trained.right += answer.at("right").get<int64_t>();
    trained.shown += answer.at("shown").get<int64_t>();
    if (trained.samples.empty()) trained.samples = answer.at("samples");
  }
}

}  // namespace

double Trained::chance() const {
  constexpr double kGuess = 0.1;
  if (shown == 0) return 1;
  const auto n = static_cast<double>(shown);
  const double share = static_cast<double>(right) / n;
  if (share <= kGuess) return 1;
  const auto term = [](double p, double q) { return p == 0 ? 0 : p * std::log(p / q); };
  return std::exp(-n * (term(share, kGuess) + term(1 - share, 1 - kGuess)));
}

Trained train_captions(ranks::Pool& pool, const Training& training, const Told& told) {
  if (training.data.images.empty())
    throw Error("captions",
                "expected images and labels, got no file of them. Name their folder; "
                "equigrad doctor says what is there.");
  Trained trained;
  Ranks all(pool, training, trained);
  const auto started = all.ask({{"verb", "start"},
                                {"setting", training.setting},
                                {"images", training.data.images},
                                {"labels", training.data.labels}});
  if (started.empty()) return trained;
  trained.encoder_numel = started[0].at("encoder");
  trained.language_numel = started[0].at("language");
  for (int done = 0; done < training.steps;) {
    const int count = std::min(training.every, training.steps - done);
    const auto answers =
        all.ask({{"verb", "steps"}, {"count", count}, {"compared", training.compared}});
    if (answers.empty()) return trained;
    add_steps(trained, answers, count);
    done += count;
    if (told) told(trained);
  }
  if (training.held_out > 0)
    add_captions(trained, all.ask({{"verb", "write"}, {"count", training.held_out}}));
  return trained;
}

int print_caption_training(const Training& training, double timeout_scale) {
  const auto& setting = training.setting;
  ranks::Pool pool(setting.processes(), serve_captions,
                   {std::chrono::milliseconds(static_cast<long long>(300'000 * timeout_scale)),
                    std::chrono::milliseconds(2'000), false});
  std::printf("# captions, %s, %d processes, %lld images a step, seed %llu\n",
              setting.name().c_str(), setting.processes(),
              static_cast<long long>(setting.images * setting.accumulation * setting.ranks),
              static_cast<unsigned long long>(setting.seed));
  std::printf(
      "# step         loss      compared     differing  (elements of gradients, masters,\n"
      "#                                                  states and parameters so far)\n");
  const auto line = [](const Trained& so_far) {
    std::printf("%6zu  %11.6f  %12lld  %12lld\n", so_far.losses.size(), so_far.losses.back(),
                static_cast<long long>(so_far.encoder.compared + so_far.language.compared),
                static_cast<long long>(so_far.encoder.differing + so_far.language.differing));
    std::fflush(stdout);
  };
  const auto trained = train_captions(pool, training, line);
  for (const auto& [written, wanted] : trained.samples)
    std::printf("#   %-28s %s\n", written.c_str(),
                written == wanted ? "right" : ("wanted: " + wanted).c_str());
  if (!trained.failure.empty()) std::fprintf(stderr, "equigrad: %s\n", trained.failure.c_str());
  for (const auto* tally : {&trained.encoder, &trained.language})
    if (!tally->first.empty()) std::printf("# first difference: %s\n", tally->first.c_str());
  const bool good = trained.held() || !training.compared;
  const char* word = !trained.failure.empty() ? "BROKEN"
                     : !training.compared     ? "NOT COMPARED"
                     : good                   ? "HELD"
                                              : "FAILED";
  std::printf("%s  %zu steps; %lld of %lld captions of unseen images right\n", word,
              trained.losses.size(), static_cast<long long>(trained.right),
              static_cast<long long>(trained.shown));
  return !trained.failure.empty() ? 3 : good ? 0 : 1;
}

}  // namespace equigrad::conformance::vision
