#include "perf/race/commands.hpp"

int main(int argc, char** argv) { return equigrad::perf::run_commands(argc, argv); }
