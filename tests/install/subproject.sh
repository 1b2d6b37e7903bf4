# SPDX-License-Identifier: Apache-2.0
# Tessera as a part of another project's build: it brings its library and leaves the project's
# settings, tests and installation alone. Asked to, it installs from there, static or shared, and to
# absolute folders, as package managers give them.
. "$(dirname "$0")/common.sh"
tree=$scratch/tree
built() { find "$tree" -name "$1"; }

# parent [OPTION...]: configures and builds the project; kernels, which take the longest, without
# the optimisation that users get
parent() {
  "$cmake" -S "$source/tests/install/parent" -B "$tree" -G "$generator" -DTESSERA="$source" \
    -DTESSERA_DEVICE_CODE=none -DTESSERA_CPU_OPTIMISE=-O0 -DTESSERA_WERROR=ON "$@" \
    >"$scratch/build.log" 2>&1 &&
    "$cmake" --build "$tree" -j 2 >>"$scratch/build.log" 2>&1 ||
    { cat "$scratch/build.log"; exit 1; }
}

parent
[ -n "$(built libown.a)" ] || { echo "the parent's library is not static"; exit 1; }
[ -n "$(built libtessera.a)" ] || { echo "libtessera is not static, as the parent's are"; exit 1; }
grep -q '^CMAKE_BUILD_TYPE:STRING=$' "$tree/CMakeCache.txt" ||
  { echo "the build type was set"; exit 1; }
! grep '^BUILD_SHARED_LIBS' "$tree/CMakeCache.txt" || { echo "BUILD_SHARED_LIBS was set"; exit 1; }
others=$(find "$tree/tessera" -name '*.o' ! -path '*/core/*' ! -path '*/backends/*')
[ -z "$others" ] || { echo "more than the library was built: $others"; exit 1; }
tests=$(cd "$tree" && "$(dirname "$cmake")/ctest" -N | grep -c 'Test *#')
[ "$tests" = 1 ] || { echo "the parent has $tests tests instead of 1"; exit 1; }
run_embed "$tree/embed"
install_from "$tree"
installed=$(cd "$scratch/prefix" && find . -type f)
[ "$installed" = ./share/own.c ] ||
  { echo "installed besides the parent's file: $installed"; exit 1; }

# Installed on request, the static library leaves its own dependencies to the program.
parent -DTESSERA_INSTALL=ON
install_from "$tree"
by_cmake
by_pkg_config --static
! ldd "$scratch/embed" | grep -q libtessera ||
  { echo "the example uses a shared libtessera"; exit 1; }
sh "$source/tests/tree/exports.sh" "$source" "$libdir/libtessera.a"

# Absolute folders, away from the prefix and from each other.
parent -DTESSERA_INSTALL=ON -DTESSERA_CLI=ON -DBUILD_SHARED_LIBS=ON \
  -DCMAKE_INSTALL_PREFIX="$scratch/own" \
  -DCMAKE_INSTALL_LIBDIR="$scratch/split/lib" -DCMAKE_INSTALL_INCLUDEDIR="$scratch/dev/include" \
  -DCMAKE_INSTALL_BINDIR="$scratch/tools/bin"
"$cmake" --install "$tree" >"$scratch/install.log" || { cat "$scratch/install.log"; exit 1; }
root=$scratch/split
libdir=$root/lib
export PKG_CONFIG_PATH="$libdir/pkgconfig"
by_cmake
by_pkg_config
for program in "$scratch/embed" "$scratch/consumer/embed" "$scratch/tools/bin/tessera"; do
  ldd "$program" | grep -q "$libdir/libtessera.so" ||
    { echo "$program does not find the installed library"; exit 1; }
done
