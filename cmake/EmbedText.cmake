# SPDX-License-Identifier: Apache-2.0
# tessera_embed_text(target NAME symbol SOURCE file [FOLDERS folder...])
#
# Adds to the target a generated C file with the text of `file`, deflated
# (backends/common/inflate.h), as an array of bytes:
#
#     extern const unsigned char symbol[];
#     extern const size_t symbol_size;
#
# Lines `#include "name"` are replaced by the file of that name, looked for beside the including
# file and then in FOLDERS, since compilers inside drivers have no file system to include from.
# Guards inside the files work as ever; a file without one is inserted at each place. Built again
# when any of the files changes.
#
# The same file is the script that does it at build time: cmake -DEMBED_NAME= -DEMBED_SOURCE=
# -DEMBED_OUTPUT= -DEMBED_FOLDERS= -P EmbedText.cmake
if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(TESSERA_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

  function(tessera_embed_text target)
    cmake_parse_arguments(E "" "NAME;SOURCE" "FOLDERS" ${ARGN})
    if(E_UNPARSED_ARGUMENTS OR NOT E_NAME OR NOT E_SOURCE)
      message(FATAL_ERROR
        "tessera_embed_text: NAME and SOURCE are required; unknown: ${E_UNPARSED_ARGUMENTS}")
    endif()
    get_filename_component(source ${E_SOURCE} ABSOLUTE)
    set(output ${CMAKE_CURRENT_BINARY_DIR}/${E_NAME}.c)
    set(folders "")
    foreach(folder IN LISTS E_FOLDERS)
      get_filename_component(folder ${folder} ABSOLUTE)
      list(APPEND folders ${folder})
    endforeach()
    list(JOIN folders "|" folders) # a semicolon would not survive the command line
    add_custom_command(OUTPUT ${output} DEPFILE ${output}.d
      DEPENDS ${source} ${TESSERA_EMBED_SCRIPT} VERBATIM
      COMMAND ${CMAKE_COMMAND} -DEMBED_NAME=${E_NAME} -DEMBED_SOURCE=${source}
        -DEMBED_OUTPUT=${output} "-DEMBED_FOLDERS=${folders}"
        -P ${TESSERA_EMBED_SCRIPT}
      COMMENT "Embedding ${E_SOURCE}")
    # The target may belong to another folder, whose rules do not see the command above.
    add_custom_target(${E_NAME}_text DEPENDS ${output})
    add_dependencies(${target} ${E_NAME}_text)
    target_sources(${target} PRIVATE ${output})
    set_source_files_properties(${output} PROPERTIES GENERATED TRUE)
  endfunction()
  return()
endif()

cmake_minimum_required(VERSION 3.22)
string(REPLACE "|" ";" EMBED_FOLDERS "${EMBED_FOLDERS}")
set(read_files "")

# Appends the text of a file to `text`, includes expanded. Every variable stays quoted: unquoted,
# semicolons of the text would make it a list.
macro(expand path depth)
  if(${depth} GREATER 16)
    message(FATAL_ERROR "${path}: includes are nested too deep")
  endif()
  list(APPEND read_files "${path}")
  file(READ "${path}" rest_${depth})
  set(path_${depth} "${path}")
  while("${rest_${depth}}" MATCHES "(^|\n)[ \t]*#[ \t]*include[ \t]+\"([^\"\n]+)\"[^\n]*")
    set(line_${depth} "${CMAKE_MATCH_0}")
    set(name_${depth} "${CMAKE_MATCH_2}")
    string(FIND "${rest_${depth}}" "${line_${depth}}" at_${depth})
    string(SUBSTRING "${rest_${depth}}" 0 ${at_${depth}} before_${depth})
    string(LENGTH "${line_${depth}}" length_${depth})
    math(EXPR after_${depth} "${at_${depth}} + ${length_${depth}}")
    string(SUBSTRING "${rest_${depth}}" ${after_${depth}} -1 rest_${depth})
    string(APPEND text "${before_${depth}}\n")
    get_filename_component(beside_${depth} "${path_${depth}}" DIRECTORY)
    set(found_${depth} "")
    foreach(folder IN ITEMS "${beside_${depth}}" LISTS EMBED_FOLDERS)
      if(NOT found_${depth} AND EXISTS "${folder}/${name_${depth}}")
        get_filename_component(found_${depth} "${folder}/${name_${depth}}" ABSOLUTE)
      endif()
    endforeach()
    if(NOT found_${depth})
      message(FATAL_ERROR "${path_${depth}}: includes \"${name_${depth}}\", which was not found "
        "beside it or in: ${EMBED_FOLDERS}")
    endif()
    math(EXPR deeper "${depth} + 1")
    expand("${found_${depth}}" ${deeper})
  endwhile()
  string(APPEND text "${rest_${depth}}")
endmacro()

set(text "")
expand("${EMBED_SOURCE}" 0)

# Bytes instead of a string literal, whose length the C standard does not promise beyond 4095.
file(WRITE "${EMBED_OUTPUT}.txt" "${text}")
set(DEFLATE_FROM "${EMBED_OUTPUT}.txt")
set(DEFLATE_TO "${EMBED_OUTPUT}.gz")
include(${CMAKE_CURRENT_LIST_DIR}/Deflate.cmake)
file(READ "${DEFLATE_TO}" bytes OFFSET 10 HEX)
string(REGEX REPLACE "(................................................................)" "\\1\n"
  bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
get_filename_component(source_name "${EMBED_SOURCE}" NAME)
file(WRITE "${EMBED_OUTPUT}" "/* SPDX-License-Identifier: Apache-2.0 */
/* Made by cmake/EmbedText.cmake from ${source_name}. */
#include <stddef.h>

extern const unsigned char ${EMBED_NAME}[];
extern const size_t ${EMBED_NAME}_size;

const unsigned char ${EMBED_NAME}[] = {
${bytes}
};
const size_t ${EMBED_NAME}_size = sizeof ${EMBED_NAME};
")
list(REMOVE_DUPLICATES read_files)
list(JOIN read_files " " depends)
file(WRITE "${EMBED_OUTPUT}.d" "${EMBED_OUTPUT}: ${depends}\n")
