#include "conformance/crash/scene.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "conformance/crash/rank_program.hpp"
#include "engine/checkpoint/saved_checkpoint.hpp"
#include "engine/checkpoint/zero_to_fp32.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::crash {
namespace {

using nlohmann::json;

constexpr int kOldSteps = 2, kNewSteps = 3;

std::vector<std::string> of_ranks(const std::vector<json>& said, const char* key) {
  std::vector<std::string> all;
  for (const auto& one : said) all.push_back(one.value(key, ""));
  return all;
}

[[noreturn]] void not_as_it_should(const Setting& setting, const std::string& what) {
  throw Error("crash.scene", "expected a save that nobody disturbs to end well, got: " + what +
                                 " (" + to_text(setting) + ").");
}

std::vector<json> save(Ground& ground, const Scene& scene, const SceneOptions& options,
                       json request) {
  request["do"] = "save";
  request["setting"] = scene.setting;
  request["directory"] = ground.folder("scene");
  request["careless"] = options.careless;
  request["tiny"] = options.tiny;
  auto said = ground.ask(scene.setting.world, request);
  const bool is_disturbed = request.contains("interrupt");
  for (const auto& one : said) {
    const std::string threw = one.at("threw");
    if (!threw.empty() && !is_disturbed) not_as_it_should(scene.setting, threw);
    if (one.at("digest") != one.at("digest_after"))
      not_as_it_should(scene.setting, "a save that changes the engine");
  }
  return said;
}

Log read_log(const std::string& prefix, const std::vector<json>& said) {
  Log log;
  log.calls = said.front().at("calls").get<std::vector<int>>();
  for (std::size_t rank = 0; rank < said.size(); ++rank)
    log.by_rank.push_back(read_operations(read_bytes(log_file(prefix, static_cast<int>(rank)))));
  return log;
}

std::string join(const std::vector<std::string>& texts) {
  std::string all;
  for (const auto& text : texts) all += (all.empty() ? "" : " | ") + text;
  return all;
}

// The first of the ranks' words under `key` that is not empty.
std::string first_word(const std::vector<json>& said, const char* key) {
  for (const auto& one : said)
    if (const std::string word = one.value(key, ""); !word.empty()) return word;
  return {};
}

}  // namespace

Scene record_scene(Ground& ground, const Setting& setting, const SceneOptions& options) {
  Scene scene{.setting = setting,
              .old_tag = "one",
              .new_tag = setting.same_tag ? "one" : "two",
              .old_manifest = {},
              .new_manifest = {},
              .before = {},
              .after = {},
              .log = {},
              .old_digests = {},
              .new_digests = {},
              .next_digests = {},
              .operations = {},
              .threw = {}};
  const auto folder = ground.folder("scene");
  write_folder({}, folder);
  const auto old_said =
      save(ground, scene, options, {{"tag", scene.old_tag}, {"steps", kOldSteps}});
  scene.before = read_folder(folder);
  scene.old_manifest = find(folder, "").manifest;
  const auto log = ground.folder("log");
  json request = {{"tag", scene.new_tag}, {"steps", kNewSteps}, {"log", log}};
  if (!options.interrupt.is_null()) request["interrupt"] = options.interrupt;
  const auto new_said = save(ground, scene, options, request);
  scene.after = read_folder(folder);
  scene.new_manifest = find(folder, "").manifest;
  scene.log = read_log(log, new_said);
  scene.old_digests = of_ranks(old_said, "digest");
  scene.new_digests = of_ranks(new_said, "digest");
  scene.next_digests = of_ranks(new_said, "next");
  scene.threw = of_ranks(new_said, "threw");
  for (const auto& one : new_said) scene.operations.push_back(one.at("operations"));
  if (of_ranks(old_said, "next") != scene.new_digests)
    not_as_it_should(setting, "a save after which training goes another way");
  if (!options.careless.empty() || !options.interrupt.is_null()) return scene;
  const auto left = leftovers(folder, scene.new_tag);
  if (!left.empty()) not_as_it_should(setting, left);
  return scene;
}

