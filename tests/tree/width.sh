# SPDX-License-Identifier: Apache-2.0
# No line is wider than 100 columns. Documents are allowed their tables, the targets of links, and
# what a fence or an indent shows as it was printed. The generated headers of SPIR-V have 200 words
# a line: nobody reads them, and short lines would be nine thousand.
. "$(dirname "$0")/common.sh"
widest=100

# too_wide page|source FILE: each line over the bound. A character counts once, however many bytes
# it takes, so the bytes that continue one are removed first.
too_wide() {
  LC_ALL=C tr -d '\200-\277' <"$2" | LC_ALL=C awk -v kind="$1" -v file="$2" -v widest="$widest" '
    kind == "page" && /^[[:space:]]*```/ { fenced = !fenced; next }
    kind == "page" && (fenced || /^(    |\t|[[:space:]]*\|)/) { next }
    {
      line = $0
      if (kind == "page") gsub(/\]\([^)]*\)|<https?:[^>]*>/, "", line)
      if (length(line) > widest)
        print file ":" NR ": " length($0) " columns, at most " widest
    }'
}

count=0
for file in $(files '*.c' '*.h' '*.cpp' '*.inl' '*.cu' '*.cuh' '*.hip' '*.cl' '*.comp' '*.py' \
  '*.sh' '*.cmake' '*.cmake.in' '*CMakeLists.txt' '*.md' dev .ci/run); do
  kind=source
  case $file in
    backends/vulkan/spirv/*.h) continue ;;
    *.md) kind=page ;;
  esac
  count=$((count + 1))
  lines=$(too_wide "$kind" "$file")
  [ -z "$lines" ] || wrong "$lines"
done
[ "$count" -ge 300 ] || wrong "only $count files were found"
finish "the width of $count files"
