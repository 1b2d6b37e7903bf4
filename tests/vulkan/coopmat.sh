# SPDX-License-Identifier: Apache-2.0
# coopmat.sh CONFORMANCE FOLDER MASKS PROPERTIES INTEROP: vulkan/coopmat on a lavapipe that has
# cooperative matrices (newer_mesa.sh), under the validation layer: every second problem of the
# conformance list that it takes, and on a device of an application's. Its properties run without
# that layer. This driver has float16 alone. It takes 20 s to compile the shape for a head_dim up to
# 128, which differs from that up to 64 in one constant, so only TESSERA_TEST_FULL=1 runs it, and
# all problems of the list.
#
# One property is left out, "large scores of another packed head": the kernel has its products in
# two places, and lavapipe, which emulates them, does not round both alike. Matrix units do.
here=$(cd "$(dirname "$0")" && pwd)
sh "$here/newer_mesa.sh" "$2" || exit $?
export VK_LAYER_PATH="$2/layers"
synchronization=VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT
validated() {
  title=$1
  shift
  sh "$here/validation.sh" "$title" "enables = $synchronization" -- \
    sh "$here/run_in.sh" "$folder" "$@"
}
# There are no other devices beside the drivers of FOLDER.
[ -z "${TESSERA_REQUIRE:-}" ] || export TESSERA_REQUIRE=vulkan
program=$1
folder=$2
masks=$3
properties=$4
interop=$5
if [ "${TESSERA_TEST_FULL:-}" = 1 ]; then
  every=1 least=70 dims="120 128 64 104"
else
  every=2 least=18 dims="56 64 48 40"
  export TESSERA_TEST_HEAD_DIM=64
fi
found=$(validated "the list" "$program" --device vulkan/coopmat --every $every --masks "$masks")
status=$?
echo "$found"
[ "$status" = 0 ] || exit 1
# Those of float16 and a head_dim up to 128 or 64. One that refuses more is found here.
took=$(echo "$found" | sed -n 's,^vulkan/coopmat took \([0-9]*\) problems$,\1,p')
[ "${took:-0}" -ge $least ] ||
  { echo "the list has $least problems for this kernel at least"; exit 1; }
# What the list has of other types or not at all: pages, few rows, merges, large blocks and scores.
# Here the device has its choice, which this makes the kernel: it fails if that refuses.
export TESSERA_KERNEL=vulkan/coopmat
paged="op=decode pattern=s2 block=16 local=2 stride=3 per_kv_head=1"
window="op=decode pattern=window left=40 right=0 sinks=4"
# shellcheck disable=SC2086
set -- $dims
while read -r line; do
  validated "$line" "$program" --device vulkan --masks "$masks" --line "$line dtype=f16" || exit 1
done <<LINES
pattern=window causal=0 left=93 right=21 block=200 sinks=5 heads=2 head_dim=$1 q_len=127 scale=40
$paged heads=4 kv_heads=1 head_dim=$2 q_len=20 kv_len=200 page=32 compact=1
$paged heads=4 kv_heads=2 head_dim=$3 batch=2 q_len=1 kv_len=300 page=16 kv_split=2
$window heads=8 kv_heads=2 head_dim=$4 q_lens=33,7 kv_lens=150,300 page=64 kv_split=2
LINES
unset TESSERA_KERNEL
validated "a wrapped device" "$interop" || exit 1
unset VK_LAYER_PATH
own() {
  sh "$here/run_in.sh" "$folder" "$properties" --device vulkan/coopmat --only "$@" || exit 1
}
own memory
own values
own cache
for title in 'repeats*' '*range*' 'batch*'; do own bits --test "$title"; done
