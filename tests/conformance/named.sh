# SPDX-License-Identifier: Apache-2.0
# What conformance does with a kernel that TESSERA_KERNEL names and that refuses f32: such problems
# are skipped with the reason, and it fails if there are no others, but not where --every has left
# them out. A kernel without gradients is skipped, one that does not exist fails. Nothing is left in
# the current folder. Arguments: the program, an empty folder, the kernel, one without gradients.
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
TESSERA_KERNEL=$kernel "$conformance" --own --device "${kernel%%/*}:0" --every 499 >thin 2>&1 ||
  fail "a list without problems for the kernel fails" thin
grep -q "$kernel took 0 problems" thin || fail "the thinned list has a problem for the kernel" thin
gradients="$line dtype=f16"
TESSERA_KERNEL=$4 "$conformance" --own --device "${4%%/*}:0" --backward --line "$gradients" \
  >backward 2>&1 || fail "a kernel without gradients fails" backward
grep -q "skipped: $4 has no gradients" backward || fail "it does not say what is missing" backward
TESSERA_KERNEL=${kernel}x "$conformance" --own --device "${kernel%%/*}:0" --line "$gradients" \
  >unknown 2>&1 && fail "a kernel that does not exist passes" unknown
[ "$(ls | tr '\n' ' ')" = "backward list one thin unknown " ] ||
  { echo "left behind: $(ls)"; exit 1; }
