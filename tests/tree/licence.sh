# SPDX-License-Identifier: Apache-2.0
# Every source file says its licence in its first lines (the second one where a script names its
# interpreter).
. "$(dirname "$0")/common.sh"
count=0
for file in $(files '*.c' '*.h' '*.cpp' '*.inl' '*.cmake' '*.cmake.in' '*.sh' '*.py' \
  '*CMakeLists.txt' dev .ci/run); do
  count=$((count + 1))
  head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2.0' ||
    wrong "$file: no SPDX-License-Identifier: Apache-2.0"
done
[ "$count" -ge 20 ] || wrong "only $count files were found"
grep -q 'Apache License' LICENSE && grep -q 'END OF TERMS AND CONDITIONS' LICENSE ||
  wrong "LICENSE: not the whole Apache License 2.0"
finish "$count files"
