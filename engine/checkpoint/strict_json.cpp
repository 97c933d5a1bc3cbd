#include "engine/checkpoint/strict_json.hpp"

#include <cmath>
#include <set>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

constexpr const char* kRestoreCopy = ". Restore the file from another copy.";

using Take = std::function<void(const std::string&, Json&&)>;

// Follows the parser: one frame for each open object or array.
class Follower {
 public:
  Follower(const std::string& where, int most_levels) : where_(where), most_levels_(most_levels) {}

  void follow(int depth, Json::parse_event_t event, const Json& parsed) {
    using Event = Json::parse_event_t;
    const bool is_start = event == Event::object_start || event == Event::array_start;
    if (is_start && depth >= most_levels_)
      throw Error(where_, "expected JSON of at most " + std::to_string(most_levels_) +
                              " levels, got more" + kRestoreCopy);
    if (is_start) frames_.emplace_back();
    if (event == Event::key) see(parsed.get_ref<const std::string&>());
    if (event == Event::object_end || event == Event::array_end) frames_.pop_back();
  }

  const std::string& key() const { return frames_.back().key; }

 private:
  struct Frame {
    std::string key;  // empty in an array
    std::set<std::string, std::less<>> seen;
  };

  void see(const std::string& key) {
    if (!frames_.back().seen.insert(key).second)
      throw Error(where_, "expected every key once, got " + quote(key) + " twice in one object" +
                              kRestoreCopy);
    frames_.back().key = key;
  }

  const std::string& where_;
  int most_levels_;
  std::vector<Frame> frames_;
};

// What the library says behind its own "[json.exception...] ".
std::string told_by(const Json::exception& exception) {
  constexpr std::size_t kMostBytes = 200;  // it quotes what it read last, however long that is
  std::string what = exception.what();
  const std::size_t end = what.find("] ");
  if (end != std::string::npos) what = what.substr(end + 2);
  return what.size() <= kMostBytes ? what : what.substr(0, kMostBytes) + "...";
}

Json parse(std::string_view text, const std::string& where,
           const Json::parser_callback_t& callback) {
  const std::size_t nul = text.find('\0');  // where the library would end
  if (nul != std::string_view::npos)
    throw Error(where,
                "expected JSON, got a byte of zero at byte " + std::to_string(nul) + kRestoreCopy);
  try {
    return Json::parse(text.begin(), text.end(), callback);
  } catch (const Json::exception& exception) {
    throw Error(where, "expected JSON, got a " + told_by(exception) + kRestoreCopy);
  }
}

[[noreturn]] void throw_no_object(const char* type, const std::string& where) {
  throw Error(where, std::string("expected a JSON object, got ") + type + kRestoreCopy);
}

}  // namespace

void read_members(std::string_view text, const std::string& where, int most_levels,
                  const Take& take) {
  Follower follower(where, most_levels);
  parse(text, where, [&](int depth, Json::parse_event_t event, Json& parsed) {
    using Event = Json::parse_event_t;
    follower.follow(depth, event, parsed);
    if (depth == 0 && (event == Event::array_start || event == Event::value))
      throw_no_object("another value", where);
    const bool is_whole =
        event == Event::value || event == Event::object_end || event == Event::array_end;
    if (depth != 1 || !is_whole) return true;
    take(follower.key(), std::move(parsed));
    return false;
  });
}

Json read_value(std::string_view text, const std::string& where, int most_levels) {
  Follower follower(where, most_levels);
  return parse(text, where, [&](int depth, Json::parse_event_t event, Json& parsed) {
    follower.follow(depth, event, parsed);
    return true;
  });
}

Json read_object(std::string_view text, const std::string& where, int most_levels) {
  Json value = read_value(text, where, most_levels);
  if (!value.is_object()) throw_no_object(value.type_name(), where);
  return value;
}

void check_writable(const Json& value, const std::string& where, int most_levels) {
  if (value.is_structured() && most_levels <= 0)
    throw Error(where,
                "expected fewer levels of objects and arrays, got more than a checkpoint "
                "is read with. Flatten it.");
  if (value.is_structured())
    for (const auto& [key, member] : value.items()) {
      if (value.is_object()) check_writable(Json(key), where, most_levels - 1);
      check_writable(member, where, most_levels - 1);
    }
  if (value.is_number_float() && !std::isfinite(value.get<double>()))
    throw Error(where, "expected a finite number, got " + std::to_string(value.get<double>()) +
                           ". JSON has neither NaN nor infinity: give it as text.");
  if (value.is_binary() || value.is_discarded())
    throw Error(where, "expected values that JSON has, got raw bytes. Give them as text.");
  if (!value.is_string()) return;
  const auto& text = value.get_ref<const std::string&>();
  if (valid_utf8(text) != text)
    throw Error(where, "expected text in UTF-8, got " + shown(value) + ". Encode it.");
}

std::string shown(const Json& value) {
  constexpr std::size_t kMostBytes = 100;
  const std::string whole = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return whole.size() <= kMostBytes ? whole : whole.substr(0, kMostBytes) + "...";
}

std::string quote(std::string_view text) {
  constexpr std::size_t kMostBytes = 100;
  return shown(Json(std::string(text.substr(0, kMostBytes + 1))));
}

}  // namespace equigrad::checkpoint
