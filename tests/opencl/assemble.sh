# SPDX-License-Identifier: Apache-2.0
# The kernel for NVIDIA's tensor cores without NVIDIA's compiler for OpenCL: clang makes PTX of
# every instance, and where ptxas is here, it assembles that without spills. Arguments: the source
# tree, the shapes as "head_dim, tiles, keys, held:...", a folder for files.
set -u
tree=$1
shapes=$2
scratch=$3
mkdir -p "$scratch"
cd "$scratch" || exit 1
for clang in clang-19 clang-18 clang-17 clang-16 clang-15 clang-14 clang ''; do
  [ -n "$clang" ] || { echo "skipped: no clang that makes PTX"; exit 77; }
  command -v "$clang" >/dev/null 2>&1 && "$clang" --print-targets 2>/dev/null | grep -q nvptx64 &&
    break
done
ptxas=$(command -v ptxas || ls /usr/local/cuda/bin/ptxas 2>/dev/null)

# What NVIDIA's compiler knows by itself.
cat >builtins.h <<'BUILTINS'
#define get_local_id(n)   ((size_t)__nvvm_read_ptx_sreg_tid_x())
#define get_group_id(n)   ((n) ? 0 : (size_t)__nvvm_read_ptx_sreg_ctaid_x())
#define get_num_groups(n) ((size_t)__nvvm_read_ptx_sreg_nctaid_x())
#define barrier(fence)    __nvvm_bar_sync(0)
#define min(a, b)         ((a) < (b) ? (a) : (b))
#define max(a, b)         ((a) > (b) ? (a) : (b))
BUILTINS

# assemble DTYPE HEAD_DIM TILES KEYS HELD
assemble() {
  name=$1_$2
  "$clang" -x cl -cl-std=CL3.0 -target nvptx64-nvidia-nvcl -O3 -S -o "$name.ptx" \
    -Xclang -target-cpu -Xclang sm_80 -Xclang -target-feature -Xclang +ptx70 \
    -Xclang -finclude-default-header -include builtins.h -D TESS_FORWARD_ALONE \
    -D TESS_DTYPE="$1" -D TESS_DIMS="$2"u -D TESS_TILES="$3"u -D TESS_KEYS="$4"u \
    -D TESS_HELD="$5"u -I "$tree/include" -I "$tree/backends/common" \
    -I "$tree/backends/common/kernels" "$tree/backends/opencl/kernels/nv_mma.cl" ||
    { echo "$name: $clang does not take it"; exit 1; }
  # each fragment of K or V serves all tiles: D / 16 * keys / 8 products for S, and as many for O
  products=$(grep -c 'mma\.sync\.aligned\.m16n8k16' "$name.ptx")
  [ "$products" -eq $((2 * $3 * $2 / 16 * $4 / 8)) ] ||
    { echo "$name: $products products"; exit 1; }
  if grep -q 'ld\.local\|st\.local' "$name.ptx"; then
    echo "$name: arrays are not in registers"
    exit 1
  fi
  [ -n "$ptxas" ] || return 0
  "$ptxas" -v -arch=sm_80 -o "$name.cubin" "$name.ptx" >"$name.log" 2>&1 ||
    { cat "$name.log"; exit 1; }
  grep -q ' 0 bytes spill stores, 0 bytes spill loads' "$name.log" ||
    { echo "$name: registers spill"; cat "$name.log"; exit 1; }
  echo "$name: $(sed -n 's/.*\(Used [0-9]* registers\).*/\1/p' "$name.log")"
}

count=0
while read -r shape; do
  for dtype in 1 2; do
    assemble $dtype $(echo "$shape" | tr -d ,) || exit 1
    count=$((count + 1))
  done
done <<SHAPES
$(echo "$shapes" | tr : '\n')
SHAPES
echo "$count instances by $clang, ${ptxas:-without ptxas}"
