#include "engine/config/json.hpp"

#include <algorithm>
#include <stdexcept>

namespace equigrad {
namespace {

constexpr std::size_t kMostLevels = 32;

// Follows the parser to know where it is: one frame for each open object or array. (A callback of
// Json::parse could do the same, in a time that grows with the square of an object's entries.)
class PathTracker final : public Json::json_sax_t {
 public:
  explicit PathTracker(std::vector<std::string>& problems) : problems_(problems) {}

  std::string path() const {
    std::string joined;
    for (const Frame& frame : frames_)
      if (!frame.key.empty()) joined += (joined.empty() ? "" : ".") + frame.key;
    return joined.empty() ? "the file" : joined;
  }

 private:
  struct Frame {
    std::string key;  // empty in an array
    std::set<std::string> seen;
  };
  bool start_object(std::size_t) override { return start(); }
  bool start_array(std::size_t) override { return start(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(std::string& name) override {
    frames_.back().key = name;
    if (!frames_.back().seen.insert(name).second)
      problems_.push_back(path() + ": expected every key once, got it twice. Drop one of them.");
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(Json::number_integer_t) override { return true; }
  bool number_unsigned(Json::number_unsigned_t) override { return true; }
  bool number_float(Json::number_float_t, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(Json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const Json::exception&) override {
    return false;
  }
  bool start() {
    if (frames_.size() >= kMostLevels)
      throw std::length_error(path() + ": expected at most " + std::to_string(kMostLevels) +
                              " levels, got more. Flatten the file.");
    frames_.emplace_back();
    return true;
  }
  bool end() {
    frames_.pop_back();
    return true;
  }
  std::vector<Frame> frames_;
  std::vector<std::string>& problems_;
};

std::string after_exception_id(const std::string& what) {
  const std::size_t end = what.find("] ");
  return end == std::string::npos ? what : what.substr(end + 2);
}

}  // namespace

JsonDocument parse_json(const std::string& text) {
  JsonDocument document;
  const std::size_t zero = text.find('\0');  // where the library would end
  if (zero != std::string::npos) {
    document.problems.push_back("the file: expected JSON, got a byte of zero at byte " +
                                std::to_string(zero) + ". Write it again as text, in UTF-8.");
    return document;
  }
  PathTracker tracker(document.problems);
  try {
    Json::sax_parse(text, static_cast<Json::json_sax_t*>(&tracker), Json::input_format_t::json,
                    true, true);
    document.root = Json::parse(text, nullptr, true, true);
    if (!document.root.is_object())
      document.problems.push_back("the file: expected a JSON object, got " +
                                  std::string(document.root.type_name()) + ". Begin it with {.");
  } catch (const Json::out_of_range& overflow) {
    document.problems.push_back(tracker.path() + ": expected a number that fits a double, got " +
                                after_exception_id(overflow.what()) + ". Give a finite number.");
  } catch (const Json::exception& syntax) {
    document.problems.push_back(tracker.path() + ": expected JSON, got a " +
                                after_exception_id(syntax.what()) +
                                ". Correct the syntax there; JSON has no NaN and no infinity.");
  } catch (const std::length_error& too_deep) {
    document.problems.push_back(too_deep.what());
  }
  return document;
}

std::string shown(const Json& value) {
  constexpr std::size_t kMostCharacters = 60;
  const std::string whole = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return whole.size() <= kMostCharacters ? whole : whole.substr(0, kMostCharacters) + "...";
}

bool is_auto(const Json& value) { return value.is_string() && value.get<std::string>() == "auto"; }

const Json* ConfigReader::find(const std::string& path) const {
  const Json* at = &root_;
  std::size_t begin = 0;
  while (begin <= path.size()) {
    const std::size_t end = std::min(path.find('.', begin), path.size());
    if (!at->is_object()) return nullptr;
    const auto found = at->find(path.substr(begin, end - begin));
    if (found == at->end() || found->is_null()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return at;
}

void ConfigReader::problem(const std::string& path, const std::string& text) {
  if (text.empty()) return;
  bad_paths_.insert(path);
  problems_.push_back(path + ": " + text);
}

}  // namespace equigrad
