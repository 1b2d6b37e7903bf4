# SPDX-License-Identifier: Apache-2.0
# Finds cmocka (Debian: libcmocka-dev) with or without pkg-config. Gives the target CMOCKA::cmocka.
find_path(CMOCKA_INCLUDE_DIR cmocka.h)
find_library(CMOCKA_LIBRARY cmocka)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CMOCKA REQUIRED_VARS CMOCKA_LIBRARY CMOCKA_INCLUDE_DIR)
mark_as_advanced(CMOCKA_INCLUDE_DIR CMOCKA_LIBRARY)
if(CMOCKA_FOUND AND NOT TARGET CMOCKA::cmocka)
  add_library(CMOCKA::cmocka UNKNOWN IMPORTED)
  set_target_properties(CMOCKA::cmocka PROPERTIES IMPORTED_LOCATION "${CMOCKA_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CMOCKA_INCLUDE_DIR}")
endif()
