# SPDX-License-Identifier: Apache-2.0
# Finds cmocka (Debian: libcmocka-dev) with or without pkg-config. Gives the target CMOCKA::cmocka.
include(${CMAKE_CURRENT_LIST_DIR}/find_plain_library.cmake)
tessera_find_plain_library(CMOCKA cmocka cmocka.h)
