# SPDX-License-Identifier: Apache-2.0
# A library named like OpenCL's loader that lies in the current directory is not loaded. Arguments:
# the folder of such a library, a program that opens devices.
set -u
folder=$1
program=$2
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$folder" || exit 1
[ -e libOpenCL.so.1 ] || { echo "there is no library in $folder"; exit 1; }
# A library that could not be loaded would prove nothing.
LD_LIBRARY_PATH=$folder LOADER_TRACE=$scratch/loaded "$program" \
  --line 'heads=1 q_len=1 head_dim=8 pattern=dense' >/dev/null 2>&1
[ -e "$scratch/loaded" ] || { echo "it is not loaded through LD_LIBRARY_PATH either"; exit 1; }
rm "$scratch/loaded"
unset LD_LIBRARY_PATH
LOADER_TRACE=$scratch/loaded "$program" --line 'heads=1 q_len=1 head_dim=8 pattern=dense' \
  >/dev/null 2>&1
[ ! -e "$scratch/loaded" ] || { echo "the library in the current directory was loaded"; exit 1; }
echo "not loaded"
