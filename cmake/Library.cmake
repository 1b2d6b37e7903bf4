# SPDX-License-Identifier: Apache-2.0
# Two libraries from the same objects: the one that applications link, and for unit tests of the
# core a static one with every symbol. TESSERA_PRIVATE_LIBS comes from backends/CMakeLists.txt.
set(TESSERA_OBJECTS $<TARGET_OBJECTS:tessera_core> $<TARGET_OBJECTS:tessera_backends>)

add_library(tessera ${TESSERA_OBJECTS})
add_library(tessera::tessera ALIAS tessera)
# The ABI may change with every minor version until 1.0.
set_target_properties(tessera PROPERTIES VERSION ${PROJECT_VERSION}
  SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
target_include_directories(tessera PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_link_libraries(tessera PRIVATE ${TESSERA_PRIVATE_LIBS})
if(BUILD_SHARED_LIBS AND NOT APPLE AND NOT WIN32)
  # Hidden visibility decides what is exported; the version script gives those symbols a version and
  # hides what static dependencies bring along.
  target_link_options(tessera PRIVATE -Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/tessera.map)
  set_target_properties(tessera PROPERTIES LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cmake/tessera.map)
  if(NOT TESSERA_SANITIZE AND NOT TESSERA_FUZZ)
    # Run-time libraries of sanitizers are linked to the program alone.
    target_link_options(tessera PRIVATE -Wl,--no-undefined)
  endif()
endif()

if(TESSERA_TESTS)
  add_library(tessera_internal STATIC ${TESSERA_OBJECTS})
  target_include_directories(tessera_internal PUBLIC ${PROJECT_SOURCE_DIR}/include
    ${PROJECT_SOURCE_DIR}/core)
  target_link_libraries(tessera_internal PUBLIC ${TESSERA_PRIVATE_LIBS})
endif()
