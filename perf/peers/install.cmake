# The peers' virtual environment: DeepSpeed from the package index beside the very torch that the build uses, so that all
# contestants of a race run the same kernels. Called by the target `peers`; nothing else needs it.
#
#   -D PYTHON=  the Python that torch was installed for     -D SITE=  the folder that torch lies in
#   -D VENV=    where to make the environment               -D REQUIREMENTS=  what to install
#
# DeepSpeed compiles nothing (DS_BUILD_OPS=0): on a CPU it trains with torch's own fused AdamW, as the other peers do.
file(READ "${REQUIREMENTS}" wanted)
set(mark "${VENV}/.complete")
if(EXISTS "${mark}")
  file(READ "${mark}" have)
  if(have STREQUAL "${SITE}\n${wanted}")
    message(STATUS "Peers: ${VENV} is as it should be")
    return()
  endif()
endif()

execute_process(COMMAND "${PYTHON}" -m venv --clear "${VENV}" RESULT_VARIABLE failed)
if(NOT failed EQUAL 0)
  message(FATAL_ERROR "Peers: `python -m venv` failed. Install Python's venv module (Debian: python3-venv).")
endif()
execute_process(COMMAND "${VENV}/bin/python" -c "import sysconfig; print(sysconfig.get_paths()['purelib'])"
                OUTPUT_VARIABLE own OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
file(WRITE "${own}/torch_of_the_build.pth" "${SITE}\n")
execute_process(COMMAND "${CMAKE_COMMAND}" -E env DS_BUILD_OPS=0
                "${VENV}/bin/python" -m pip install --disable-pip-version-check -r "${REQUIREMENTS}" RESULT_VARIABLE failed)
if(NOT failed EQUAL 0)
  message(FATAL_ERROR "Peers: pip could not install ${REQUIREMENTS}; the lines above say why. "
                      "See that the machine reaches a Python package index.")
endif()
file(WRITE "${mark}" "${SITE}\n${wanted}")
