# What a user does with the package: installs it, moves it, builds a program with it, runs it. Run by CTest
# (equigrad_package_test), with BUILD, SOURCE, PYTHON, TORCH_ROOT, TORCH_VERSION, GENERATOR and COMPILER.
cmake_minimum_required(VERSION 3.25)

set(work "${BUILD}/package_test")
set(prefix "${work}/moved prefix")  # a blank, as users have them
set(generator -G "${GENERATOR}" -D "CMAKE_CXX_COMPILER=${COMPILER}")
file(REMOVE_RECURSE "${work}")

# Runs a command, which must succeed; its output is in `output` and `error`.
macro(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "expected success of ${ARGN}, got ${result}\n${output}\n${error}")
  endif()
endmacro()

# A configuration of an example that must be refused, with each of the words in what it says.
function(expect_refusal name example options)
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}/examples/${example}" -B "${work}/${name}" ${generator}
    ${options} RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE error)
  if(result EQUAL 0)
    message(FATAL_ERROR "${name}: expected an error, got none")
  endif()
  string(REGEX REPLACE "[ \n]+" " " error "${error}")
  foreach(words IN LISTS ARGN)
    string(FIND "${error}" "${words}" at)
    if(at EQUAL -1)
      message(FATAL_ERROR "${name}: expected \"${words}\" in the error, got\n${error}")
    endif()
  endforeach()
endfunction()

# ---- installed, and moved: no file names a folder of the build -----------------------------------------------------
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${work}/first")
file(RENAME "${work}/first" "${prefix}")
file(GLOB_RECURSE texts "${prefix}/*.cmake" "${prefix}/*.hpp")
list(LENGTH texts count)
if(count LESS 15)
  message(FATAL_ERROR "expected the headers and the CMake files of the package, got ${count}: ${texts}")
endif()
foreach(text IN LISTS texts)
  file(READ "${text}" content)
  foreach(path "${BUILD}" "${SOURCE}" "${TORCH_ROOT}" "#include \"engine/")
    string(FIND "${content}" "${path}" at)
    if(NOT at EQUAL -1)
      message(FATAL_ERROR "${text}: expected nothing of the build, got ${path}")
    endif()
  endforeach()
endforeach()
file(GLOB on_path RELATIVE "${prefix}/include" "${prefix}/include/*")
if(NOT on_path STREQUAL "equigrad")
  message(FATAL_ERROR "expected one folder on the user's include path, equigrad, got ${on_path}")
endif()

# ---- another torch, or none ----------------------------------------------------------------------------------------
set(package "-DCMAKE_PREFIX_PATH=${prefix}")
set(other "${work}/other_torch")
file(WRITE "${other}/lib/libtorch_cpu.so" "")
file(WRITE "${other}/include/torch/csrc/api/include/torch/torch.h" "")
file(WRITE "${other}/include/torch/headeronly/version.h"
  "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n#define TORCH_VERSION_PATCH 1\n")
expect_refusal(other_version cpp_training "-DCMAKE_PREFIX_PATH=${prefix}\;${other}"
  "expected torch ${TORCH_VERSION}, with which equigrad" "got torch 2.99.1 at ${other}" "-D EQUIGRAD_PYTHON=")
expect_refusal(no_torch cpp_training "${package};-DEQUIGRAD_PYTHON=${work}/no/python3"
  "expected torch ${TORCH_VERSION}" "${work}/no/python3 has no module torch")

