# SPDX-License-Identifier: Apache-2.0
# The preset that README installs from asks for nothing that a user may lack.
. "$(dirname "$0")/common.sh"
command -v make >/dev/null || { echo "skipped: make is missing"; exit 77; }
grep -q '^cmake --preset install && cmake --build build/install ' "$source/README.md" ||
  { echo "README installs from another preset"; exit 1; }
unset CMAKE_GENERATOR CMAKE_BUILD_TYPE LD_LIBRARY_PATH

# Configures by the preset, in $scratch/build.
configure() {
  rm -rf "$scratch/build"
  "$cmake" -S "$source" --preset install -B "$scratch/build" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log"; exit 1; }
}

# cached LINE: the cache has it
cached() {
  grep -qx "$1" "$scratch/build/CMakeCache.txt" && return
  echo "expected $1, got:"
  grep "^${1%%:*}:" "$scratch/build/CMakeCache.txt"
  exit 1
}

# images FILE: how many images a generated table lists
images() { grep -c '^    {"' "$scratch/build/backends/$1"; }

configure
cached 'CMAKE_GENERATOR:INTERNAL=Unix Makefiles'
cached 'CMAKE_BUILD_TYPE:[A-Z]*=Release'
cached 'TESSERA_WERROR:BOOL=OFF'
[ ! -e "$scratch/build/tests" ] || { echo "tests are built"; exit 1; }
if { PATH=$PATH:/sbin:/usr/sbin ldconfig -p; } | grep -qE 'libcuda\.so\.1|libamdhip64\.so'; then
  echo "a driver is installed here, so device code is left alone"
  exit 0
fi
for table in cuda/tess_cuda_images.c cuda/tess_cuda_sm90_images.c cuda/tess_cuda_sm80_images.c \
  cuda/tess_cuda_decode_images.c \
  hip/tess_hip_images.c; do
  [ "$(images "$table")" = 0 ] || { echo "$table: device code is built without a driver"; exit 1; }
done

# A driver that the loader finds through LD_LIBRARY_PATH is one.
if grep -q '^TESSERA_NVCC:[A-Z]*=/' "$scratch/build/CMakeCache.txt"; then
  mkdir "$scratch/driver"
  : >"$scratch/driver/libcuda.so.1"
  export LD_LIBRARY_PATH="$scratch/driver"
  configure
  [ "$(images cuda/tess_cuda_images.c)" -gt 0 ] ||
    { echo "a driver in LD_LIBRARY_PATH was not seen"; exit 1; }
fi
