# The rules behind CMakeLists.txt: how this project compiles, and how it uses LibTorch, nvcc and GoogleTest.

include("${CMAKE_CURRENT_LIST_DIR}/engine/package/torch.cmake")
include("${CMAKE_CURRENT_LIST_DIR}/engine/package/package.cmake")
include(CheckLinkerFlag)

# ---- Flags for everything, so that one precompiled header serves all. They are of this folder and those below it: a
# project of which this one is a part keeps its own. -----------------------------------------------------------------
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
# Line tables only: full debug information doubles the precompiled header and every link.
set(CMAKE_CXX_FLAGS_DEVELOPMENT "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O2")
if(EQUIGRAD_HARNESS)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
endif()
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE)
  set(default_build Release)
  if(EQUIGRAD_HARNESS)
    set(default_build Development)
  endif()
  set(CMAKE_BUILD_TYPE ${default_build} CACHE STRING "Development or Release" FORCE)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)  # a part of a project that chose none
  add_compile_options(-O2)
endif()
set(EQUIGRAD_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=")
option(EQUIGRAD_FUZZ "Build libFuzzer's programs, with clang" OFF)
if(EQUIGRAD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    message(FATAL_ERROR "Equigrad: expected clang for EQUIGRAD_FUZZ, got ${CMAKE_CXX_COMPILER_ID}. Take the preset `fuzz`.")
  endif()
  set(EQUIGRAD_SANITIZE fuzzer-no-link,address,undefined)
endif()
# Few headers: what torch/torch.h adds to these has templates with virtual functions, which every file would compile anew.
set(EQUIGRAD_PRECOMPILE
  "<torch/types.h>;<torch/nn/module.h>;<torch/csrc/autograd/custom_function.h>;<torch/csrc/distributed/c10d/ProcessGroup.hpp>"
  CACHE STRING "Headers of torch precompiled once for all files that use it; with none, nothing is precompiled")

# What changes sums cannot be taken back by an option behind it.
get_directory_property(inherited COMPILE_OPTIONS)
if("${CMAKE_CXX_FLAGS} ${inherited}" MATCHES "-ffast-math|-Ofast|-funsafe-math-optimizations|-fassociative-math")
  message(FATAL_ERROR "Equigrad: expected compiler flags that keep the order of sums, got ${CMAKE_MATCH_0}. Take it out "
    "of CMAKE_CXX_FLAGS and of add_compile_options, or set it for your own targets only (target_compile_options).")
endif()
# NDEBUG always: the wheel is a release build, and without NDEBUG some of its classes have another layout here.
add_compile_definitions(NDEBUG EQUIGRAD_VERSION="${PROJECT_VERSION}")
# No contraction: every sum and product in this project is rounded once, as its documents say.
add_compile_options(-fPIC -ffp-contract=off)
if(EQUIGRAD_PYTHON_PACKAGE AND NOT EQUIGRAD_HARNESS)  # errors name files, and not where they lay when a wheel was made
  add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
endif()
check_linker_flag(CXX -fuse-ld=mold EQUIGRAD_HAS_MOLD)
if(EQUIGRAD_HAS_MOLD)
  add_link_options(-fuse-ld=mold)
endif()
if(EQUIGRAD_SANITIZE)
  # vptr wants type information for classes of the wheel, which was not built for it.
  add_compile_options(-fsanitize=${EQUIGRAD_SANITIZE} -fno-sanitize=vptr -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${EQUIGRAD_SANITIZE})
endif()

# ---- Libraries of others ------------------------------------------------------------------------------------------
# What the engine needs beside torch, and who has it: headers only. All that is missing is said at once.
if(NOT TARGET nlohmann_json::nlohmann_json)
  find_package(nlohmann_json QUIET)
endif()
find_path(EQUIGRAD_GLOO_INCLUDE gloo/transport/device.h DOC "The folder that has gloo/, of the headers of Gloo")
find_path(EQUIGRAD_XXHASH_INCLUDE xxhash.h DOC "The folder that has xxhash.h")
if(NOT TARGET nlohmann_json::nlohmann_json OR NOT EQUIGRAD_GLOO_INCLUDE OR NOT EQUIGRAD_XXHASH_INCLUDE)
  set(missing "")
  if(NOT TARGET nlohmann_json::nlohmann_json)
    string(APPEND missing "\n  nlohmann_json   Debian, Ubuntu: nlohmann-json3-dev   Fedora: json-devel   conda: nlohmann_json")
  endif()
  if(NOT EQUIGRAD_GLOO_INCLUDE)
    string(APPEND missing "\n  Gloo (headers)  Debian, Ubuntu: libgloo-dev          Fedora: gloo-devel   conda: gloo")
  endif()
  if(NOT EQUIGRAD_XXHASH_INCLUDE)
    string(APPEND missing "\n  xxHash (header) Debian, Ubuntu: libxxhash-dev        Fedora: xxhash-devel conda: xxhash")
  endif()
  message(FATAL_ERROR "Equigrad: expected the headers of nlohmann_json, Gloo and xxHash, which the engine is compiled with; "
    "missing are${missing}\nInstall them, or name the prefix that has them: -D CMAKE_PREFIX_PATH=...")
endif()
add_library(equigrad_xxhash INTERFACE)  # compiled into who includes it
target_include_directories(equigrad_xxhash SYSTEM INTERFACE "${EQUIGRAD_XXHASH_INCLUDE}")
if(EQUIGRAD_HARNESS)
  find_package(CLI11 REQUIRED)
  find_package(ZLIB REQUIRED)
  find_package(Boost REQUIRED)
  find_package(pugixml REQUIRED)
  find_package(GTest REQUIRED)
  find_package(rapidcheck REQUIRED)
  find_package(benchmark REQUIRED)
endif()
# What the check is made of: all rooms. The Python package has it where its libraries are, headers and zlib.
set(EQUIGRAD_CHECK ${EQUIGRAD_HARNESS})
if(EQUIGRAD_PYTHON_PACKAGE AND NOT EQUIGRAD_HARNESS)
  set(missing "")
  foreach(library CLI11 ZLIB Boost)
    find_package(${library} QUIET)
    if(NOT ${library}_FOUND)
      string(APPEND missing " ${library}")
    endif()
  endforeach()
  if(missing)
    message(WARNING "Equigrad: equigrad.check is left out of the package, for it needs:${missing}. Debian, Ubuntu: libcli11-dev "
      "zlib1g-dev libboost-math-dev; Fedora: cli11-devel zlib-devel boost-devel; conda: cli11 zlib libboost-headers.")
  else()
    set(EQUIGRAD_CHECK ON)
  endif()
endif()

# Nothing where there is no harness, and no error by a compiler whose warnings nobody has read here: another compiler's or a
# later one's warnings are no reason to stop a user.
add_library(equigrad_warnings INTERFACE)
if(EQUIGRAD_HARNESS)
  # To g++ a constructor's parameter shadows the member of its name. It also complains, as clang 18 does, of members that a
  # designated initializer leaves out, and of `if (x) EXPECT_EQ(..)`; the last three are false alarms of g++ 12 about
  # std::string (GCC bug 105651).
  set(gnu_warnings -Wno-dangling-else -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow)
  target_compile_options(equigrad_warnings INTERFACE -Wall -Wextra -Wconversion
    $<IF:$<CXX_COMPILER_ID:GNU>,-Wshadow=local,-Wshadow> "$<$<CXX_COMPILER_ID:GNU>:${gnu_warnings}>")
  if(CMAKE_CXX_COMPILER_ID STREQUAL Clang AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 15)
    target_compile_options(equigrad_warnings INTERFACE -Werror)
  else()
    target_compile_options(equigrad_warnings INTERFACE -Wno-missing-field-initializers)
    if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(equigrad_warnings INTERFACE -Werror)
    endif()
  endif()
endif()

# ---- torch, and CUDA where torch has it ---------------------------------------------------------------------------
option(EQUIGRAD_CUDA "Compile the CUDA path, where torch has one" ON)
option(EQUIGRAD_ANY_TORCH "Take a version of torch that was not run with this engine" OFF)
# Versions, without the last number, that were run: docs/installing.md says what was. The first is what a package is made for
# where no torch is.
set(EQUIGRAD_TORCH_RUN 2.11 2.12 2.13 2.14 2.15)
list(JOIN EQUIGRAD_TORCH_RUN ", " torch_run)

if(EQUIGRAD_SITE_DIR)
  set(EQUIGRAD_TORCH_ROOT "${EQUIGRAD_SITE_DIR}/torch")
else()
  equigrad_find_torch(EQUIGRAD_TORCH_ROOT problem)
  if(problem)
    message(FATAL_ERROR "Equigrad: expected torch ${torch_run}, got: ${problem}. Give -D EQUIGRAD_PYTHON=... "
      "(a Python that has it; pip install \"torch==2.11.*\" installs the first), or -D CMAKE_PREFIX_PATH=... (an "
      "unpacked LibTorch).")
  endif()
  equigrad_torch_version("${EQUIGRAD_TORCH_ROOT}" EQUIGRAD_TORCH_VERSION)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" series "${EQUIGRAD_TORCH_VERSION}")
  list(GET EQUIGRAD_TORCH_RUN 0 first)
  if(NOT series IN_LIST EQUIGRAD_TORCH_RUN AND (NOT EQUIGRAD_ANY_TORCH OR series VERSION_LESS first))
    message(FATAL_ERROR "Equigrad: expected torch of a version that it was run with (${torch_run}), got "
      "\"${EQUIGRAD_TORCH_VERSION}\" at ${EQUIGRAD_TORCH_ROOT}. Name another torch (-D EQUIGRAD_PYTHON=... or -D "
      "CMAKE_PREFIX_PATH=...), or try a later one unproven with -D EQUIGRAD_ANY_TORCH=ON.")
  endif()
endif()

# Headers of CUDA and NCCL, the run-time library and nvcc: of the wheels beside torch, else of the toolkit. What is
# missing goes to EQUIGRAD_WITHOUT_CUDA, with the remedy, which the engine tells who asks it for a CUDA device.
function(equigrad_find_cuda)
  cmake_path(GET EQUIGRAD_TORCH_ROOT PARENT_PATH site)
  set(wheels "${site}/nvidia/cu13")
  set(toolkits "$ENV{CUDA_HOME}" /usr/local/cuda)
  foreach(found headers nccl nvcc)
    set(${found} ${found}-NOTFOUND)
  endforeach()
  find_path(headers cuda_runtime.h PATHS "${wheels}/include" NO_DEFAULT_PATH NO_CACHE)
  find_path(headers cuda_runtime.h PATHS ${toolkits} PATH_SUFFIXES include NO_CACHE)
  find_path(nccl nccl.h PATHS "${site}/nvidia/nccl/include" NO_DEFAULT_PATH NO_CACHE)
  find_path(nccl nccl.h PATHS ${toolkits} PATH_SUFFIXES include NO_CACHE)
  # The toolkit's nvcc if it is of the version that the wheels have, else theirs.
  find_program(nvcc nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda/bin NO_CACHE)
  set(release "")
  if(nvcc)
    execute_process(COMMAND "${nvcc}" --version OUTPUT_VARIABLE release)
  endif()
  if(NOT release MATCHES "release 13\\.0" AND EXISTS "${wheels}/bin/nvcc" AND EXISTS "${wheels}/nvvm/bin/cicc")
    set(nvcc "${wheels}/bin/nvcc")
  elseif(NOT release MATCHES "release 13\\.")
    set(nvcc nvcc-NOTFOUND)
  endif()
  equigrad_find_cudart("${EQUIGRAD_TORCH_ROOT}" cudart)
  set(reason "")
  if(NOT EQUIGRAD_CUDA)
    set(reason "it was configured with EQUIGRAD_CUDA=OFF. Configure it with ON")
  elseif(NOT EXISTS "${EQUIGRAD_TORCH_ROOT}/lib/libtorch_cuda.so")
    set(reason "its torch has no libtorch_cuda.so. Build it with a torch that has CUDA, or keep the model on the CPU")
  elseif(NOT headers OR NOT cudart)
    set(reason "the headers or the run-time library of CUDA 13 were not found. Install nvidia-cuda-runtime, nvidia-cuda-crt and nvidia-cuda-cccl beside torch, or the CUDA toolkit, and build it again")
  elseif(NOT nccl)
    set(reason "nccl.h was not found. Install nvidia-nccl-cu13 beside torch, or NCCL with its headers, and build it again")
  elseif(NOT nvcc)
    set(reason "no nvcc of CUDA 13 was found. Install nvidia-cuda-nvcc, nvidia-cuda-crt and nvidia-nvvm beside torch, or the CUDA toolkit, and build it again")
  endif()
  set(EQUIGRAD_WITHOUT_CUDA "${reason}" PARENT_SCOPE)
  set(EQUIGRAD_CUDA_INCLUDES "${headers}" "${headers}/cccl" "${nccl}" PARENT_SCOPE)
  set(EQUIGRAD_CUDART "${cudart}" PARENT_SCOPE)
  set(EQUIGRAD_NVCC "${nvcc}" PARENT_SCOPE)
endfunction()

equigrad_find_cuda()
add_library(equigrad_torch INTERFACE)
target_compile_definitions(equigrad_torch INTERFACE USE_C10D_GLOO)
if(EQUIGRAD_WITHOUT_CUDA)
  if(EQUIGRAD_HARNESS AND EQUIGRAD_CUDA)
    message(FATAL_ERROR "Equigrad: expected a torch with CUDA, and its compiler, for the harness, got none: ${EQUIGRAD_WITHOUT_CUDA}, "
      "or configure with -D EQUIGRAD_CUDA=OFF.")
  endif()
  set(EQUIGRAD_CUDART "")
else()
  target_compile_definitions(equigrad_torch INTERFACE USE_C10D_NCCL)
endif()
target_compile_definitions(equigrad_torch INTERFACE USE_DISTRIBUTED FMT_HEADER_ONLY)
equigrad_use_torch_of(equigrad_torch "${EQUIGRAD_TORCH_ROOT}" "${EQUIGRAD_CUDART}")
target_include_directories(equigrad_torch SYSTEM INTERFACE "${EQUIGRAD_GLOO_INCLUDE}")
if(EQUIGRAD_WITHOUT_CUDA)
  message(STATUS "Equigrad: torch ${EQUIGRAD_TORCH_VERSION} at ${EQUIGRAD_TORCH_ROOT}; without CUDA: ${EQUIGRAD_WITHOUT_CUDA}")
else()
  target_include_directories(equigrad_torch SYSTEM INTERFACE ${EQUIGRAD_CUDA_INCLUDES})
  message(STATUS "Equigrad: torch ${EQUIGRAD_TORCH_VERSION} at ${EQUIGRAD_TORCH_ROOT}; with CUDA, by ${EQUIGRAD_NVCC}")
endif()

# An object that carries a precompiled header; WITH: libraries whose headers are in it. A distribution's update gives headers times of
# their own, older than the build's, which make would not see and clang would refuse: it compares their sizes alone.
set(any_time "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
function(equigrad_precompiled name)
  cmake_parse_arguments(PARSE_ARGV 1 header "" "" "WITH;OPTIONS;HEADERS")
  if(EQUIGRAD_PRECOMPILE)
    file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/generated/${name}.cpp" CONTENT "// Carries a precompiled header.\n")
    add_library(${name} OBJECT "${PROJECT_BINARY_DIR}/generated/${name}.cpp")
    target_link_libraries(${name} PRIVATE nlohmann_json::nlohmann_json ${header_WITH})
    target_compile_options(${name} PRIVATE ${header_OPTIONS} ${any_time})
    target_precompile_headers(${name} PRIVATE ${header_HEADERS})
  endif()
endfunction()

function(equigrad_reuse_precompiled target from)
  if(EQUIGRAD_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM ${from})
  endif()
endfunction()

# Tests are compiled without optimisation, which takes a fifth of the time; what they test is compiled with it.
set(test_options -O0)
set(json <nlohmann/json.hpp>)
set(gmock <gmock/gmock.h>)
equigrad_precompiled(equigrad_precompiled WITH equigrad_torch HEADERS ${EQUIGRAD_PRECOMPILE} ${json})
equigrad_precompiled(equigrad_precompiled_without_torch HEADERS ${json})
if(EQUIGRAD_HARNESS)
  equigrad_precompiled(equigrad_precompiled_tests WITH equigrad_torch GTest::gmock rapidcheck rapidcheck_gtest
    OPTIONS ${test_options} HEADERS ${EQUIGRAD_PRECOMPILE} ${json} ${gmock} <rapidcheck/gtest.h>)
  equigrad_precompiled(equigrad_precompiled_tests_without_torch WITH GTest::gmock
    OPTIONS ${test_options} HEADERS ${json} ${gmock})
endif()

function(equigrad_use_torch target)
  target_link_libraries(${target} PUBLIC equigrad_torch)
  equigrad_reuse_precompiled(${target} equigrad_precompiled)
endfunction()

# ---- Rooms and programs -------------------------------------------------------------------------------------------
# engine/comm -> equigrad_engine_comm. `engine` is its headers alone, which rooms of the engine may use; to all others it
# is the whole engine.
function(equigrad_target room out_var)
  string(REPLACE "/" "_" name "equigrad_${room}")
  if(room STREQUAL "engine")
    set(name equigrad_engine_headers)
  endif()
  set(${out_var} ${name} PARENT_SCOPE)
endfunction()

# Sources and headers below a room's folder that belong to no room of their own, and are no tests.
function(equigrad_files_of room)
  file(GLOB_RECURSE sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${room}/*.cpp)
  file(GLOB_RECURSE headers RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${room}/*.hpp)
  set(others "/tests/" "/(main|quickstart|seam_table)\\.cpp$")
  if(EQUIGRAD_WITHOUT_CUDA)
    list(APPEND others "/nccl\\.cpp$")
  else()
    list(APPEND others "/without_cuda\\.cpp$")
  endif()
  file(STRINGS CMakeLists.txt rows REGEX "^equigrad_room\\(${room}/")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "${room}/[a-z_/]+" other "${row}")
    list(APPEND others "^${other}/")
  endforeach()
  if(room STREQUAL "engine")
    list(APPEND others "^engine/error\\.hpp$")
  elseif(room STREQUAL "engine/error")
    set(headers engine/error.hpp)
  endif()
  foreach(other IN LISTS others)
    list(FILTER sources EXCLUDE REGEX "${other}")
    list(FILTER headers EXCLUDE REGEX "${other}")
  endforeach()
  set(sources "${sources}" PARENT_SCOPE)
  set(headers "${headers}" PARENT_SCOPE)
endfunction()

# Several files compiled as one take less than half of the time: what their headers and templates need is compiled once.
# Files of engine/config have names of their own in common; of two other rooms more than six have. The kernels' files have
# options of their own.
set(EQUIGRAD_GROUP 6 CACHE STRING "Files that are compiled as one, of rooms that are compiled so; 0: all of a room")
function(equigrad_in_groups)
  foreach(target IN LISTS ARGN)
    set(files ${EQUIGRAD_GROUP})
    if(target MATCHES "^equigrad_(reports|conformance_contract_programs)$")
      set(files 6)
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${files})
  endforeach()
endfunction()

# Headers are a file set, so that the preset `headers` can compile each of them alone. Without the harness the rooms of
# the engine are all that is built; their archives are made only where somebody links them (equigrad_package).
function(equigrad_room room)
  cmake_parse_arguments(PARSE_ARGV 1 room "NO_TORCH" "" "USES;WITH")
  if(NOT EQUIGRAD_CHECK AND NOT room MATCHES "^engine(/|$)")
    return()
  endif()
  equigrad_target(${room} target)
  equigrad_files_of(${room})
  set(scope PUBLIC)
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:equigrad_warnings>)
    if(NOT room MATCHES "^engine/(config|kernels)$" AND NOT (EQUIGRAD_HARNESS AND room MATCHES "^reference"))
      equigrad_in_groups(${target})
    endif()
    if(NOT EQUIGRAD_HARNESS)
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
  else()
    add_library(${target} INTERFACE)
    set(scope INTERFACE)
  endif()
  list(TRANSFORM headers PREPEND "${PROJECT_SOURCE_DIR}/")
  target_sources(${target} ${scope} FILE_SET HEADERS BASE_DIRS "${PROJECT_SOURCE_DIR}" FILES ${headers})
  foreach(used IN LISTS room_USES)
    equigrad_target(${used} used_target)
    if(used STREQUAL "engine" AND NOT room MATCHES "^engine/")
      set(used_target equigrad_engine)
    endif()
    target_link_libraries(${target} ${scope} ${used_target})
  endforeach()
  target_link_libraries(${target} ${scope} ${room_WITH})
  if(room_NO_TORCH)
    set_property(GLOBAL APPEND PROPERTY EQUIGRAD_NO_TORCH ${room})
    if(room_WITH MATCHES "json")
      equigrad_reuse_precompiled(${target} equigrad_precompiled_without_torch)
    endif()
  elseif(sources)
    equigrad_use_torch(${target})
  else()
    target_link_libraries(${target} INTERFACE equigrad_torch)
  endif()
  set_property(GLOBAL APPEND PROPERTY EQUIGRAD_ROOMS ${target})
endfunction()

# The files of a room's templates/ as template_text(name) of its document.hpp, so that no file is needed when the program runs.
function(equigrad_templates room)
  equigrad_target(${room} target)
  if(NOT TARGET ${target})
    return()
  endif()
  file(GLOB names RELATIVE "${PROJECT_SOURCE_DIR}/${room}/templates" CONFIGURE_DEPENDS ${room}/templates/*)
  foreach(name IN LISTS names)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${room}/templates/${name}")
    file(READ "${room}/templates/${name}" text)
    string(APPEND texts "  if (name == \"${name}\") return R\"=(${text})=\";\n")
  endforeach()
  set(source "${PROJECT_BINARY_DIR}/generated/${room}_templates.cpp")
  file(GENERATE OUTPUT "${source}" CONTENT "#include \"${room}/document.hpp\"

std::string_view equigrad::${room}::template_text(std::string_view name) {
${texts}  return {};
}
")
  target_sources(${target} PRIVATE "${source}")
endfunction()

# A script as NAME_script() of a room's NAME.hpp, in the namespace of the room's last folder.
function(equigrad_script room file)
  equigrad_target(${room} target)
  get_filename_component(namespace "${room}" NAME)
  get_filename_component(name "${file}" NAME_WE)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  set(source "${PROJECT_BINARY_DIR}/generated/${name}_script.cpp")
  file(GENERATE OUTPUT "${source}" CONTENT "#include \"${room}/${name}.hpp\"

std::string_view equigrad::${namespace}::${name}_script() { return R\"=(${text})=\"; }
")
  target_sources(${target} PRIVATE "${source}")
endfunction()

# All rooms of a folder as one library.
function(equigrad_umbrella name folder)
  get_property(rooms GLOBAL PROPERTY EQUIGRAD_ROOMS)
  list(FILTER rooms INCLUDE REGEX "^equigrad_${folder}_")
  if(NOT TARGET ${name})
    add_library(${name} INTERFACE)
  endif()
  if(TARGET equigrad_${folder} AND NOT name STREQUAL "equigrad_${folder}")
    list(APPEND rooms equigrad_${folder})
  endif()
  target_link_libraries(${name} INTERFACE ${rooms})
  set_property(GLOBAL APPEND PROPERTY EQUIGRAD_ROOMS ${name})
endfunction()

# All rooms as one shared library, for tests: a change in a room links this once, and no test again.
function(equigrad_shared name of)
  get_property(rooms GLOBAL PROPERTY EQUIGRAD_ROOMS)
  set(objects)
  set(interfaces)
  foreach(room IN LISTS rooms)
    get_target_property(type ${room} TYPE)
    if(type STREQUAL "STATIC_LIBRARY")
      list(APPEND objects $<TARGET_OBJECTS:${room}>)
    endif()
    list(APPEND interfaces ${room})
  endforeach()
  get_property(kernels GLOBAL PROPERTY EQUIGRAD_CUDA_OBJECTS)
  set_source_files_properties(${kernels} PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
  add_library(${name} SHARED ${objects} ${kernels} $<TARGET_OBJECTS:equigrad_build_info>)
  add_dependencies(${name} ${interfaces})
  set_target_properties(${name} PROPERTIES LINKER_LANGUAGE CXX)
  # Outside of this build (equigrad_check_package) it needs none of these.
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>
    $<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/generated>)
  foreach(used equigrad_torch ${ARGN})
    target_link_libraries(${name} PUBLIC $<BUILD_INTERFACE:${used}>)
  endforeach()
  target_link_options(${name} PUBLIC $<BUILD_INTERFACE:$<TARGET_PROPERTY:${of},INTERFACE_LINK_OPTIONS>>)
  set_property(TARGET ${name} PROPERTY LINK_DEPENDS $<TARGET_PROPERTY:${of},INTERFACE_LINK_DEPENDS>)
endfunction()

function(equigrad_program name library)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE ${library} equigrad_warnings)
  equigrad_use_torch(${name})
endfunction()

# ---- Python: the package as it is imported from the build, and as pip installs it ---------------------------------------
# The binding, compiled once for both modules, and the precompiled header of what uses it. Nothing but a module's entry is
# seen from outside, as pybind11 wants it.
function(equigrad_python_binding folder include library)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/binding/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/module\\.cpp$")
  add_library(equigrad_python_binding OBJECT ${sources})
  target_include_directories(equigrad_python_binding SYSTEM PUBLIC "${include}")
  target_link_libraries(equigrad_python_binding PRIVATE ${library} equigrad_warnings)
  set_target_properties(equigrad_python_binding PROPERTIES CXX_VISIBILITY_PRESET hidden)
  target_compile_options(equigrad_python_binding PRIVATE ${any_time})
  if(EQUIGRAD_PRECOMPILE)
    target_precompile_headers(equigrad_python_binding PRIVATE
      ${EQUIGRAD_PRECOMPILE} <torch/csrc/utils/pybind.h> <pybind11/functional.h>)
  endif()
endfunction()

# An extension module of the package.
function(equigrad_python_module target name suffix library)
  add_library(${target} MODULE ${ARGN})
  target_link_libraries(${target} PRIVATE equigrad_python_binding ${library} equigrad_warnings
    "${EQUIGRAD_TORCH_ROOT}/lib/libtorch_python.so")
  equigrad_reuse_precompiled(${target} equigrad_python_binding)
  set_target_properties(${target} PROPERTIES PREFIX "" OUTPUT_NAME ${name} SUFFIX "${suffix}" CXX_VISIBILITY_PRESET hidden
    DEFINE_SYMBOL "" INSTALL_RPATH "" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/python/equigrad")
  install(TARGETS ${target} LIBRARY DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  if(NOT TARGET equigrad_python_wheel)
    add_custom_target(equigrad_python_wheel)
  endif()
  add_dependencies(equigrad_python_wheel ${target})
endfunction()

# The same engine with faults that can be planted, and check(): equigrad/_harness.
function(equigrad_python_harness folder library)
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/harness/*.cpp)
  equigrad_python_module(equigrad_python_harness _harness "${equigrad_python_suffix}" ${library} ${sources})
endfunction()

# Programs that the package has beside its modules, with the files that they and the check read. They take the torch that
# lies beside the package; where it lies elsewhere, who starts them says where (python/equigrad/_perf.py).
function(equigrad_python_programs)
  install(TARGETS ${ARGN} RUNTIME DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  foreach(file IN ITEMS reference/data/plays_slice.txt perf/peers/worker.py perf/peers/gpt.py perf/peers/tensor_file.py)
    get_filename_component(folder ${file} DIRECTORY)
    install(FILES ${file} DESTINATION ${folder} COMPONENT python EXCLUDE_FROM_ALL)
  endforeach()
  if(EQUIGRAD_HARNESS)
    return()
  endif()
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL TRUE INSTALL_RPATH "$ORIGIN/../torch/lib;$ORIGIN/../nvidia/cu13/lib")
  add_dependencies(equigrad_python_wheel ${ARGN})
endfunction()

# A file of the tree becomes one of the package in the build's python/; its copy is added to the list `copies`.
macro(equigrad_python_copy file place)
  set(copy "${PROJECT_BINARY_DIR}/python/${place}")
  add_custom_command(OUTPUT "${copy}" DEPENDS "${file}" VERBATIM
    COMMAND "${CMAKE_COMMAND}" -E copy "${PROJECT_SOURCE_DIR}/${file}" "${copy}")
  list(APPEND copies "${copy}")
endmacro()

# python/binding becomes equigrad/_core beside the modules of python/equigrad, in the build's python/. Its libraries are those
# that `import torch` has loaded before, so it has no path of them.
function(equigrad_python_package folder library)
  execute_process(COMMAND "${EQUIGRAD_PYTHON}" -c
    "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'), sep=';')"
    OUTPUT_VARIABLE about OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(GET about 0 include)
  list(GET about 1 suffix)
  if(NOT EXISTS "${include}/Python.h")
    message(FATAL_ERROR "Equigrad: expected Python.h in ${include}, for the package of ${EQUIGRAD_PYTHON}, got none. Install Python's "
      "headers: python3-dev (Debian, Ubuntu), python3-devel (Fedora); a Python of conda or pyenv has them.")
  endif()
  set(equigrad_python_suffix "${suffix}" PARENT_SCOPE)
  equigrad_python_binding(${folder} "${include}" ${library})
  equigrad_python_module(equigrad_python _core "${suffix}" ${library} ${folder}/binding/module.cpp)
  file(GLOB_RECURSE modules RELATIVE "${PROJECT_SOURCE_DIR}/${folder}" CONFIGURE_DEPENDS
    ${folder}/equigrad/*.py ${folder}/equigrad/*.pyi ${folder}/equigrad/py.typed
    ${folder}/equigrad/judge/*.json ${folder}/equigrad/judge/templates/*.jinja ${folder}/equigrad/judge/templates/*.html
    ${folder}/equigrad/judge/templates/*.css ${folder}/equigrad/judge/templates/*.js)
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/python/equigrad/_built_for.py" @ONLY CONTENT [=[
"""The torch that _core was built for; asked before _core is loaded, which another torch may refuse."""

torch_version = "@EQUIGRAD_TORCH_VERSION@"
]=])
  install(FILES "${PROJECT_BINARY_DIR}/python/equigrad/_built_for.py" DESTINATION . COMPONENT python EXCLUDE_FROM_ALL)
  set(copies)
  foreach(module IN LISTS modules)
    equigrad_python_copy(${folder}/${module} ${module})
  endforeach()
  # What the pages of all reports are made of, that of the judge too: in the package under the path that it has in the tree.
  foreach(file IN ITEMS reports/templates/page.css reports/templates/page.html reports/templates/page.js)
    equigrad_python_copy(${file} equigrad/${file})
    install(FILES ${file} DESTINATION reports/templates COMPONENT python EXCLUDE_FROM_ALL)
  endforeach()
  add_custom_target(equigrad_python_modules ALL DEPENDS ${copies})
  add_dependencies(equigrad_python equigrad_python_modules)
endfunction()

# ---- CUDA kernels: an object per .cu file -------------------------------------------------------------------------
function(equigrad_cuda_kernels room)
  if(EQUIGRAD_WITHOUT_CUDA)
    set_source_files_properties(${room}/without_cuda.cpp engine/comm/without_cuda.cpp PROPERTIES
      COMPILE_DEFINITIONS "EQUIGRAD_WITHOUT_CUDA=\"${EQUIGRAD_WITHOUT_CUDA}\"")
    return()
  endif()
  equigrad_target(${room} target)
  find_program(host_compiler NAMES g++ c++ REQUIRED NO_CACHE)
  file(GLOB kernels RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS ${room}/*.cu)
  foreach(kernel IN LISTS kernels)
    set(object "${PROJECT_BINARY_DIR}/kernels/${kernel}.o")
    get_filename_component(folder "${object}" DIRECTORY)
    file(MAKE_DIRECTORY "${folder}")
    add_custom_command(OUTPUT "${object}" DEPFILE "${object}.d" MAIN_DEPENDENCY "${kernel}" VERBATIM
      COMMAND "${EQUIGRAD_NVCC}" -c "${PROJECT_SOURCE_DIR}/${kernel}" -o "${object}" -MD -MF "${object}.d"
              -ccbin "${host_compiler}" -arch=sm_90 -std=c++17 -O3 --fmad=false -Xcompiler -fPIC,-ffp-contract=off
              -DNDEBUG "-I${PROJECT_SOURCE_DIR}"
      COMMENT "nvcc ${kernel}")
    target_sources(${target} PRIVATE "${object}")
    set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT TRUE GENERATED TRUE)
    set_property(GLOBAL APPEND PROPERTY EQUIGRAD_CUDA_OBJECTS "${object}")
  endforeach()
endfunction()

# Plain loops that the compiler turns into vectors: none of them reads errno, and none needs torch's header.
function(equigrad_cpu_kernels room)
  file(GLOB kernels CONFIGURE_DEPENDS ${room}/*.cpp)
  set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "-O3;-fno-math-errno" SKIP_PRECOMPILE_HEADERS ON)
endfunction()

# A call within one object needs no linker, which then leads it nowhere: files that define stations of `list` are compiled
# alone, in rooms whose others are compiled as one (equigrad_in_groups). What is defined at the beginning of a line counts.
function(equigrad_stations_alone list)
  file(STRINGS ${list} rows REGEX "^EQUIGRAD_SEAM")
  file(GLOB_RECURSE sources engine/*.cpp)
  list(FILTER sources EXCLUDE REGEX "/tests/")
  foreach(row IN LISTS rows)
    string(REGEX MATCH "([A-Za-z_]+::)?[A-Za-z_]+\\)$" station "${row}")
    string(REGEX REPLACE "^[a-z]+::|\\)$" "" station "${station}")  # of a namespace: its name is not repeated
    set(found FALSE)
    foreach(source IN LISTS sources)
      file(STRINGS "${source}" definitions REGEX "^[A-Za-z].*[ &*]${station}\\(" LIMIT_COUNT 1)
      if(definitions)
        set(found TRUE)
        set_source_files_properties("${source}" PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      endif()
    endforeach()
    if(NOT found)
      message(FATAL_ERROR "${list}: expected the definition of ${station} at the beginning of a line of engine/, got none.")
    endif()
  endforeach()
endfunction()

# The linker leads the calls between stations that faults can take the place of through wrappers (faults/seams.cpp). What
# it calls them is read from what the compiler makes of seam_table.cpp, so a row that no station fits stops the build.
function(equigrad_seams target list)
  equigrad_stations_alone(${list})
  get_filename_component(folder "${list}" DIRECTORY)
  set(generated "${PROJECT_BINARY_DIR}/generated/seams")
  set(header "${generated}/equigrad_seam_symbols.hpp")
  set(options "${generated}/wrap.options")
  add_library(equigrad_seam_table OBJECT ${folder}/seam_table.cpp)
  target_include_directories(equigrad_seam_table PRIVATE "${PROJECT_SOURCE_DIR}")
  target_compile_options(equigrad_seam_table PRIVATE -S -fno-verbose-asm)
  equigrad_use_torch(equigrad_seam_table)
  add_custom_command(OUTPUT "${header}" "${options}" VERBATIM COMMENT "Symbols of ${list}"
    DEPENDS $<TARGET_OBJECTS:equigrad_seam_table> ${list} ${folder}/read_symbols.cmake
    COMMAND "${CMAKE_COMMAND}" -D "SEAMS=${PROJECT_SOURCE_DIR}/${list}"
            -D "ASSEMBLY=$<TARGET_OBJECTS:equigrad_seam_table>" -D "HEADER=${header}" -D "OPTIONS=${options}"
            -P "${PROJECT_SOURCE_DIR}/${folder}/read_symbols.cmake")
  add_custom_target(equigrad_seam_symbols DEPENDS "${header}" "${options}")
  add_dependencies(${target} equigrad_seam_symbols)
  target_include_directories(${target} PRIVATE "${generated}")
  target_link_options(${target} INTERFACE "@${options}")
  set_property(TARGET ${target} APPEND PROPERTY INTERFACE_LINK_DEPENDS "${options}")
endfunction()

# ---- Tests: one program and one CTest test per file, because a process that loads LibTorch takes half a second ----
function(equigrad_test_program name precompiled file)
  add_executable(${name} ${file})
  target_link_libraries(${name} PRIVATE equigrad_warnings GTest::gmock_main)
  target_compile_options(${name} PRIVATE ${test_options})
  equigrad_reuse_precompiled(${name} ${precompiled})
endfunction()

function(equigrad_add_test name label timeout_s)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests"
    LINK_DEPENDS_NO_SHARED TRUE)
  add_test(NAME ${label}.${name} COMMAND ${name})
  if(EQUIGRAD_SANITIZE)
    math(EXPR timeout_s "4 * ${timeout_s}")
  endif()
  # One thread, as in a rank: the number of threads changes the last bits of long sums.
  set(environment OMP_NUM_THREADS=1 "EQUIGRAD_BINARY=$<TARGET_FILE:equigrad>"
    "EQUIGRAD_QUICKSTART=$<TARGET_FILE:quickstart>" "EQUIGRAD_PYTHON=${EQUIGRAD_PYTHON}")
  set_tests_properties(${label}.${name} PROPERTIES LABELS ${label} TIMEOUT ${timeout_s} ENVIRONMENT "${environment}")
endfunction()

# Tests that fork ranks run one after the other; with a second argument one after the other of those with the same one, and
# beside one of each other kind, as they leave half of two cores idle. No kind takes longer than all others together.
function(equigrad_forks_ranks test)
  if(ARGC GREATER 1)
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK ${ARGV1} PROCESSORS 1)
  else()
    set_tests_properties(${test} PROPERTIES RESOURCE_LOCK ranks PROCESSORS 2)
  endif()
endfunction()

# engine/comm/tests/launch_test.cpp becomes the program engine_comm_launch_test.
function(equigrad_test file)
  string(REGEX MATCH "^(.*)/tests/([a-z_0-9]+)_test\\.cpp$" matched ${file})
  set(room ${CMAKE_MATCH_1})
  string(REPLACE "/" "_" name ${room}_${CMAKE_MATCH_2}_test)
  if(EQUIGRAD_SANITIZE MATCHES "address" AND name MATCHES "^engine_(memory_malloc_policy|core_engine_growth)_test$")
    return()  # they are about the C library's malloc; AddressSanitizer has its own
  endif()
  get_property(no_torch GLOBAL PROPERTY EQUIGRAD_NO_TORCH)
  string(REGEX REPLACE "^engine/config/sections$" "engine/config" library ${room})
  file(STRINGS ${file} of_harness REGEX "#include (\"(conformance/(ranks|oracle|testing/(rank_test|sample|bits))|engine/engine.hpp)|<(torch|ATen)/)")
  if(library IN_LIST no_torch AND NOT of_harness OR name MATCHES "_(architecture|readme)_test$")
    if(name MATCHES "_(architecture|readme)_test$")  # their regular expressions read the whole tree: optimised
      add_executable(${name} ${file})
      target_link_libraries(${name} PRIVATE equigrad_warnings GTest::gmock_main)
      target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
      target_compile_definitions(${name} PRIVATE EQUIGRAD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      equigrad_add_test(${name} architecture 300)  # the readme test starts the program for each command of the pages
    else()
      equigrad_test_program(${name} equigrad_precompiled_tests_without_torch ${file})
      target_compile_definitions(${name} PRIVATE EQUIGRAD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
      equigrad_target(${library} target)
      target_link_libraries(${name} PRIVATE ${target} equigrad_build_info pugixml::pugixml)
      equigrad_add_test(${name} unit 300)
    endif()
    return()
  endif()
  equigrad_test_program(${name} equigrad_precompiled_tests ${file})
  target_link_libraries(${name} PRIVATE equigrad_harness)
  if(name MATCHES "_gpu_test$")
    equigrad_add_test(${name} gpu 300)
  elseif(room MATCHES "^(conformance/(oracle|diagnosis)|reference)")
    equigrad_add_test(${name} unit 300)
  else()
    equigrad_add_test(${name} ranks 1800)
    string(REGEX MATCH "^(engine|conformance/cli)" kind ${room})
    if(NOT kind)
      set(kind ranks)
    endif()
    equigrad_forks_ranks(ranks.${name} ${kind})
  endif()
endfunction()

# conformance/check/tests/small_model.cpp becomes a library that these tests get in a variable. It links torch alone.
function(equigrad_test_library file variable)
  get_filename_component(name ${file} NAME_WE)
  add_library(${name} MODULE ${file})
  target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
  target_link_libraries(${name} PRIVATE equigrad_warnings)
  set_target_properties(${name} PROPERTIES DEFINE_SYMBOL "" LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  equigrad_use_torch(${name})
  foreach(test IN LISTS ARGN)
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT "${variable}=$<TARGET_FILE:${name}>")
    string(REGEX REPLACE "^ranks\\." "" program ${test})
    if(TARGET ${program})
      add_dependencies(${program} ${name})
    endif()
  endforeach()
endfunction()

# Tests of these names have the label long, and begin by their seconds, the longest first.
function(equigrad_long_tests file)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${file}")
  file(STRINGS ${file} lines REGEX "^[^#]")
  foreach(line IN LISTS lines)
    if(NOT line MATCHES "^([^ ]+) ([0-9]+)$")
      message(FATAL_ERROR "${file}: expected a test and its seconds, got \"${line}\".")
    elseif(TEST ${CMAKE_MATCH_1})
      set_property(TEST ${CMAKE_MATCH_1} APPEND PROPERTY LABELS long)
      set_property(TEST ${CMAKE_MATCH_1} PROPERTY COST ${CMAKE_MATCH_2})
    elseif(NOT EQUIGRAD_SANITIZE)
      message(FATAL_ERROR "${file}: expected a test, got ${CMAKE_MATCH_1}, which is none. Rename it here as well, or take it out.")
    endif()
  endforeach()
endfunction()

# python/tests/test_api.py becomes the test python.api, with the package of this build. More arguments are pytest's.
function(equigrad_python_test file label)
  string(REGEX REPLACE "^.*/test_([a-z0-9_]+)\\.py$" "${label}.\\1" name ${file})
  add_test(NAME ${name} COMMAND "${EQUIGRAD_PYTHON}" -m pytest -q -p no:cacheprovider "${PROJECT_SOURCE_DIR}/${file}" ${ARGN})
  set_tests_properties(${name} PROPERTIES LABELS ${label} TIMEOUT 3600
    ENVIRONMENT "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1;PYTHONPATH=${PROJECT_BINARY_DIR}/python")
  equigrad_forks_ranks(${name} ${label})
  set(name ${name} PARENT_SCOPE)
endfunction()

# A Python test of what DeepSpeed or transformers does itself: with the Python that has them, whose environment a fixture makes.
function(equigrad_peers_test file)
  set(EQUIGRAD_PYTHON "${EQUIGRAD_PEERS}/bin/python")
  equigrad_python_test(${file} peers ${ARGN})
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED peers COST 100)
endfunction()

function(equigrad_property_test file)
  get_filename_component(name ${file} NAME_WE)
  equigrad_test_program(${name} equigrad_precompiled_tests ${file})
  target_link_libraries(${name} PRIVATE equigrad_harness rapidcheck rapidcheck_gtest)
  equigrad_add_test(${name} property 1800)
  equigrad_forks_ranks(property.${name})
  set_property(TEST property.${name} APPEND PROPERTY ENVIRONMENT "RC_PARAMS=seed=1")  # by hand it draws others
endfunction()

# property_tests/programs becomes a library of program_properties.
function(equigrad_property_library folder)
  file(GLOB sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS property_tests/${folder}/*.cpp)
  set(library equigrad_property_${folder})
  add_library(${library} STATIC ${sources})
  # GTest's definitions are the precompiled header's.
  target_link_libraries(${library} PUBLIC equigrad_conformance PRIVATE equigrad_warnings GTest::gmock)
  target_compile_options(${library} PRIVATE ${test_options})
  equigrad_in_groups(${library})
  equigrad_reuse_precompiled(${library} equigrad_precompiled_tests)
  string(REGEX REPLACE "s$" "_properties" program ${folder})
  target_link_libraries(${program} PRIVATE ${library})
endfunction()

# property_tests/parsers, which are parsers of these rooms: parser_properties, and with EQUIGRAD_FUZZ a program of libFuzzer
# for each of them, build/fuzz/fuzz_manifest. What a fuzzer finds goes to its corpus.
function(equigrad_parser_test)
  file(GLOB sources RELATIVE "${PROJECT_SOURCE_DIR}" CONFIGURE_DEPENDS property_tests/parsers/*.cpp)
  add_library(equigrad_parsers STATIC ${sources})
  target_link_libraries(equigrad_parsers PRIVATE equigrad_warnings)
  foreach(room IN LISTS ARGN)
    equigrad_target(${room} target)
    target_link_libraries(equigrad_parsers PUBLIC ${target})
  endforeach()
  equigrad_test_program(parser_properties equigrad_precompiled_tests_without_torch property_tests/parser_properties.cpp)
  target_compile_definitions(parser_properties PRIVATE EQUIGRAD_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(parser_properties PRIVATE equigrad_parsers)
  equigrad_add_test(parser_properties property 600)
  if(NOT EQUIGRAD_FUZZ)
    return()
  endif()
  list(FILTER sources EXCLUDE REGEX "/parsers\\.cpp$")
  foreach(source IN LISTS sources)
    get_filename_component(parser ${source} NAME_WE)
    add_executable(fuzz_${parser} property_tests/parsers/fuzz/main.cpp)
    target_compile_definitions(fuzz_${parser} PRIVATE EQUIGRAD_PARSER=takes_${parser})
    target_link_libraries(fuzz_${parser} PRIVATE equigrad_parsers equigrad_warnings -fsanitize=fuzzer)
    set_target_properties(fuzz_${parser} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}")
    list(APPEND fuzzers fuzz_${parser})
  endforeach()
  add_custom_target(fuzzers DEPENDS ${fuzzers})
endfunction()

# perf/race/tests/gate_test.cpp becomes the program race_tests_gate_test. Counts are exact on every machine; times are no test.
function(equigrad_perf_test file)
  string(REGEX REPLACE "^perf/(.*)_test\\.cpp$" "\\1" stem ${file})
  string(REPLACE "/" "_" name ${stem}_test)
  equigrad_test_program(${name} equigrad_precompiled_tests ${file})
  target_link_libraries(${name} PRIVATE equigrad_perf_race)
  equigrad_add_test(${name} perf 600)
  set_property(TEST perf.${name} APPEND PROPERTY ENVIRONMENT "EQUIGRAD_PERF_WORKER=$<TARGET_FILE:perf_worker>")
  add_dependencies(${name} perf_worker)
  equigrad_forks_ranks(perf.${name})
endfunction()

# Pages of every kind, which a browser looks at where EQUIGRAD_AXE_PYTHON has axe-playwright-python and there is a Chromium;
# elsewhere that test is skipped.
function(equigrad_reports_in_a_browser_test)
  set(EQUIGRAD_AXE_PYTHON "" CACHE FILEPATH "A Python with axe-playwright-python, for the pages of reports; empty: EQUIGRAD_PYTHON")
  set(looks "${EQUIGRAD_PYTHON}")
  if(EQUIGRAD_AXE_PYTHON)
    set(looks "${EQUIGRAD_AXE_PYTHON}")
  endif()
  set(scripts "${PROJECT_SOURCE_DIR}/reports/tests")
  set(pages "${PROJECT_BINARY_DIR}/pages")
  add_test(NAME reports.made COMMAND "${EQUIGRAD_PYTHON}" "${scripts}/make_pages.py" "${pages}"
    --examples $<TARGET_FILE:reports_pages_test> --equigrad $<TARGET_FILE:equigrad>)
  set_tests_properties(reports.made PROPERTIES LABELS reports TIMEOUT 600 FIXTURES_SETUP pages_of_reports
    ENVIRONMENT "OMP_NUM_THREADS=1;PYTHONDONTWRITEBYTECODE=1;PYTHONPATH=${PROJECT_BINARY_DIR}/python")
  equigrad_forks_ranks(reports.made ranks)
  add_test(NAME reports.in_a_browser COMMAND "${looks}" "${scripts}/axe_pages.py" --quick "${pages}")
  set_tests_properties(reports.in_a_browser PROPERTIES LABELS reports TIMEOUT 600 FIXTURES_REQUIRED pages_of_reports
    SKIP_RETURN_CODE 77 ENVIRONMENT PYTHONDONTWRITEBYTECODE=1)
endfunction()

function(equigrad_format_test)
  find_program(clang_format clang-format REQUIRED NO_CACHE)
  execute_process(COMMAND ${clang_format} --version OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT version MATCHES "version 14\\.")
    message(STATUS "Equigrad: the format of the sources is not tested: it is that of clang-format 14, here is: ${version}")
    return()
  endif()
  file(GLOB_RECURSE files CONFIGURE_DEPENDS engine/*.[ch]pp engine/*.cu reference/*.[ch]pp reports/*.[ch]pp
    conformance/*.[ch]pp property_tests/*.[ch]pp perf/*.[ch]pp python/*.[ch]pp examples/*.[ch]pp)
  add_test(NAME architecture.every_file_is_formatted COMMAND ${clang_format} --dry-run -Werror ${files})
  set_tests_properties(architecture.every_file_is_formatted PROPERTIES LABELS architecture TIMEOUT 300)
endfunction()

# ---- What the program knows about its own build -------------------------------------------------------------------
if(EQUIGRAD_CHECK)
set(generated "${PROJECT_BINARY_DIR}/generated")
file(CONFIGURE OUTPUT "${generated}/equigrad_build_info.hpp" @ONLY CONTENT [=[
// What this program knows about its own build: generated when it was configured, the commit when it was built.
#pragma once

namespace equigrad::build_info {

const char* version();
const char* commit();            // short hash, "-dirty" behind it when the tree had changes; "unknown" without git
const char* compiler();
const char* torch_version();
const char* python();
const char* build_type();
// In a package that pip installed, both are the package's own folder, wherever it lies now.
const char* binary_directory();  // the build itself
const char* source_directory();  // the tree it was built from: reference/data/plays_slice.txt lies there
const char* package_directory(); // has the Python package, equigrad/
const char* data_directory();    // the user's cache: plays.txt (all plays), plays/*/*.md (one by one)
const char* image_directory();   // Fashion-MNIST in IDX format, gzipped; "" when it isn't installed

}  // namespace equigrad::build_info
]=])
if(EQUIGRAD_HARNESS)
  string(CONFIGURE [=[
const char* binary_directory() { return "@PROJECT_BINARY_DIR@"; }
const char* source_directory() { return "@PROJECT_SOURCE_DIR@"; }
const char* package_directory() { return "@PROJECT_BINARY_DIR@/python"; }
]=] directories @ONLY)
else()
  set(directories [=[
// Of the module or the program that this lies in.
const std::string& own_folder() {
  static const std::string folder = [] {
    Dl_info found{};
    dladdr(reinterpret_cast<const void*>(&own_folder), &found);
    const std::string file = found.dli_fname == nullptr ? "" : found.dli_fname;
    const bool is_path = file.find('/') != std::string::npos;  // else a program that a shell found by its name
    return std::filesystem::canonical(is_path ? file : "/proc/self/exe").parent_path().string();
  }();
  return folder;
}
const char* binary_directory() { return own_folder().c_str(); }
const char* source_directory() { return own_folder().c_str(); }
const char* package_directory() {
  static const std::string folder = std::filesystem::path(own_folder()).parent_path().string();
  return folder.c_str();
}
]=])
endif()
file(CONFIGURE OUTPUT "${generated}/equigrad_build_info.cpp" @ONLY CONTENT [=[
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "equigrad_build_info.hpp"

namespace equigrad::build_info {

const char* version() { return "@PROJECT_VERSION@"; }
const char* commit() {
  return
#include "equigrad_commit.inc"
      ;
}
const char* compiler() { return "@CMAKE_CXX_COMPILER_ID@ @CMAKE_CXX_COMPILER_VERSION@"; }
const char* torch_version() { return "@EQUIGRAD_TORCH_VERSION@"; }
const char* python() { return "@EQUIGRAD_PYTHON@"; }
const char* build_type() { return "@CMAKE_BUILD_TYPE@"; }
@directories@
const char* data_directory() { return "@EQUIGRAD_DATA_DIR@"; }
const char* image_directory() { return "@EQUIGRAD_IMAGE_DIR@"; }

}  // namespace equigrad::build_info
]=])
# Asked at every build, written only when it changed, so a build with nothing to do compiles nothing.
add_custom_target(equigrad_commit BYPRODUCTS "${generated}/equigrad_commit.inc" WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}"
  COMMAND sh -c "printf '\"%s\"\\n' \"$(git describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)\" > $1.new && cmp -s $1.new $1 || mv $1.new $1"
          commit "${generated}/equigrad_commit.inc"
  COMMENT "Asking git for the commit" VERBATIM)
