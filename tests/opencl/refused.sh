# SPDX-License-Identifier: Apache-2.0
# The kernels for matrix units on devices that cannot run them: the next row of the table takes the
# problem, and whoever names the kernel learns why not. Arguments: the folder of the
# loader whose device passes for one of NVIDIA's, the program tessera.
set -u
folder=$1
tessera=$2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
unset TESSERA_KERNEL LOADER_NVIDIA

# run WORDS: a problem on the first device of OpenCL, with the environment that is set.
run() {
  TESSERA_VERBOSE=dispatch "$tessera" bench heads=8 kv_heads=8 q_len=9 head_dim=${dims:-8} $1 \
    pattern=dense --backends opencl:0 --no-ceilings --no-planning --budget 1 >"$log" 2>&1
}
# says TEXT: the run said so.
says() {
  tr '\n' ' ' <"$log" | grep -qF "$1" || { echo "missing: $1"; cat "$log"; exit 1; }
}
# named WORDS TEXT: the kernel, named, refuses for that reason.
kernel=nv_mma
named() {
  if TESSERA_KERNEL=opencl/$kernel run "$1"; then
    echo "$1: it ran"; cat "$log"; exit 1
  fi
  says "no opencl kernel accepts the problem: $kernel: $2"
}

if run dtype=f16; then
  says 'opencl/nv_mma refuses: needs a GPU of NVIDIA'
elif grep -q 'not available\|no device' "$log"; then
  echo "skipped: no device of OpenCL"
  exit 77
fi
export LD_LIBRARY_PATH="$folder"
# A compiler that may abort is not asked; a near relation is.
pocl='OpenCL 3.0 PoCL 6.0+debian  Linux, None+Asserts, RELOC, SPIR-V, LLVM'
LOADER_PLATFORM="$pocl 18.1.8, SLEEF" "$tessera" info >"$log" 2>&1
says 'PoCL 6 with LLVM 18 may end the process'
LOADER_PLATFORM="$pocl 17.0.6, SLEEF" "$tessera" info >"$log" 2>&1
says 'opencl:0'
LOADER_NVIDIA=7.5 named dtype=f16 'needs compute capability 8.0, and the device has 7.5'
export LOADER_NVIDIA=8.0
named dtype=f32 'dtype is f32'
named 'op=decode kv_len=64 dtype=f16 kv_dtype=i8' 'kv_dtype: K and V of 8 bits are read by portable'
export LOADER_NVIDIA=refuses
named dtype=f16 "the driver's compiler does not take it (CL_BUILD_PROGRAM_FAILURE, -11)"
run dtype=f16 || { echo "the next row does not take the problem"; cat "$log"; exit 1; }
says "opencl/nv_mma refuses: the driver's compiler does not take it"
says 'opencl/portable accepts'
# PTX that is newer than the driver; its compiler's words are part of the reason.
export LOADER_NVIDIA='refuses newer'
why="the driver's compiler does not take it (an error without a name, -9999): ptxas application ptx"
why="$why input, line 9; fatal : Unsupported .version 7.0; current version is '6.4'"
named dtype=f16 "$why"
run dtype=f16 || { echo "the next row does not take the problem"; cat "$log"; exit 1; }
says "opencl/nv_mma refuses: $why"
says 'opencl/portable accepts'

# checks KERNEL MODE VARIABLE: on a device on which the kernel has not run it checks itself once,
# and is taken if it was right.
TESSERA_CACHE_DIR=$(mktemp -d)
export TESSERA_CACHE_DIR
trap 'rm -rf "$log" "$TESSERA_CACHE_DIR"' EXIT
checks() {
  kernel=$1
  checked="opencl/$kernel checked itself in"
  rm -f "$TESSERA_CACHE_DIR"/*
  export "$3=$2"
  run dtype=f16 || { cat "$log"; exit 1; }
  says "$checked"
  says "opencl/$kernel accepts"
  # The verdict is kept: a kernel that is wrong from now on is not looked at again.
  export "$3=$2 wrong"
  run dtype=f16 && { echo 'it was right'; exit 1; }
  says "opencl/$kernel accepts"
  tr '
' ' ' <"$log" | grep -qF "$checked" && { echo "it was checked again"; exit 1; }
  rm -f "$TESSERA_CACHE_DIR"/*
  run dtype=f16 || { cat "$log"; exit 1; }
  says "opencl/$kernel gives wrong results on this device and is not used. Please report this"
  says 'opencl/portable accepts'
  export "$3=$2"
  TESSERA_BACKEND=opencl:0 "$tessera" info >"$log" 2>&1
  says 'self-check (f16, head_dim 64): O is off by inf'
  says 'please report'
  named dtype=f16 'self-check (f16, head_dim 64): O is off by inf'
}
checks nv_mma '8.0 unproved' LOADER_NVIDIA
unset LOADER_NVIDIA

# The same device as one of Intel's, on which no kernel has run.
checks intel_dpas 16 LOADER_INTEL
rm -f "$TESSERA_CACHE_DIR"/*
needs='needs a GPU with matrix engines of Intel, and the device has no'
for extension in cl_intel_subgroup_matrix_multiply_accumulate cl_intel_required_subgroup_size \
  cl_intel_subgroups_short cl_intel_subgroup_local_block_io cl_intel_bfloat16_conversions; do
  LOADER_INTEL="16 $extension" named dtype=bf16 "$needs $extension"
done
LOADER_INTEL=32 named dtype=f16 "needs subgroups of 8 or 16, and the device's smallest have 32"
export LOADER_INTEL=16
named dtype=f32 'dtype is f32'
named 'op=decode kv_len=64 dtype=f16 kv_dtype=i8' 'kv_dtype: K and V of 8 bits are read by portable'
dims=136 named dtype=f16 'head_dim is 136, and registers hold at most 128'
LOADER_INTEL='16 refuses' named dtype=f16 "the driver's compiler does not take it"
echo "refused for the right reasons"
