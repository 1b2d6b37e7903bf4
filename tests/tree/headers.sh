# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, warnings being errors, as C11, C17, C++11 and C++20.
. "$(dirname "$0")/common.sh"
cc=${CC:-cc}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
flags='-Wall -Wextra -Wpedantic -Werror -Iinclude -fsyntax-only'
count=0
for header in include/tessera/*.h; do
  echo "#include <tessera/$(basename "$header")>" >"$scratch/alone.c"
  # Twice, for the include guard.
  echo "#include <tessera/$(basename "$header")>" >>"$scratch/alone.c"
  echo "int alone(void);" >>"$scratch/alone.c"
  cp "$scratch/alone.c" "$scratch/alone.cpp"
  for standard in c11 c17; do
    count=$((count + 1))
    $cc -std=$standard $flags "$scratch/alone.c" || wrong "$header does not compile as $standard"
  done
  for standard in c++11 c++20; do
    command -v "${CXX:-c++}" >/dev/null 2>&1 ||
      { echo "skipped: $standard, there is no C++ compiler"; continue; }
    count=$((count + 1))
    ${CXX:-c++} -std=$standard $flags "$scratch/alone.cpp" ||
      wrong "$header does not compile as $standard"
  done
done
finish "$count compilations"
