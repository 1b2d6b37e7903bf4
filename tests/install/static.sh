# SPDX-License-Identifier: Apache-2.0
# The static library, which leaves its own dependencies to the program that links it.
. "$(dirname "$0")/common.sh"
build_library -DBUILD_SHARED_LIBS=OFF
install_from "$scratch/build"
by_cmake
by_pkg_config --static
! ldd "$scratch/embed" | grep -q libtessera || { echo "the example uses a shared libtessera"; exit 1; }
sh "$source/tests/tree/exports.sh" "$source" "$libdir/libtessera.a"
