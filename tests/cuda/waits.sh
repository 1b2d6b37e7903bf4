# SPDX-License-Identifier: Apache-2.0
# waits.sh TREE NVCC: in the code of merge kernels and of the kernel for Ampere for sm_90, which the
# host launches before earlier kernels have ended, what those may still write is neither touched
# before the wait nor loaded as if it were constant. Only the plan's tables are, which are words of
# 32 bits. The waits of steps of the first one are left out: their tables come from a kernel and may
# have too few items for a workgroup.
tree=$1
nvcc=$2
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

# The same of others, whose loads of tables are not told apart: none has more than a word before the
# wait, and what follows it has `wide` ones.
waits_before() { # FILE WIDE
  "$nvcc" -O3 -I"$tree/include" -I"$common" -I"$common/kernels" -I"$tree/backends/cuda/kernels" \
    -ptx -arch=sm_90 -o "$scratch/few.ptx" "$1" || exit 1
  awk -v wide="$2" '
    function check_entry() {
      if (waits == 2 && loads) return
      print waits + 0 " waits, " loads + 0 " loads"
      wrong = 1
    }
    /\.entry/ {
      if (entries++) check_entry()
      waits = loads = 0
    }
    /griddepcontrol\.wait/ { waits++ }
    /(ld|st|atom|red|cp\.async.*)\.global/ {
      if (waits < 2 && !/ld\.global\.[bu](16|32)/) { print "before the wait: " $0; wrong = 1 }
      if (/\.nc\./) { print "as if it were constant: " $0; wrong = 1 }
      if (waits > 1 && $0 ~ wide) loads++
    }
    END {
      check_entry()
      exit wrong
    }' "$scratch/few.ptx" || exit 1
}
printf '#%s\n' 'include "decode_merge.cuh"' >"$scratch/few.cu"
printf 'TESS_DECODE_MERGE(bf16)\n' >>"$scratch/few.cu"
waits_before "$scratch/few.cu" 'ld[.]global[.]v4'
# One instance of the kernel for Ampere.
printf '#%s\n' 'include "sm80_args.h"' 'undef TESS_SM80_INSTANCES' \
  'define TESS_SM80_INSTANCES(X) X(64, 64, 1, 1)' 'include "sm80.cu"' >"$scratch/few.cu"
waits_before "$scratch/few.cu" 'cp[.]async.*global'