Found find(const std::string& directory, const std::string& tag, Reader reader) {
  Found found;
  try {
    found.tag = tag.empty() ? checkpoint::latest_tag(directory) : tag;
    const auto saved = checkpoint::SavedCheckpoint::open(directory, found.tag);
    if (reader == Reader::Careful) saved.verify_all();
    found.manifest = checkpoint::to_text(saved.digest());
  } catch (const Error& error) {
    found.threw = error.what();
  } catch (const std::exception& error) {
    found.threw = error.what();
    found.is_error = false;
  }
  return found;
}

Judged judge_by_look(const Scene& scene, const std::string& directory, const Demands& demands,
                     Reader reader) {
  const auto latest = find(directory, "", reader);
  const auto wrong = [](const std::string& what) { return Judged{Tally::Left::Old, what}; };
  if (!latest.threw.empty()) return wrong("latest is refused: " + latest.threw);
  const bool is_old = latest.manifest == scene.old_manifest && latest.tag == scene.old_tag;
  const bool is_new = (demands.other_id ? !is_old : latest.manifest == scene.new_manifest) &&
                      latest.tag == scene.new_tag;
  if (!is_old && !is_new)
    return wrong("latest names " + latest.tag + ", whose manifest is of neither save");
  if (demands.must_be_new && !is_new)
    return wrong("the save had ended, and the checkpoint before it is loaded");
  if (scene.setting.same_tag) return {is_new ? Tally::Left::New : Tally::Left::Old, ""};
  const auto old_one = find(directory, scene.old_tag, reader);
  if (old_one.manifest != scene.old_manifest)
    return wrong("the other tag is not what it was: " + old_one.threw);
  const auto new_one = find(directory, scene.new_tag, reader);
  const bool says_why =
      new_one.is_error && (new_one.threw.find("did not come to its end") != std::string::npos ||
                           new_one.threw.find("no such folder") != std::string::npos);
  if (!new_one.threw.empty() && !says_why)
    return wrong("a save that did not end is not told as one: " + new_one.threw);
  return {is_new ? Tally::Left::New : Tally::Left::Old, ""};
}

Judged judge_by_engines(const Scene& scene, const std::vector<json>& said, const Demands& demands) {
  const auto wrong = [](const std::string& what) { return Judged{Tally::Left::Old, what}; };
  if (const auto threw = first_word(said, "threw"); !threw.empty())
    return wrong("engines do not load it: " + threw);
  for (const auto& one : said)
    if (!one.at("loaded").get<bool>()) return wrong("there is no latest");
  const auto digests = of_ranks(said, "digest");
  const bool is_old = digests == scene.old_digests, is_new = digests == scene.new_digests;
  if (!is_old && !is_new) return wrong("ranks hold neither of both states: " + join(digests));
  if (demands.must_be_new && !is_new) return wrong("the save had ended, and is not loaded");
  if (of_ranks(said, "next") != (is_old ? scene.new_digests : scene.next_digests))
    return wrong("the next step is not that of the run that was not interrupted");
  const auto steps = json{{"steps", is_old ? kOldSteps : kNewSteps}};
  for (const auto& one : said)
    if (json::parse(one.at("client_state").get<std::string>()) != steps)
      return wrong("the client state is another: " + one.at("client_state").dump());
  if (const auto again = first_word(said, "again"); !again.empty())
    return wrong("a new save after it: " + again);
  return {is_new ? Tally::Left::New : Tally::Left::Old, ""};
}

std::string leftovers(const std::string& directory, const std::string& tag) {
  const auto image = read_folder(directory);
  const auto saved = checkpoint::SavedCheckpoint::open(directory, tag);
  std::string left;
  for (const auto& [path, bytes] : image.files) {
    const auto name = name_of(path);
    bool is_named = path == checkpoint::kLatestName || path == checkpoint::kZeroToFp32Name ||
                    (folder_of(path) == tag && name == checkpoint::kManifestName);
    for (const auto& file : saved.manifest().files)
      is_named |= folder_of(path) == tag && name == file.name;
    if (!is_named && (folder_of(path) == tag || folder_of(path).empty())) left += " " + path;
  }
  return left.empty() ? "" : "files that no manifest names:" + left;
}

json check_request(const Scene& scene, const std::vector<std::string>& folders) {
  return {{"do", "check"}, {"setting", scene.setting}, {"folders", folders}};
}

}  // namespace equigrad::conformance::crash
