// Relation: what must hold between runs of the engine, whatever the configuration: one row of the
// table.
//
// Exact relations hold for every bit of every input; guarded ones where the guard says so, which is
// code; bounded ones up to a bound that is computed.
//
// Invariants: a check says "" if the relation holds, kDoesNotApply if what it saw is outside the
// guard, else what is wrong; every rank of the setting calls it.
// Units: a number is a relation's name for good.   Errors: those of the engine.
// Depends on: session.hpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "property_tests/relations/session.hpp"

namespace equigrad::property_tests::relations {

enum class Class { Exact, Guarded, Bounded };

inline const std::string kDoesNotApply = "does not apply";

class Runs;
struct Relation {
  int number;
  std::string name;  // a sentence
  Class kind;
  std::function<bool(const json& one)> guard;  // whether the setting is one of the relation's
  std::function<std::string(const json& one, Runs& runs)> check;
  std::vector<std::string>
      catches;  // of the catalogue, or of planted.hpp: that it has been seen to catch
};

inline bool always(const json&) { return true; }

// Runs of one request, the plain one made once.
class Runs {
 public:
  Runs(const json& one, RankContext& ranks) : context(ranks), one_(one) {}
  RankContext& context;

  Record train(const json& one, const Way& way = {});
  const Record& plain();

 private:
  const json& one_;
  Record plain_;
};

using Keep = std::function<bool(const std::string& key)>;
inline bool is_gradient(const std::string& key) {
  return key.starts_with("1 gradient") || key == "1 norm";
}
inline bool is_not_scale(const std::string& key) { return !key.ends_with("scale"); }
inline bool is_not_observed(const std::string& key) {
  return key.find(" gradient ") == std::string::npos;
}

// The first thing in which two runs part, of those that `keep` wants; "" if in nothing.
std::string parted(const Record& one, const Record& other, const Keep& keep = nullptr);

using Pass = std::function<void(Session&, const Source&)>;
// With this pass everything is as in the plain run.
std::string as_plain(const json& one, Runs& runs, const Pass& pass);

inline json unclipped(const json& one) { return changed(one, "clip", 0.0); }

}  // namespace equigrad::property_tests::relations
