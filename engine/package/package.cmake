# The engine as one library, equigrad::engine, for projects that link it: installed (find_package(equigrad CONFIG)), or
# as a part of another project (add_subdirectory, FetchContent). Static, or shared with BUILD_SHARED_LIBS.

# Headers that a user includes, and what those include, as <equigrad/...>: engine/x.hpp becomes equigrad/x.hpp, so that no
# folder called engine/ is on a user's path; conformance/check/x.hpp too, and reports/x.hpp equigrad/reports/x.hpp. Copies,
# in `folder`, made anew when one of them changes.
function(equigrad_public_headers folder)
  set(ours "(engine|conformance/check)/")
  set(todo ${ARGN})
  set(seen "")
  while(todo)
    list(POP_FRONT todo header)
    if(header IN_LIST seen)
      continue()
    endif()
    list(APPEND seen "${header}")
    file(STRINGS "${PROJECT_SOURCE_DIR}/${header}" lines REGEX "^ *# *include \"")
    foreach(line IN LISTS lines)
      string(REGEX REPLACE ".*\"(.*)\".*" "\\1" included "${line}")
      list(APPEND todo "${included}")
    endforeach()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/${header}")
    file(READ "${PROJECT_SOURCE_DIR}/${header}" text)
    string(REGEX REPLACE "#include \"${ours}" "#include \"equigrad/" text "${text}")
    string(REPLACE "#include \"reports/" "#include \"equigrad/reports/" text "${text}")
    string(REGEX REPLACE "^${ours}" "equigrad/" name "${header}")
    string(REGEX REPLACE "^reports/" "equigrad/reports/" name "${name}")
    set(old "")
    if(EXISTS "${folder}/${name}")
      file(READ "${folder}/${name}" old)
    endif()
    if(NOT old STREQUAL text)
      file(WRITE "${folder}/${name}" "${text}")
    endif()
    list(APPEND names "${name}")
  endwhile()
  file(GLOB_RECURSE there RELATIVE "${folder}" "${folder}/*")  # of an earlier list
  list(REMOVE_ITEM there ${names})
  foreach(name IN LISTS there)
    file(REMOVE "${folder}/${name}")
  endforeach()
endfunction()

