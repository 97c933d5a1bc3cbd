// Writers: a run as a table for a terminal, as JUnit, HTML, Markdown and annotations; json.hpp has
// run.json.
//
// Terminal: settings and seed, planted faults (one line where all are caught), a row for each
//   stage, precision and number of ranks, each cause of what went wrong once, with the message of
//   its worst case and where else it was, what was not run, the verdict and the line that repeats
//   it. Plain ASCII without colour, but for what messages bring along; lines that are no results
//   start with '#'.
// JUnit: a suite for each stage, precision and number of ranks, and one for the planted faults.
//   Failed comparisons are <failure>; crashes and time-outs are <error>, so that a broken machine
//   is not mistaken for a wrong gradient; skipped and not run are <skipped>; their `message` is the
//   cause. Test names are unique. It is as Jenkins' junit-10.xsd asks.
// HTML: one page that opens from disk, under kPageBytes, without network or other files. Everything
//   is said in text; a script only adds sorting, filtering and the opening of folded groups. Every
//   section, group and case has an id to link to. What does not fit is counted, and left to
//   run.json.
// Markdown: at most max_bytes (GitHub cuts a summary off at 1 MiB without a word), ending in a line
//   that says how many failures did not fit.
// Annotations: GitHub workflow commands, of which it shows ten of a kind for a step: the nine worst
//   failures and one line that counts the others. A void run is one line more important than all.
//
// Invariants: foreign text stays text: it opens no tag, leaves no cell, block or CDATA section, and
//   starts no command.
// Units: bytes; times in JUnit are in seconds.
// Errors: none; annotations of a run in which nothing went wrong are an empty string.
// Depends on: reports/record.hpp, reports/folder_index.hpp.
#pragma once

#include <string>

#include "reports/folder_index.hpp"
#include "reports/record.hpp"

namespace equigrad::reports {

struct TerminalOptions {
  bool colour = false;
  size_t messages = 20;  // causes that are shown; the others are counted
  // What does not fit of the table is left out and named, sentences go on in the next line, lines
  // to paste stay whole; 0: all fits.
  size_t columns = 0;
};
inline constexpr size_t kPageBytes = 1'500'000;
inline constexpr size_t kAnnotations = 10;

std::string to_terminal(const Run& run, const TerminalOptions& options = {});
// `folder`: the report's, as a reader of the XML is to find kept files in it.
std::string to_junit(const Run& run, const std::string& folder = "");
std::string to_html(const Run& run, const Surroundings& around = {});
std::string to_markdown(const Run& run, size_t max_bytes = 900 * 1024);
std::string to_annotations(const Run& run);

}  // namespace equigrad::reports