add_library(equigrad_build_info STATIC "${generated}/equigrad_build_info.cpp")
add_dependencies(equigrad_build_info equigrad_commit)
target_include_directories(equigrad_build_info PUBLIC "${generated}")
endif()

# ---- Programs outside of this build, such as those of failed cases: include(<build>/program.cmake), project(...),
# equigrad_outside_program(name file.cpp). They link the libraries as they lie here. --------------------------------
function(equigrad_export_build)
  get_property(libraries GLOBAL PROPERTY EQUIGRAD_ROOMS)
  list(APPEND libraries equigrad_torch equigrad_xxhash equigrad_warnings equigrad_build_info)
  list(REMOVE_DUPLICATES libraries)
  export(TARGETS ${libraries} FILE "${PROJECT_BINARY_DIR}/libraries.cmake")
  set(sanitize "")
  if(EQUIGRAD_SANITIZE)
    set(sanitize "-fsanitize=${EQUIGRAD_SANITIZE} -fno-sanitize=vptr")
  endif()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/program.cmake" @ONLY CONTENT [=[
# Made when @PROJECT_BINARY_DIR@ was configured.
set(CMAKE_CXX_COMPILER "@CMAKE_CXX_COMPILER@")
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_FLAGS "-O1 -fPIC -ffp-contract=off -DNDEBUG @sanitize@")
set(CMAKE_EXE_LINKER_FLAGS "-fuse-ld=mold @sanitize@")

function(equigrad_outside_program name)
  find_package(nlohmann_json REQUIRED)
  find_package(CLI11 REQUIRED)
  find_package(ZLIB REQUIRED)
  find_package(Boost REQUIRED)
  include("@PROJECT_BINARY_DIR@/libraries.cmake")
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE equigrad_conformance)
endfunction()
]=])
endfunction()
