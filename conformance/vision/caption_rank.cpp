#include "conformance/vision/caption_rank.hpp"

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/vision/engine_pair.hpp"
#include "conformance/vision/reference_pair.hpp"
#include "engine/error.hpp"
#include "engine/parallel/row_plan.hpp"

namespace equigrad::conformance::vision {
namespace {

using nlohmann::json;

const Album& album_of(const std::string& images, const std::string& labels) {
  static std::map<std::pair<std::string, std::string>, Album> albums;
  return albums.try_emplace({images, labels}, images, labels).first->second;
}

class Session {
 public:
  Session(const json& request, ranks::RankContext& context)
      : setting_(request.at("setting")),
        album_(album_of(request.at("images"), request.at("labels"))),
        engines_(setting_, context, album_) {}

  json start() const {
    const auto numel = [](const reference::Model& model) {
      int64_t sum = 0;
      for (const auto& [name, tensor] : reference::unique_parameters(model)) sum += tensor.numel();
      return sum;
    };
    return {{"encoder", numel(*make_encoder(setting_.seed))},
            {"language", numel(*make_captioner(setting_.seed))}};
  }

  json steps(int count, bool compared) {
    if (compared && !reference_) {
      if (taken_ > 0)
        throw Error("captions",
                    "expected a run compared from its first step on, got one compared "
                    "from step " +
                        std::to_string(taken_ + 1) + " on. Start again.");
      reference_.emplace(setting_, album_);
    }
    LaneTally encoder, language;
    json losses = json::array();
    int clipped = 0;
    for (int i = 0; i < count; ++i, ++taken_) {
      engines_.step();
      losses.push_back(mean(engines_.losses()));
      if (!compared) continue;
      const auto want = reference_->step();
      engines_.compare(want, encoder, language);
      if (want.encoder.grad_norm > kEncoderClipping && want.language.grad_norm > kLanguageClipping)
        ++clipped;
    }
    return {{"losses", losses},
            {"encoder", encoder.to_json()},
            {"language", language.to_json()},
            {"clipped", clipped}};
  }

  json write(int64_t count) {
    const auto rows =
        parallel::rows_of(count * setting_.ranks, engines_.group_rank(), engines_.group_size());
    const auto batch = album_.held_out(rows.begin, rows.count());
    const auto written = engines_.write(batch.input);
    if (!written.defined()) return {{"right", 0}, {"shown", 0}, {"samples", json::array()}};
    int64_t right = 0;
    json samples = json::array();
    for (int64_t i = 0; i < rows.count(); ++i) {
      const auto got = sentence_of(written[i]), want = sentence_of(batch.target[i]);
      if (got == want) ++right;
      if (samples.size() < 8) samples.push_back({got, want});
    }
    return {{"right", right}, {"shown", rows.count()}, {"samples", samples}};
  }

 private:
  static json mean(const std::vector<at::Tensor>& losses) {
    if (losses.empty()) return nullptr;
    double sum = 0;
    for (const auto& loss : losses) sum += loss.item<double>();
    return sum / static_cast<double>(losses.size());
  }

  Setting setting_;
  const Album& album_;
  EnginePair engines_;
  std::optional<ReferencePair> reference_;
  int64_t taken_ = 0;
};

}  // namespace

json serve_captions(const json& request, ranks::RankContext& context) {
  static std::unique_ptr<Session> session;
  const std::string verb = request.at("verb");
  if (verb == "start") {
    session.reset();
    session = std::make_unique<Session>(request, context);
    return session->start();
  }
  if (!session) throw Error("captions", "expected a session, got none. Send the verb start first.");
  if (verb == "steps") return session->steps(request.at("count"), request.at("compared"));
  return session->write(request.at("count"));
}

}  // namespace equigrad::conformance::vision
