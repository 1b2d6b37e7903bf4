# SPDX-License-Identifier: Apache-2.0
# Instrumented builds. Everything in the tree is compiled with the same instrumentation, so that
# reports cover library, command and tests alike. They name functions and lines, for which -g1 is
# enough; variables for a debugger would take the compiler a quarter more time.
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g1)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
  if(TESSERA_SANITIZE MATCHES address AND CMAKE_C_COMPILER_ID STREQUAL "GNU")
    # gcc 13 turns the detection of uses after return on, and its frames in that mode are not
    # aligned for AVX-512 variables.
    add_compile_options(--param=asan-use-after-return=0)
  endif()
endif()
if(TESSERA_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "TESSERA_FUZZ needs clang: set CMAKE_C_COMPILER=clang")
  endif()
  # Every object feeds libFuzzer's coverage map; only the targets link its main function
  # (-fsanitize=fuzzer).
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(TESSERA_COVERAGE)
  add_compile_options(--coverage -O0 -g)
  add_link_options(--coverage)
endif()