# equigrad::engine of the rooms below engine/.
function(equigrad_package)
  set(includes "${PROJECT_BINARY_DIR}/include")
  equigrad_public_headers("${includes}" ${ARGN})
  get_property(rooms GLOBAL PROPERTY EQUIGRAD_ROOMS)
  set(objects "")
  foreach(room IN LISTS rooms)
    get_target_property(type ${room} TYPE)
    if(type STREQUAL "STATIC_LIBRARY" AND room MATCHES "^equigrad_engine_")
      list(APPEND objects $<TARGET_OBJECTS:${room}>)
    endif()
  endforeach()
  get_property(kernels GLOBAL PROPERTY EQUIGRAD_CUDA_OBJECTS)
  add_library(equigrad_library ${objects} ${kernels})
  add_library(equigrad::engine ALIAS equigrad_library)
  set_target_properties(equigrad_library PROPERTIES OUTPUT_NAME equigrad EXPORT_NAME engine LINKER_LANGUAGE CXX
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(equigrad_library INTERFACE $<BUILD_INTERFACE:${includes}>)
  target_compile_features(equigrad_library INTERFACE cxx_std_20)
  # As torch's own libraries were compiled: without NDEBUG some of its classes have another layout.
  target_compile_definitions(equigrad_library INTERFACE NDEBUG _GLIBCXX_USE_CXX11_ABI=1)
  find_package(Threads REQUIRED)
  target_link_libraries(equigrad_library PUBLIC Threads::Threads ${CMAKE_DL_LIBS}
    $<BUILD_INTERFACE:equigrad_torch> $<INSTALL_INTERFACE:equigrad::torch>)
  if(PROJECT_IS_TOP_LEVEL AND NOT EQUIGRAD_SANITIZE)  # a part of another project installs nothing
    equigrad_install("${includes}")
  endif()
endfunction()

# The prefix may be moved: what is installed names torch by its version, and the user's CMake finds it.
function(equigrad_install includes)
  include(GNUInstallDirs)
  include(CMakePackageConfigHelpers)
  set(folder "${CMAKE_INSTALL_LIBDIR}/cmake/equigrad")
  set(made "${PROJECT_BINARY_DIR}/generated/package")
  set(with_cuda ON)
  if(EQUIGRAD_WITHOUT_CUDA)
    set(with_cuda OFF)
  endif()
  configure_package_config_file("${PROJECT_SOURCE_DIR}/engine/package/equigradConfig.cmake.in"
    "${made}/equigradConfig.cmake" INSTALL_DESTINATION "${folder}")
  write_basic_package_version_file("${made}/equigradConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(TARGETS equigrad_library EXPORT equigradTargets INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(DIRECTORY "${includes}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT equigradTargets NAMESPACE equigrad:: DESTINATION "${folder}")
  install(FILES "${made}/equigradConfig.cmake" "${made}/equigradConfigVersion.cmake"
    "${PROJECT_SOURCE_DIR}/engine/package/torch.cmake" DESTINATION "${folder}")
endfunction()

# equigrad::check: the engine, its seams and the harness as one shared library, in place of equigrad::engine.
# equigrad::model: what a library for `equigrad run --model` is compiled with. equigrad::program: the command, which finds
# torch where it was built.
function(equigrad_check_package)
  if(EQUIGRAD_SANITIZE)
    return()
  endif()
  set(includes "${PROJECT_BINARY_DIR}/include_check")
  equigrad_public_headers("${includes}" ${ARGN})
  add_library(equigrad_model INTERFACE)
  target_compile_features(equigrad_model INTERFACE cxx_std_20)
  target_compile_definitions(equigrad_model INTERFACE NDEBUG _GLIBCXX_USE_CXX11_ABI=1
    "EQUIGRAD_VERSION=\"${PROJECT_VERSION}\"")
  target_link_libraries(equigrad_model INTERFACE $<INSTALL_INTERFACE:equigrad::torch>)
  target_link_libraries(equigrad_harness INTERFACE $<INSTALL_INTERFACE:equigrad::model>)
  set_target_properties(equigrad_harness PROPERTIES EXPORT_NAME check)
  set_target_properties(equigrad_model PROPERTIES EXPORT_NAME model)
  set_target_properties(equigrad PROPERTIES EXPORT_NAME program INSTALL_RPATH_USE_LINK_PATH ON)
  include(GNUInstallDirs)
  set(folder "${CMAKE_INSTALL_LIBDIR}/cmake/equigrad")
  install(TARGETS equigrad_harness equigrad_model equigrad EXPORT equigradCheckTargets
    INCLUDES DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(DIRECTORY "${includes}/" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(EXPORT equigradCheckTargets NAMESPACE equigrad:: DESTINATION "${folder}")
endfunction()

# Installs this build, moves the prefix, and builds and runs examples/ with it.
function(equigrad_package_test)
  if(EQUIGRAD_SANITIZE)
    return()
  endif()
  add_test(NAME package.installed COMMAND "${CMAKE_COMMAND}" -D "BUILD=${PROJECT_BINARY_DIR}" -D "SOURCE=${PROJECT_SOURCE_DIR}"
    -D "PYTHON=${EQUIGRAD_PYTHON}" -D "TORCH_ROOT=${EQUIGRAD_TORCH_ROOT}" -D "TORCH_VERSION=${EQUIGRAD_TORCH_VERSION}"
    -D "GENERATOR=${CMAKE_GENERATOR}" -D "COMPILER=${CMAKE_CXX_COMPILER}"
    -P "${PROJECT_SOURCE_DIR}/engine/package/tests/package_test.cmake")
  set_tests_properties(package.installed PROPERTIES LABELS package TIMEOUT 600 ENVIRONMENT OMP_NUM_THREADS=1)
  equigrad_forks_ranks(package.installed)
  # The engine alone, as a user has it whose compiler is g++, and no code of it: what that compiler does not take is seen.
  find_program(EQUIGRAD_GXX g++)
  if(EQUIGRAD_GXX)
    add_test(NAME package.gcc COMMAND "${CMAKE_CTEST_COMMAND}" --build-and-test "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/gcc"
      --build-generator "${CMAKE_GENERATOR}" --build-noclean --build-options -D EQUIGRAD_HARNESS=OFF -D EQUIGRAD_SETUP=OFF
      -D EQUIGRAD_GROUP=0 "-DCMAKE_CXX_COMPILER_LAUNCHER=${PROJECT_SOURCE_DIR}/engine/package/tests/syntax_only.sh"
      -D CMAKE_BUILD_TYPE=None -D CMAKE_CXX_FLAGS=-O0 "-DCMAKE_CXX_COMPILER=${EQUIGRAD_GXX}" "-DEQUIGRAD_PYTHON=${EQUIGRAD_PYTHON}")
    set_tests_properties(package.gcc PROPERTIES LABELS package TIMEOUT 1500 COST 500 ENVIRONMENT CMAKE_BUILD_PARALLEL_LEVEL=1)
  endif()
endfunction()
