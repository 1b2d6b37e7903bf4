# SPDX-License-Identifier: Apache-2.0
# statistics.sh TESSERA: what statistics.c, which the loader finds, prints of a portable kernel. The
# driver is RADV, which compiles for a GPU that is not there.
set -u
tessera=$1
driver=$(ls /usr/share/vulkan/icd.d/radeon_icd.*.json 2>/dev/null | head -n 1)
[ -n "$driver" ] || { echo "skipped: there is no RADV"; exit 77; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
export VK_DRIVER_FILES="$driver" VK_ICD_FILENAMES="$driver" RADV_FORCE_FAMILY=navi21 \
  TESSERA_CACHE_DIR=/dev/null TESSERA_KERNEL=vulkan/portable
# There is no memory of such a GPU, so the command fails once it has the code.
"$tessera" plan heads=8 q_len=4096 head_dim=128 dtype=f16 pattern=dense --backend vulkan \
  >"$log" 2>&1
grep -q 'no device\|not available' "$log" && { echo "skipped: this RADV needs a GPU"; exit 77; }
grep '^pipeline of [0-9]* words, constants 128 ' "$log" | grep -q '; VGPRs [1-9]' ||
  { echo "no registers of the kernel's pipeline:"; cat "$log"; exit 1; }
echo "$(grep -c '^pipeline of' "$log") pipelines"
