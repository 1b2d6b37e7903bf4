# SPDX-License-Identifier: Apache-2.0
# Finds cJSON (Debian: libcjson-dev) with or without pkg-config. Gives the target CJSON::cjson; its
# header is <cjson/cJSON.h>.
find_path(CJSON_INCLUDE_DIR cjson/cJSON.h)
find_library(CJSON_LIBRARY cjson)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(CJSON REQUIRED_VARS CJSON_LIBRARY CJSON_INCLUDE_DIR)
mark_as_advanced(CJSON_INCLUDE_DIR CJSON_LIBRARY)
if(CJSON_FOUND AND NOT TARGET CJSON::cjson)
  add_library(CJSON::cjson UNKNOWN IMPORTED)
  set_target_properties(CJSON::cjson PROPERTIES IMPORTED_LOCATION "${CJSON_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${CJSON_INCLUDE_DIR}")
endif()
