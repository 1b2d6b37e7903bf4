# SPDX-License-Identifier: Apache-2.0
# examples/backend, built against an installed copy and loaded by name: it passes problems of every
# pattern, and is not found unless its path is given.
. "$(dirname "$0")/common.sh"
conformance=$build/tests/conformance/conformance
[ -x "$conformance" ] || { echo "skipped: there is no conformance program in this build"; exit 77; }
[ "$(wc -l <"$source/examples/backend/loop.c")" -lt 200 ] ||
  { echo "examples/backend/loop.c has 200 lines or more"; exit 1; }
install_from "$build"
"$cmake" -S "$source/examples/backend" -B "$scratch/loop" -G "$generator" \
  -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_C_FLAGS="-Wall -Wextra -Wpedantic -Werror" \
  >"$scratch/loop.log" 2>&1 && "$cmake" --build "$scratch/loop" >>"$scratch/loop.log" 2>&1 ||
  { cat "$scratch/loop.log"; exit 1; }
cd "$scratch/loop" || exit 1
unset TESSERA_REQUIRE
run() { "$conformance" --device loop --masks "$scratch" --line "$1" >"$scratch/out" 2>&1; }

# In the current directory it is not found, however the setting names it.
for path in '' libloop.so ./libloop.so; do
  ! TESSERA_BACKEND_PATH=$path run 'heads=1 q_len=4 head_dim=8 pattern=dense' ||
    { echo "'$path' loads from the current directory"; exit 1; }
done

export TESSERA_BACKEND_PATH="$scratch/loop/libloop.so"
count=0
# Without -r: a backslash continues a line.
# shellcheck disable=SC2162
while read line; do
  count=$((count + 1))
  run "$line" || { echo "$line:"; cat "$scratch/out"; exit 1; }
  grep -q 'PASSED.* [1-9]' "$scratch/out" || { cat "$scratch/out"; exit 1; }
done <<'LINES'
pattern=dense heads=4 kv_heads=2 q_len=100 kv_len=130 head_dim=40
pattern=dense causal=0 heads=1 q_len=70 kv_len=300 head_dim=256 kv_split=3
pattern=s2 block=16 local=2 stride=3 heads=6 kv_heads=2 q_len=90 kv_len=333 head_dim=64 batch=2
pattern=s2 causal=0 block=16 local=2 local_right=1 stride=3 heads=3 q_len=90 kv_len=120 head_dim=8 \
dense_heads=1
pattern=window left=20 right=0 sinks=5 heads=2 q_len=150 kv_len=200 head_dim=24
pattern=window causal=0 left=9 right=30 heads=2 q_len=150 kv_len=100 head_dim=24 kv_split=2
pattern=s2 block=8 local=1 stride=4 heads=4 head_dim=16 q_lens=33,1,0,3 kv_lens=50,100,5,0
LINES
! run 'heads=1 q_len=4 head_dim=8 pattern=dense dtype=f16' ||
  { echo "float16 was not refused"; exit 1; }
grep -q 'float32 only' "$scratch/out" || { cat "$scratch/out"; exit 1; }
echo "$count problems in a backend of $(wc -l <"$source/examples/backend/loop.c") lines"
