#include "conformance/cli/records.hpp"

#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <map>

#include "conformance/cli/made_with.hpp"
#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/run_reports.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"
#include "reports/json.hpp"
#include "reports/run_changes.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_folder(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode);
}

std::string file_of_record(const std::string& place) {
  return is_folder(place) ? place + "/run.json" : place;
}

// "fail/CASE/FILE" alone: what a record from elsewhere names is not written
// anywhere else.
bool is_kept_file(const std::string& file) {
  return file.starts_with("fail/") && file.find("..") == std::string::npos &&
         std::count(file.begin(), file.end(), '/') == 2;
}

// Where the files of cases are, by what they are called while records are put
// together.
using Sources = std::map<std::string, std::string>;

void name_files(reports::NamedRun& record, const std::string& folder, Sources& sources) {
  for (auto& one : record.run.cases) {
    std::erase_if(one.files, [](const std::string& file) { return !is_kept_file(file); });
    for (auto& file : one.files) {
      const auto source = folder + "/" + file;
      sources[source] = file;
      file = source;
    }
  }
}

// The line of a case's message that says where its files are.
void name_folder(reports::Case& one, const std::string& folder) {
  const std::string begin = "    folder  ";
  const auto at = one.message.rfind(begin);
  if (at == std::string::npos) return;
  const auto end = std::min(one.message.find('\n', at), one.message.size());
  one.message.replace(at, end - at, begin + folder + "/fail/" + one.id);
}

// Copies them behind the record that they are of; one that is not there is left
// out.
void copy_files(reports::Run& run, const std::string& folder, const Sources& sources) {
  for (auto& one : run.cases) {
    std::vector<std::string> copied;
    for (const auto& source : one.files) {
      const auto text = read_file(source);
      if (text.empty()) continue;
      const auto& file = sources.at(source);
      make_directory(folder + "/" + file.substr(0, file.rfind('/')));
      write_file(folder + "/" + file, text);
      copied.push_back(file);
    }
    if (!copied.empty()) name_folder(one, folder);
    one.files = std::move(copied);
  }
}

// Under one verdict the cases of both would read as if all were of the first.
void require_made_alike(const std::vector<reports::NamedRun>& records) {
  const auto first = made_with(records.front().run).front();
  for (const auto& record : records)
    for (const auto& made : made_with(record.run))
      if (made != first)
        throw ConfigError(
            "report merge",
            {"expected records made with the same --fault, --knobs, --model and --device, got \"" +
             words_of(first) + "\" of " + records.front().name + " and \"" + words_of(made) +
             "\" of " + record.name + ". Merge those that are alike."});
}

}  // namespace

bool is_to_repeat(const reports::Case& one) {
  return reports::went_wrong(one.verdict) || one.verdict == reports::Verdict::NotRun;
}

bool has_to_repeat(const reports::Run& run) {
  return std::any_of(run.cases.begin(), run.cases.end(), is_to_repeat);
}

std::string folder_of_record(const std::string& place) {
  if (is_folder(place)) return place;
  const auto slash = place.rfind('/');
  return slash == std::string::npos ? "." : place.substr(0, slash + (slash == 0 ? 1 : 0));
}

reports::NamedRun read_record(const std::string& place) {
  const auto file = file_of_record(place);
  const auto text = read_file(file);
  if (text.empty())
    throw ConfigError("record", {"expected a run.json or the folder that has one, got \"" + place +
                                 "\". equigrad run writes one into its --report folder."});
  try {
    return {place, reports::from_json(text)};
  } catch (const std::runtime_error& error) {
    throw ConfigError("record", {file + ": " + error.what()});
  }
}

void add_merge(CLI::App& app, MergeCommand& command) {
  app.add_option("RECORD", command.places, "run.json files, or folders that have one")->required();
  app.add_option("--report", command.out.report, "Folder for index.html, run.json, junit.xml")
      ->required()
      ->default_str("");
  app.add_option("--json", command.out.json, "Also write the record here; - is stdout");
  app.add_option("--junit", command.out.junit, "Also write JUnit XML here; - is stdout");
  add_baseline(app, command.out);
  app.add_option("--color", command.out.color, "auto, always or never")
      ->check(CLI::IsMember({"auto", "always", "never"}));
}

int merge_command(const MergeCommand& command) {
  const auto& out = command.out;
  std::vector<reports::NamedRun> records;
  Sources sources;
  for (const auto& place : command.places) {
    const auto folder = folder_of_record(place);
    if (absolute(folder) == absolute(out.report))
      throw ConfigError("report merge",
                        {"expected a folder of its own behind --report, got that of " + place +
                         ". Name another."});
    records.push_back(read_record(place));
    name_files(records.back(), folder, sources);
  }
  if (!has_one_document(out)) return kUsage;
  require_made_alike(records);
  reports::Run run;
  try {
    run = reports::merged(records);
  } catch (const std::runtime_error& error) {
    std::cerr << "equigrad: " << valid_utf8(error.what()) << "\n";
    return kUsage;
  }
  run.command = out.line;
  prepare_reports(out);
  const bool is_whole = was_written([&] { copy_files(run, out.report, sources); });
  const auto again = shell_word(out.program) + " run" + words_of(made_with(run).front()) +
                     " --report " + shell_word(out.report) + " --failed";
  return end_run(out, run, {.again = again, .is_whole = is_whole});
}

void add_diff(CLI::App& app, DiffCommand& command) {
  app.add_option("A", command.before, "A run.json, or the folder that has it")->required();
  app.add_option("B", command.after, "A later one")->required();
  app.add_option("--json", command.json, "Also write all of it here; - is stdout");
}

int diff_command(const DiffCommand& command) {
  check_writable(command.json);
  const auto before = read_record(command.before), after = read_record(command.after);
  const auto changes = reports::changes(before.run, after.run);
  (command.json == "-" ? std::cerr : std::cout)
      << reports::to_text(changes, before.name, after.name) << std::flush;
  if (!command.json.empty())
    write_file(command.json, reports::to_json(changes, before.name, after.name));
  if (changes.is_worse()) return kFailed;
  return changes.both_have > 0 ? kHeld : kInconclusive;
}

}  // namespace equigrad::conformance::cli
