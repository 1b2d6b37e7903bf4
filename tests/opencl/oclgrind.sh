# SPDX-License-Identifier: Apache-2.0
# The kernels in Oclgrind, a simulator that checks every access to memory, finds data races, and
# checks calls of the API: 0 messages on a subset of problems with every pattern and type.
# Arguments: the conformance program, a folder for files.
set -u
conformance=$1
scratch=$2
icd=$(find /usr/lib /usr/local/lib -name 'liboclgrind-rt-icd.so' 2>/dev/null | head -n 1)
if [ -z "$icd" ] || ! command -v oclgrind-kernel >/dev/null 2>&1; then
  echo "skipped: oclgrind is missing"
  exit 77
fi
mkdir -p "$scratch"
cd "$scratch" || exit 1

# A simulator that finds nothing in a wrong kernel would prove nothing.
cat >wrong.cl <<'KERNEL'
__kernel void wrong(__global int *a, __local int *l) {
  l[get_local_id(0)] = 1;
  a[get_global_id(0) + 1] = l[3 - get_local_id(0)];
}
KERNEL
printf 'wrong.cl\nwrong\n4 1 1\n4 1 1\n<size=16 fill=0>\n<size=16>\n' >wrong.sim
oclgrind-kernel --data-races wrong.sim >wrong.log 2>&1
for what in 'Invalid write' 'data race'; do
  grep -q "$what" wrong.log ||
    { echo "oclgrind does not find '$what' in a wrong kernel:"; cat wrong.log; exit 1; }
done

# By its own loader setting, so that no other driver is in the way; and no binaries, which are not
# its own.
export OCL_ICD_VENDORS="$icd" TESSERA_CACHE_DIR=/dev/null TESSERA_REQUIRE=opencl \
  OCLGRIND_DATA_RACES=1 OCLGRIND_CHECK_API=1 OCLGRIND_LOG="$scratch/messages"
unset TESSERA_BACKEND TESSERA_KERNEL
count=0
while read -r line; do
  count=$((count + 1))
  rm -f messages
  "$conformance" --device opencl --masks "$scratch" --line "$line" >run.log 2>&1 ||
    { echo "$line: failed"; cat run.log; cat messages; exit 1; }
  [ ! -s messages ] || { echo "$line: Oclgrind says:"; head -n 40 messages; exit 1; }
done <<'LINES'
pattern=dense heads=1 q_len=37 kv_len=61 head_dim=24
pattern=dense causal=0 heads=2 kv_heads=1 q_len=9 kv_len=70 head_dim=40 dtype=bf16 kv_split=2
pattern=s2 block=16 local=1 stride=2 heads=2 q_len=50 kv_len=75 head_dim=16 dtype=f16
pattern=s2 block=8 local=2 stride=3 heads=4 kv_heads=2 q_len=1 kv_len=90 head_dim=72 kv_split=3
pattern=s2 block=16 causal=0 local=1 local_right=2 stride=2 heads=2 q_len=33 kv_len=40 head_dim=8
pattern=window left=10 right=0 sinks=3 block=16 heads=2 q_len=40 kv_len=45 head_dim=136 dtype=bf16
pattern=window causal=0 left=5 right=7 block=16 heads=1 q_len=30 kv_len=20 head_dim=248 dtype=f16
pattern=s2 block=16 local=1 stride=2 heads=3 head_dim=16 q_lens=20,1,0,3 kv_lens=20,37,5,0 dtype=f16
LINES
echo "$count problems without a message"
