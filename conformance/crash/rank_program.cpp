#include "conformance/crash/rank_program.hpp"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <vector>

#include "conformance/crash/disk/careless_storage.hpp"
#include "conformance/crash/disk/folder_image.hpp"
#include "conformance/crash/disk/interrupted_storage.hpp"
#include "conformance/crash/disk/recording_storage.hpp"
#include "conformance/crash/training.hpp"
#include "engine/checkpoint/storage.hpp"
#include "engine/comm/communication_error.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using nlohmann::json;

// What the request says of this rank's disk; `met` tells what was refused first.
Interruption interruption_of(const json& request, ranks::RankContext& context,
                             std::shared_ptr<json> met) {
  const auto found = request.find("interrupt");
  if (found == request.end() || found->at("rank") != context.rank()) return {};
  Interruption interruption{.at = found->at("at"), .happens = {}};
  const std::string how = found->at("how");
  if (how == "ENOSPC" || how == "EIO") {
    const int error = how == "EIO" ? EIO : ENOSPC;
    interruption.stays = how == "ENOSPC";
    interruption.happens = [error, met](const std::string& did, const std::string& path) {
      if (met->is_null()) *met = {{"did", did}, {"path", path}};
      refuse(error, did, path);
    };
    return interruption;
  }
  const auto others = found->value("processes", std::vector<pid_t>());
  interruption.happens = [others, &context](const std::string&, const std::string&) {
    context.note(kKillsItself);
    for (const pid_t other : others)
      if (other != getpid()) kill(other, SIGKILL);
    kill(getpid(), SIGKILL);
  };
  return interruption;
}

// The storages of a save, one behind the other.
struct Disks {
  std::shared_ptr<json> met = std::make_shared<json>();
  std::shared_ptr<InterruptedStorage> interrupted;
  std::shared_ptr<RecordingStorage> recording;
  std::shared_ptr<Storage> outermost;
};

Disks disks_of(const json& request, ranks::RankContext& context, CallCounter& calls) {
  const std::string folder = request.at("directory");
  Disks disks;
  disks.interrupted = std::make_shared<InterruptedStorage>(
      real_disk(), interruption_of(request, context, disks.met));
  disks.recording = std::make_shared<RecordingStorage>(disks.interrupted, folder,
                                                       [&calls] { return calls.counts(); });
  disks.outermost = careless(request.value("careless", ""), disks.recording, folder);
  return disks;
}

// What is thrown, how the rank stands when the save returns, and a step later. A save beside the
// training is on its way in that step.
void save_and_go_on(Training& training, const json& request, std::shared_ptr<Storage> storage,
                    json& answer) {
  answer["threw"] = "";
  const auto attempt = [&](const auto& call) {
    try {
      call();
    } catch (const comm::CommunicationError&) {
      throw;
    } catch (const Error& error) {
      answer["threw"] = error.what();
    }
  };
  attempt([&] { training.save(request.at("directory"), request.at("tag"), storage); });
  answer["digest_after"] = training.digest();
  training.step();
  answer["next"] = training.digest();
  attempt([&] { training.finish(); });
}

json save(const json& request, ranks::RankContext& context) {
  const auto size = request.value("tiny", false) ? Size::Tiny : Size::Pages;
  Training training(context, request.at("setting").get<Setting>(), Weights::AsRun, size);
  for (int step = 0; step < request.at("steps").get<int>(); ++step) training.step();
  json answer = {{"digest", training.digest()}};
  auto& calls = training.calls();
  const auto disks = disks_of(request, context, calls);
  context.note("save");
  calls.begin();
  if (const auto lost = request.find("lose");
      lost != request.end() && (*lost)["rank"] == context.rank())
    calls.lose((*lost)["call"]);
  save_and_go_on(training, request, disks.outermost, answer);
  answer["operations"] = disks.interrupted->operations();
  answer["calls"] = calls.roots();
  if (request.contains("log"))
    write_bytes(
        log_file(request.at("log"), context.rank()),
        write_operations(as_done(request.value("careless", ""), disks.recording->operations())));
  return answer;
}

// An engine's load of one folder.
json load_of(Training& training, const json& request, const std::string& folder) {
  json answer;
  const std::string before = training.digest();
  try {
    const auto client_state = training.load(folder, request.value("tag", ""));
    answer["loaded"] = client_state.has_value();
    answer["client_state"] = client_state.value_or("");
  } catch (const Error& error) {
    answer["threw"] = error.what();
    answer["changed"] = training.digest() != before;
    return answer;
  }
  answer["digest"] = training.digest();
  return answer;
}

// Saves what was loaded, or what follows it, once more, where the loss has left its traces.
std::string save_again(ranks::RankContext& context, Training& training, const json& request,
                       const std::string& folder) {
  const Setting setting = request.at("setting");
  const std::string tag = request.at("again");
  try {
    training.save(folder, tag);
    training.finish();
    Training other(context, setting, Weights::Others);
    other.load(folder, "");
    const bool is_same = other.digest() == training.digest();
    return is_same ? "" : "what is saved again is not what is loaded then";
  } catch (const Error& error) {
    return error.what();
  }
}

json check(const json& request, ranks::RankContext& context) {
  const Setting setting = request.at("setting");
  json answers = json::array();
  for (const std::string folder : request.at("folders")) {
    context.note("check " + folder);
    Training training(context, setting, Weights::Others);
    auto answer = load_of(training, request, folder);
    if (answer.contains("digest")) {
      training.step();
      answer["next"] = training.digest();
      if (request.contains("again"))
        answer["again"] = save_again(context, training, request, folder);
    }
    answers.push_back(answer);
  }
  return answers;
}

json refuse_operations(const json& request, ranks::RankContext& context) {
  Training training(context, request.at("setting").get<Setting>(), Weights::Others);
  json answers = json::array();
  auto asked = request;
  for (const std::string folder : request.at("folders")) {
    context.note("refuse " + folder + " operation " + asked["interrupt"]["at"].dump());
    training.load(folder, request.at("old_tag"));
    training.step();
    json answer = {{"digest", training.digest()}};
    asked["directory"] = folder;
    const auto disks = disks_of(asked, context, training.calls());
    save_and_go_on(training, asked, disks.outermost, answer);
    answer["met"] = *disks.met;
    answers.push_back(answer);
    asked["interrupt"]["at"] = asked["interrupt"]["at"].get<std::int64_t>() + 1;
  }
  return answers;
}

}  // namespace

std::string log_file(const std::string& prefix, int rank) {
  return prefix + "." + std::to_string(rank);
}

json serve(const json& request, ranks::RankContext& context) {
  const std::string act = request.at("do");
  if (act == "save") return save(request, context);
  if (act == "check") return check(request, context);
  if (act == "refuse") return refuse_operations(request, context);
  throw Error("crash.serve", "expected save, check or refuse, got \"" + act + "\".");
}

}  // namespace equigrad::conformance::crash
