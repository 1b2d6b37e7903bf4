# SPDX-License-Identifier: Apache-2.0
# The library given as the second argument exports exactly the functions that tessera.h declares; a
# static one defines no global name outside tess_.
. "$(dirname "$0")/common.sh"
library=$2
case $library in
  *.a)
    bad=$(nm -g --defined-only "$library" | awk 'NF == 3 && $3 !~ /^tess_/ { print $3 }')
    [ -z "$bad" ] || wrong "$library defines names outside tess_:
$bad" ;;
  *)
    exported=$(nm -D --defined-only "$library" |
      awk '$2 != "A" { sub(/@.*/, "", $3); print $3 }' | sort -u)
    declared=$(${CC:-cc} -E -P -Iinclude include/tessera/tessera.h | grep 'visibility' |
      grep -oE '\btess_[a-z0-9_]+[[:space:]]*\(' | tr -d ' (' | sort -u)
    [ "$(echo "$declared" | wc -l)" -ge 25 ] ||
      wrong "only these declarations were found: $declared"
    bad=$(echo "$exported" | grep -vxF "$declared")
    [ -z "$bad" ] || wrong "exported, but not in tessera.h:
$bad"
    bad=$(echo "$declared" | grep -vxF "$exported")
    [ -z "$bad" ] || wrong "declared in tessera.h, but not exported:
$bad"
    readelf -d "$library" | grep -q 'SONAME.*libtessera\.so\.[0-9]' ||
      wrong "$library has no soname" ;;
esac
finish "$library"
