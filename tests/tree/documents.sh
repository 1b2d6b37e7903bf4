# SPDX-License-Identifier: Apache-2.0
# What the documents show is what the command (the third argument) does: the README's picture and
# examples, the page of settings. What they count is what there is.
. "$(dirname "$0")/common.sh"
tessera=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The caption holds the command that drew the picture.
words=$(tr '\n' ' ' <README.md | grep -oE '`tessera pattern [^`]*--svg docs/s2.svg`' |
  sed 's/^`tessera //; s/ --svg.*$//')
[ -n "$words" ] || wrong "README.md: the command that draws docs/s2.svg was not found"
$tessera $words --svg "$scratch/s2.svg" >"$scratch/out" 2>&1 ||
  wrong "tessera $words: $(cat "$scratch/out")"
cmp "$scratch/s2.svg" docs/s2.svg || wrong "docs/s2.svg: not what tessera $words draws"

count=0
for name in $($tessera info | grep -oE '\bTESSERA_[A-Z_]+' | sort -u); do
  count=$((count + 1))
  grep -q "\`$name\`" docs/settings.md || wrong "docs/settings.md: the setting $name is missing"
done
[ "$count" -ge 7 ] || wrong "only $count settings were found"

# Counts in words.
functions=$(grep -c '^TESS_API' include/tessera/tessera.h)
[ "$functions" -ge 25 ] && [ "$functions" -le 35 ] ||
  wrong "README.md: tessera.h has $functions functions, not some thirty"
grep -q 'some thirty functions' README.md ||
  wrong "README.md: how many functions there are was not found"
headers=$(ls include/tessera/*.h | wc -l)
set -- zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
shift "$headers"
grep -q "one library, $1 headers" docs/design.md ||
  wrong "docs/design.md: there are $headers headers"

# Lines of the README that begin with "tessera plan" or "tessera pattern" need no files and must run
# as they stand; tests/cli runs the others too.
grep -E '^tessera (plan|pattern|info)' README.md | sed 's/#.*//; s/^tessera //' >"$scratch/lines"
[ "$(wc -l <"$scratch/lines")" -ge 3 ] ||
  wrong "README.md: the examples of the command were not found"
while read -r line; do
  $tessera $line >"$scratch/out" 2>&1 || wrong "tessera $line: $(cat "$scratch/out")"
done <"$scratch/lines"

# The page of results holds what the files of the folder hold.
data() {
  awk '/<script type="application.json"/ { inside = 1; next } /<.script>/ { inside = 0 } inside'
}
page=$scratch/results.html
$tessera compare bench/results/*.json --assets ../bench/page --html "$page" >"$scratch/out" 2>&1 ||
  wrong "bench/results: $(cat "$scratch/out")"
! grep 'checksum is wrong' "$scratch/out" || wrong "bench/results: a file was changed by hand"
data <"$page" >"$scratch/data"
data <docs/results.html | cmp - "$scratch/data" ||
  wrong "docs/results.html: not of these files; ./dev results builds it"
finish "the picture, $count settings, the examples"
