#include "conformance/campaigns/alone.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "reports/text.hpp"

namespace equigrad::conformance {
namespace {

constexpr std::size_t kMostNamed = 20;  // cases in a line

}  // namespace

Alone::Alone(std::string begin, std::string end, std::string folder)
    : begin_(std::move(begin)), end_(std::move(end)), folder_(std::move(folder)) {}

void Alone::add(Suspect suspect) {
  if (suspect.before.empty()) return;
  if (suspects_.size() < kMostRepeated)
    suspects_.push_back(std::move(suspect));
  else
    not_repeated_.insert(suspect.id);
}

void Alone::repeat(ProcessSlots& slots, std::vector<reports::Case>& cases) {
  std::map<std::string, reports::Case*> by_id;
  for (auto& one : cases) by_id[one.id] = &one;
  bool is_any_alone = false;
  for (const auto& suspect : suspects_) {
    if (!by_id.contains(suspect.id) || !passes(slots, suspect)) continue;
    is_any_alone = true;
    tell(suspect, *by_id[suspect.id]);
  }
  if (!is_any_alone) return;
  for (const auto& id : not_repeated_)
    if (const auto found = by_id.find(id); found != by_id.end())
      found->second->message += "  alone   not repeated, only the first " +
                                std::to_string(kMostRepeated) +
                                " failures of a run are: it may need the cases before it\n";
}

bool Alone::passes(ProcessSlots& slots, const Suspect& suspect) const {
  slots.renew();
  auto request = suspect.request;
  const std::string path = slots.directory() + "/alone." + suspect.id;
  if (!suspect.twin.is_null()) {
    auto twin = suspect.twin;
    twin["path"] = request["twin"] = path;
    const auto made = slots.ask(1, twin, kTwinTimeout_s);
    if (!made || !ranks::all_ok(*made)) return false;
  }
  const auto outcomes = slots.ask(suspect.world, request);
  unlink(path.c_str());
  return outcomes && suspect.passes(*outcomes);
}

void Alone::tell(const Suspect& suspect, reports::Case& record) const {
  std::vector<std::string> named = suspect.before;
  const bool is_long = named.size() > kMostNamed;
  if (is_long) named.erase(named.begin(), named.end() - kMostNamed);
  if (!record.message.ends_with('\n') && !record.message.empty()) record.message += "\n";
  const char* what = record.verdict == reports::Verdict::Crashed
                         ? "was ended from outside, such as for want of memory, or needs"
                     : record.verdict == reports::Verdict::TimedOut
                         ? "had too little time, such as on a busy machine, or needs"
                         : "needs";
  record.message += std::string("  alone   passes alone: it ") + what +
                    " the cases before it in its ranks: " +
                    (is_long ? std::to_string(suspect.before.size() - kMostNamed) + " and " : "") +
                    reports::joined(named, ", ") + "\n";
  std::string before = written(suspect);
  if (before.empty()) before = reports::joined(suspect.before, " ");
  record.replay = begin_ + " " + before + " " + suspect.id + " --one-process" + end_;
}

// "$(cat F)" of a file with the ids before it; empty where they fit into a line, or no file is
// to be had.
std::string Alone::written(const Suspect& suspect) const {
  if (suspect.before.size() <= kMostNamed || folder_.empty()) return {};
  mkdir(folder_.c_str(), 0777);
  mkdir((folder_ + "/" + suspect.id).c_str(), 0777);
  const auto path = std::filesystem::absolute(folder_ + "/" + suspect.id + "/before.txt");
  std::ofstream file(path);
  for (const auto& id : suspect.before) file << id << "\n";
  file.close();
  return file ? "$(cat '" + path.lexically_normal().string() + "')" : std::string();
}

}  // namespace equigrad::conformance
