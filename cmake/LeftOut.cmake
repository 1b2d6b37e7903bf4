# SPDX-License-Identifier: Apache-2.0
# Says in one line what this build does without, and why:  tessera_left_out("the thread pool" "libpthreadpool-dev was not found").
function(tessera_left_out what why)
  message(STATUS "Left out: ${what} (${why})")
endfunction()
