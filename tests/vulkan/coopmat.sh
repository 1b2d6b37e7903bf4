# SPDX-License-Identifier: Apache-2.0
# coopmat.sh CONFORMANCE FOLDER MASKS PROPERTIES INTEROP: vulkan/coopmat, and beside it the portable
# kernels, on a lavapipe that has cooperative matrices (newer_mesa.sh), under the validation layer;
# on a device of an application's, too; and its properties without that. It has float16 alone.
#
# One property is left out, "large scores of another packed head": the kernel has its products in
# two places, and lavapipe, which emulates them, does not round both alike. Matrix units do.
here=$(cd "$(dirname "$0")" && pwd)
sh "$here/newer_mesa.sh" "$2" || exit $?
export VK_LAYER_PATH="$2/layers"
run() {
  sh "$here/validation.sh" "$1" "enables = $synchronization" -- \
    sh "$here/run_in.sh" "$folder" "$program" --device vulkan --masks "$masks" \
    --line "$1 dtype=f16"
}
# There are no other devices beside the drivers of FOLDER.
[ -z "${TESSERA_REQUIRE:-}" ] || export TESSERA_REQUIRE=vulkan
# Where no kernel is named to a test, it takes this one, and fails if that refuses.
export TESSERA_KERNEL=vulkan/coopmat
program=$1
folder=$2
masks=$3
properties=$4
interop=$5
s2="pattern=s2"
packed="$s2 block=3 local=2 stride=3 per_kv_head=1 heads=4 kv_heads=2 head_dim=120"
packed="$packed q_lens=64,1,0,33,3 kv_lens=64,58,5,68,0"
paged="op=decode $s2 block=16 local=2 stride=3 per_kv_head=1"
window="op=decode pattern=window left=40 right=0 sinks=4"
synchronization=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
while read -r line; do
  run "$line" || exit 1
done <<LINES
pattern=dense heads=3 q_len=70 head_dim=128
pattern=dense causal=0 heads=12 kv_heads=3 head_dim=56 q_len=63 kv_len=100 scale=-0.3 tile_rows=16
$s2 block=16 local=2 stride=3 heads=2 kv_heads=1 q_len=70 kv_len=100 head_dim=40 kv_split=2
$s2 block=5 local=1 stride=8 homo=1 heads=2 head_dim=24 q_lens=90,0,33 kv_lens=84,5,44
$packed kv_split=3
$s2 block=1 local=9 stride=7 heads=2 q_len=90 head_dim=72 batch_invariant=1
pattern=window causal=0 left=93 right=21 block=7 sinks=5 heads=2 head_dim=120 q_len=127 scale=40
pattern=window left=20 right=0 block=200 sinks=5 heads=2 kv_heads=1 head_dim=8 q_len=127
$paged heads=8 kv_heads=2 head_dim=64 batch=3 q_len=20 kv_len=300 page=16
$paged heads=4 kv_heads=1 head_dim=128 q_len=20 kv_len=200 page=32 compact=1
$paged heads=4 kv_heads=2 head_dim=64 batch=2 q_len=1 kv_len=300 page=16 kv_split=2
$window heads=8 kv_heads=2 head_dim=104 q_lens=33,7 kv_lens=150,300 page=64 kv_split=2
LINES
unset TESSERA_KERNEL
sh "$here/validation.sh" "a wrapped device" "enables = $synchronization" -- \
  sh "$here/run_in.sh" "$folder" "$interop" || exit 1
unset VK_LAYER_PATH
own() {
  sh "$here/run_in.sh" "$folder" "$properties" --device vulkan/coopmat --only "$@" || exit 1
}
own memory
own values
own cache
for title in 'repeats*' '*range*' 'batch*'; do own bits --test "$title"; done
