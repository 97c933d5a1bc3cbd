#include "conformance/cli/cli.hpp"

int main(int argc, char** argv) { return equigrad::conformance::cli::run_cli(argc, argv); }
