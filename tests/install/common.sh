# SPDX-License-Identifier: Apache-2.0
# Shared by the install tests. Arguments: source folder, build folder, cmake, generator.
set -eu
source=$1
build=$2
cmake=$3
generator=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset TESSERA_BACKEND TESSERA_KERNEL
c_flags='-std=c11 -Wall -Wextra -Wpedantic -Werror'
cxx_flags='-std=c++11 -Wall -Wextra -Wpedantic -Werror'

# install BUILD: installs into a prefix and then moves it, so that nothing may remember where it
# was.
install_from() {
  "$cmake" --install "$1" --prefix "$scratch/first" >"$scratch/install.log" ||
    { cat "$scratch/install.log"; exit 1; }
  rm -rf "$scratch/prefix"
  mv "$scratch/first" "$scratch/prefix"
  PKG_CONFIG_PATH=$(dirname "$(find "$scratch/prefix" -name tessera.pc)")
  export PKG_CONFIG_PATH
  libdir=$(dirname "$PKG_CONFIG_PATH")
  root=$scratch/prefix
}

# Configures and builds the library alone with the options given, in $scratch/build.
build_library() {
  "$cmake" -S "$source" -B "$scratch/build" -G "$generator" -DTESSERA_WERROR=ON \
    -DTESSERA_DEVICE_CODE=none -DTESSERA_CLI=OFF -DTESSERA_TESTS=OFF "$@" \
    >"$scratch/build.log" 2>&1 &&
    "$cmake" --build "$scratch/build" >>"$scratch/build.log" 2>&1 ||
    { cat "$scratch/build.log"; exit 1; }
}

# Runs a consumer and keeps what it printed; its line must tell a kernel, a checksum and a saving.
run_embed() {
  "$1" >"$scratch/out" 2>&1 || { echo "$1 failed:"; cat "$scratch/out"; exit 1; }
  grep -Eq '^cpu/[a-z0-9_]+: checksum [0-9.]+, [1-9][0-9]*\.[0-9]{2} times less work than dense$' \
    "$scratch/out" || { echo "unexpected:"; cat "$scratch/out"; exit 1; }
  cat "$scratch/out"
}

by_cmake() {
  rm -rf "$scratch/consumer"
  "$cmake" -S "$source/tests/install/consumer" -B "$scratch/consumer" -G "$generator" \
    -DCMAKE_PREFIX_PATH="$root" -DEXAMPLES="$source/examples" \
    >"$scratch/consumer.log" 2>&1 &&
    "$cmake" --build "$scratch/consumer" >>"$scratch/consumer.log" 2>&1 ||
    { cat "$scratch/consumer.log"; exit 1; }
  run_embed "$scratch/consumer/embed"
  "$scratch/consumer/embed_cpp"
}

# by_pkg_config [--static]
by_pkg_config() {
  command -v pkg-config >/dev/null || { echo "pkg-config is missing"; exit 1; }
  # shellcheck disable=SC2046
  cc $c_flags "$source/examples/embed.c" -o "$scratch/embed" \
    $(pkg-config "$@" --cflags --libs tessera) -Wl,-rpath,"$libdir"
  # shellcheck disable=SC2046
  cc $c_flags "$source/examples/generate.c" "$source/examples/pages.c" -o "$scratch/generate" \
    $(pkg-config "$@" --cflags --libs tessera) -lm -Wl,-rpath,"$libdir"
  # shellcheck disable=SC2046
  c++ $cxx_flags "$source/examples/embed_cpp.cpp" -o "$scratch/embed_cpp" \
    $(pkg-config "$@" --cflags --libs tessera) -Wl,-rpath,"$libdir"
  run_embed "$scratch/embed"
  "$scratch/embed_cpp"
}
