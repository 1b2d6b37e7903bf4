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
echo "refused for the right reasons"
