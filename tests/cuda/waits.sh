# SPDX-License-Identifier: Apache-2.0
# waits.sh TREE NVCC PYTHON: kernels for sm_90 that the host launches before earlier ones have
# ended. In their code, what those may still write is neither touched before the wait nor loaded as
# if it were constant. Only the plan's tables are, and a step's, past the multiprocessors' caches.
# Of the portable merge kernels these are words of 32 bits, and the waits of steps are left out:
# their tables come from a kernel and may have too few items for a workgroup. The kernel that writes
# a step ends with a fence, and lets nothing begin before that.
tree=$1
nvcc=$2
python=$3
scratch=$(mktemp -d) || exit 1
trap 'rm -rf "$scratch"' EXIT
common=$tree/backends/common
for dtype in "f32 float" "bf16 tess_bf16"; do
  # shellcheck disable=SC2086
  set -- $dtype
  printf '#%s\n' 'include "dialect_cuda.h"' 'undef TESS_ARGS_STEP' 'define TESS_ARGS_STEP 0u' \
    'undef TESS_LEAVE_UNLESS' 'define TESS_LEAVE_UNLESS(present) (void)0' \
    "define TESS_DTYPE_NAME $1" "define TESS_ELEMENT $2" 'include "merge.inl"' \
    >"$scratch/merge.cu"
  "$nvcc" -O3 -I"$tree/include" -I"$common" -I"$common/kernels" -ptx -arch=sm_90 \
    -o "$scratch/merge.ptx" "$scratch/merge.cu" || exit 1
  awk -v name="tess_merge_$1" '
    /griddepcontrol\.wait/ { waits++ }
    /(ld|st|atom|red)\.global/ {
      table = /ld\.global\.nc\.(u32|b32)/
      if (!table && !waits) { print name ": before the wait: " $0; wrong = 1 }
      if (!table && /\.nc\./) { print name ": as if it were constant: " $0; wrong = 1 }
      if (!table && /ld\.global/) loads++
    }
    END {
      if (waits != 1 || !loads) {
        print name ": " waits + 0 " waits, " loads + 0 " loads"
        wrong = 1
      }
      exit wrong
    }' "$scratch/merge.ptx" || exit 1
done

printf '#include "step_cuda.h"\n#include "prepare.inl"\n' >"$scratch/prepare.cu"
"$nvcc" -O3 -I"$tree/include" -I"$common" -I"$common/kernels" -ptx -arch=sm_90 \
  -o "$scratch/prepare.ptx" "$scratch/prepare.cu" || exit 1
awk '
  /griddepcontrol/ { print "tess_prepare: " $0; wrong = 1 }
  /membar\.gl/ { fences++; fenced = 1 }
  /st\.global|bra|^\$/ { if (fences) fenced = 0 }
  /ret;/ { ends++; if (!fenced) { print "tess_prepare ends without a fence"; wrong = 1 } }
  END { exit wrong || !ends }' "$scratch/prepare.ptx" || exit 1

# The same of others, on every path through the code, with accesses told apart by the pointers that
# they come from. Once for plans and once for steps, whose tables a kernel wrote. In the first
# thread block, which always waits.
waits_before() { # FILE ARGUMENTS
  for step in "0 0u" "1 0u | 1u"; do
    {
      printf '#%s\n' "include \"$2.h\"" 'undef TESS_ARGS_STEP' "define TESS_ARGS_STEP ${step#* }" \
        'define blockIdx uint3{0u, 0u, 0u}'
      cat "$1"
      printf 'extern "C" { __device__ unsigned tess_offset_tables = '
      printf '__builtin_offsetof(tess_%s, tables); }\n' "$2"
    } >"$scratch/traced.cu"
    "$nvcc" -O3 -I"$tree/include" -I"$common" -I"$common/kernels" -I"$tree/backends/cuda/kernels" \
      -ptx -arch=sm_90 -o "$scratch/traced.ptx" "$scratch/traced.cu" || exit 1
    "$python" -B "$tree/tests/cuda/waits.py" "${step%% *}" "$scratch/traced.ptx" || exit 1
  done
}
# Of larger instances, which differ in constants alone, TESSERA_TEST_FULL=1 has one more.
instances='X(64, 16, 4, 16)'
[ "${TESSERA_TEST_FULL:-}" != 1 ] || instances="$instances X(128, 16, 3, 32)"
printf '#%s\n' 'undef TESS_DECODE_INSTANCES' 'undef TESS_DECODE_CODED_INSTANCES' \
  "define TESS_DECODE_INSTANCES(X) $instances" \
  'define TESS_DECODE_CODED_INSTANCES(X) X(64, 16, 4, 32)' \
  'include "decode.cu"' >"$scratch/few.cu"
waits_before "$scratch/few.cu" decode_args
# One instance of the kernel for Ampere.
printf '#%s\n' 'undef TESS_SM80_INSTANCES' 'define TESS_SM80_INSTANCES(X) X(64, 64, 1, 1)' \
  'include "sm80.cu"' >"$scratch/few.cu"
waits_before "$scratch/few.cu" sm80_args
