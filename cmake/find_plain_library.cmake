# SPDX-License-Identifier: Apache-2.0
# For find modules: looks for one header and one library, with or without pkg-config, and gives the
# target PACKAGE::library. A macro, so that PACKAGE_FOUND reaches the caller of find_package.
include(FindPackageHandleStandardArgs)
macro(tessera_find_plain_library package library header)
  find_path(${package}_INCLUDE_DIR ${header})
  find_library(${package}_LIBRARY ${library})
  find_package_handle_standard_args(${package}
    REQUIRED_VARS ${package}_LIBRARY ${package}_INCLUDE_DIR)
  mark_as_advanced(${package}_INCLUDE_DIR ${package}_LIBRARY)
  if(${package}_FOUND AND NOT TARGET ${package}::${library})
    add_library(${package}::${library} UNKNOWN IMPORTED)
    set_target_properties(${package}::${library} PROPERTIES
      IMPORTED_LOCATION "${${package}_LIBRARY}"
      INTERFACE_INCLUDE_DIRECTORIES "${${package}_INCLUDE_DIR}")
  endif()
endmacro()
