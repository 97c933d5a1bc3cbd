// index.html of a folder: whoever writes a page there links it, and only the links change.
#include "reports/folder_index.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

#include "conformance/testing/scratch_folder.hpp"
#include "reports/losses.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/writers.hpp"

namespace equigrad::conformance {
namespace {

using reports::link_pages;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class FolderIndex : public ::testing::Test {
 protected:
  FolderIndex() {
    ::mkdir(scratch_.path().c_str(), 0700);
    ::mkdir(folder().c_str(), 0700);
  }

  std::string folder() const { return scratch_.path("report"); }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder() + "/" + name, std::ios::binary) << text;
  }

  std::string index() const {
    std::ifstream file(folder() + "/index.html", std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  ScratchFolder scratch_;
};

// What begins with the links and ends with them, as a file has it.
std::string links_of(const std::string& page) {
  const auto begin = page.find("<nav class=\"reports\"");
  return begin == std::string::npos ? "" : page.substr(begin, page.find("</nav>", begin) - begin);
}

TEST_F(FolderIndex, WhoComesFirstWritesOneOfLinks) {
  write("crash.html", reports::to_html(reports::Losses{}));
  link_pages(folder());
  EXPECT_THAT(links_of(index()),
              HasSubstr("<a href=\"crash.html\">Crash <span>? Inconclusive</span></a>"));
  EXPECT_THAT(index(), AllOf(HasSubstr("<h1>Reports</h1>"), HasSubstr("</html>")));
  write("faults.html", "<h1>It</h1>");
  link_pages(folder());
  EXPECT_THAT(links_of(index()),
              AllOf(HasSubstr("\"crash.html\""), HasSubstr("\"faults.html\">Faults <span>It<")));
}

TEST_F(FolderIndex, ALaterPageIsLinkedAndTheRestOfTheRunsPageStays) {
  const auto page = reports::to_html(large_run(32, 0), reports::surroundings_of(folder()));
  EXPECT_THAT(links_of(page), HasSubstr(" hidden>"));
  write("index.html", page);
  link_pages(folder());
  EXPECT_EQ(index(), page) << "there is nothing to link";
  write("race.html", "<h1>How fast</h1>");
  link_pages(folder());
  EXPECT_THAT(links_of(index()), AllOf(HasSubstr("\"race.html\""), Not(HasSubstr("hidden"))));
  const auto rest = [](std::string text) {
    return text.erase(text.find(links_of(text)), links_of(text).size());
  };
  EXPECT_EQ(rest(index()), rest(page));
  EXPECT_EQ(index(), reports::to_html(large_run(32, 0), reports::surroundings_of(folder())))
      << "a run that comes later writes the same";
}

TEST_F(FolderIndex, TheJudgesDefaultFolderBesideIsLinked) {
  ::mkdir(scratch_.path("judge-report").c_str(), 0700);
  std::ofstream(scratch_.path("judge-report/index.html")) << "<h1>RED</h1>";
  link_pages(folder());
  EXPECT_THAT(links_of(index()),
              HasSubstr("<a href=\"../judge-report/index.html\">Judge <span>RED</span></a>"));
}

TEST_F(FolderIndex, OfAPageThatSomebodyElseWroteOnlyTextIsTaken) {
  write("faults.html", "<h1><script>alert(1)</script> < b\x01</h1>");
  write("crash.html", "no heading");
  write("compare.html", "<h1>" + std::string(500, 'x') + "</h1>");
  link_pages(folder());
  EXPECT_THAT(links_of(index()),
              AllOf(Not(HasSubstr("<script")), Not(HasSubstr("\x01")), Not(HasSubstr("xxx")),
                    HasSubstr("<a href=\"crash.html\">Crash</a>"), HasSubstr(">Compare</a>")));
  write("index.html", "mine");
  link_pages(folder());
  EXPECT_EQ(index(), "mine");
}

TEST_F(FolderIndex, WhatCannotBeWrittenIsSaid) {
  write("crash.html", "<h1>It</h1>");
  ::mkdir((folder() + "/index.html.new").c_str(), 0700);  // in the way
  try {
    link_pages(folder());
    FAIL() << "it was written";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("expected to write " + folder() + "/index.html"),
                                    HasSubstr("Choose another place.")));
  }
}

TEST(ReportPages, AllButTheRunsLeadToTheIndex) {
  const auto to_index = reports::link_to_index();
  EXPECT_THAT(to_index, HasSubstr("<a href=\"index.html\">All reports</a>"));
  EXPECT_THAT(reports::to_html(reports::Losses{}), HasSubstr(to_index));
  EXPECT_THAT(reports::to_html(large_run(32, 0)), Not(HasSubstr(to_index)));
}

}  // namespace
}  // namespace equigrad::conformance
