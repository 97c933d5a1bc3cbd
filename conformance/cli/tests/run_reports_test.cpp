// What a run leaves in its folder: kept files are attached where CI looks for them.
#include "conformance/cli/run_reports.hpp"

#include <gmock/gmock.h>

#include <cstdlib>

#include "conformance/cli/report_folder.hpp"
#include "conformance/cli/tests/command_result.hpp"
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

}  // namespace
}  // namespace equigrad::conformance::cli
