# SPDX-License-Identifier: Apache-2.0
# What the library itself links to. Looked for here, since imported targets are visible from the folder that found them downwards only.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(Pthreadpool QUIET)
if(NOT Pthreadpool_FOUND)
  tessera_left_out("threads of the CPU backend, which will use one" "pthreadpool was not found; Debian: libpthreadpool-dev")
endif()
