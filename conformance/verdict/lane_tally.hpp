// LaneTally: what one rank found in one lane of one case, gathered comparison by comparison.
//
// Invariants: counts only grow; `first` is the first comparison that failed, in the order of the
// run; `worst` keeps the tensor that its index belongs to.
// Units: elements.   Errors: those of the oracle.
// Depends on: oracle/bits.hpp, oracle/bound.hpp, nlohmann-json.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance {

class LaneTally {
 public:
  // `where` reads "step 1 gradient fc.weight"; `begin` is the flat index of the first element.
  // Returns whether the comparison held.
  bool add(const std::string& where, int64_t begin, const oracle::BitsReport& report);
  bool add(const std::string& where, int64_t begin, const oracle::BoundReport& report);
  // The same for a check whose margin is no measure of headroom: only violations are kept.
  bool add_pass_or_fail(const std::string& where, int64_t begin, oracle::BoundReport report);
  // A comparison of anything else than elements, which held.
  void add_held(int64_t compared) { compared_ += compared; }
  // A finding without elements, such as a gradient that should not be there. Counts as one.
  void add_finding(const std::string& where, const std::string& what);

  const std::string& first() const { return first_; }  // "where: what"; empty: all held

  nlohmann::json to_json() const;

 private:
  // A kind of comparison that found a difference: "gradient" of "step 1 gradient fc.weight".
  struct Check {
    std::string kind;
    int step;        // of the first one, from 0
    std::string of;  // what follows the kind
    int64_t differing;
  };
  void note(const std::string& where, int64_t differing);
  void keep_worst(const std::string& where, int64_t index, double got, double want, double bound,
                  double ulp, double badness);

  int64_t compared_ = 0;
  int64_t differing_ = 0;
  double margin_ = 0;
  double badness_ = 0;
  std::string first_;
  nlohmann::json worst_;
  std::vector<Check> checks_;  // in the order in which they first failed
};

// Doubles as text, so that NaN and infinities survive JSON.
std::string exact_text(double value);
double exact_value(const nlohmann::json& text);

}  // namespace equigrad::conformance
