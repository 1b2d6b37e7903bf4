#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Whether two libraries give the same bits:
#
#     tests/conformance/same_bits.sh CONFORMANCE OLD NEW [OPTION...]
#
# CONFORMANCE is the program, OLD and NEW are folders with a libtessera.so.0.1 each, and options go
# to the program (by default --random 500). Prints the results that differ, and how many there are.
set -u
program=${1:?usage: same_bits.sh CONFORMANCE OLD NEW [OPTION...]}
old=${2:?usage: same_bits.sh CONFORMANCE OLD NEW [OPTION...]}
new=${3:?usage: same_bits.sh CONFORMANCE OLD NEW [OPTION...]}
shift 3
[ $# -gt 0 ] || set -- --random 500
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# results FOLDER FILE OPTION...
results() {
  folder=$1
  file=$2
  shift 2
  LD_LIBRARY_PATH="$folder${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" \
    "$program" --masks "$work" --bits "$file" "$@" >"$work/log" 2>&1 && [ -s "$file" ] && return 0
  echo "same_bits: $program with the library of $folder failed" >&2
  grep -vE '\[ RUN|\[       OK' "$work/log" | tail -n 20 >&2
  return 1
}

results "$old" "$work/old" "$@" || exit 2
results "$new" "$work/new" "$@" || exit 2
if diff "$work/old" "$work/new"; then
  cut -d ' ' -f 1 "$work/new" | sort | uniq -c
  echo "all $(wc -l <"$work/new") results have the same bits"
else
  echo "the results differ"
  exit 1
fi
