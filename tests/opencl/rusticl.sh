# SPDX-License-Identifier: Apache-2.0
# rusticl.sh CONFORMANCE FOLDER MOVED_FILES: the portable kernels on rusticl, an OpenCL that is not
# PoCL: another compiler, with subgroups and float16, on the same processor. It comes with the Mesa
# of tests/vulkan/newer_mesa.sh, and is skipped where that is not to be had.
here=$(cd "$(dirname "$0")/../vulkan" && pwd)
sh "$here/newer_mesa.sh" "$2" || exit $?
program=$1
folder=$2
export RUSTICL_ENABLE=llvmpipe TESSERA_TEST_ROOT="$folder/root" TESSERA_TEST_PRELOAD="$3"
# There are no other devices beside it.
[ -z "${TESSERA_REQUIRE:-}" ] || export TESSERA_REQUIRE=opencl
run() {
  sh "$here/run_in.sh" "$folder" "$program" --device "$1" --line "$2" || exit 1
}
s2="pattern=s2 block=16 local=2 stride=3"
run opencl/portable "$s2 heads=4 kv_heads=2 q_len=70 kv_len=100 head_dim=40 kv_split=2 dtype=bf16"
[ "${TESSERA_TEST_FULL:-}" != 1 ] ||
  run opencl/portable_small "pattern=dense heads=2 q_len=70 head_dim=128 dtype=f16"
run opencl/portable "op=decode pattern=window left=20 right=0 heads=4 kv_heads=2 kv_len=200 \
head_dim=64 page=16"
