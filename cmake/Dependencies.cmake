# SPDX-License-Identifier: Apache-2.0
# Everything that is looked for on the machine, each with what goes missing along with it. Done here
# and not in the folders that use it, since imported targets are visible from the folder that found
# them downwards only.
function(tessera_left_out what why)
  message(STATUS "Left out: ${what} (${why})")
endfunction()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

if(TESSERA_CLI)
  find_package(CJSON QUIET)
  if(NOT CJSON_FOUND)
    tessera_left_out("the tessera command and its bench suite"
      "cJSON was not found; Debian: libcjson-dev")
    set(TESSERA_CLI OFF)
  endif()
endif()

if(TESSERA_CORE_TESTS_ONLY) # cmake/m32.cmake
  add_library(CMOCKA::cmocka INTERFACE IMPORTED)
  target_include_directories(CMOCKA::cmocka INTERFACE ${PROJECT_SOURCE_DIR}/tests/m32)
  set(CMOCKA_FOUND ON)
elseif(TESSERA_TESTS AND NOT CMAKE_CROSSCOMPILING) # cross builds run tests/emulated alone
  find_package(CMOCKA QUIET)
  if(NOT CMOCKA_FOUND)
    tessera_left_out("all tests but those of the tree and of the installation"
      "cmocka was not found; Debian: libcmocka-dev")
  endif()
endif()
