# SPDX-License-Identifier: Apache-2.0
# tessera_test(NAME name COMMAND command... [LABELS label...] [TIMEOUT seconds] [ENVIRONMENT
# VAR=value...] [SERIAL] [DRIVERS] [PLAIN])
#
# add_test with the conventions of this tree. Labels decide where a test runs (CONTRIBUTING.md):
#   unit      in the release build and again under ASan and UBSan
#   thread    in the release build and again under ASan, UBSan and TSan
#   fuzz      in the build of the fuzz targets
#   tree      reads the sources only; release build
#   install   uses an installed copy; release build
#   long      left to ./dev test full
# Others (api, cli, conformance, faults) are there to be picked with ctest -L, and run in the
# release build. TESSERA_TEST_LABELS, set by a preset, keeps the tests that have one of these
# labels; empty keeps all. TESSERA_TEST_PREFIX, set by a preset, tells the builds apart where one
# ctest runs several of them ("asan.unit_layout"). Under AddressSanitizer a test sees the devices of
# this project only: drivers of OpenCL and Vulkan bring whole compilers along, which leak and use
# the signal stacks that the sanitizer takes for its own. A test with DRIVERS sees them all the
# same, and there leaks are not looked for. PLAIN is for a test that takes PoCL longer to compile
# than to run: its kernels are compiled without optimisation, and kept apart from those of other
# tests; NAME_optimised, a long test, is the same with it. A test that exits with 77 has been
# skipped and has said why.
set(TESSERA_TEST_LABELS "" CACHE STRING "Keep only tests with one of these labels")
set(TESSERA_TEST_PREFIX "" CACHE STRING "Put before the name of every test")

# The programs of the tests that are kept: all that a preset for a few of them has to build.
add_custom_target(tessera_tested)

# A program of the tests, all of whose tests have other labels than the kept ones, is left out of
# the build; but not where clang looks for warnings in it.
function(tessera_test_program_needed program needed)
  # A test may come before its program.
  if(needed)
    set_property(GLOBAL APPEND PROPERTY TESSERA_TESTED ${program})
  endif()
  if(NOT TARGET ${program})
    return()
  endif()
  if(needed)
    add_dependencies(tessera_tested ${program})
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL OFF)
  else()
    get_property(tested GLOBAL PROPERTY TESSERA_TESTED)
    get_target_property(folder ${program} SOURCE_DIR)
    if(NOT program IN_LIST tested AND NOT TESSERA_FUZZ
        AND folder MATCHES "^${PROJECT_SOURCE_DIR}/tests/")
      set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
endfunction()

function(tessera_test)
  cmake_parse_arguments(T "SERIAL;DRIVERS;PLAIN" "NAME;TIMEOUT" "COMMAND;LABELS;ENVIRONMENT"
    ${ARGN})
  if(T_UNPARSED_ARGUMENTS OR NOT T_NAME OR NOT T_COMMAND)
    message(FATAL_ERROR
      "tessera_test: NAME and COMMAND are required; unknown: ${T_UNPARSED_ARGUMENTS}")
  endif()
  if(T_PLAIN)
    set(drivers "")
    if(T_DRIVERS)
      set(drivers DRIVERS)
    endif()
    tessera_test(NAME ${T_NAME}_optimised LABELS long TIMEOUT 1800 ${drivers}
      COMMAND ${T_COMMAND} ENVIRONMENT ${T_ENVIRONMENT})
  endif()
  list(GET T_COMMAND 0 program)
  if(TESSERA_TEST_LABELS)
    set(wanted ${T_LABELS})
    list(REMOVE_ITEM wanted ${TESSERA_TEST_LABELS})
    list(LENGTH wanted other)
    list(LENGTH T_LABELS all)
    if(other EQUAL all)
      tessera_test_program_needed(${program} OFF)
      return()
    endif()
  endif()
  tessera_test_program_needed(${program} ON)
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 300)
  endif()
  # What tests compile stays in the build folder, where the next run finds it. Without this PoCL
  # compiles each kernel once more for small launches and for such without an offset, for minutes;
  # a test that sets the variable itself has it its way.
  set(kernels kernels)
  if(T_PLAIN)
    set(kernels kernels_plain)
    list(PREPEND T_ENVIRONMENT POCL_EXTRA_BUILD_FLAGS=-cl-opt-disable)
  endif()
  list(PREPEND T_ENVIRONMENT TESSERA_CACHE_DIR=${PROJECT_BINARY_DIR}/${kernels}
    POCL_WORK_GROUP_SPECIALIZATION=0)
  # Tests allocate and free large tensors all the time. By default the system maps and clears each
  # of them, which takes a fifth of the time. Tests of faults count mappings.
  if(NOT "faults" IN_LIST T_LABELS)
    list(PREPEND T_ENVIRONMENT MALLOC_MMAP_THRESHOLD_=1000000000
      MALLOC_TRIM_THRESHOLD_=1000000000)
  endif()
  if(TESSERA_SANITIZE MATCHES address)
    # An allocation that is too large gives NULL, as in every other build, and does not end the
    # test. The size of a block of thread-local memory in a library that was loaded later is read
    # from a header that today's glibc has only by chance; LeakSanitizer then crashes on it.
    set(options allocator_may_return_null=1:intercept_tls_get_addr=0)
    if(T_DRIVERS)
      string(APPEND options ":detect_leaks=0:use_sigaltstack=0")
    else()
      # What several threads do is looked at by the release build and under ThreadSanitizer.
      if(TESSERA_TEST_LABELS AND "conformance" IN_LIST T_LABELS)
        list(PREPEND T_ENVIRONMENT TESSERA_CPU_THREADS=1)
      endif()
      list(PREPEND T_ENVIRONMENT OCL_ICD_VENDORS=/nonexistent VK_ICD_FILENAMES=/nonexistent
        VK_DRIVER_FILES=/nonexistent TESSERA_REQUIRE=cpu)
    endif()
    list(APPEND T_ENVIRONMENT ASAN_OPTIONS=${options} UBSAN_OPTIONS=print_stacktrace=1)
  endif()
  set(name ${TESSERA_TEST_PREFIX}${T_NAME})
  add_test(NAME ${name} COMMAND ${T_COMMAND})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77
    LABELS "${T_LABELS}" ENVIRONMENT "${T_ENVIRONMENT}")
  if(T_SERIAL)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  endif()
endfunction()
