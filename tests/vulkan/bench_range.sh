# SPDX-License-Identifier: Apache-2.0
# bench_range.sh COMMAND: keys that one binding of the device cannot hold are a problem that the
# bench suite reports as refused, with the reason, and no failure of the run.
set -u
command=$1
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT
"$command" bench op=decode heads=4 kv_len=4096 head_dim=64 pattern=dense --backends vulkan,cpu \
  --budget 1 --no-ceilings --no-planning --csv "$out/r.csv" >"$out/text" 2>&1
code=$?
if [ "$code" != 0 ] || ! grep -q '^"refused".*maxStorageBufferRange is 65536' "$out/r.csv"; then
  cat "$out/text" "$out/r.csv"
  echo "exit status $code; expected 0 and a refused result"
  exit 1
fi
