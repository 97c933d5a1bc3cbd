# The peers' virtual environment: DeepSpeed and transformers from the package index beside the very torch that the build uses,
# so that all contestants of a race, and tests of what those do themselves, run the same kernels. Called by the target `peers`
# and by the fixture of the tests that need it, peers.environment; nothing else needs it.
#
#   -D PYTHON=  the Python that torch was installed for     -D SITE=  the folder that torch lies in
#   -D VENV=    where to make the environment               -D REQUIREMENTS=  what to install
#   -D INSTALL= OFF: only look whether it is there
#
# DeepSpeed compiles nothing (DS_BUILD_OPS=0): on a CPU it trains with torch's own fused AdamW, as the other peers do.
file(READ "${REQUIREMENTS}" wanted)
set(mark "${VENV}/.complete")
file(LOCK "${VENV}.lock" GUARD PROCESS TIMEOUT 1800)  # two clones share it
if(EXISTS "${mark}")
  file(READ "${mark}" have)
  if(have STREQUAL "${SITE}\n${wanted}")
    message(STATUS "Peers: ${VENV} is as it should be")
    return()
  endif()
endif()
if(DEFINED INSTALL AND NOT INSTALL)
  message(FATAL_ERROR "Peers: expected DeepSpeed and transformers in ${VENV}, beside the torch in ${SITE}, got none, and "
                      "EQUIGRAD_SETUP=OFF installs nothing. `cmake --build --preset peers` installs them.")
endif()

execute_process(COMMAND "${PYTHON}" -m venv --clear "${VENV}" RESULT_VARIABLE failed)
if(NOT failed EQUAL 0)
  message(FATAL_ERROR "Peers: expected a virtual environment in ${VENV}, got an error of `python -m venv`. Install Python's venv "
                      "module (Debian: python3-venv).")
endif()
execute_process(COMMAND "${VENV}/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
                OUTPUT_VARIABLE own OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(WRITE "${own}/torch_of_the_build.pth" "${SITE}\n")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env DS_BUILD_OPS=0
                "${VENV}/bin/python" -m pip install --disable-pip-version-check -r "${REQUIREMENTS}" RESULT_VARIABLE failed)
if(NOT failed EQUAL 0)
  string(REGEX REPLACE "#[^\n]*\n" "" names "${wanted}")
  string(STRIP "${names}" names)
  string(REPLACE "\n" ", " names "${names}")
  message(FATAL_ERROR "Peers: expected pip to install ${names}, got an error; the lines above say which. See that "
                      "the machine reaches a Python package index (pip's usual settings, such as PIP_INDEX_URL or a proxy, are "
                      "honoured), and give the same command again.")
endif()
file(WRITE "${mark}" "${SITE}\n${wanted}")
