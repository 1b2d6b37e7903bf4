# SPDX-License-Identifier: Apache-2.0
# No source file grows past 900 lines, and the README stays under 200: longer ones hold more than
# one job. What is generated is left out.
. "$(dirname "$0")/common.sh"
count=0
for file in $(files '*.c' '*.h' '*.cpp' '*.inl' '*.cmake' '*.sh' dev); do
  case $file in backends/vulkan/spirv/*.h) continue ;; esac
  lines=$(wc -l <"$file")
  count=$((count + 1))
  [ "$lines" -le 900 ] || wrong "$file: $lines lines, at most 900"
done
[ "$count" -ge 20 ] || wrong "only $count files were found"
lines=$(wc -l <README.md)
[ "$lines" -le 200 ] || wrong "README.md: $lines lines, at most 200"
finish "$count files"
