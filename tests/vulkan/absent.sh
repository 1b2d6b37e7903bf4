# SPDX-License-Identifier: Apache-2.0
# absent.sh TESSERA LIBRARY: where Vulkan cannot be used, `tessera info` says exactly why, and goes
# on. LIBRARY is one that is no Vulkan.
tessera=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

# expect TEXT ENVIRONMENT...
expect() {
  text=$1
  shift
  env "$@" "$tessera" info >"$scratch/out" 2>&1 || { echo "$*: tessera info failed"; failures=1; }
  grep '^  vulkan  ' "$scratch/out" | grep -q "TESS_ERROR_UNAVAILABLE: .*$text" && return
  echo "$*: '$text' is not the reason in"
  grep '^  vulkan' "$scratch/out"
  failures=1
}

ln -s "$2" "$scratch/libvulkan.so.1"
expect 'it has no vkGetInstanceProcAddr' LD_LIBRARY_PATH="$scratch"
if ldconfig -p 2>/dev/null | grep -q 'libvulkan\.so\.1'; then
  expect 'VK_ERROR_INCOMPATIBLE_DRIVER' VK_ICD_FILENAMES=/nonexistent VK_DRIVER_FILES=/nonexistent
else
  expect 'libvulkan.so.1: .*libvulkan.so: ' LANG=C
fi
[ "$failures" = 0 ] || exit 1
echo "checked the reasons"
