# SPDX-License-Identifier: Apache-2.0
# Backend libraries outside the tree, right and wrong, for test_loading. Each is built from one
# source against the public headers alone, without linking the library, as an application's own
# backend would be. Tests find them through TESSERA_FIXTURE_DIR.
set(TESSERA_FIXTURE_DIR ${CMAKE_CURRENT_BINARY_DIR}/fixtures)
set(TESSERA_FIXTURE_SOURCE ${CMAKE_CURRENT_LIST_DIR}/fixtures/plugin.c)
function(tessera_fixture name)
  add_library(${name} MODULE ${TESSERA_FIXTURE_SOURCE})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ".so"
    LIBRARY_OUTPUT_DIRECTORY ${TESSERA_FIXTURE_DIR})
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR}/include)
  target_compile_definitions(${name} PRIVATE ${ARGN})
  target_link_libraries(${name} PRIVATE tessera_warnings)
  add_dependencies(tessera_fixtures ${name})
endfunction()
add_custom_target(tessera_fixtures) # all of them, for mutate.py

tessera_fixture(plugin_good)
tessera_fixture(plugin_other PLUGIN_NAME="other-1")
tessera_fixture(plugin_abi PLUGIN_ONLY_ABI)
tessera_fixture(plugin_size PLUGIN_SIZE=16)
tessera_fixture(plugin_older PLUGIN_SIZE=PLUGIN_OLDER PLUGIN_TUNE=PLUGIN_BAD_TABLE)
tessera_fixture(plugin_tune PLUGIN_TUNE=PLUGIN_TABLE)
tessera_fixture(plugin_tune_bad PLUGIN_TUNE=PLUGIN_BAD_TABLE)
tessera_fixture(plugin_clash PLUGIN_NAME="beta")
tessera_fixture(plugin_nameless PLUGIN_NAME=NULL)
tessera_fixture(plugin_upper PLUGIN_NAME="Outside")
tessera_fixture(plugin_comma PLUGIN_NAME="out,side")
tessera_fixture(plugin_long PLUGIN_NAME="a12345678901234567890123456789012")
tessera_fixture(plugin_incomplete PLUGIN_WAIT=NULL)
tessera_fixture(plugin_null PLUGIN_NULL)
tessera_fixture(plugin_no_memory PLUGIN_NAME="hungry" PLUGIN_LIST_STATUS=TESS_ERROR_OUT_OF_MEMORY)
tessera_fixture(plugin_no_list PLUGIN_NAME="broken" PLUGIN_LIST_STATUS=TESS_ERROR_NATIVE)
tessera_fixture(plugin_symbol PLUGIN_NO_SYMBOL)
add_compile_definitions(TESSERA_FIXTURE_DIR="${TESSERA_FIXTURE_DIR}")
