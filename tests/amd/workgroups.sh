# SPDX-License-Identifier: Apache-2.0
# workgroups.sh FOLDER: code objects tell the driver that kernels read the number of workgroups.
# Elsewhere there would be a 0 in its place, and a workgroup that goes on by that number would never
# end (TESS_MERGE_LOOP in dialect_cuda.h).
count=0
for object in "$1"/*.co; do
  [ -f "$object" ] || { echo "skipped: no code objects in $1"; exit 77; }
  grep -a -q hidden_block_count_x "$object" ||
    { echo "$object: hidden_block_count_x is not among the arguments"; exit 1; }
  count=$((count + 1))
done
echo "$count code objects"
