# SPDX-License-Identifier: Apache-2.0
# No function has more than 80 lines of code, as functions.awk counts them, no stage of a kernel and
# no macro either: longer ones hold more than one job. One exception: a portable kernel, which is
# one body for three languages and cannot hand arrays in registers to functions, may have 100 lines
# beside its stages.
. "$(dirname "$0")/common.sh"
counts=$PWD/tests/tree/functions.awk
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# too_long: of what functions.awk writes, what is over its bound.
too_long() {
  awk '{
    most = $1 == "body" && $3 ~ /^backends\/common\/kernels\// ? 100 : 80
    if ($1 == "unbalanced") print $3 ": braces that do not match"
    else if ($2 > most) print $3 ": a " $1 " of " $2 " lines, at most " most
  }'
}

# One of each kind that is a line too long, and one that is not, among things that do not count.
sample() (
  mkdir -p "$scratch/backends/common/kernels"
  cd "$scratch" || exit 1
  lines() { awk -v count="$1" -v line="$2" 'BEGIN { while (count-- > 0) print line }'; }
  statements() { lines "$1" '    f("}", x); /* { */'; }
  {
    printf 'static int wrong(int a,\n                 int b) {\n    // {\n\n#define ONE {\n'
    statements 79
    printf '}\nstruct s {\n    int right() const {\n'
    printf '#if A\n        if (a) {\n#else\n        if (b) {\n#endif\n'
    statements 75
    printf '        }\n    }\n};\n#define TWO \\\n'
    lines 79 '    f(x); \\'
    printf '    f(x)\n'
  } >a.c
  {
    printf 'TESS_A_KERNEL {\n'
    statements 78
    printf '    for (;;) {\n#include "stage.inl"\n    }\n}\n'
  } >b.comp
  statements 81 >stage.inl
  { echo 'TESS_B_KERNEL {'; statements 98; echo '}'; } >backends/common/kernels/right.inl
  { echo 'TESS_C_KERNEL {'; statements 99; echo '}'; } >backends/common/kernels/wrong.inl
  printf '%s\n' a.c b.comp stage.inl backends/common/kernels/right.inl \
    backends/common/kernels/wrong.inl | awk -f "$counts"
)
seen=$(sample | too_long | LC_ALL=C sort)
wanted='a.c:171: a macro of 81 lines, at most 80
a.c:2: a function of 81 lines, at most 80
b.comp:1: a body of 82 lines, at most 80
backends/common/kernels/wrong.inl:1: a body of 101 lines, at most 100
stage.inl: a stage of 81 lines, at most 80'
[ "$seen" = "$wanted" ] || wrong "functions.awk does not count as it should:
$seen"

files '*.c' '*.h' '*.cpp' '*.inl' '*.cu' '*.cuh' '*.hip' '*.cl' '*.comp' |
  grep -v '^backends/vulkan/spirv/' >"$scratch/files"
awk -f "$counts" <"$scratch/files" >"$scratch/counts"
long=$(too_long <"$scratch/counts")
[ -z "$long" ] || wrong "$long"
functions=$(grep -c '^function\|^body' "$scratch/counts")
stages=$(grep -c '^stage' "$scratch/counts")
[ "$functions" -ge 5000 ] || wrong "only $functions functions were found"
[ "$stages" -ge 25 ] || wrong "only $stages stages were found"
finish "$functions functions and $stages stages"
