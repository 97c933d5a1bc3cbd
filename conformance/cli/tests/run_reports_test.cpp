// What a run leaves in its folder: kept files are attached where CI looks for them.
#include "conformance/cli/run_reports.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/tests/command_result.hpp"
#include "reports/folder_index.hpp"
#include "reports/record.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::HasSubstr;
using RunReports = InAFolder;

reports::Run failed_run() {
  reports::Case one;
  one.id = "a";
  one.verdict = reports::Verdict::Failed;
  one.files = {"fail/a/rank0.safetensors"};
  reports::Run run;
  run.cases = {one};
  return run;
}

TEST_F(RunReports, KeptFilesAreAttachedWhereGitLabOrJenkinsLooks) {
  RunCommand command;
  command.report = folder_ + "/out/report";
  command.junit = folder_ + "/also.xml";
  make_directory(command.report);
  const auto attached = [&] {
    write_run_reports(command, failed_run());
    EXPECT_EQ(text_of(command.junit), text_of(command.report + "/junit.xml"));
    return text_of(command.junit);
  };
  const std::string whole = absolute(command.report);
  ::unsetenv("CI_PROJECT_DIR");
  EXPECT_THAT(attached(), HasSubstr("[[ATTACHMENT|" + whole + "/fail/a/rank0.safetensors]]"));
  ::setenv("CI_PROJECT_DIR", folder_.c_str(), 1);
  EXPECT_THAT(attached(), HasSubstr("[[ATTACHMENT|out/report/fail/a/rank0.safetensors]]"));
  ::setenv("CI_PROJECT_DIR", (folder_ + "/other").c_str(), 1);
  EXPECT_THAT(attached(), HasSubstr("[[ATTACHMENT|" + whole + "/fail/a/rank0.safetensors]]"));
  ::unsetenv("CI_PROJECT_DIR");
}

// The pages that were there are linked, and so is one that another command writes later.
TEST_F(RunReports, TheIndexLinksThePagesOfOtherCommandsAndKeepsTheRun) {
  RunCommand command;
  command.report = folder_ + "/report";
  make_directory(command.report);
  write_file(command.report + "/faults.html", "<h1>Held</h1>");
  write_run_reports(command, failed_run());
  write_file(command.report + "/crash.html", "<h1>Failed</h1>");
  reports::link_pages(command.report);
  const auto page = text_of(command.report + "/index.html");
  EXPECT_THAT(page, HasSubstr("<a href=\"faults.html\">Faults <span>Held</span></a>"));
  EXPECT_THAT(page, HasSubstr("<a href=\"crash.html\">Crash <span>Failed</span></a>"));
  EXPECT_THAT(page, HasSubstr("fail/a/rank0.safetensors"));
}

TEST_F(RunReports, ARunIsComparedWithThoseOfTheSameWords) {
  RunCommand command;
  command.report = folder_ + "/report";
  make_directory(command.report);
  auto run = failed_run();
  for (const char* line : {"equigrad run a", "equigrad run b", "equigrad run a -q --report x"}) {
    run.command = line;
    write_run_reports(command, run);
  }
  EXPECT_THAT(text_of(command.report + "/index.html"),
              HasSubstr("0 of 2 runs of the same selection held, this one counted"));
  EXPECT_THAT(text_of(command.report + "/index.html"), HasSubstr("1 run of other selections"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
