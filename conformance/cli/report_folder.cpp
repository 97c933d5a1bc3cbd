#include "conformance/cli/report_folder.hpp"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>

#include "conformance/cases/matrix.hpp"
#include "conformance/cli/failure_folder.hpp"
#include "conformance/contract/contract_case.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::cli {
namespace {

bool is_case(const std::string& name) {
  try {
    if (name.starts_with("Contract.")) return contract::parse_contract_id(name).id() == name;
    return parse_id(name).id() == name;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void make_directory(const std::string& path) {
  for (std::size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
    const std::string part = path.substr(0, at);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST)
      throw ConfigError("report", {"expected to make the folder " + part +
                                   ", got: " + std::strerror(errno) + ". Choose another place."});
    if (at == std::string::npos) break;
  }
  struct stat found {};
  if (stat(path.c_str(), &found) != 0 || !S_ISDIR(found.st_mode))
    throw ConfigError("report",
                      {"expected a folder, got the file " + path + ". Choose another place."});
}

void write_file(const std::string& path, const std::string& text) {
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw Error("report", "expected to write " + path + ", got: " + std::strerror(errno) +
                              ". Choose another place.");
}

void check_writable(const std::string& path) {
  if (path.empty() || path == "-") return;
  if (!std::ofstream(path, std::ios::binary | std::ios::app))
    throw ConfigError("report", {"expected to write " + path + ", got: " + std::strerror(errno) +
                                 ". Choose another place."});
}

bool was_written(const std::function<void()>& write) {
  try {
    write();
    return true;
  } catch (const std::exception& error) {
    std::cerr << "equigrad: " << error.what() << "\n";
    return false;
  }
}

std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && word.find_first_not_of(
                                          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                          "0123456789-_./=,:+@%") == std::string::npos;
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Not std::filesystem: LibTorch exports an older copy of it, which crashes.
std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* directory = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(directory))
      if (entry->d_name != std::string(".") && entry->d_name != std::string(".."))
        names.emplace_back(entry->d_name);
    closedir(directory);
  }
  return names;
}

std::string replay_folder(const std::string& report) {
  constexpr const char* kReplay = "-replay";
  return report.ends_with(kReplay) ? report : report + kReplay;
}

std::string absolute(const std::string& path) {
  char resolved[PATH_MAX];
  return realpath(path.c_str(), resolved) == nullptr ? path : resolved;
}

void clear_report_folder(const std::string& folder) {
  for (const char* report : {"/index.html", "/run.json", "/junit.xml"})
    unlink((folder + report).c_str());
  const std::string fail = folder + "/fail";
  for (const auto& name : entries(fail))
    if (is_case(name)) clear_failure(fail + "/" + name);
  rmdir(fail.c_str());
}

}  // namespace equigrad::conformance::cli
