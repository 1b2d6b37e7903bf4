# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down: library, headers, command, CMake package, pkg-config file. An
# installed tree can be moved as long as its folders are relative to the prefix, which is the
# default.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tessera EXPORT tessera-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
target_include_directories(tessera INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
install(FILES include/tessera/tessera.h include/tessera/tessera_serving.h
  include/tessera/tessera_backward.h
  include/tessera/tessera_backend.h include/tessera/tessera_tables.h
  include/tessera/tessera_job_words.h include/tessera/tessera_key_walk.h
  include/tessera/tessera_column_walk.h include/tessera/tessera_turns.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES include/tessera/tessera_vulkan.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES include/tessera/tessera_opencl.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES include/tessera/tessera_cuda.h include/tessera/tessera_hip.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
if(TARGET tessera_cli)
  install(TARGETS tessera_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  if(IS_ABSOLUTE "${CMAKE_INSTALL_BINDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
    set(rpath ${CMAKE_INSTALL_FULL_LIBDIR})
  else()
    file(RELATIVE_PATH rpath /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set(rpath $ORIGIN/${rpath})
  endif()
  set_target_properties(tessera_cli PROPERTIES INSTALL_RPATH ${rpath})
endif()

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)
install(EXPORT tessera-targets NAMESPACE tessera:: FILE tessera-targets.cmake
  DESTINATION ${package_dir})
configure_package_config_file(cmake/tessera-config.cmake.in
  ${PROJECT_BINARY_DIR}/tessera-config.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tessera-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tessera-config.cmake
  ${PROJECT_BINARY_DIR}/tessera-config-version.cmake
  DESTINATION ${package_dir})

# pkg-config cannot follow CMake targets, so the private libraries are turned into -l words here. A
# shared libtessera needs none of them.
set(TESSERA_PC_LIBS "")
foreach(lib IN LISTS TESSERA_PRIVATE_LIBS)
  if(lib STREQUAL "Threads::Threads")
    string(APPEND TESSERA_PC_LIBS " -pthread")
  elseif(IS_ABSOLUTE "${lib}")
    string(APPEND TESSERA_PC_LIBS " ${lib}")
  elseif(lib MATCHES "::")
    message(FATAL_ERROR "cmake/Install.cmake: say how pkg-config links ${lib}")
  else()
    string(APPEND TESSERA_PC_LIBS " -l${lib}")
  endif()
endforeach()
# The prefix is told relative to the .pc file where that is below the prefix.
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}")
  set(TESSERA_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
else()
  file(RELATIVE_PATH TESSERA_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
  string(PREPEND TESSERA_PC_PREFIX "\${pcfiledir}/")
endif()
foreach(folder LIB INCLUDE)
  set(TESSERA_PC_${folder}DIR ${CMAKE_INSTALL_${folder}DIR})
  if(NOT IS_ABSOLUTE "${CMAKE_INSTALL_${folder}DIR}")
    string(PREPEND TESSERA_PC_${folder}DIR "\${prefix}/")
  endif()
endforeach()
configure_file(cmake/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
