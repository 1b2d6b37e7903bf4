# SPDX-License-Identifier: Apache-2.0
# The release build, installed: libraries, headers, command.
. "$(dirname "$0")/common.sh"
install_from "$build"
by_cmake
by_pkg_config
for file in include/tessera/tessera.h include/tessera/tessera_serving.h \
  include/tessera/tessera_backward.h include/tessera/tessera_backend.h \
  include/tessera/tessera_tables.h \
  include/tessera/tessera_job_words.h include/tessera/tessera_key_walk.h \
  include/tessera/tessera_column_walk.h include/tessera/tessera_turns.h \
  include/tessera/tessera_cuda.h include/tessera/tessera_hip.h include/tessera/tessera_opencl.h \
  include/tessera/tessera_vulkan.h bin/tessera; do
  [ -e "$scratch/prefix/$file" ] || { echo "$file was not installed"; exit 1; }
done
"$scratch/prefix/bin/tessera" --version
others=$(find "$scratch/prefix/include" -type f ! -path '*/include/tessera/tessera*.h')
[ -z "$others" ] || { echo "private headers were installed: $others"; exit 1; }
ldd "$scratch/embed" | grep -q "$libdir/libtessera.so" ||
  { echo "the example does not use the installed library"; exit 1; }