# ---- as a part of another project: the same target; no flag of that project's, nothing installed, nothing set up ----
file(WRITE "${work}/parent/CMakeLists.txt" "cmake_minimum_required(VERSION 3.25)
project(parent LANGUAGES CXX)
set(before \"\${CMAKE_CXX_FLAGS}|\${CMAKE_CXX_FLAGS_RELEASE}|\${CMAKE_CXX_STANDARD}|\${CMAKE_BUILD_TYPE}|\")
add_subdirectory(\"${SOURCE}\" equigrad)
foreach(flags COMPILE_OPTIONS COMPILE_DEFINITIONS LINK_OPTIONS INCLUDE_DIRECTORIES TESTS)
  get_directory_property(value \${flags})
  if(value)
    message(FATAL_ERROR \"\${flags} of the parent: \${value}\")
  endif()
endforeach()
if(NOT before STREQUAL \"\${CMAKE_CXX_FLAGS}|\${CMAKE_CXX_FLAGS_RELEASE}|\${CMAKE_CXX_STANDARD}|\${CMAKE_BUILD_TYPE}|\")
  message(FATAL_ERROR \"variables of the parent were changed\")
endif()
if(NOT TARGET equigrad::engine OR TARGET equigrad_conformance)
  message(FATAL_ERROR \"expected equigrad::engine, and no harness\")
endif()
")
# Set-up would begin by asking Debian what is installed.
file(WRITE "${work}/bin/dpkg-query" "#!/bin/sh\ntouch '${work}/asked'\nprintf '%s=installed\\n' \"$@\"\n")
file(CHMOD "${work}/bin/dpkg-query" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
run("${CMAKE_COMMAND}" -E env "PATH=${work}/bin:$ENV{PATH}" "${CMAKE_COMMAND}" -S "${work}/parent" -B "${work}/parent_build" ${generator} "-DEQUIGRAD_PYTHON=${PYTHON}")
file(GLOB_RECURSE rules "${work}/parent_build/cmake_install.cmake" "${work}/parent_build/equigrad/cmake_install.cmake")
if(EXISTS "${work}/asked")
  message(FATAL_ERROR "expected no set-up in a part of another project, got one")
endif()
foreach(rule IN LISTS rules)
  file(STRINGS "${rule}" installs REGEX "file\\(INSTALL")
  if(installs)
    message(FATAL_ERROR "${rule}: expected nothing to install, got ${installs}")
  endif()
endforeach()

# ---- the example, alone and as two ranks ---------------------------------------------------------------------------
run("${CMAKE_COMMAND}" -S "${SOURCE}/examples/cpp_training" -B "${work}/example" ${generator} "${package}"
  "-DEQUIGRAD_PYTHON=${PYTHON}")
run("${CMAKE_COMMAND}" --build "${work}/example")
set(program "${work}/example/training")
run("${program}")
if(NOT output MATCHES "^loss [0-9.]+ -> [0-9.]+\n$")
  message(FATAL_ERROR "expected the loss of the example, got ${output}")
endif()
set(alone "${output}")
run("${PYTHON}" -c "import socket\ns = socket.socket()\ns.bind(('127.0.0.1', 0))\nprint(s.getsockname()[1], end='')")
set(launch "${CMAKE_COMMAND}" -E env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=${output})
execute_process(COMMAND ${launch} RANK=1 LOCAL_RANK=1 "${program}" COMMAND ${launch} RANK=0 LOCAL_RANK=0 "${program}"
  RESULTS_VARIABLE results OUTPUT_VARIABLE output ERROR_VARIABLE error TIMEOUT 120)
if(NOT results STREQUAL "0;0")
  message(FATAL_ERROR "two ranks: expected exit codes 0;0, got ${results}\n${output}\n${error}")
endif()
if(NOT output MATCHES "^loss [0-9.]+ -> [0-9.]+\n$" OR output STREQUAL alone)
  message(FATAL_ERROR "two ranks: expected one line with another loss than alone (${alone}), got ${output}")
endif()

# ---- two groups of ranks over a bridge: it is built, and says what it expects ------------------------------------------
run("${CMAKE_COMMAND}" -S "${SOURCE}/examples/cpp_disaggregated" -B "${work}/disaggregated" ${generator} "${package}"
  "-DEQUIGRAD_PYTHON=${PYTHON}")
run("${CMAKE_COMMAND}" --build "${work}/disaggregated")
execute_process(COMMAND "${work}/disaggregated/disaggregated" RESULT_VARIABLE result ERROR_VARIABLE error)
if(NOT result EQUAL 2 OR NOT error MATCHES "expected: disaggregated FOLDER")
  message(FATAL_ERROR "without arguments: expected exit code 2 and how it is called, got ${result}\n${error}")
endif()

# ---- the check: a GoogleTest, and a library for the installed program, each seen to fail -----------------------------
set(with_torch "${package};-DEQUIGRAD_PYTHON=${PYTHON}")
set(check "${work}/check")
run("${CMAKE_COMMAND}" -S "${SOURCE}/examples/cpp_gtest" -B "${check}" ${generator} ${with_torch})
run("${CMAKE_COMMAND}" --build "${check}")
run("${CMAKE_CTEST_COMMAND}" --test-dir "${check}" --output-on-failure)
if(NOT output MATCHES "100% tests passed, 0 tests failed out of 2")
  message(FATAL_ERROR "expected two tests of the check, got ${output}")
endif()
execute_process(COMMAND "${prefix}/bin/equigrad" run --model "${check}/libperceptron.so" --dtypes fp32 --stages 2 --world 2
  --fault averaged_twice --report "${work}/report" RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error)
if(NOT result EQUAL 1 OR NOT output MATCHES "averaged twice" OR NOT EXISTS "${work}/report/index.html")
  message(FATAL_ERROR "a planted fault: expected exit code 1 and its cause, got ${result}\n${output}\n${error}")
endif()

# ---- an installation of the engine alone has no check, and says so ----------------------------------------------------
file(GLOB with_check "${prefix}/lib*/cmake/equigrad/equigradCheckTargets*.cmake")
if(NOT with_check)
  message(FATAL_ERROR "expected the CMake files of equigrad::check, got none")
endif()
file(REMOVE ${with_check})
expect_refusal(no_check cpp_gtest "${with_torch}"
  "expected the component check" "an installation of the engine alone" "cmake --preset dev")
