# SPDX-License-Identifier: Apache-2.0
# A script: writes DEFLATE_FROM to DEFLATE_TO as gzip does, in the mode that takes longest and makes
# least. The time that its header of 10 bytes may hold is left out by those who embed the rest.
cmake_minimum_required(VERSION 3.22)
file(ARCHIVE_CREATE OUTPUT "${DEFLATE_TO}" PATHS "${DEFLATE_FROM}" FORMAT raw COMPRESSION GZip
  COMPRESSION_LEVEL 9)
