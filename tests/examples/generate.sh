#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# generate.sh PROGRAM BACKEND: runs examples/generate.c, which compares with the same model without
# a cache. It is skipped where the backend has no device and is not required.
set -u
program=$1
TESSERA_BACKEND=$2
export TESSERA_BACKEND
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$program" >"$scratch/out" 2>"$scratch/error"
status=$?
cat "$scratch/out" "$scratch/error"
if grep -q TESS_ERROR_UNAVAILABLE "$scratch/error"; then
  case ",${TESSERA_REQUIRE:-}," in *",$2,"*) exit 1 ;; *) exit 77 ;; esac
fi
[ $status -eq 0 ] || exit 1
# Five sequences came to their end, and one of them was rolled back.
[ "$(grep -c 'without a cache' "$scratch/out")" -eq 5 ] || { echo "5 checks are wanted"; exit 1; }

"$program" --help | grep -q '^usage: generate' || { echo "--help has no usage"; exit 1; }
"$program" nonsense 2>"$scratch/error"
[ $? -eq 2 ] || { echo "a wrong argument should exit with 2"; exit 1; }
grep -q 'nonsense' "$scratch/error" || { echo "the wrong argument is not named"; exit 1; }
