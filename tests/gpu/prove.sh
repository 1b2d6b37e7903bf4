#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What only a machine with a GPU shows:
#
#     tests/gpu/prove.sh BUILD [BACKEND...]
#
# By default the backends are cuda, opencl and vulkan, as far as their drivers are here.
#
# The whole conformance list on every kernel of each backend, forward and gradients, the properties
# with 100 repeats, those of gradients beside other work on the device, 500 random problems, 500
# that each kernel on matrix units takes, with 100 runs and equal bits, the applications of
# tests/interop, caches and steps, examples/generate.c, and on CUDA
# compute-sanitizer's four checkers over a part of the list. BUILD is a build folder
# (build/release), or any folder that holds the programs. Prints a line for each step; exit status 1
# if one failed.
#
# TESSERA_PROVE_JOBS: shards of the list that run at once (default: half of the CPUs).
# TESSERA_PROVE_RANDOM, TESSERA_PROVE_SEED: how many random problems, and which (default 500, 1).
# TESSERA_PROVE_REPEATS: how often a step repeats; half as many random batches and four times as
# many random generations run (default 100).
# TESSERA_PROVE_ONLY=gradients: the list and properties of gradients alone.
# TESSERA_PROVE_DELAYS: the folder of a second build, of the preset `delays`, in which warps of
# Hopper's kernels wait at random: part of the list, and 100 runs of gradients with equal bits. This
# is how races of those kernels are looked for, whose arrivals racecheck does not understand.
# TESSERA_PROVE_ONLY=delays: that alone, with BUILD as the second build (`./dev delays`).
# TESSERA_PROVE_LIST: every N-th problem of gradients (default 1: all).
# TESSERA_PROVE_SANITIZE: every N-th problem of the list under compute-sanitizer (default 40, 0 for
# none).
set -u
build=${1:?usage: prove.sh BUILD [BACKEND...]}
shift
jobs=${TESSERA_PROVE_JOBS:-$(($(nproc) / 2))}
[ "$jobs" -gt 0 ] || jobs=1
every=${TESSERA_PROVE_SANITIZE:-40}
random=${TESSERA_PROVE_RANDOM:-500}
repeats=${TESSERA_PROVE_REPEATS:-100}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

program() { find "$build" -type f -name "$1" -perm -u+x 2>/dev/null | head -n 1; }
conformance=$(program conformance)
properties=$(program properties)
if [ -z "$conformance" ] || [ -z "$properties" ]; then
  echo "prove: no conformance and properties in $build" >&2
  exit 2
fi
export TESSERA_CACHE_DIR="$work/kernels"
mkdir -m 700 "$TESSERA_CACHE_DIR"

# step NAME LOG STATUS
step() {
  count=$(grep -c '\[       OK \]' "$2")
  if [ "$3" = 0 ]; then
    printf '%-44s passed (%s tests)\n' "$1" "$count"
  elif [ "$3" = 77 ]; then
    printf '%-44s skipped: %s\n' "$1" "$(tail -n 1 "$2")"
  else
    printf '%-44s FAILED (status %s)\n' "$1" "$3"
    grep -vE '\[ RUN|\[       OK' "$2" | tail -n 15
    failed=1
  fi
}

# list NAME BACKEND [OPTION...]: problems, in shards side by side
list() {
  name=$1
  target=$2
  shift 2
  n=0
  rm -f "$work"/shard-*
  while [ $n -lt "$jobs" ]; do
    mkdir -p "$work/masks-$n"
    { "$conformance" --device "$target" --masks "$work/masks-$n" --shard "$n/$jobs" "$@" \
      >"$work/shard-$n.log" 2>&1; echo $? >"$work/shard-$n.status"; } &
    n=$((n + 1))
  done
  wait
  status=0
  for file in "$work"/shard-*.status; do [ "$(cat "$file")" = 0 ] || status=$(cat "$file"); done
  cat "$work"/shard-*.log >"$work/log"
  step "$target: $name" "$work/log" "$status"
}

# matrix KERNEL TIMES: random problems for a kernel on matrix units alone, each run 100 times more.
# It takes one of TIMES: the others are float32, have few rows, or heads that are too large.
matrix() {
  list "random problems, 100 repeats" "$1" --random $((random * $2)) --seed 3 --repeats 100
  awk -v want="$random" '/ took [0-9]+ problems$/ { got += $(NF - 1); some = 1 }
    END { if (some) print "    it took " got (got < want ? ", fewer than " want : "") }' "$work/log"
}

