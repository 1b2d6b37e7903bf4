# SPDX-License-Identifier: Apache-2.0
# validation.sh LABEL SETTING... -- COMMAND...: runs the command under the validation layer with
# these settings (lines of vk_layer_settings.txt without the layer's name), and fails on any
# message. Without the layer it is skipped.
label=$1
shift
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
layer=khronos_validation
found=
for folder in /usr/share /usr/local/share /etc ${VULKAN_SDK:+"$VULKAN_SDK/share"}; do
  ls "$folder"/vulkan/explicit_layer.d/*"$layer".json >/dev/null 2>&1 && found=1
done
ls "${VK_LAYER_PATH:-/nonexistent}"/*"$layer".json >/dev/null 2>&1 && found=1
[ -n "$found" ] || { echo "skipped: the validation layer is not installed"; exit 77; }
{
  echo "$layer.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG"
  echo "$layer.log_filename = $scratch/messages"
  echo "$layer.report_flags = error,warn,perf"
  while [ "$1" != -- ]; do
    echo "$layer.$1"
    shift
  done
} >"$scratch/vk_layer_settings.txt"
shift

export VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=$scratch
"$@" >"$scratch/output" 2>&1
status=$?
[ "$status" = 0 ] ||
  { tail -n 40 "$scratch/output"; echo "exit status $status under validation"; exit 1; }
# The log names the layer's own start or nothing at all; what a finding always holds is the word
# "Validation".
grep -a -c 'Validation\|VUID\|UNASSIGNED\|SYNC-HAZARD' "$scratch/messages" >"$scratch/count" \
  2>/dev/null
if [ -s "$scratch/messages" ]; then
  sort "$scratch/messages" | uniq -c | sort -rn | head -n 20
  echo "$label: messages of the validation layer"
  exit 1
fi
grep -a ' took [0-9]* problems$' "$scratch/output"
echo "$label: no message"
