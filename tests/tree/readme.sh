# SPDX-License-Identifier: Apache-2.0
# The README's C program stands in examples/embed.c to the letter, and every file that the documents
# link to exists.
. "$(dirname "$0")/common.sh"
awk '
  FNR == NR { sub(/^    /, ""); program = program $0 "\n"; next }
  /^```c$/ && !blocks { inside = 1; blocks++; next }
  /^```$/ { inside = 0 }
  inside { excerpt = excerpt $0 "\n"; lines++ }
  END { exit !(lines >= 20 && index(program, "\n" excerpt)) }
' examples/embed.c README.md || wrong "README.md: its first C block is no part of examples/embed.c"

count=0
for page in $(files '*.md'); do
  for link in $(grep -oE '\]\([^) ]+\)' "$page" | sed -E 's/^\]\(//; s/\)$//; s/#.*$//'); do
    case $link in
      http://* | https://* | mailto:* | '') continue ;;
    esac
    count=$((count + 1))
    [ -e "$(dirname "$page")/$link" ] || wrong "$page: links to $link, which does not exist"
  done
done
[ "$count" -ge 5 ] || wrong "only $count links were found"
finish "the example and $count links"
