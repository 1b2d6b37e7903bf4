# SPDX-License-Identifier: Apache-2.0
# intel.sh TREE FOLDER [fetch]: what Intel's own compiler says of the kernel for its matrix engines.
# ocloc makes machine code of every instance, for each kind of GPU, and its listings tell how many
# products there are, whether registers spill, and how many reads meet in a bank of registers. With
# "fetch" it is unpacked below FOLDER, from where this machine's own packages come from, of a suite
# that has it: 300 MB. By hand: nobody has to have it.
set -u
. "$(dirname "$0")/../common/debian_suite.sh"
tree=$1
folder=$2
skip() {
  case ",${TESSERA_REQUIRE:-}," in *,ocloc,*) echo "$1"; exit 1 ;; esac
  echo "skipped: $1"
  exit 77
}
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)

# Its libraries are found by name when it runs: no package asks for them.
[ "${3:-}" != fetch ] || [ -d "$folder/root" ] ||
  unpack_packages "$folder" sid intel-ocloc libigdfcl2 libigc2
if [ -d "$folder/root" ]; then
  libraries=$(dirname "$(find "$folder/root" -name 'libocloc.so*' | head -n 1)")
  program=$(find "$folder/root/usr/bin" -name 'ocloc*' | head -n 1)
  loader=$(find "$folder/root/" -name 'ld-linux-*.so.*' | head -n 1)
  ocloc() { "$loader" --library-path "$libraries" "$program" "$@"; }
else
  command -v ocloc >/dev/null 2>&1 || skip "there is no ocloc"
fi

# compile DEVICE LANES DTYPE HEAD_DIM KEYS
compile() {
  name=$1_$3_$4
  rm -rf "$folder/$name"
  mkdir -p "$folder/$name"
  options="-cl-std=CL3.0 -cl-intel-256-GRF-per-thread -D TESS_DTYPE=$3 -D TESS_LANES=$2u"
  options="$options -D TESS_DIMS=$4u -D TESS_KEYS=$5u"
  for include in include backends/common backends/common/kernels backends/opencl/kernels; do
    options="$options -I $tree/$include"
  done
  (
    cd "$folder/$name" || exit 1
    # all of it: the listing is not written without
    export IGC_ShaderDumpEnable=1 IGC_ShaderDumpEnableAll=1 IGC_DumpToCustomDir="$folder/$name"
    ocloc compile -file "$tree/backends/opencl/kernels/intel_dpas.cl" -device "$1" \
      -options "$options" -output out >log 2>&1
  ) || { echo "$name: ocloc does not take it"; cat "$folder/$name/log"; exit 1; }
  listing=$(grep -l '^//.kernel tess_forward' "$folder/$name"/*.asm | head -n 1)
  [ -n "$listing" ] || { echo "$name: there is no listing"; exit 1; }
  products=$(grep -c '^ *dpas' "$listing")
  # S and O: keys / 8 times D / 16 each
  [ "$products" -ge $((2 * $4 / 16 * $5 / 8)) ] || { echo "$name: $products products"; exit 1; }
  if grep -q '^//.spill size\|^//.private memory size' "$listing"; then
    echo "$name: registers spill"
    grep '^//.spill\|^//.private' "$listing"
    exit 1
  fi
  echo "$name: $products products, $(sed -n 's,^//.instCount ,,p' "$listing") instructions," \
    "$(sed -n 's,^//.BankConflicts: ,,p' "$listing") bank conflicts"
  rm -f "$folder/$name"/*.ll
}
for dtype in 1 2; do
  for dims in 64 128; do
    compile dg2 8 $dtype $dims 32
    compile bmg 16 $dtype $dims 64
    compile pvc 16 $dtype $dims 64
  done
done
