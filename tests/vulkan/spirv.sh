# SPDX-License-Identifier: Apache-2.0
# spirv.sh TREE: the SPIR-V in the headers is what the kernels compile to. Without a compiler: the
# sources are those that the headers were made from. With the compiler that made them: the same
# words. With another one, whose words may differ: the kernels still compile to valid SPIR-V.
cd "$1/backends/vulkan" || exit 1
failures=0
wrong() {
  echo "$*"
  failures=$((failures + 1))
}

count=0
for header in spirv/*.h; do
  count=$((count + 1))
  sources=$(sed -n 's/^ \* source: //p' "$header")
  wanted=$(sed -n 's/^ \* sha256: //p' "$header")
  # shellcheck disable=SC2086
  [ -n "$sources" ] && hash=$(cat $sources | sha256sum | cut -d ' ' -f 1) || hash=
  [ -n "$wanted" ] && [ "$hash" = "$wanted" ] ||
    wrong "$header: its kernel changed; run backends/vulkan/spirv/generate.sh"
  # Who has no compiler for these has no validator either: it ran where they were made.
  case $header in spirv/coopmat*) grep -q '^ \* valid by: SPIRV-Tools' "$header" ||
    wrong "$header: nobody validated it" ;; esac
done
[ "$count" = 38 ] || wrong "$count headers in backends/vulkan/spirv, not 38"

if command -v glslc >/dev/null 2>&1; then
  scratch=$(mktemp -d)
  trap 'rm -rf "$scratch"' EXIT
  sh spirv/generate.sh "$scratch" || wrong "the kernels do not compile"
  for header in spirv/*.h; do
    new=$scratch/$(basename "$header")
    cmp -s "$header" "$new" && continue
    used=$(sed -n 's/^ \* compiler: //p' "$header")
    here=$(sed -n 's/^ \* compiler: //p' "$new")
    if [ "$used" = "$here" ]; then
      wrong "$header: not what generate.sh writes"
    elif command -v spirv-val >/dev/null 2>&1; then
      # generate.sh has run spirv-val.
      echo "$header: made by another compiler than the one here, whose module is valid as well"
    else
      echo "$header: made by another compiler than the one here"
    fi
  done
  compared="compiled again by $(glslc --version | head -n 1)"
else
  compared="not compiled again: there is no glslc"
fi
[ "$failures" = 0 ] || exit 1
echo "checked $count modules, $compared"
