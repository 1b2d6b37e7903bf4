# SPDX-License-Identifier: Apache-2.0
# Compiles device code ahead of time and embeds it. Two functions for the folders of backends:
#
#   tessera_device_image(list ARCH name OUTPUT file DEPENDS file... COMMAND command...)
#     one image, built by a command
#   tessera_device_images(list SYMBOL symbol)
#     a C file with `const tess_driver_image symbol[]` of all images of the list, deflated
#     (backends/common/inflate.h)
#
# TESSERA_DEVICE_CODE=all builds for every architecture of the lists whose compiler is found;
# `present` only where a driver is installed on this machine; `few` compiles every line of device
# code for tests without a GPU: for one architecture of each kind, and of CUDA's kernels a few
# shapes (backends/cuda/kernels/few.cuh). Most kernels are not in it.
set(TESSERA_DEVICE_CODE "all" CACHE STRING
  "Device code: all (compilers permitting), present (where a driver is installed), few, none")
set(TESSERA_CUDA_ARCHS "75;80;86;89;90;100;120" CACHE STRING
  "Compute capabilities to build CUDA code for; PTX of the lowest serves all others")
set(hip_archs gfx906 gfx908 gfx90a gfx942 gfx950 gfx1030 gfx1100 gfx1101 gfx1102 gfx1103 gfx1150
  gfx1151 gfx1200 gfx1201)
set(TESSERA_HIP_ARCHS "${hip_archs}" CACHE STRING
  "AMD instruction sets to build HIP code for; those that the compiler does not know are left out")
set_property(CACHE TESSERA_DEVICE_CODE PROPERTY STRINGS all present few none)
if(TESSERA_DEVICE_CODE STREQUAL "few")
  # Sources tell apart what is below 8.0, below 9.0, below 12.0 and from there on, and in AMD's
  # wavefronts of 64 and of 32 lanes. No source of CUDA tells them all apart, so each is compiled
  # for two of them alone: for the first with more of its shapes than for the second, where only
  # what tells the two apart is of interest. The portable kernels for the first are PTX.
  set(TESSERA_CUDA_ARCHS 75 80 90 120)
  set(TESSERA_FEW_portable 75=ptx 90)
  set(TESSERA_FEW_sm80 80 120)
  set(TESSERA_FEW_decode 80 90)
  set(TESSERA_FEW_sm80_backward 80 90)
  set(TESSERA_HIP_ARCHS gfx90a gfx1100)
endif()

# Whether device code for a driver's library is wanted. A driver is here if the loader of shared
# libraries would find it; containers often have it in LD_LIBRARY_PATH alone.
function(tessera_device_wanted result library)
  set(${result} FALSE PARENT_SCOPE)
  if(TESSERA_DEVICE_CODE MATCHES "^(all|few)$")
    set(${result} TRUE PARENT_SCOPE)
  elseif(TESSERA_DEVICE_CODE STREQUAL "present")
    execute_process(COMMAND sh -c "PATH=$PATH:/sbin:/usr/sbin ldconfig -p | grep -q '${library}'"
      RESULT_VARIABLE missing OUTPUT_QUIET ERROR_QUIET)
    if(NOT missing)
      set(${result} TRUE PARENT_SCOPE)
    endif()
    string(REPLACE ":" ";" folders "$ENV{LD_LIBRARY_PATH}")
    foreach(folder IN LISTS folders)
      file(GLOB found "${folder}/${library}*")
      if(found)
        set(${result} TRUE PARENT_SCOPE)
      endif()
    endforeach()
  endif()
endfunction()

# Whether a source of CUDA's is compiled for an architecture of the list.
function(tessera_device_compiled result source arch)
  set(${result} TRUE PARENT_SCOPE)
  if(TESSERA_DEVICE_CODE STREQUAL "few" AND NOT arch IN_LIST TESSERA_FEW_${source})
    set(${result} FALSE PARENT_SCOPE)
  endif()
endfunction()

