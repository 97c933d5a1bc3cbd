// 18. What is refused of saves and loads: by name, on every rank, and nothing has changed.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "conformance/contract/programs/programs.hpp"
#include "conformance/contract/programs/two_groups.hpp"
#include "engine/checkpoint/digest.hpp"
#include "engine/checkpoint/manifest.hpp"

namespace equigrad::conformance::contract {
namespace {

const std::string kTag = "kept";

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// On rank 0, while the others wait.
void alone(Play& play, const std::function<void()>& what) {
  wait_for_all(play);
  if (play.context().rank == 0) what();
  wait_for_all(play);
}

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text;
}

// An engine that was saved, and whose twin nobody disturbs.
struct Disturbed {
  explicit Disturbed(Play& the_play) : play(the_play), one(play, 1), twin(play, 1) {
    one.train(2);
    twin.train(2);
    one.engine->save_checkpoint(play.folder(), kTag);
    one.train(1);
    twin.train(1);
  }
  void refuse(const std::string& fragment, const Play::Call& call) {
    play.refuse(play.fault() ? "no such message" : fragment, call);
  }
  void refuse_save(const std::string& fragment, const std::string& directory,
                   const std::string& tag, const SaveOptions& options = {}) {
    refuse(fragment, [&] { one.engine->save_checkpoint(directory, tag, options); });
  }
  void refuse_load(const std::string& fragment, const std::string& directory,
                   const std::string& tag, const LoadOptions& options = {}) {
    refuse(fragment, [&] { one.engine->load_checkpoint(directory, tag, options); });
  }
  void goes_on(const std::string& after) {
    check_same(play, after, one.held(), twin.held());
    one.train(1);
    twin.train(1);
    check_same(play, after + ", and a step", one.held(), twin.held());
    play.check(after + ": steps count on",
               one.engine->counters().global_steps == twin.engine->counters().global_steps);
  }
  Play& play;
  TwoGroups one, twin;
};

// ---- Another model, optimizer or precision

using Groups = std::vector<ParameterGroup>;

Groups changed(const std::function<void(Groups&)>& change) {
  auto groups = TwoGroups::usual_groups(2);
  change(groups);
  return groups;
}

at::Tensor leaf(at::IntArrayRef sizes) { return at::full(sizes, 2.0).requires_grad_(); }

struct Another {
  std::string fragment;
  Groups groups;
  Beside beside = {.optimizer = "AdamW"};
  std::string tag = kTag;
};

std::string half(const std::string& more) {
  return R"(, "fp16": {"enabled": true, "initial_scale_power": 4)" + more + "}";
}

std::vector<Another> other_engines() {
  const auto usual = [] { return TwoGroups::usual_groups(2); };
  return {{"expected the parameters of this model",
           changed([](Groups& groups) { groups[1].parameters[1].name = "d"; })},
          {"expected shape [5] for \"c\"",
           changed([](Groups& groups) { groups[1].parameters[1].tensor = leaf({5}); })},
          {"expected shape [2, 2] for \"c\"", changed([](Groups& groups) {
             groups[1].parameters[1].tensor = leaf({2, 2});
           })},
          {"expected \"b\" trained in group 0",
           changed([](Groups& groups) { std::swap(groups[0].parameters, groups[1].parameters); })},
          {"with 1 parameter groups, got \"adamw\" with 2", changed([](Groups& groups) {
             groups[1].parameters.push_back(groups[0].parameters[0]);
             groups.erase(groups.begin());
           })},
          {"expected \"c\" frozen",
           changed([](Groups& groups) { groups[1].parameters[1].tensor = at::full({4}, 2.0); })},
          {"expected an optimizer of this kind", usual(), {.optimizer = "SGD"}},
          {"expected a checkpoint of a run that computes in BF16, got one that computes in F32",
           usual(),
           {.optimizer = "AdamW", .keys = R"(, "bf16": {"enabled": true})"}},
          {"expected \"master/a\" as Half",
           usual(),
           {.optimizer = "AdamW", .keys = half(R"(, "fp16_master_weights_and_grads": true)")},
           "half"}};
}

void another_engine(Play& play) {
  TwoGroups saved(play, 1);
  saved.train(2);
  saved.engine->save_checkpoint(play.folder(), kTag);
  TwoGroups in_half(play, TwoGroups::usual_groups(1), {.optimizer = "AdamW", .keys = half("")});
  in_half.engine->save_checkpoint(play.folder(), "half");
  for (auto& another : other_engines()) {
    TwoGroups one(play, another.groups, another.beside);
    const auto before = one.held();
    play.refuse(play.fault() ? "no such message" : another.fragment,
                [&] { one.engine->load_checkpoint(play.folder(), another.tag); });
    check_same(play, another.fragment, one.held(), before);
    play.check(another.fragment + ": nothing is counted", one.engine->counters().global_steps == 0);
    one.train(1);
    play.check(another.fragment + ": it trains", one.engine->was_step_applied());
  }
}

// ---- Tags, and calls that differ between ranks

void tags(Play& play) {
  Disturbed one(play);
  const auto folder = play.folder();
  const auto& context = play.context();
  const bool is_last = context.rank + 1 == context.world;
  const std::string plain = "expected a tag that is the plain name of a folder";
  for (const std::string tag :
       {".", "..", "../kept", "/kept", "kept/", "a/b", "a\\b", "a\nb", "latest"}) {
    one.refuse_save(plain, folder, tag);
    one.refuse_load(plain, folder, tag);
  }
  one.refuse_load("got no such folder", folder, "another");
  one.refuse_load("got no such folder", folder + "-that-is-not", kTag);
  one.refuse_save("expected a client_state that is JSON", folder, "words",
                  {.client_state = "no json"});
  one.refuse_save("expected buffers with different names", folder, "buffers",
                  {.buffers = {{"m", at::ones({2})}, {"m", at::ones({2})}}});
  {
    auto whole = one.one.engine->gather({one.one.groups[0].parameters[0].tensor});
    one.refuse_save("expected no scope of gather()", folder, "scope");
    one.refuse_load("expected no scope of gather()", folder, kTag);
    whole.end();
  }
  if (context.world > 1) {
    const std::string told = "got an error on rank " + std::to_string(context.world - 1);
    one.refuse_save(is_last ? plain : told, folder, is_last ? ".." : "fine");
    one.refuse_load(is_last ? "got no such folder" : told, folder, is_last ? "fine" : kTag);
    const std::string same = "expected the same directory, tag and options on every rank";
    one.refuse_save(same, folder, is_last ? "one" : "other");
    one.refuse_save(same, is_last ? folder : folder + "/below", "one");
    one.refuse_save(same, folder, "one", {.save_latest = is_last});
    one.twin.engine->save_checkpoint(folder, "another");
    const std::string load = "expected the same checkpoint and options on every rank";
    one.refuse_load(load, folder, is_last ? "another" : kTag);
    one.refuse_load(load, folder, kTag, {.module_only = is_last});
  }
  one.goes_on("after tags that are refused");
  alone(play, [&] {
    for (const char* name : {"fine", "one", "other", "words", "buffers", "scope", "below"})
      play.check(std::string("nothing is saved under ") + name,
                 access((folder + "/" + name).c_str(), F_OK) != 0);
  });
}

// ---- What is in the way

void in_the_way(Play& play) {
  Disturbed one(play);
  const auto folder = play.folder();
  const auto kept = text_of(folder + "/" + kTag + "/manifest.json");
  alone(play, [&] {
    write(folder + "/file", "text");
    mkdir((folder + "/blocked").c_str(), 0700);
    mkdir((folder + "/blocked/manifest.json").c_str(), 0700);
    mkdir((folder + "/incomplete").c_str(), 0700);
    write(folder + "/incomplete/rank-00000-of-00001-0.safetensors", kept);
  });
  // Another job saves to this tag.
  int other_job = -1;
  alone(play, [&] {
    other_job = open((folder + "/" + kTag).c_str(), O_RDONLY | O_DIRECTORY);
    play.check("the tag is locked", flock(other_job, LOCK_EX | LOCK_NB) == 0);
  });
  one.refuse_save("expected no other job that saves to", folder, kTag);
  if (other_job >= 0) close(other_job);
  one.refuse_save(folder + "/file", folder + "/file", kTag);
  one.refuse_load(folder + "/file", folder + "/file", kTag);
  one.refuse_save(folder + "/file", folder, "file");
  one.refuse_load("this save did not come to its end", folder, "file");
  one.refuse_save("manifest.json", folder, "blocked");
  one.refuse_load("this save did not come to its end", folder, "incomplete");
  alone(play, [&] {
    play.check("`latest` is as it was", text_of(folder + "/latest").starts_with(kTag + "\n"));
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/blocked", error))
      play.check("a save that is refused leaves no files",
                 entry.path().filename() == "manifest.json");
    unlink((folder + "/latest").c_str());
    mkdir((folder + "/latest").c_str(), 0700);
  });
  one.refuse_save("latest", folder, "second");
  one.refuse_load("latest", folder, "");
  one.goes_on("after what was in the way");
  // What was saved before stays whole.
  TwoGroups other(play, 7);
  other.engine->load_checkpoint(folder, kTag);
  other.train(2);
  check_same(play, "what was saved before", other.held(), one.one.held());
}

// ---- Changed files

// One bit of one byte, which is put back.
void with_a_flip(Play& play, const std::string& path, std::size_t at,
                 const std::function<void()>& inside) {
  const auto flip = [&] {
    auto text = text_of(path);
    text.at(std::min(at, text.size() - 1)) ^= 0x10;
    write(path, text);
  };
  alone(play, flip);
  inside();
  alone(play, flip);
}

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    files.push_back(entry.path().string());
  std::sort(files.begin(), files.end());
  return files;
}