# gradients BACKEND: the list, in both orders of additions where there are two, and 100 runs with
# equal bits while another process keeps the device busy with other sizes. On CUDA also graphs,
# other streams and a few multiprocessors, with more workgroups than run at a time, and accumulators
# past 2^31 elements.
gradients() {
  list "gradients of the list" "$1" --backward --every "${TESSERA_PROVE_LIST:-1}"
  [ "$1" != cuda ] || list "gradients of the list, in any order" "$1" --backward --any-order \
    --every "${TESSERA_PROVE_LIST:-1}"
  : >"$work/busy"
  mkdir -p "$work/masks"
  { while [ -e "$work/busy" ]; do
      "$conformance" --device "$1" --masks "$work/masks" --backward --every 7 >"$work/other" 2>&1 ||
        break
    done; } &
  TESSERA_TEST_REPEATS=100 "$properties" --device "$1" --only gradients >"$work/log" 2>&1
  status=$?
  rm -f "$work/busy"
  wait
  step "$1: properties of gradients, 100 repeats" "$work/log" $status
  [ "$1" = cuda ] || return 0
  own=$(program interop_cuda_gradients)
  if [ -n "$own" ]; then
    # A kernel that waits for ever is ended, and fails.
    TESSERA_TEST_FULL=1 TESSERA_TEST_REPEATS=100 timeout -s KILL 120 "$own" </dev/null \
      >"$work/log" 2>&1
    step "cuda: gradients from graphs and beside other work" "$work/log" $?
    grep ' multiprocessors' "$work/log" | sort -u
  fi
  TESSERA_TEST_FULL=1 "$properties" --device cuda --only gradients \
    --test 'gradients: accumulators*' >"$work/log" 2>&1
  step "cuda: accumulators past 2^31" "$work/log" $?
}

# Kernels whose warps wait at random, where such a build is given: results must be the same.
delayed() {
  [ -n "${TESSERA_PROVE_DELAYS:-}" ] || return 0
  own=$build
  cache=$TESSERA_PROVE_DELAYS/CMakeCache.txt
  if [ -e "$cache" ] && ! grep -q '^TESSERA_CUDA_OPTIONS.*TESS_DELAYS' "$cache"; then
    echo "prove: $TESSERA_PROVE_DELAYS was built without -DTESS_DELAYS" >&2
    failed=1
    return 0
  fi
  build=$TESSERA_PROVE_DELAYS
  conformance=$(program conformance)
  TESSERA_TEST_REPEATS=100 timeout -s KILL 300 "$(program properties)" --device cuda \
    --only gradients >"$work/log" 2>&1
  step "cuda: properties of gradients with delays" "$work/log" $?
  list "gradients with delays" cuda --backward --every 9
  list "gradients with delays, in any order" cuda --backward --any-order --every 9
  list "forward with delays" cuda --every 9
  build=$own
  conformance=$(program conformance)
}

