# SPDX-License-Identifier: Apache-2.0
# newer_mesa.sh FOLDER: unpacks a lavapipe that has cooperative matrices, rusticl, which is Mesa's
# OpenCL, and the validation layer, with all libraries of theirs, below FOLDER. They come from where
# this machine's own packages come from, of a later suite. Needs no root, and nothing is installed:
# what runs there is started by run_in.sh. Skipped where the suite is not to be had.
. "$(dirname "$0")/../common/debian_suite.sh"
folder=$1
suites="trixie trixie-backports"
wanted="mesa-vulkan-drivers/trixie-backports libvulkan1 vulkan-validationlayers"
wanted="$wanted mesa-opencl-icd/trixie-backports ocl-icd-libopencl1"
skip() {
  case ",$TESSERA_REQUIRE," in *,newer_mesa,*) echo "$1"; exit 1 ;; esac
  echo "skipped: $1"
  exit 77
}

mkdir -p "$folder" || exit 1
# Several builds may test at the same time.
! command -v flock >/dev/null 2>&1 || { exec 9>"$folder.lock" && flock 9; }
[ -f "$folder/complete" ] && [ -f "$folder/opencl.icd" ] &&
  { echo "there already: $(cat "$folder/complete")"; exit 0; }
rm -rf "$folder"
mkdir -p "$folder" || exit 1
folder=$(cd "$folder" && pwd)
# shellcheck disable=SC2086
unpack_packages "$folder" "$suites" $wanted
library=$(find "$folder/root" -name libvulkan_lvp.so | head -n 1)
[ -n "$library" ] || { echo "no libvulkan_lvp.so among the packages"; exit 1; }
libraries=$(dirname "$library")
sed "s,libvulkan_lvp.so,$library," "$folder/root/usr/share/vulkan/icd.d/"lvp_icd*.json \
  >"$folder/driver.json"
mkdir -p "$folder/layers"
sed "s,libVkLayer_khronos_validation.so,$libraries/libVkLayer_khronos_validation.so," \
  "$folder/root/usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json" \
  >"$folder/layers/VkLayer_khronos_validation.json"
echo "$libraries" >"$folder/libraries"
# rusticl looks for the headers of its compiler beside the folder of the compiler's library.
echo "$libraries/libRusticlOpenCL.so.1" >"$folder/opencl.icd"
headers=$(find "$folder/root" -name opencl-c-base.h | head -n 1)
[ -n "$headers" ] || { echo "no headers of OpenCL among the packages"; exit 1; }
ln -s "${headers%/clang/*}" "$(dirname "$libraries")/lib"
sed -n 's/.*mesa-vulkan-drivers_\([^_]*\)_.*/lavapipe \1/p' "$folder/log" | head -n 1 \
  >"$folder/complete"
[ -s "$folder/complete" ] || echo "lavapipe of $suites" >"$folder/complete"
cat "$folder/complete"
