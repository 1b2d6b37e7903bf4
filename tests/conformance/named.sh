# SPDX-License-Identifier: Apache-2.0
# What conformance does with a kernel that TESSERA_KERNEL names and that refuses f32: such problems
# are skipped with the reason, and it fails if there are no others. Nothing is left in the current
# folder. Arguments: the program, an empty folder, the kernel.
set -u
conformance=$1
kernel=$3
rm -rf "$2"
mkdir -p "$2"
cd "$2" || exit 1
export TMPDIR="$2"
line="pattern=dense heads=1 q_len=3 kv_len=20 head_dim=16"
fail() {
  echo "$1"
  cat "$2"
  exit 1
}
TESSERA_KERNEL=$kernel "$conformance" --own --device "${kernel%%/*}:0" --every 97 >list 2>&1 ||
  fail "a part of the list fails" list
grep -q '^skipped: .*f16 and bf16 only' list || fail "no problem is skipped with its reason" list
TESSERA_KERNEL=$kernel "$conformance" --own --device "${kernel%%/*}:0" --line "$line" >one 2>&1 &&
  fail "a kernel that takes nothing passes" one
grep -q "kernel $kernel took no problem at all" one || fail "it does not say why it fails" one
[ "$(ls)" = "$(printf 'list\none')" ] || { echo "left behind: $(ls)"; exit 1; }
