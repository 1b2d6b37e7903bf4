# SPDX-License-Identifier: Apache-2.0
# Packages of another suite of Debian, unpacked below a folder. They come from where this machine's
# own packages come from. Needs no root, and nothing is installed. Sourced by scripts that define
# `skip MESSAGE`, which ends them.

# unpack_packages FOLDER SUITES PACKAGES...: unpacks them, with all packages that they need, below
# FOLDER/root. FOLDER, an absolute path, keeps apt's log.
unpack_packages() {
  folder=$1
  suites=$2
  shift 2
  command -v apt-get >/dev/null 2>&1 && command -v dpkg-deb >/dev/null 2>&1 ||
    skip "there is no apt here"
  key=/usr/share/keyrings/debian-archive-keyring.gpg
  [ -f $key ] || skip "there are no keys of Debian's archive"
  site=$(apt-get indextargets --format '$(REPO_URI)' 'Identifier: Packages' 'Origin: Debian' \
    'Component: main' 2>/dev/null | head -n 1)
  [ -n "$site" ] || skip "apt has no source of Debian's packages"
  mkdir -p "$folder/lists/partial" "$folder/archives/partial" "$folder/root" || exit 1
  for suite in $suites; do echo "deb [signed-by=$key] $site $suite main"; done >"$folder/sources"
  : >"$folder/status"
  cat >"$folder/apt.conf" <<END
Dir::State "$folder";
Dir::State::lists "$folder/lists";
Dir::State::status "$folder/status";
Dir::Cache "$folder";
Dir::Cache::archives "$folder/archives";
Dir::Etc::SourceList "$folder/sources";
Dir::Etc::SourceParts "/dev/null";
Acquire::Retries "1";
Acquire::Languages "none";
END
  export APT_CONFIG="$folder/apt.conf"
  timeout 150 apt-get -qq update >"$folder/log" 2>&1 ||
    skip "$site has no $suites, or is not reached"
  timeout 600 apt-get -qq -y --no-install-recommends --download-only install "$@" \
    >>"$folder/log" 2>&1 || skip "the packages of $suites are not to be had"
  for package in "$folder"/archives/*.deb; do dpkg-deb -x "$package" "$folder/root" || exit 1; done
  rm -rf "$folder/archives" "$folder/lists"
}
