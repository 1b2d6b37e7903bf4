# SPDX-License-Identifier: Apache-2.0
# A machine with a compiler and CMake only: the shared library, which needs no other than those of
# libc.
. "$(dirname "$0")/common.sh"
build_library
install_from "$scratch/build"
by_cmake
ldd "$libdir"/libtessera.so >"$scratch/needed"
! grep -Ev '(linux-vdso|ld-linux[^ ]*|libc|libm|libdl|libpthread)\.so' "$scratch/needed" ||
  { echo "other libraries are linked"; exit 1; }
