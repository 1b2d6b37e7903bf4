# SPDX-License-Identifier: Apache-2.0
# Finds cJSON (Debian: libcjson-dev) with or without pkg-config. Gives the target CJSON::cjson; its
# header is <cjson/cJSON.h>.
include(${CMAKE_CURRENT_LIST_DIR}/find_plain_library.cmake)
tessera_find_plain_library(CJSON cjson cjson/cJSON.h)
