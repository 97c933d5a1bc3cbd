// The covering selection of a matrix: every pair, nothing superfluous, and the same every time.
#include "conformance/cases/covering.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace equigrad::conformance {
namespace {

using Pairs = std::set<std::string>;

// "precision=bf16 & model=conv" for every two dimensions of every case that is not refused.
Pairs pairs(const std::vector<CaseSpec>& cases) {
  Pairs found;
  for (const auto& spec : cases) {
    if (spec.is_refused()) continue;
    const auto dimensions = spec.dimensions();
    for (auto a = dimensions.begin(); a != dimensions.end(); ++a)
      for (auto b = std::next(a); b != dimensions.end(); ++b)
        found.insert(a->first + "=" + a->second + " & " + b->first + "=" + b->second);
  }
  return found;
}

std::vector<CaseSpec> without(std::vector<CaseSpec> cases, std::size_t index) {
  cases.erase(cases.begin() + static_cast<std::ptrdiff_t>(index));
  return cases;
}

TEST(Covering, EveryPairOfValuesThatAnyValidCaseHasIsInIt) {
  EXPECT_EQ(pairs(covering_of(default_matrix())), pairs(full_matrix()));
}

TEST(Covering, ItIsAPartOfTheMatrixWithoutARefusedCase) {
  const auto matrix = default_matrix();
  for (const auto& spec : covering_of(matrix)) {
    EXPECT_EQ(std::count(matrix.begin(), matrix.end(), spec), 1) << spec.id();
    EXPECT_FALSE(spec.is_refused()) << spec.id();
  }
}

// What a run tells first has each value once, and is a tenth of the selection.
TEST(Covering, EveryValueComesFirst) {
  const auto selection = covering_of(default_matrix());
  auto cases = selection;
  cases.insert(cases.end(), full_matrix().front());  // behind the end, where it stays
  const auto first = every_value_first(cases, selection.size());
  const auto values = [](auto begin, auto end) {
    std::set<std::pair<std::string, std::string>> found;
    for (; begin != end; ++begin)
      for (const auto& value : begin->dimensions()) found.insert(value);
    return found;
  };
  const auto middle = cases.begin() + static_cast<std::ptrdiff_t>(first);
  EXPECT_EQ(values(cases.begin(), middle), values(selection.begin(), selection.end()));
  EXPECT_LE(first, 25u) << "21 precisions need as many";
  EXPECT_EQ(cases.back(), full_matrix().front());
  EXPECT_TRUE(std::is_permutation(selection.begin(), selection.end(), cases.begin()));
  EXPECT_EQ(every_value_first(cases, 0), 0u);
}

// The two largest dimensions have 21 and 10 values, so that no selection has fewer than 210 cases.
TEST(Covering, ItIsNearlyAsSmallAsAnyCanBe) {
  EXPECT_LE(covering_of(default_matrix()).size(), 225u);
}

void expect_nothing_superfluous(const std::vector<CaseSpec>& matrix) {
  const auto selection = covering_of(matrix);
  const auto all = pairs(matrix);
  EXPECT_EQ(pairs(selection), all);
  for (std::size_t i = 0; i < selection.size(); ++i)
    EXPECT_NE(pairs(without(selection, i)), all) << selection[i].id() << " is superfluous";
}

TEST(Covering, WithoutAnyOfItsCasesAPairIsMissing) { expect_nothing_superfluous(default_matrix()); }

// Of a few cases some that are chosen early are superfluous in the end.
TEST(Covering, WhatHasBecomeSuperfluousIsTakenOut) {
  const auto matrix = default_matrix();
  for (const std::size_t step : {29u, 31u, 37u, 41u, 43u, 47u, 53u, 59u, 61u, 67u}) {
    std::vector<CaseSpec> some;
    for (std::size_t i = 0; i < matrix.size(); i += step) some.push_back(matrix[i]);
    expect_nothing_superfluous(some);
  }
}

TEST(Covering, WhatIsGivenComesFirstAndSparesOthers) {
  const auto matrix = default_matrix();
  const auto alone = covering_of(matrix);
  const std::vector<CaseSpec> given(alone.end() - 3, alone.end());
  const auto selection = covering_of(matrix, given);
  EXPECT_TRUE(std::equal(given.begin(), given.end(), selection.begin()));
  const auto all = pairs(matrix);
  EXPECT_EQ(pairs(selection), all);
  for (std::size_t i = given.size(); i < selection.size(); ++i)
    EXPECT_NE(pairs(without(selection, i)), all) << selection[i].id();
}

TEST(Covering, TheSameMatrixHasTheSameSelection) {
  EXPECT_EQ(covering_of(default_matrix()), covering_of(default_matrix()));
}

TEST(Covering, OfCasesThatCoverAsMuchTheMoreTellingOneIsChosen) {
  CaseSpec plain, telling;
  telling.world = 2, telling.accumulation = 3, telling.model = "irregular";
  EXPECT_EQ(covering_of({plain, telling}).front(), telling);
  EXPECT_TRUE(covering_of({}).empty());
}

}  // namespace
}  // namespace equigrad::conformance
