#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate.sh PROGRAM BACKEND [OPTION...]: runs examples/generate.c, which compares with the same
# model without a cache. It is skipped where the backend has no device and is not required.
set -u
program=$1
TESSERA_BACKEND=$2
export TESSERA_BACKEND
shift 2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$program" "$@" >"$scratch/out" 2>"$scratch/error"
status=$?
cat "$scratch/out" "$scratch/error"
if grep -q TESS_ERROR_UNAVAILABLE "$scratch/error"; then
  case ",${TESSERA_REQUIRE:-}," in *",$TESSERA_BACKEND,"*) exit 1 ;; *) exit 77 ;; esac
fi
[ $status -eq 0 ] || exit 1
# Five sequences came to their end, and one of them was rolled back.
[ "$(grep -c 'without a cache' "$scratch/out")" -eq 5 ] || { echo "5 checks are wanted"; exit 1; }

"$program" --help | grep -q '^usage: generate' || { echo "--help has no usage"; exit 1; }
for wrong in nonsense "--kv-split" "--kv-split 4097" "--kv-split 1x"; do
  # shellcheck disable=SC2086
  "$program" $wrong 2>"$scratch/error"
  [ $? -eq 2 ] || { echo "$wrong should exit with 2"; exit 1; }
  grep -q "^generate: ${wrong%% *}: " "$scratch/error" || { echo "$wrong is not named"; exit 1; }
done
