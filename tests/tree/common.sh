# SPDX-License-Identifier: Apache-2.0
# Shared by the checks of the tree: the list of source files, and how a check reports. A check
# begins with `. common.sh` and ends with `finish`.
cd "$1" || exit 1
failures=0

# Files of the tree; from git where there is a repository, since build folders and editors leave
# things behind.
files() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git -c safe.directory='*' ls-files "$@"
  else
    for pattern in "$@"; do
      find . -path ./build -prune -o -name "$pattern" -type f -print | sed 's|^\./||'
    done
  fi
}

wrong() {
  echo "$*"
  failures=$((failures + 1))
}

finish() {
  [ "$failures" = 0 ] || { echo "$failures found"; exit 1; }
  echo "checked $*"
}
