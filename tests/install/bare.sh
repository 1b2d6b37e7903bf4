# SPDX-License-Identifier: Apache-2.0
# A machine with a compiler and CMake only: the shared library without any optional dependency, on
# one thread.
. "$(dirname "$0")/common.sh"
build_library -DCMAKE_DISABLE_FIND_PACKAGE_Pthreadpool=ON
grep -q 'Left out: .*thread' "$scratch/build.log" ||
  { echo "the missing thread pool is not told"; cat "$scratch/build.log"; exit 1; }
install_from "$scratch/build"
by_cmake
! ldd "$libdir"/libtessera.so | grep -q pthreadpool ||
  { echo "libpthreadpool is linked all the same"; exit 1; }
