#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Compiles loops.comp and units.comp to the SPIR-V files that the build puts into the program, for
# machines without a compiler, and notes what they were made from (sources.sha256), so that a
# forgotten run is noticed. units.comp needs a newer compiler than most systems have:
# TESSERA_GLSLANG names a glslang of 16.0 or later.
set -eu
cd "$(dirname "$0")"
n=0
for name in copy read f32 f16; do
  glslc -O --target-env=vulkan1.1 -DLOOP=$n loops.comp -o $name.spv
  n=$((n + 1))
done
for type in F16 BF16; do
  ${TESSERA_GLSLANG:?names no glslang of 16.0 or later} --target-env vulkan1.1 -S comp -D$type=1 \
    --quiet -g0 -o "units_$(echo $type | tr A-Z a-z).spv" units.comp
done
sha256sum loops.comp units.comp *.spv >sources.sha256
