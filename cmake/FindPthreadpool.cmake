# SPDX-License-Identifier: Apache-2.0
# Finds XNNPACK's thread pool (Debian: libpthreadpool-dev), which ships no pkg-config file. Gives
# the target Pthreadpool::pthreadpool. Installed beside tessera-config.cmake for programs that link
# a static libtessera.
find_path(Pthreadpool_INCLUDE_DIR pthreadpool.h)
find_library(Pthreadpool_LIBRARY pthreadpool)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Pthreadpool REQUIRED_VARS Pthreadpool_LIBRARY
  Pthreadpool_INCLUDE_DIR)
mark_as_advanced(Pthreadpool_INCLUDE_DIR Pthreadpool_LIBRARY)
if(Pthreadpool_FOUND AND NOT TARGET Pthreadpool::pthreadpool)
  add_library(Pthreadpool::pthreadpool UNKNOWN IMPORTED)
  set_target_properties(Pthreadpool::pthreadpool PROPERTIES
    IMPORTED_LOCATION "${Pthreadpool_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${Pthreadpool_INCLUDE_DIR}")
endif()
