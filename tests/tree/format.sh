# SPDX-License-Identifier: Apache-2.0
# Sources are formatted by clang-format 14; other versions disagree in details and are not asked.
. "$(dirname "$0")/common.sh"
formatter=
for candidate in clang-format-14 clang-format; do
  if command -v $candidate >/dev/null 2>&1 && $candidate --version | grep -q 'version 14\.'; then
    formatter=$candidate
    break
  fi
done
[ -n "$formatter" ] || { echo "skipped: clang-format 14 is missing"; exit 77; }
# shellcheck disable=SC2046
$formatter --dry-run -Werror $(files '*.c' '*.h' '*.cpp' '*.inl' '*.cu' '*.cuh' '*.hip' '*.cl') ||
  wrong "run ./dev format"
finish "the format"