# checked TOOL NAME [OPTION...]: problems under one of compute-sanitizer's tools, on the device, or
# kernel, that $sanitized names. A kernel also computes what its gradients start from: racecheck
# does not understand Hopper's.
sanitized=cuda
checked() {
  tool=$1
  name=$2
  shift 2
  mkdir -p "$work/masks"
  forward=
  case $sanitized in */*) forward=$sanitized ;; esac
  TESSERA_KERNEL=$forward compute-sanitizer --tool "$tool" --error-exitcode 9 "$conformance" \
    --device "$sanitized" --masks "$work/masks" "$@" >"$work/log" 2>&1
  step "$sanitized: compute-sanitizer $tool$name" "$work/log" $?
}

# Gradients under the sanitizer: a part of the list, and races in problems of each pattern, of the
# portable kernels and of both ways of cuda/sm80, in two passes and in one.
checked_gradients() {
  [ "$every" != 0 ] && command -v compute-sanitizer >/dev/null 2>&1 || return 0
  checked memcheck ", gradients" --backward --every "$every"
  for words in 'dense' 's2 block=16 local=2 stride=3' 'window left=40 right=0 sinks=4'; do
    checked racecheck ", gradients, ${words%% *}" --backward --line \
      "heads=4 kv_heads=2 head_dim=40 q_len=70 kv_len=90 pattern=$words"
    sanitized=cuda/sm80
    for order in '' --any-order; do
      # shellcheck disable=SC2086 # no word or one
      checked racecheck ", gradients, ${words%% *}${order:+, any order}" --backward $order --line \
        "heads=4 kv_heads=2 head_dim=72 q_len=300 kv_len=340 dtype=bf16 pattern=$words"
    done
    sanitized=cuda
  done
}

# Kernels that read steps, beside the portable ones.
step_kernels='cuda/decode cuda/sm80'

[ $# -gt 0 ] || set -- cuda opencl vulkan
if [ "${TESSERA_PROVE_ONLY:-}" = delays ]; then
  TESSERA_PROVE_DELAYS=$build
  delayed
  exit $failed
fi
if [ "${TESSERA_PROVE_ONLY:-}" = gradients ]; then
  for backend in "$@"; do gradients "$backend"; done
  case " $* " in *' cuda '*) delayed; checked_gradients ;; esac
  exit $failed
fi
for backend in "$@"; do
  list "conformance list" "$backend"
  TESSERA_TEST_REPEATS=100 "$properties" --device "$backend" >"$work/log" 2>&1
  step "$backend: properties, 100 repeats" "$work/log" $?
  gradients "$backend"
  [ "$random" = 0 ] ||
    list "$random random problems" "$backend" --random "$random" --seed "${TESSERA_PROVE_SEED:-1}"
  if [ "$random" != 0 ]; then
    case $backend in
    vulkan) matrix vulkan/coopmat 4 ;;
    opencl) matrix opencl/nv_mma 2; matrix opencl/intel_dpas 4 ;;
    esac
  fi
  for name in steps append append_wide key_parts quantised copy_pages merge_parts batches \
    generations shared far; do
    own=$(program $name)
    [ -n "$own" ] || continue
    TESSERA_TEST_REPEATS=$repeats "$own" "$backend" >"$work/log" 2>&1
    step "$backend: $name" "$work/log" $?
    case "$backend $name" in
    'cuda append_wide' | 'cuda batches' | 'cuda generations' | 'cuda shared') ;;
    *) continue ;;
    esac
    for kernel in $step_kernels; do
      TESSERA_KERNEL=$kernel TESSERA_TEST_REPEATS=$repeats "$own" "$backend" >"$work/log" 2>&1
      step "$kernel: $name" "$work/log" $?
    done
  done
  interop=$(program "interop_$backend")
  if [ -n "$interop" ]; then
    TESSERA_TEST_FULL=1 "$interop" >"$work/log" 2>&1
    step "$backend: an application's own objects" "$work/log" $?
  fi
  generate=$(program generate)
  if [ -n "$generate" ]; then
    TESSERA_BACKEND="$backend" "$generate" >"$work/log" 2>&1
    step "$backend: generation" "$work/log" $?
    grep 'without a cache' "$work/log"
  fi
done

case " $* " in *' cuda '*)
  delayed
  if [ "$every" != 0 ] && command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck initcheck synccheck; do
      checked "$tool" "" --every "$every"
    done
    checked_gradients
    serving=$(program append)
    if [ -n "$serving" ]; then
      compute-sanitizer --tool memcheck --error-exitcode 9 "$serving" cuda >"$work/log" 2>&1
      step "cuda: compute-sanitizer memcheck, append" "$work/log" $?
    fi
    # racecheck does not see that a warp's reads come before an arrival by one of its lanes (after
    # __syncwarp), which is how the kernel for Hopper gives rings back. So it looks at problems that
    # the portable kernels take alone, and delayed() at Hopper's.
    "$conformance" --masks "$work/masks" --list | grep -v 'dtype=\|mask=' |
      awk "NR % $every == 1" >"$work/lines"
    : >"$work/log"
    status=0
    while IFS= read -r line; do
      compute-sanitizer --tool racecheck --error-exitcode 9 "$conformance" --device cuda \
        --masks "$work/masks" --line "$line" >>"$work/log" 2>&1 || status=$?
    done <"$work/lines"
    step "cuda: compute-sanitizer racecheck, f32" "$work/log" $status
  else
    echo "cuda: compute-sanitizer is not here, or not wanted"
  fi ;;
esac
exit $failed