# The options with which a source of CUDA's is compiled for an architecture of the list.
function(tessera_device_few result source arch)
  set(${result} "" PARENT_SCOPE)
  if(NOT TESSERA_DEVICE_CODE STREQUAL "few")
    return()
  endif()
  # Optimisation takes a third of the time, and nothing here is run.
  set(options -Xcicc -O1 -Xptxas -O1 -I${PROJECT_SOURCE_DIR}/backends/cuda/kernels
    -include few.cuh)
  list(FIND TESSERA_FEW_${source} ${arch} place)
  if(place GREATER 0)
    list(APPEND options -DTESS_FEWEST)
  endif()
  set(${result} ${options} PARENT_SCOPE)
endfunction()

function(tessera_device_image list)
  cmake_parse_arguments(I "" "ARCH;OUTPUT" "DEPENDS;COMMAND" ${ARGN})
  add_custom_command(OUTPUT ${I_OUTPUT} COMMAND ${I_COMMAND} DEPENDS ${I_DEPENDS} VERBATIM
    COMMENT "Device code for ${I_ARCH}")
  set(${list} ${${list}} "${I_ARCH}=${I_OUTPUT}" PARENT_SCOPE)
  # What the library holds, for the Python package to tell.
  get_filename_component(backend ${CMAKE_CURRENT_SOURCE_DIR} NAME)
  set_property(GLOBAL APPEND PROPERTY TESSERA_DEVICE_CODE_BUILT "${backend} ${I_ARCH}")
endfunction()

# An image is included by the assembler, since an array of a megabyte takes a C compiler seconds.
set(TESSERA_DEFLATE_SCRIPT ${CMAKE_CURRENT_LIST_DIR}/Deflate.cmake)

function(tessera_device_images list)
  cmake_parse_arguments(I "" "SYMBOL" "" ${ARGN})
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${I_SYMBOL}.c)
  set(blobs "")
  set(rows "")
  set(outputs "")
  set(n 0)
  foreach(item IN LISTS ${list})
    string(REPLACE "=" ";" item "${item}")
    list(GET item 0 arch)
    list(GET item 1 image)
    set(output ${image}.gz)
    add_custom_command(OUTPUT ${output} DEPENDS ${image} ${TESSERA_DEFLATE_SCRIPT} VERBATIM
      COMMAND ${CMAKE_COMMAND} -DDEFLATE_FROM=${image} -DDEFLATE_TO=${output}
        -P ${TESSERA_DEFLATE_SCRIPT}
      COMMENT "Deflating code for ${arch}")
    list(APPEND outputs ${output})
    set(name ${I_SYMBOL}_${n})
    string(APPEND blobs
      "__asm__(\".section .rodata\\n.balign 64\\n.hidden ${name}\\n.global ${name}\\n\"\n"
      "        \"${name}:\\n.incbin \\\"${output}\\\", 10\\n\"\n"
      "        \".hidden ${name}_end\\n.global ${name}_end\\n${name}_end:\\n.byte 0\\n\"\n"
      "        \".previous\\n\");\n"
      "extern const unsigned char ${name}[], ${name}_end[];\n")
    string(APPEND rows "    {\"${arch}\", ${name}, ${name}_end},\n")
    math(EXPR n "${n} + 1")
  endforeach()
  file(CONFIGURE OUTPUT ${file} @ONLY CONTENT "/* Generated by cmake/DeviceCode.cmake. */
#include \"driver.h\"

@blobs@
extern const tess_driver_image @I_SYMBOL@[];
const tess_driver_image @I_SYMBOL@[] = {
@rows@    {0, 0, 0},
};
")
  target_sources(tessera_backends PRIVATE ${file})
  set_source_files_properties(${file} TARGET_DIRECTORY tessera_backends PROPERTIES
    OBJECT_DEPENDS "${outputs}")
  if(outputs)
    add_custom_target(${I_SYMBOL}_code DEPENDS ${outputs})
    add_dependencies(tessera_backends ${I_SYMBOL}_code)
  endif()
endfunction()