std::size_t behind_header(const std::string& file) {
  std::uint64_t bytes = 0;
  std::memcpy(&bytes, file.data(), sizeof bytes);
  return sizeof bytes + std::min<std::uint64_t>(bytes, file.size());
}

// With a digest that is its own.
const std::string kNewerVersion = std::to_string(checkpoint::kManifestVersion + 1);

std::string of_a_newer_version(std::string manifest) {
  const std::string version = "\"version\": ", digest = "\"xxh3_128\": \"";
  manifest.replace(manifest.find(version) + version.size(), 1, kNewerVersion);
  const auto begin = manifest.find(digest) + digest.size();
  manifest.replace(begin, 32, 32, '0');
  const auto own = checkpoint::digest_of(manifest.data(), manifest.size());
  return manifest.replace(begin, 32, checkpoint::to_text(own));
}

void changed_files(Play& play) {
  Disturbed one(play);
  const auto folder = play.folder();
  auto files = files_of(folder + "/" + kTag);
  play.check("a tag is a file of each rank and the manifest",
             static_cast<int>(files.size()) == play.context().world + 1);
  files.push_back(folder + "/latest");
  for (const auto& file : files) {
    const auto text = text_of(file);
    // The header's length, the header, the first and other bytes behind it, and the end.
    for (const std::size_t at :
         {std::size_t{0}, std::size_t{9}, behind_header(text), text.size() / 3, text.size() - 2})
      with_a_flip(play, file, at, [&] { one.refuse_load("expected", folder, ""); });
    for (const auto& other : {text.substr(0, text.size() - 1), text + "x", std::string()}) {
      alone(play, [&] { write(file, other); });
      one.refuse_load("expected", folder, "");
    }
    alone(play, [&] { unlink(file.c_str()); });
    if (!file.ends_with("/latest")) one.refuse_load(file, folder, "");
    alone(play, [&] { write(file, text); });
  }
  const auto manifest = folder + "/" + kTag + "/manifest.json";
  const auto text = text_of(manifest);
  alone(play, [&] { write(manifest, of_a_newer_version(text)); });
  one.refuse_load("got version \"" + kNewerVersion + "\"", folder, kTag);
  alone(play, [&] { write(manifest, text); });
  one.goes_on("after files that were changed");
  TwoGroups other(play, 7);
  other.engine->load_checkpoint(folder);
  other.train(2);
  check_same(play, "files that were put back", other.held(), one.one.held());
}

Case refused(const std::string& name, const std::string& sentence,
             const std::function<void(Play&)>& what) {
  return case_beside({.section = "18",
                      .name = name,
                      .sentence = sentence,
                      .fault = "another message is expected",
                      .program = [what](Play& play) {
                        if (play.engine() != nullptr) what(play);
                        train_along(play);
                      }});
}

}  // namespace

std::vector<Case> refused_checkpoints() {
  return {
      refused("of_another_engine", "a checkpoint of another model, optimizer or precision",
              another_engine),
      refused("tags_and_calls", "tags that are no plain names, and calls that differ", tags),
      refused("what_is_in_the_way", "files and folders in the way, and saves without an end",
              in_the_way),
      refused("changed_files", "a bit, a byte or a file that is another or gone", changed_files)};
}

}  // namespace equigrad::conformance::contract
