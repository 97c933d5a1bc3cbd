# Where the user's torch is, and the target that uses it. Included by the build and, installed beside it, by
# equigradConfig.cmake, so it knows no path of either.
#
# torch's own TorchConfig.cmake fails where the CUDA toolkit is not installed; torch itself needs none, so its folders
# include/ and lib/ are used as they are. They are those of
#   1. -D EQUIGRAD_PYTHON=..., a Python that has torch; else
#   2. a LibTorch or a prefix on CMAKE_PREFIX_PATH, or Torch_DIR; else
#   3. the Python on PATH.

# Sets `root_var` to the folder that has include/ and lib/, or `problem_var` to what was found instead.
function(equigrad_find_torch root_var problem_var)
  set(${root_var} "" PARENT_SCOPE)
  set(${problem_var} "" PARENT_SCOPE)
  set(header include/torch/csrc/api/include/torch/torch.h)
  set(none "")
  if(NOT EQUIGRAD_PYTHON)
    cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST prefixes)
    list(PREPEND prefixes ${CMAKE_PREFIX_PATH})
    if(Torch_DIR)
      list(PREPEND prefixes "${Torch_DIR}/../../..")
    endif()
    foreach(prefix IN LISTS prefixes)
      foreach(root "${prefix}" "${prefix}/../..")  # the second: what torch.utils.cmake_prefix_path says
        if(EXISTS "${root}/${header}" AND EXISTS "${root}/lib/libtorch_cpu.so")
          cmake_path(NORMAL_PATH root)
          string(REGEX REPLACE "/$" "" root "${root}")
          set(${root_var} "${root}" PARENT_SCOPE)
          return()
        endif()
      endforeach()
    endforeach()
    set(none "no LibTorch on CMAKE_PREFIX_PATH (\"${CMAKE_PREFIX_PATH}\"), and ")
  endif()
  set(python "${EQUIGRAD_PYTHON}")
  if(NOT python)
    set(python python-NOTFOUND)
    find_program(python NAMES python3 python NO_CACHE)
  endif()
  if(NOT python)
    set(${problem_var} "${none}no Python on PATH" PARENT_SCOPE)
    return()
  endif()
  # -E: pip hides the environment that it installs into from what it builds, by variables. Without: the one that it made
  # for the build.
  foreach(options -E -B)
    execute_process(COMMAND "${python}" ${options} -c
      "from importlib import util; from os.path import dirname; print(dirname(util.find_spec('torch').origin))"
      OUTPUT_VARIABLE root RESULT_VARIABLE failed ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
    if(failed EQUAL 0)
      break()
    endif()
  endforeach()
  if(NOT failed EQUAL 0)
    set(${problem_var} "${none}${python} has no module torch, or does not run" PARENT_SCOPE)
  elseif(NOT EXISTS "${root}/${header}" OR NOT EXISTS "${root}/lib/libtorch_cpu.so")
    set(${problem_var} "${python} has torch at ${root}, which lacks ${header} or lib/libtorch_cpu.so" PARENT_SCOPE)
  else()
    set(${root_var} "${root}" PARENT_SCOPE)
  endif()
endfunction()

# "2.11.0", as torch's headers say.
function(equigrad_torch_version root out_var)
  set(version "")
  foreach(file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
    if(EXISTS "${root}/include/${file}")
      file(STRINGS "${root}/include/${file}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
      string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
      list(JOIN numbers "." version)
      if(version)
        break()
      endif()
    endif()
  endforeach()
  set(${out_var} "${version}" PARENT_SCOPE)
endfunction()

# The CUDA run-time library that this torch uses: of the wheels beside it, in it, or of the toolkit. Empty without one.
function(equigrad_find_cudart root out_var)
  cmake_path(GET root PARENT_PATH site)
  file(GLOB found "${site}/nvidia/cu1[0-9]/lib/libcudart.so.1[0-9]" "${site}/nvidia/cuda_runtime/lib/libcudart.so.1[0-9]"
    "${root}/lib/libcudart*.so*")
  foreach(toolkit "$ENV{CUDA_HOME}" /usr/local/cuda)
    if(EXISTS "${toolkit}/lib64/libcudart.so")
      list(APPEND found "${toolkit}/lib64/libcudart.so")
    endif()
  endforeach()
  list(APPEND found "")
  list(GET found 0 first)
  set(${out_var} "${first}" PARENT_SCOPE)
endfunction()

# What every user of `target` compiles and links with. `cudart` is empty where no CUDA is used.
function(equigrad_use_torch_of target root cudart)
  target_include_directories(${target} SYSTEM INTERFACE "${root}/include" "${root}/include/torch/csrc/api/include")
  set(libraries torch torch_cpu torch_cuda c10 c10_cuda)
  foreach(library IN LISTS libraries)
    if(EXISTS "${root}/lib/lib${library}.so")
      target_link_libraries(${target} INTERFACE "${root}/lib/lib${library}.so")
    endif()
  endforeach()
  if(cudart)
    target_link_libraries(${target} INTERFACE "${cudart}")
  endif()
  # clang 18 mangles constrained templates in another way than the compilers of torch's libraries.
  target_compile_options(${target} INTERFACE
    "$<$<AND:$<COMPILE_LANG_AND_ID:CXX,Clang>,$<VERSION_GREATER_EQUAL:$<CXX_COMPILER_VERSION>,18>>:-fclang-abi-compat=17>")
  # torch_cuda registers itself when it is loaded, so it is linked though nothing names it.
  target_link_options(${target} INTERFACE -Wl,--no-as-needed -Wl,--allow-shlib-undefined)
endfunction()
