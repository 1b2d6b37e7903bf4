# SPDX-License-Identifier: Apache-2.0
# The kernel for NVIDIA's tensor cores on devices that cannot run it: the next row of the table
# takes the problem, and whoever names the kernel learns why not. Arguments: the folder of the
# loader whose device passes for one of NVIDIA's, the program tessera.
set -u
folder=$1
tessera=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
unset TESSERA_KERNEL LOADER_NVIDIA

# run WORDS: a problem on the first device of OpenCL, with the environment that is set.
run() {
  TESSERA_VERBOSE=dispatch "$tessera" bench heads=8 kv_heads=8 q_len=9 head_dim=8 pattern=dense \
    $1 --backends opencl:0 --no-ceilings --no-planning >"$log" 2>&1
}
# says TEXT: the run said so.
says() {
  tr '\n' ' ' <"$log" | grep -qF "$1" || { echo "missing: $1"; cat "$log"; exit 1; }
}
# named WORDS TEXT: the kernel, named, refuses for that reason.
named() {
  if TESSERA_KERNEL=opencl/nv_mma run "$1"; then
    echo "$1: it ran"; cat "$log"; exit 1
  fi
  says "no opencl kernel accepts the problem: nv_mma: $2"
}

if run dtype=f16; then
  says 'opencl/nv_mma refuses: needs a GPU of NVIDIA'
elif grep -q 'not available\|no device' "$log"; then
  echo "skipped: no device of OpenCL"
  exit 77
fi
export LD_LIBRARY_PATH="$folder"
LOADER_NVIDIA=7.5 named dtype=f16 'needs compute capability 8.0, and the device has 7.5'
export LOADER_NVIDIA=8.0
named dtype=f32 'dtype is f32'
named 'op=decode kv_len=64 dtype=f16 kv_dtype=i8' 'kv_dtype: K and V of 8 bits are read by portable'
export LOADER_NVIDIA=refuses
named dtype=f16 "the driver's compiler does not take it (CL_BUILD_PROGRAM_FAILURE, -11)"
run dtype=f16 || { echo "the next row does not take the problem"; cat "$log"; exit 1; }
says "opencl/nv_mma refuses: the driver's compiler does not take it"
says 'opencl/portable accepts'

# On a device of another vendor it checks itself once, and is taken if it was right.
TESSERA_CACHE_DIR=$(mktemp -d)
export TESSERA_CACHE_DIR
trap 'rm -rf "$log" "$TESSERA_CACHE_DIR"' EXIT
checked='opencl/nv_mma checked itself in'
LOADER_NVIDIA='8.0 unproved' run dtype=f16 || { cat "$log"; exit 1; }
says "$checked"
says 'opencl/nv_mma accepts'
# The verdict is kept: a kernel that is wrong from now on is not looked at again.
LOADER_NVIDIA='8.0 unproved wrong' run dtype=f16 && { echo 'it was right'; exit 1; }
says 'opencl/nv_mma accepts'
tr '\n' ' ' <"$log" | grep -qF "$checked" && { echo "it was checked again"; exit 1; }
rm -f "$TESSERA_CACHE_DIR"/*
LOADER_NVIDIA='8.0 unproved wrong' run dtype=f16 || { cat "$log"; exit 1; }
says 'opencl/nv_mma gives wrong results on this device and is not used. Please report this'
says 'opencl/portable accepts'
export LOADER_NVIDIA='8.0 unproved'
TESSERA_BACKEND=opencl:0 "$tessera" info >"$log" 2>&1
says 'self-check (f16, head_dim 64): O is off by inf'
says 'please report'
named dtype=f16 'self-check (f16, head_dim 64): O is off by inf'
echo "refused for the right reasons"
